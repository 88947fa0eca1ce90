"""Runs under the judge's own Python: tritonclient with TLS and a token, over HTTP or gRPC.

    doors_judge.py http | grpc HOST:PORT AUTHORITY TOKEN

Prints one JSON object, step to "ok" or to what went wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

KIND, ADDRESS, AUTHORITY, TOKEN = sys.argv[1:]
triton: Any = importlib.import_module(f"tritonclient.{KIND}")
GRPC = KIND == "grpc"
tls: dict[str, Any] = (
    {"root_certificates": AUTHORITY} if GRPC else {"ssl_options": {"ca_certs": AUTHORITY, "cert_reqs": 2}}
)
client = triton.InferenceServerClient(ADDRESS, ssl=True, **tls)
HEADERS = {"authorization": f"Bearer {TOKEN}"}
steps: dict[str, str] = {}


def step(function: Any) -> Any:
    try:
        function()
        steps[function.__name__] = "ok"
    except BaseException as error:
        steps[function.__name__] = f"{type(error).__name__}: {error}"
    return function


def given(rows: int = 3) -> list[Any]:
    values = np.linspace(-1, 1, 20 * rows, dtype=np.float32).reshape(rows, 20)
    tensor = triton.InferInput("features", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return [tensor]


def refused(function: Any, status: str) -> None:
    said = None
    try:
        function()
    except triton.InferenceServerException as error:
        said = error
    assert said is not None, "not refused"
    assert status in str(said.status()), said.status()
    assert "expected" in str(said), said


@step
def health_is_told_to_anybody() -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


@step
def infers() -> None:
    reply = client.infer("credit", given(), headers=HEADERS)
    assert np.allclose(reply.as_numpy("probabilities").sum(axis=1), 1)


@step
def metadata_with_a_token() -> None:
    told = client.get_model_metadata("credit", headers=HEADERS)
    assert (told.name if GRPC else told["name"]) == "credit"


@step
def nothing_without_a_token() -> None:
    wanted = "UNAUTHENTICATED" if GRPC else "401"
    refused(lambda: client.infer("credit", given()), wanted)
    refused(lambda: client.get_model_metadata("credit"), wanted)
    refused(lambda: client.infer("credit", given(), headers={"authorization": f"Bearer {TOKEN}x"}), wanted)


@step
def not_more_than_its_role() -> None:
    refused(
        lambda: client.get_inference_statistics("credit", headers=HEADERS),
        "PERMISSION_DENIED" if GRPC else "403",
    )


print(json.dumps(steps))
