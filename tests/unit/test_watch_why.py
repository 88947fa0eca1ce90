"""One slow call and one slow hour: what is named, from entries alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pellucid.core.entry import parse_entry
from pellucid.core.slow import find_slow
from pellucid.core.why import Change, Weighed, find_cause, make_window, quantile
from pellucid.serving.limits import BaselineLimits, Limits
from pellucid.testing.clock import FakeClock
from pellucid.testing.plane import StillProbe, echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.session import TimedSession

LIMITS = Limits(baseline=BaselineLimits(skip=0, executions=30))


def request() -> tuple[str, str, bytes]:
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return "POST", "/v2/models/echo/infer", json.dumps({"inputs": [item]}).encode()


def test_story_x13_one_slow_call_says_whether_it_was_the_model_the_queue_or_the_device():
    clock, recorder, probe = FakeClock(), MemoryRecorder(), StillProbe()
    session = TimedSession(clock, 0.005)
    model = echo_model(session=session, label_variance="untested")  # each call runs alone
    plane = make_plane([model], recorder, LIMITS, clock, probe)
    for number in range(30):
        session.takes_s = 0.005 + 0.0001 * (number % 3)
        exchange(plane, [request()])
    (batcher,) = plane.pool.batchers()
    median = batcher.baselines.frozen()[1].median_ns

    def last() -> dict[str, Any]:
        return parse_entry(recorder.entries()[-1].entry).data

    exchange(plane, [request()])
    assert "mark" not in last()
    assert find_slow(last()).part == "usual"

    clock.move(1)
    session.takes_s = 0.050
    exchange(plane, [request()])
    model_slow = find_slow(last(), median)
    assert model_slow.part == "model"
    assert "50.000 ms instead of 5.1" in model_slow.text

    clock.move(1)
    probe.load["cpu_wait_permille"] = 640
    exchange(plane, [request()])
    device = find_slow(last(), median)
    assert device.part == "device"
    assert "waited for a processor 64 % of the time" in device.text
    assert last()["mark"]["load"]["cpu_wait_permille"] == 640

    session.takes_s = 0.005
    exchange(plane, [request() for _ in range(12)])
    assert "mark" not in last()
    queued = find_slow(last())
    assert queued.part == "queue"
    assert sum(queued.stages.values()) == last()["stages"]["total_ns"]


def call(queue_ms: float = 1, infer_ms: float = 1, rest_ms: float = 0, **more: Any) -> dict[str, Any]:
    queue, infer, total = (int(each * 1e6) for each in (queue_ms, infer_ms, queue_ms + infer_ms + rest_ms))
    stages = {"decode_ns": 0, "queue_ns": queue, "infer_ns": infer, "total_ns": total}
    return {"stages": stages, "slot": 0, "outcome": "answered", "error": None} | more


def test_a_call_that_never_ran_was_slow_nowhere():
    slow = find_slow(call(slot=-1, outcome="refused", error="tensor"))
    assert slow.part == "none"
    assert "refused, tensor" in slow.text


@pytest.mark.parametrize(
    ("load", "part"),
    [
        ({"host_cpu_permille": 950}, "device"),
        ({"gpus": [{"uuid": "GPU-1", "permille": 990}]}, "device"),
        ({"gpus": [{"uuid": "GPU-1", "permille": None}]}, "model"),
        ({"host_cpu_permille": None, "cpu_wait_permille": None, "gpus": None}, "model"),
    ],
)
def test_a_busy_machine_is_the_device(load: dict[str, Any], part: str):
    mark = {"baseline": "k", "deviation_milli": 9_000, "load": load}
    assert find_slow(call(infer_ms=90, mark=mark), 1_000_000).part == part


def test_time_between_the_stages_is_said_as_such():
    assert find_slow(call(rest_ms=80)).part == "rest"


def test_a_quantile_is_one_of_the_values():
    assert quantile([], 99) == 0
    assert quantile([7], 50) == 7
    assert quantile(list(range(1, 101)), 99) == 99
    assert quantile(list(range(1, 1_001)), 99) == 990


def change(what: str, time_ns: int = 1, **more: Any) -> Change:
    return Change(time_ns, "2026-11-30T03:00:00.000000000Z", what, **more)


CALM, QUEUED = make_window([call()] * 50), make_window([call(queue_ms=41)] * 50)


def test_the_change_behind_which_it_rose_most_is_named_with_its_stage_and_who_approved_it():
    load = Weighed(
        change("load of m 2 with buckets up to 32", approved=("sre (exception, n/e1)",)), CALM, QUEUED
    )
    other = Weighed(change("start of 1 serving process", 9), QUEUED, QUEUED)
    cause, chosen = find_cause([other, load], QUEUED, QUEUED)
    assert chosen is load
    assert cause.startswith("load of m 2 with buckets up to 32 at 2026-11-30T03:00:00")
    assert "queue p99 1 ms -> 41 ms; approved by sre" in cause


def test_one_stall_before_a_change_does_not_hide_that_every_call_is_slower_since():
    stalled = make_window([call()] * 48 + [call(queue_ms=90)] * 2)
    load = Weighed(change("load of m 2"), stalled, QUEUED)
    cause, chosen = find_cause([load], QUEUED, stalled)
    assert chosen is load
    assert load.stage == "queue"
    assert "queue p50 1 ms -> 41 ms" in cause


def test_no_change_is_blamed_for_what_rose_without_one():
    mark = {"baseline": "k", "deviation_milli": 9_000, "load": {"cpu_wait_permille": 700}}
    slow = make_window([call(infer_ms=80, mark=mark)] * 10)
    before = Weighed(change("load of m 1"), CALM, CALM)
    cause, chosen = find_cause([before], slow, CALM)
    assert chosen is None
    assert cause.startswith("no change made it slower (the last: load of m 1), but compute p99 1 ms -> 80 ms")
    assert cause.endswith("of 10 marked calls 10 were the device")


def test_what_was_not_slower_is_not_explained():
    assert "it was not slower" in find_cause([], CALM, CALM)[0]
    few = make_window([call()])
    assert "too few to compare" in find_cause([], few, CALM)[0]
    assert Weighed(change("x"), few, QUEUED).rise == 0
    assert "too few to compare" in Weighed(change("x"), few, QUEUED).sentence()
