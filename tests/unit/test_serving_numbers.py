"""Refusals: an entry each up to a rate, then counted; no number is ever lost or closed twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from pellucid.core.record import Event
from pellucid.serving.limits import Limits
from pellucid.serving.numbers import Numbers
from pellucid.testing.ledger import make_call
from pellucid.testing.plane import echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder


class StillClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.ns = 1_800_000_000_000_000_000

    def now_ns(self) -> int:
        return self.ns

    monotonic_ns = now_ns

    def wait(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


BAD = ("POST", "/v2/models/echo/infer", b"{}")
GOOD = (
    "POST",
    "/v2/models/echo/infer",
    json.dumps({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}).encode(),
)


def alerts(recorder: MemoryRecorder) -> list[dict[str, object]]:
    return [r.data for r in recorder.records if isinstance(r, Event) and r.kind == "alert"]


def test_a_flood_of_refusals_becomes_one_count():
    recorder, clock = MemoryRecorder(), StillClock()
    plane = make_plane([echo_model()], recorder, Limits(refusals_burst=3, refusals_per_s=1.0), clock)
    replies = exchange(plane, [BAD] * 10)
    assert [reply.status for reply in replies] == [400] * 10
    keyed = [reply.headers["pellucid-call"] for reply in replies if "pellucid-call" in reply.headers]
    assert keyed == [recorder.call_key(n) for n in (1, 2, 3)]
    assert len(recorder.calls()) == 3
    (good,) = exchange(plane, [GOOD])
    assert good.headers["pellucid-call"] == recorder.call_key(4)  # a counted refusal gave its number back
    clock.wait(2.0)
    (reply,) = exchange(plane, [BAD])
    assert reply.headers["pellucid-call"]
    plane.numbers.settle()
    (alert,) = alerts(recorder)
    assert (alert["refused"], alert["not_numbered"]) == (7, 0)
    assert recorder.open == {}
    assert sorted(call.n for call in recorder.calls()) == list(range(1, recorder.last + 1))


def test_calls_for_which_no_number_can_be_had_are_counted():
    recorder = MemoryRecorder(limit=0)
    plane = make_plane([echo_model()], recorder)
    (reply,) = exchange(plane, [GOOD])
    assert reply.status == 503
    assert reply.headers["retry-after"] == "1"
    plane.numbers.settle()
    assert alerts(recorder)[0]["not_numbered"] == 1


def test_a_count_that_cannot_be_written_is_kept():
    recorder, later = MemoryRecorder(limit=0), list[Callable[[], None]]()
    plane = make_plane([echo_model()], recorder)
    plane.numbers._later = lambda _seconds, function: later.append(function)
    exchange(plane, [GOOD])
    recorder.broken = "full"
    later.pop()()
    recorder.broken = ""
    later.pop()()
    assert [alert["not_numbered"] for alert in alerts(recorder)] == [1]
    assert later == []


def test_the_count_is_written_after_an_interval_without_being_asked():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, Limits(refusals_burst=0, count_interval_s=0.001))

    async def go() -> None:
        from pellucid.testing.plane import ask

        plane.attach(asyncio.get_running_loop())
        assert (await ask(plane, *BAD)).status == 400
        async with asyncio.timeout(5):
            while not alerts(recorder):
                await asyncio.sleep(0.001)

    asyncio.run(go())
    assert recorder.open == {}
    assert [(c.outcome, c.error) for c in recorder.calls()] == [("refused", "too_many")]


def test_a_clock_that_is_set_back_does_not_stop_the_entries_of_refusals():
    recorder, now = MemoryRecorder(), [10**18]
    numbers = Numbers(recorder, Limits(refusals_burst=2, refusals_per_s=1.0), lambda: now[0], lambda *_: None)
    for step in (0, -3600 * 10**9, 10**9):
        now[0] += step
        n = numbers.take(now[0])
        assert numbers.close_refused(make_call(n, context=0, outcome="refused", rows=0, personal={}))
