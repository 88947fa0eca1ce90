"""Many clients at once, over real HTTP: half speak JSON, half binary tensors."""

from __future__ import annotations

import http.client
import json
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CLIENTS = 20
ANSWER_S = 30.0  # limit: a call that takes longer is a failure


@dataclass(frozen=True)
class Ask:
    """One call: one row for one model.

    Attributes:
        shape: Shape of the row, leading 1.
        row: Little-endian FP32 bytes.
        trace: The caller's W3C trace id, 32 hex digits.
        subject: Whom it is about, or ``""``.
    """

    model: str
    input: str
    output: str
    shape: tuple[int, ...]
    row: bytes
    trace: str
    subject: str = ""


@dataclass(frozen=True)
class Reply:
    ask: Ask
    call: str
    scores: tuple[float, ...]
    binary: bool


def call_all(port: int, asks: Sequence[Ask], clients: int = CLIENTS) -> list[Reply]:
    """Send every call, shared out among clients that start together; replies in order of ``asks``.

    Raises:
        RuntimeError: A client met anything but a right answer.
    """
    replies: list[Reply | None] = [None] * len(asks)
    failures: list[str] = []
    together = threading.Barrier(clients)

    def client(number: int) -> None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
            together.wait(ANSWER_S)
            for position in range(number, len(asks), clients):
                replies[position] = call(connection, asks[position], binary=number % 2 == 1)
            connection.close()
        except Exception as error:
            failures.append(f"client {number}: {error!r}")
            together.abort()

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])
    return [reply for reply in replies if reply is not None]


def call(connection: http.client.HTTPConnection, ask: Ask, *, binary: bool) -> Reply:
    """One call over a connection that stays open."""
    body, headers = encode_binary(ask) if binary else encode_json(ask)
    headers["traceparent"] = f"00-{ask.trace}-{ask.trace[:16]}-01"
    connection.request("POST", f"/v2/models/{ask.model}/infer", body, headers)
    answer = connection.getresponse()
    raw = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{ask.model}: expected 200, got {answer.status}: {raw[:500]!r}")
    split = answer.getheader("inference-header-content-length")
    scores = decode_binary(raw, int(split)) if split else decode_json(raw)
    return Reply(ask, answer.getheader("pellucid-call") or "", scores, binary)


def encode_json(ask: Ask) -> tuple[bytes, dict[str, str]]:
    values = list(struct.unpack(f"<{len(ask.row) // 4}f", ask.row))
    tensor = {"name": ask.input, "datatype": "FP32", "shape": ask.shape, "data": values}
    body = json.dumps(_request(ask, tensor)).encode()
    return body, {"content-type": "application/json"}


def encode_binary(ask: Ask) -> tuple[bytes, dict[str, str]]:
    parameters = {"binary_data_size": len(ask.row)}
    tensor = {"name": ask.input, "datatype": "FP32", "shape": ask.shape, "parameters": parameters}
    request = _request(ask, tensor)
    request["outputs"] = [{"name": ask.output, "parameters": {"binary_data": True}}]
    head = json.dumps(request).encode()
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(head)),
    }
    return head + ask.row, headers


def _request(ask: Ask, tensor: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"inputs": [tensor]}
    if ask.subject:
        request["parameters"] = {"subject": ask.subject}
    return request


def decode_json(raw: bytes) -> tuple[float, ...]:
    return tuple(json.loads(raw)["outputs"][0]["data"])


def decode_binary(raw: bytes, split: int) -> tuple[float, ...]:
    size = json.loads(raw[:split])["outputs"][0]["parameters"]["binary_data_size"]
    return struct.unpack(f"<{size // 4}f", raw[split : split + size])
