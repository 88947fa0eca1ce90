"""The ways to ask: JSON, binary tensors, shared memory and gRPC; one fixed body each, and its check.

An answer counts only if it says what bare ONNX Runtime says. gRPC messages are written and read by hand:
the load tool needs bytes, and every server gets the same ones.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

FORMS: Final = ("json", "binary", "shm", "grpc")
TOLERANCE: Final = 1e-5
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
SHM: Final = Path("/dev/shm")
PATIENCE_S: Final = 60


class NotOfferedError(Exception):
    """The server does not speak this form; what it said."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One fixed request.

    Attributes:
        body: File of the request's body; for gRPC of the framed message.
        head: Length of the JSON head when binary tensors follow.
    """

    model: str
    form: str
    body: Path
    head: int | None = None

    @property
    def path(self) -> str:
        return METHOD if self.form == "grpc" else f"/v2/models/{self.model}/infer"

    @property
    def headers(self) -> dict[str, str]:
        if self.head is None:
            return {"content-type": "application/json"}
        return {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(self.head),
        }


def write_asks(models: Path) -> dict[tuple[str, str], Ask]:
    """All bodies, beside the models' files."""
    asks = {}
    for file in sorted(models.glob("*.onnx")):
        name = file.stem
        item = json.loads((models / f"{name}.json").read_bytes())["inputs"][0]
        values = np.load(models / f"{name}.npy").tobytes()
        answer = np.load(models / f"{name}.expected.npy").nbytes
        binary = _binary(item, values)
        bodies = {
            "json": (models / f"{name}.json").read_bytes(),
            "binary": binary + values,
            "shm": _shared(name, item, len(values), answer),
            "grpc": _framed(name, item, values),
        }
        for form, body in bodies.items():
            path = models / f"{name}.{form}"
            path.write_bytes(body)
            asks[name, form] = Ask(name, form, path, len(binary) if form == "binary" else None)
    return asks


def _binary(item: dict[str, Any], values: bytes) -> bytes:
    tensor = {k: v for k, v in item.items() if k != "data"} | {
        "parameters": {"binary_data_size": len(values)}
    }
    head = {"id": "bench", "parameters": {"binary_data_output": True}, "inputs": [tensor]}
    return json.dumps(head, separators=(",", ":")).encode()


def _shared(model: str, item: dict[str, Any], size: int, answer: int) -> bytes:
    def where(region: str, length: int) -> dict[str, Any]:
        return {"shared_memory_region": region, "shared_memory_byte_size": length}

    tensor = {k: v for k, v in item.items() if k != "data"} | {"parameters": where(f"{model}-in", size)}
    output = {
        "name": "probs" if model == "mlp30" else "logits",
        "parameters": where(f"{model}-out", answer),
    }
    return json.dumps(
        {"id": "bench", "inputs": [tensor], "outputs": [output]}, separators=(",", ":")
    ).encode()


# Protocol buffers, as much of them as two messages need


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _framed(model: str, item: dict[str, Any], values: bytes) -> bytes:
    shape = b"".join(_varint(size) for size in item["shape"])
    tensor = _field(1, item["name"].encode()) + _field(2, b"FP32") + _field(3, shape)
    message = _field(1, model.encode()) + _field(3, b"bench") + _field(5, tensor) + _field(7, values)
    return struct.pack(">BI", 0, len(message)) + message


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            number()
        else:
            assert tag & 7 == 2, f"wire type {tag & 7} is in no message of the protocol"
            length = number()
            yield tag >> 3, data[at : at + length]
            at += length


def _grpc_values(message: bytes) -> Any:
    for number, data in _fields(message):
        if number == 6:
            return np.frombuffer(data, "<f4")
        if number == 5:
            contents = [c for n, c in _fields(data) if n == 5]
            floats = [f for c in contents for n, f in _fields(c) if n == 6]
            if floats:
                return np.frombuffer(floats[0], "<f4")
    raise ValueError("a gRPC answer without values")


# Asking once


def answer(port: int, ask: Ask) -> Any:
    """The values of one answer. Raises ``NotOfferedError`` when the server does not speak the form."""
    if ask.form == "grpc":
        return _grpc_values(framed_answer(port + 1, ask)[5:])
    status, headers, body = post(port, ask.path, ask.body.read_bytes(), ask.headers)
    if status != 200:
        raise NotOfferedError(f"status {status}: {body[:120]!r}")
    if ask.form == "shm":
        return np.frombuffer((SHM / _object(port, ask.model, "out")).read_bytes(), "<f4")
    head = headers.get("inference-header-content-length")
    output = json.loads(body[: int(head)] if head else body)["outputs"][0]
    if "data" in output:
        return np.array(output["data"], "<f4").ravel()
    return np.frombuffer(body[int(head or 0) :], "<f4")


def post(port: int, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def grpc_missing() -> bool:
    """Is there no client to check a gRPC answer with?"""
    try:
        import grpc  # noqa: F401
    except ModuleNotFoundError:
        return True
    return False


def framed_answer(port: int, ask: Ask) -> bytes:
    """One answer over gRPC, with its frame."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            message: bytes = channel.unary_unary(METHOD)(ask.body.read_bytes()[5:], timeout=PATIENCE_S)
        except grpc.RpcError as error:
            raise NotOfferedError(str(error.code())) from error
    return struct.pack(">BI", 0, len(message)) + message


def check(port: int, ask: Ask, models: Path) -> None:
    """The answer is what bare ONNX Runtime says.

    Raises:
        NotOfferedError: The server does not speak the form.
        ValueError: Another answer.
    """
    got = answer(port, ask)
    expected = np.load(models / f"{ask.model}.expected.npy").ravel()
    if got.shape != expected.shape or not np.allclose(got, expected, rtol=0, atol=TOLERANCE):
        raise ValueError(f"{ask.model} {ask.form}: expected {expected}, got {got}")


# Shared memory


def _object(port: int, model: str, way: str) -> str:
    return f"pellucid-bench-{port}-{model}-{way}"


@contextlib.contextmanager
def regions(port: int, model: str, models: Path) -> Iterator[None]:
    """Shared memory for one model's input and output, known to the server."""
    sample, answer = np.load(models / f"{model}.npy"), np.load(models / f"{model}.expected.npy")
    contents = {"in": sample.tobytes(), "out": bytes(answer.nbytes)}
    try:
        for way, content in contents.items():
            (SHM / _object(port, model, way)).write_bytes(content)
            told = {"key": "/" + _object(port, model, way), "offset": 0, "byte_size": len(content)}
            path = f"/v2/systemsharedmemory/region/{model}-{way}/register"
            status, _, body = post(
                port, path, json.dumps(told).encode(), {"content-type": "application/json"}
            )
            if status != 200:
                raise NotOfferedError(f"status {status}: {body[:120]!r}")
        yield
    finally:
        for way in contents:
            (SHM / _object(port, model, way)).unlink(missing_ok=True)
