"""Batches: who shares one, in which slots, and that every number is closed once, whatever happens."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from typing import Any

import pytest

from pellucid.core.entry import decode_outputs
from pellucid.core.tensor import Tensor, TensorSpec, row_digest
from pellucid.errors import DiskFullError
from pellucid.serving.digests import LARGE, RowDigester
from pellucid.serving.limits import Limits
from pellucid.testing.clock import FakeClock
from pellucid.testing.plane import ask, echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.session import EchoSession, TimedSession

URL = "/v2/models/echo/infer"


def request(*values: float, rows: int = 1, id: str = "") -> tuple[str, str, bytes]:
    data = [*values, *([0.0] * (3 * rows - len(values)))]
    item = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": data}
    return "POST", URL, json.dumps({"id": id, "inputs": [item]}).encode()


def test_what_arrives_together_shares_a_batch_in_order_of_arrival():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    replies = exchange(plane, [request(i, id=str(i)) for i in range(6)])
    (batch,) = recorder.batches()
    assert (batch.bucket, len(batch.calls)) == (8, 6)
    assert [call.slot for call in batch.calls] == list(range(6))
    for number, (reply, call) in enumerate(zip(replies, batch.calls, strict=True)):
        assert reply.status == 200
        assert reply.json["id"] == str(number)
        assert reply.json["outputs"][0]["data"] == [number, 0, 0]
        assert reply.headers["pellucid-call"] == recorder.call_key(call.n)
        assert reply.json["parameters"]["pellucid-call"] == reply.headers["pellucid-call"]
        assert reply.headers["pellucid-trace"] == call.trace
        kept = decode_outputs(call.rows[0].value or b"")
        assert kept[0].data == struct.pack("<3f", number, 0, 0)
        assert call.personal == {"address": "127.0.0.1", "request_id": str(number)}
    assert not recorder.open


def test_a_lone_call_takes_the_smallest_bucket_at_once():
    recorder = MemoryRecorder()
    session = EchoSession([TensorSpec("x", "FP32", (-1, 3))])
    plane = make_plane([echo_model(session=session)], recorder)
    session.batches.clear()
    exchange(plane, [request(1)])
    exchange(plane, [request(1, rows=3)])
    assert session.batches == [1, 4]
    assert [(c.bucket, c.slot, len(c.rows)) for c in recorder.calls()] == [(1, 0, 1), (4, 0, 3)]


def test_more_than_the_largest_bucket_goes_on_in_the_next_batch():
    recorder = MemoryRecorder()
    exchange(make_plane([echo_model()], recorder), [request(i, rows=3) for i in range(5)])
    assert [(b.bucket, [c.slot for c in b.calls]) for b in recorder.batches()] == [
        (8, [0, 3]), (8, [0, 3]), (4, [0]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("waiting", "batches"),
    [
        ([1] * 4, [(4, 4)]),
        ([1] * 5, [(4, 4), (1, 1)]),
        ([1] * 2, [(1, 1), (1, 1)]),
        ([1] * 7, [(8, 7)]),  # one row of zeros costs less than a second execution
        ([1] * 9, [(8, 8), (1, 1)]),
        ([3, 2], [(8, 2)]),  # a call is never cut
        ([2, 2, 1], [(4, 2), (1, 1)]),
    ],
)
def test_where_rows_cost_their_time_a_full_smaller_bucket_goes_first(
    waiting: list[int], batches: list[tuple[int, int]]
):
    clock, recorder = FakeClock(), MemoryRecorder()
    plane = make_plane(
        [echo_model(session=TimedSession(clock, a_row_s=0.001))],
        recorder,
        Limits(execution_ns=1_100_000),
        clock,
    )
    replies = exchange(plane, [request(i, rows=rows) for i, rows in enumerate(waiting)])
    assert all(reply.status == 200 for reply in replies)
    assert [(b.bucket, len(b.calls)) for b in recorder.batches()] == batches


@pytest.mark.parametrize("label", ["variant", "untested"])
def test_models_whose_neighbours_may_matter_run_every_call_alone(label: str):
    recorder = MemoryRecorder()
    plane = make_plane([echo_model(label_variance=label)], recorder)
    assert all(reply.status == 200 for reply in exchange(plane, [request(i) for i in range(4)]))
    assert [len(batch.calls) for batch in recorder.batches()] == [1] * 4


def test_a_pinned_bucket_is_the_only_one():
    recorder = MemoryRecorder()
    exchange(make_plane([echo_model(buckets=(4,))], recorder), [request(i) for i in range(5)])
    assert [(b.bucket, len(b.calls)) for b in recorder.batches()] == [(4, 4), (4, 1)]


def test_calls_with_other_trailing_shapes_do_not_share():
    recorder = MemoryRecorder()
    model = echo_model("echo", TensorSpec("x", "FP32", (-1, -1)))

    def wide(width: int) -> tuple[str, str, bytes]:
        item = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [0] * width}
        return "POST", URL, json.dumps({"inputs": [item]}).encode()

    replies = exchange(make_plane([model], recorder), [wide(2), wide(2), wide(3), wide(2)])
    assert [len(b.calls) for b in recorder.batches()] == [2, 1, 1]
    assert [r.json["outputs"][0]["shape"] for r in replies] == [[1, 2], [1, 2], [1, 3], [1, 2]]


def test_a_model_without_batch_axis_runs_alone_and_has_no_bucket():
    recorder = MemoryRecorder()
    model = echo_model("echo", TensorSpec("x", "FP32", (3,)))
    item = {"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"inputs": [item]}).encode()
    replies = exchange(make_plane([model], recorder), [("POST", URL, body)] * 2)
    assert [r.json["outputs"][0]["data"] for r in replies] == [[1, 2, 3]] * 2
    assert [(c.bucket, c.slot, len(c.rows), c.shapes) for c in recorder.calls()] == [(0, 0, 1, ((3,),))] * 2


def test_a_poisoned_call_fails_and_its_neighbours_do_not():
    recorder = MemoryRecorder()
    session = EchoSession([TensorSpec("x", "FP32", (-1, 3))])
    session.poison = struct.pack("<f", 666.0)
    plane = make_plane([echo_model(session=session)], recorder)
    replies = exchange(plane, [request(1), request(666.0), request(2)])
    assert [reply.status for reply in replies] == [200, 400, 200]
    assert replies[1].json == {"error": "engine: expected healthy input, got poison"}
    assert [(c.outcome, c.error) for c in recorder.calls()] == [
        ("answered", None), ("failed", "tensor"), ("answered", None),
    ]  # fmt: skip
    failed = recorder.calls()[1]
    assert failed.rows[0].input
    assert failed.rows[0].output == b""
    assert failed.personal["message"] == "engine: expected healthy input, got poison"
    assert not recorder.open


def test_whatever_an_engine_raises_is_a_fault_of_the_server_and_recorded():
    recorder = MemoryRecorder()
    session = EchoSession([TensorSpec("x", "FP32", (-1, 3))])
    plane = make_plane([echo_model(session=session)], recorder)
    session.fault = ZeroDivisionError("deep inside")
    (reply,) = exchange(plane, [request(1)])
    assert reply.status == 500
    assert "ZeroDivisionError" in reply.json["error"]
    assert [(c.outcome, c.error) for c in recorder.calls()] == [("failed", "error")]


def test_without_its_record_no_answer_leaves():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    recorder.broken = "the disk is gone"
    (reply,) = exchange(plane, [request(1)])
    assert (reply.status, reply.json["error"]) == (500, "the disk is gone")
    assert recorder.calls() == []
    assert len(recorder.open) == 1  # the next start closes it as unresolved


def test_in_the_durable_mode_the_reply_waits_for_the_disk():
    recorder = MemoryRecorder("durable")
    plane = make_plane([echo_model()], recorder)

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        waiting = asyncio.ensure_future(ask(plane, *request(1)))
        while not recorder.held:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert len(recorder.calls()) == 1
        threading.Thread(target=recorder.flush).start()  # the flusher is another thread
        assert (await waiting).status == 200

    asyncio.run(go())


def test_a_full_queue_refuses_with_503_and_an_entry():
    recorder = MemoryRecorder()
    session = EchoSession([TensorSpec("x", "FP32", (-1, 3))])
    plane = make_plane([echo_model(session=session, buckets=(1,))], recorder, Limits(queue_max=2))
    replies = exchange(plane, [request(i) for i in range(5)])
    assert sorted(reply.status for reply in replies) == [200, 200, 503, 503, 503]
    refused = [reply for reply in replies if reply.status == 503]
    assert {reply.headers["retry-after"] for reply in refused} == {"1"}
    assert "queue_max is 2" in refused[0].json["error"]
    assert [c.outcome for c in recorder.calls()].count("refused") == 3
    assert not recorder.open


def slow_plane(recorder: MemoryRecorder, gate: threading.Event) -> tuple[Any, EchoSession]:
    session = EchoSession([TensorSpec("x", "FP32", (-1, 3))])
    plane = make_plane([echo_model(session=session)], recorder, Limits(inline_max_ns=-1))
    session.batches.clear()
    session.gate = gate
    return plane, session


def test_slow_engines_leave_the_loop_free_and_what_comes_meanwhile_shares_the_next_batch():
    recorder, gate = MemoryRecorder(), threading.Event()
    plane, session = slow_plane(recorder, gate)

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        first = asyncio.ensure_future(ask(plane, *request(1)))
        while not plane.pool.batchers()[0].waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(ask(plane, *request(i))) for i in range(3)]
        assert (await ask(plane, "GET", "/v2/health/live")).status == 200
        gate.set()
        assert [(await reply).status for reply in [first, *others]] == [200] * 4

    asyncio.run(go())
    plane.pool.close()
    assert session.batches == [1, 4]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("inline_max_ns", [-1, 10**12])
def test_large_inputs_are_digested_where_the_engine_runs(
    rows: int, inline_max_ns: int, monkeypatch: pytest.MonkeyPatch
):
    spec = TensorSpec("x", "FP32", (-1, LARGE // 4))
    recorder, threads = MemoryRecorder(), []
    plane = make_plane([echo_model("echo", spec)], recorder, Limits(inline_max_ns=inline_max_ns))
    digests = RowDigester.digests

    def watched(self: RowDigester, tensors: Any, *, batched: bool) -> list[bytes]:
        threads.append(threading.current_thread().name)
        return digests(self, tensors, batched=batched)

    monkeypatch.setattr(RowDigester, "digests", watched)
    data = b"\0\0\x80\x3f" * (rows * LARGE // 4)
    item = {"name": "x", "shape": [rows, LARGE // 4], "datatype": "FP32"}
    head = json.dumps({"inputs": [item | {"parameters": {"binary_data_size": len(data)}}]}).encode()
    headers = [("Inference-Header-Content-Length", str(len(head)))]
    assert exchange(plane, [("POST", URL, head + data, headers)])[0].status == 200
    plane.pool.close()
    (call,) = recorder.calls()
    expected = row_digest([Tensor("x", "FP32", (1, LARGE // 4), data[:LARGE])])
    assert [row.input for row in call.rows] == [expected] * rows
    if inline_max_ns < 0:
        assert threads[0].startswith("engine")


def test_a_caller_who_gives_up_is_closed_all_the_same():
    recorder, gate = MemoryRecorder(), threading.Event()
    plane, _ = slow_plane(recorder, gate)

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        first = asyncio.ensure_future(ask(plane, *request(1)))
        while not plane.pool.batchers()[0].waiting:
            await asyncio.sleep(0)
        queued = asyncio.ensure_future(ask(plane, *request(2)))
        await asyncio.sleep(0)
        for task in (first, queued):
            task.cancel()
        await asyncio.gather(first, queued, return_exceptions=True)
        gate.set()
        assert await plane.drain(5)

    asyncio.run(go())
    plane.pool.close()
    assert [c.outcome for c in recorder.calls()] == ["answered", "answered"]
    assert not recorder.open


def test_a_delay_lets_calls_wait_for_company():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, Limits(batch_delay_us=20_000))

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        first = asyncio.ensure_future(ask(plane, *request(1)))
        for _ in range(5):
            await asyncio.sleep(0)
        second = asyncio.ensure_future(ask(plane, *request(2)))
        assert [(await task).status for task in (first, second)] == [200, 200]

    asyncio.run(go())
    assert [len(b.calls) for b in recorder.batches()] == [2]


def test_outputs_beyond_the_bound_are_committed_to_and_not_kept():
    recorder = MemoryRecorder()
    exchange(make_plane([echo_model()], recorder, Limits(keep_outputs_max_bytes=11)), [request(1)])
    (row,) = recorder.calls()[0].rows
    assert row.output
    assert row.value is None


def test_outputs_that_would_not_fit_into_one_record_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.serving.closing.KEPT_MAX", 24)
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    exchange(plane, [request(i) for i in range(2)])
    exchange(plane, [request(i) for i in range(3)])
    assert [bool(call.rows[0].value) for call in recorder.calls()] == [True] * 2 + [False] * 3


def test_a_disk_that_is_full_for_a_while_uses_up_no_numbers(monkeypatch: pytest.MonkeyPatch):
    recorder = MemoryRecorder(limit=8)
    plane = make_plane([echo_model()], recorder)

    def full(_record: Any) -> None:
        raise DiskFullError("journal: expected to append, got a full disk")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "_append", full)
        for _ in range(5):
            replies = exchange(plane, [request(i) for i in range(4)])
            assert [reply.status for reply in replies] == [503] * 4
            assert not any("pellucid-call" in reply.headers for reply in replies)
    assert [reply.status for reply in exchange(plane, [request(i) for i in range(8)])] == [200] * 8
    plane.numbers.settle()
    assert not recorder.open
    assert recorder.last == 8


def test_recording_off_answers_and_keeps_nothing():
    recorder = MemoryRecorder("unsafe_record_nothing")
    (reply,) = exchange(make_plane([echo_model()], recorder), [request(1)])
    assert reply.status == 200
    assert recorder.calls() == []


def test_a_clock_that_waits_for_a_deadline_does_not_hold_a_call_that_was_answered():
    plane = make_plane([echo_model()])
    _, _, body = request(1)
    body = json.dumps(json.loads(body) | {"parameters": {"timeout": 3_600_000_000}}).encode()

    async def answered() -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        plane.attach(loop)
        assert [(await ask(plane, "POST", URL, body)).status for _ in range(3)] == [200] * 3
        return [timer for timer in loop._scheduled if timer._callback and not timer.cancelled()]  # type: ignore[attr-defined]

    waiting = asyncio.run(answered())
    assert not [timer for timer in waiting if "_expire" in repr(timer)]
