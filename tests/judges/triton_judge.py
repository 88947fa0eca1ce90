"""Runs under the judge's own Python: what a program written for Triton does, over HTTP or gRPC.

    triton_judge.py http | grpc HOST:PORT

Prints one JSON object, step to "ok" or to what went wrong.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
import time
from typing import Any

import numpy as np
import tritonclient.utils.shared_memory as shm

KIND, ADDRESS = sys.argv[1:]
triton: Any = importlib.import_module(f"tritonclient.{KIND}")
GRPC = KIND == "grpc"
MODEL = "credit"
ROWS = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20)
client = triton.InferenceServerClient(ADDRESS)
steps: dict[str, str] = {}


def step(function: Any) -> Any:
    try:
        function()
        steps[function.__name__] = "ok"
    except BaseException as error:
        steps[function.__name__] = f"{type(error).__name__}: {error}"
    return function


def given(rows: Any = ROWS, **more: Any) -> Any:
    tensor = triton.InferInput("features", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows, **more)
    return tensor


def refused(function: Any, *words: str) -> None:
    try:
        function()
    except triton.InferenceServerException as error:
        text = str(error)
        assert "expected" in text, text
        assert all(word in text for word in words), text
    else:
        raise AssertionError("expected a refusal")


def plain(value: Any) -> Any:
    """What HTTP gives anyway: members by name."""
    if GRPC:
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value, preserving_proto_field_name=True)
    return value


SCORES = client.infer(MODEL, [given()]).as_numpy("probabilities")


@step
def live_and_ready() -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1.0.0")


@step
def unknown_model_is_not_ready() -> None:
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready(MODEL, "9")


@step
def server_metadata() -> None:
    told = plain(client.get_server_metadata())
    assert told["name"] == "pellucid"
    assert "system_shared_memory" in told["extensions"]


@step
def model_metadata() -> None:
    (tensor,) = plain(client.get_model_metadata(MODEL))["inputs"]
    assert [int(d) for d in tensor["shape"]] == [-1, 20]


@step
def model_config() -> None:
    told = plain(client.get_model_config(MODEL))
    told = told.get("config", told)
    assert told["max_batch_size"] == 8
    assert told["input"][0]["data_type"] == "TYPE_FP32"


@step
def statistics() -> None:
    before = int(plain(client.get_inference_statistics(MODEL))["model_stats"][0]["inference_count"])
    client.infer(MODEL, [given()])
    after = plain(client.get_inference_statistics())["model_stats"][0]
    assert int(after["inference_count"]) == before + 3
    assert int(after["inference_stats"]["success"]["ns"]) > 0


@step
def repository_index() -> None:
    told = plain(client.get_model_repository_index())
    (model,) = told["models"] if GRPC else told
    assert (model["name"], model["version"], model["state"]) == (MODEL, "1.0.0", "READY")


@step
def trace_and_log_settings() -> None:
    assert plain(client.get_trace_settings())
    assert plain(client.get_log_settings())
    assert plain(client.update_log_settings({"log_info": True}))
    refused(lambda: client.update_log_settings({"log_info": False}), "no change")


@step
def unload_and_load() -> None:
    client.unload_model(MODEL)
    assert not client.is_model_ready(MODEL)
    assert client.is_server_ready()
    refused(lambda: client.infer(MODEL, [given()]), "no available versions")
    client.load_model(MODEL)
    assert client.is_model_ready(MODEL)
    refused(lambda: client.load_model("nope"), "nope")
    refused(lambda: client.load_model(MODEL, config="{}"), "config")


@step
def unknown_model() -> None:
    refused(lambda: client.infer("nope", [given()]), "unknown name")


@step
def bad_shape_and_values() -> None:
    refused(lambda: client.infer(MODEL, [given(np.zeros((1, 19), np.float32))]), "axis 1")
    refused(lambda: client.infer(MODEL, [given(np.full((1, 20), np.nan, np.float32))]), "finite")


@step
def infer_with_id() -> None:
    wanted = [triton.InferRequestedOutput("probabilities")]
    reply = client.infer(
        MODEL, [given()], outputs=wanted, request_id="mine", model_version="1.0.0", timeout=10_000_000
    )
    answer = plain(reply.get_response())
    assert answer["id"] == "mine"
    assert reply.as_numpy("probabilities").tobytes() == SCORES.tobytes()


@step
def json_tensors_and_compression() -> None:
    if GRPC:
        for algorithm in ("gzip", "deflate"):
            assert (
                client.infer(MODEL, [given()], compression_algorithm=algorithm).as_numpy("probabilities")
                is not None
            )
        return
    for algorithm in (None, "gzip", "deflate"):
        wanted = [triton.InferRequestedOutput("probabilities", binary_data=False)]
        reply = client.infer(
            MODEL, [given(binary_data=False)], outputs=wanted,
            request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
        )  # fmt: skip
        assert reply.as_numpy("probabilities").tobytes() == SCORES.tobytes()


@step
def classification() -> None:
    wanted = [triton.InferRequestedOutput("probabilities", class_count=2)]
    classes = client.infer(MODEL, [given()], outputs=wanted).as_numpy("probabilities")
    assert classes.shape == (3, 2)
    value, index = classes[0][0].decode().split(":")
    assert int(index) == int(SCORES[0].argmax())
    assert abs(float(value) - SCORES[0].max()) < 1e-6


@step
def sequences_are_refused() -> None:
    refused(lambda: client.infer(MODEL, [given()], sequence_id=3, sequence_start=True), "sequence_id")


@step
def async_infer() -> None:
    done: Any = queue.Queue()
    if GRPC:
        for _ in range(8):
            client.async_infer(MODEL, [given()], callback=lambda result, error: done.put((result, error)))
        replies = [done.get(timeout=20) for _ in range(8)]
        assert all(error is None for _, error in replies)
        return
    running = [client.async_infer(MODEL, [given()]) for _ in range(8)]
    assert all(each.get_result().as_numpy("probabilities").shape == (3, 2) for each in running)


@step
def system_shared_memory() -> None:
    size, out = ROWS.nbytes, SCORES.nbytes
    name = f"/pellucid-judge-{KIND}-{time.time_ns()}"
    region = shm.create_shared_memory_region("both", name, size + out)
    try:
        shm.set_shared_memory_region(region, [ROWS])
        client.register_system_shared_memory("both", name, size + out)
        status = plain(client.get_system_shared_memory_status())
        assert "both" in json.dumps(status)
        tensor = triton.InferInput("features", [3, 20], "FP32")
        tensor.set_shared_memory("both", size)
        wanted = triton.InferRequestedOutput("probabilities")
        wanted.set_shared_memory("both", out, offset=size)
        client.infer(MODEL, [tensor], outputs=[wanted])
        got = shm.get_contents_as_numpy(region, np.float32, [3, 2], offset=size).copy()
        assert got.tobytes() == SCORES.tobytes()
        refused(lambda: client.register_system_shared_memory("both", name, size), "registered")
        client.unregister_system_shared_memory("both")
        refused(lambda: client.infer(MODEL, [tensor]), "registered")
    finally:
        shm.destroy_shared_memory_region(region)


@step
def cuda_shared_memory_is_not_here() -> None:
    assert not plain(client.get_cuda_shared_memory_status())
    refused(lambda: client.register_cuda_shared_memory("c", b"x" * 64, 0, 64), "memory of a GPU")


if GRPC:

    @step
    def stream() -> None:
        done: Any = queue.Queue()
        client.start_stream(callback=lambda result, error: done.put((result, error)))
        client.async_stream_infer(MODEL, [given()], request_id="1")
        client.async_stream_infer("nope", [given()], request_id="2")
        client.async_stream_infer(MODEL, [given()], request_id="3")
        replies = [done.get(timeout=20) for _ in range(3)]
        client.stop_stream()
        assert [error is None for _, error in replies] == [True, False, True]
        assert replies[2][0].get_response().id == "3"


client.close()
print(json.dumps(steps))
