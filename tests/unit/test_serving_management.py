"""Classes, statistics, loading and unloading under calls, settings: without any door."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import Tensor, TensorSpec, pack_json, split_bytes_elements
from pellucid.errors import FormatError, PellucidError, PolicyDeniedError, TensorError, UnavailableError
from pellucid.servers.http.openapi import document
from pellucid.servers.http.routes import ENDPOINTS, find_route
from pellucid.servers.http.telling import KINDS
from pellucid.serving.classification import classify
from pellucid.serving.limits import Limits
from pellucid.serving.request import build_request
from pellucid.serving.settings import LOG, TRACE, ask_log, ask_trace
from pellucid.testing.plane import echo_model, make_plane
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.session import EchoSession

SPEC = TensorSpec("x", "FP32", (-1, 3))


def texts(tensor: Tensor) -> list[str]:
    count = 1
    for dimension in tensor.shape:
        count *= dimension
    return [e.decode() for e in split_bytes_elements(tensor.data, count, subject="x")]


# -- classes --------------------------------------------------------------------------------------


@given(
    st.sampled_from(["FP32", "FP64", "INT64", "UINT8"]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 8),
    st.data(),
)
def test_the_best_classes_come_first_and_ties_in_order(
    kind: str, rows: int, width: int, count: int, data: st.DataObject
):
    values = data.draw(st.lists(st.integers(0, 5), min_size=rows * width, max_size=rows * width))
    tensor = pack_json("x", kind, (rows, width), values)
    chosen = classify(tensor, count, batched=True)
    assert chosen.shape == (rows, min(count, width))
    assert chosen.datatype == "BYTES"
    shown = texts(chosen)
    for row in range(rows):
        own = values[row * width : (row + 1) * width]
        wanted = sorted(range(width), key=lambda i: (-own[i], i))[:count]
        part = shown[row * chosen.shape[1] : (row + 1) * chosen.shape[1]]
        assert [int(text.split(":")[1]) for text in part] == wanted
        assert [float(text.split(":")[0]) for text in part] == [own[i] for i in wanted]


def test_classes_without_a_batch_axis_with_labels_and_of_nothing_that_has_an_order():
    tensor = pack_json("x", "FP32", (2, 2), [0.25, -1, 3, 0.125])
    assert texts(classify(tensor, 2, batched=False)) == ["3.000000:2", "0.250000:0"]
    assert classify(tensor, 9, batched=False).shape == (4,)
    assert texts(classify(tensor, 1, batched=True, labels=["a", "b"])) == ["0.250000:0:a", "3.000000:0:a"]
    infinite = Tensor("x", "FP32", (1, 2), b"\x00\x00\x80\x7f\x00\x00\x80\xff")
    assert texts(classify(infinite, 2, batched=True)) == ["inf:0", "-inf:1"]
    with pytest.raises(TensorError, match="NaN"):
        classify(Tensor("x", "FP32", (1, 1), b"\x00\x00\xc0\x7f"), 1, batched=True)


# -- loading and unloading under calls ------------------------------------------------------------


def read(signature: Any, personal: dict[str, str]) -> Any:
    from pellucid.serving.inputs import BinaryTail

    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return build_request({"inputs": [item]}, BinaryTail(None, False), signature, personal)


async def call(plane: Any) -> Any:
    opened = plane.accept("")
    try:
        return await plane.run(opened, "echo", None, 0, read)
    except PellucidError as error:
        plane.refuse(opened, error)
        raise
    finally:
        plane.abandon(opened)


@pytest.mark.parametrize("verb", ["unload", "replace"])
def test_calls_that_a_model_has_are_answered_before_it_goes(verb: str):
    session, gate = EchoSession((SPEC,)), threading.Event()
    recorder = MemoryRecorder()
    plane = make_plane([echo_model(session=session)], recorder, Limits(inline_max_ns=0))
    session.gate = gate
    changes: list[bool] = []
    plane.pool.on_change.append(lambda: changes.append(plane.is_ready))

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        running = asyncio.ensure_future(call(plane))
        while not plane.pool.waiting:
            await asyncio.sleep(0)
        queued = asyncio.ensure_future(call(plane))
        while plane.pool.waiting < 2:
            await asyncio.sleep(0)
        if verb == "unload":
            assert [model.version for model in plane.pool.remove("echo")] == ["1.0.0"]
            with pytest.raises(PellucidError, match="no available versions"):
                await call(plane)
            with pytest.raises(UnavailableError):
                plane.pool.find_ready("echo", None)
        else:
            plane.pool.add(echo_model())
            assert await call(plane)  # the new one does not wait for the old one
        assert not session.closed
        assert plane.pool.waiting >= 2
        gate.set()
        await asyncio.gather(running, queued)
        assert await plane.drain(5)
        assert session.closed

    asyncio.run(go())
    plane.pool.close()
    assert changes == [True]
    assert not recorder.open
    assert [c.outcome for c in recorder.calls()].count("answered") == (2 if verb == "unload" else 3)
    recorder.entries()


def test_an_idle_model_is_closed_at_once():
    session = EchoSession((SPEC,))
    plane = make_plane([echo_model(session=session)])
    plane.pool.remove("echo")
    assert session.closed
    assert plane.pool.remove("echo") == []
    assert plane.is_ready  # unloaded on purpose
    assert plane.pool.index(ready=True) == []


def test_failed_runs_count_as_failed():
    session = EchoSession((SPEC,))
    plane = make_plane([echo_model(session=session)])
    session.fault = TensorError("engine: expected health, got a fault")

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        with pytest.raises(TensorError):
            await call(plane)
        session.fault = None
        await call(plane)

    asyncio.run(go())
    (told,) = plane.pool.statistics("echo", None)
    counts = {name: took["count"] for name, took in told["inference_stats"].items()}
    assert counts == {
        "success": 1, "fail": 1, "queue": 1, "compute_input": 1, "compute_infer": 1, "compute_output": 1,
        "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    assert told["inference_count"] == told["execution_count"] == 1


# -- settings, documents --------------------------------------------------------------------------


def test_settings_are_all_or_nothing_and_never_change():
    assert ask_log({}) == ask_log(dict(LOG)) == LOG
    assert ask_trace({}) == ask_trace(dict(TRACE)) == ask_trace(dict.fromkeys(TRACE)) == TRACE
    for ask, changes in ((ask_log, {"log_info": False}), (ask_trace, {"trace_level": "TIMESTAMPS"})):
        with pytest.raises(PolicyDeniedError):
            ask(changes)
    for ask, wrong in (
        (ask_log, {"log_info": False, "nope": 1}),
        (ask_log, {"log_file": 3}),
        (ask_trace, {"trace_count": "-2"}),
        (ask_trace, {"trace_level": []}),
        (ask_trace, {"trace_rate": 1}),
    ):
        with pytest.raises(FormatError):
            partial(ask, wrong)()


def test_the_openapi_document_has_every_endpoint_and_every_reference_leads_somewhere():
    told = document()
    assert set(told["paths"]) == set(ENDPOINTS)
    assert {kind for kind, _ in ENDPOINTS.values()} == KINDS
    for path, (kind, methods) in ENDPOINTS.items():
        assert {m.upper() for m in told["paths"][path] if m != "parameters"} == set(methods)
        concrete = path.replace("{model}", "m").replace("{version}", "1").replace("{region}", "r")
        assert find_route(concrete.encode()).kind == kind
    names = set(told["components"]["schemas"])

    def check(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].rpartition("/")[2] in names
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(told)
