"""Baselines: what is marked, what is news, and that chance alone is none."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical
from pellucid.core.baseline import (
    NEAR_NS,
    WINDOW,
    Baseline,
    Share,
    expected_marks,
    make_baseline,
    read_baseline,
)
from pellucid.core.entry import parse_entry
from pellucid.core.record import Event
from pellucid.errors import FormatError
from pellucid.serving.limits import BaselineLimits, Limits
from pellucid.testing.clock import FakeClock
from pellucid.testing.plane import StillProbe, echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.session import TimedSession

LIMITS = Limits(baseline=BaselineLimits(skip=5, executions=30))


def request() -> tuple[str, str, bytes]:
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return "POST", "/v2/models/echo/infer", json.dumps({"inputs": [item]}).encode()


class Served:
    """One model whose executions take what the test says."""

    def __init__(self, limits: Limits = LIMITS, **more: Any) -> None:
        self.clock, self.recorder, self.probe = FakeClock(), MemoryRecorder(), StillProbe()
        self.session = TimedSession(self.clock, 0.001)
        model = echo_model(session=self.session, **more)
        self.plane = make_plane([model], self.recorder, limits, self.clock, self.probe)

    def run(self, *takes_ms: float) -> None:
        for took in takes_ms:
            self.session.takes_s = took / 1e3
            (reply,) = exchange(self.plane, [request()])
            assert reply.status == 200

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [r.data for r in self.recorder.records if isinstance(r, Event) and r.kind == kind]


USUAL = [1.0 + 0.01 * (number % 5) for number in range(30)]


def test_the_first_executions_behind_the_warm_up_are_the_baseline_and_an_entry():
    served = Served()
    served.run(*[50] * 5, *USUAL)
    (data,) = served.events("stage")
    times = [round(each * 1e6) for each in USUAL]
    assert (data["stage"], data["bucket"], data["executions"], data["skipped"]) == ("baseline", 1, 30, 5)
    assert data["mean_ns"] == pytest.approx(statistics.mean(times), abs=2)
    assert data["std_ns"] == pytest.approx(statistics.stdev(times), rel=1e-3)
    assert data["median_ns"] == pytest.approx(statistics.median(times), rel=0.02)
    assert (data["near_median"], data["how"]) == (30, "first_executions")
    assert read_baseline(data, "k").executions == 30


def test_a_slow_execution_is_marked_in_its_entry_with_the_load_of_that_moment():
    served = Served()
    served.run(*[1] * 5, *USUAL)
    served.probe.load["host_cpu_permille"] = 970
    served.clock.move(1)
    served.run(1.02, 9.0, 1.01)
    entries = [parse_entry(formed.entry) for formed in served.recorder.entries()]
    calls = [entry for entry in entries if entry.type == "call"]
    marked = [entry for entry in calls if "mark" in entry.data]
    assert marked == [calls[-2]]
    mark = marked[0].data["mark"]
    (baseline,) = [entry for entry in entries if entry.type == "stage"]
    assert mark["baseline"] == baseline.id
    assert mark["deviation_milli"] > 2_000
    assert mark["load"]["host_cpu_permille"] == 970
    assert mark["load"]["gpus"] is None
    assert mark["load"]["gpus_reason"]
    canonical.decode(marked[0].raw)


def test_a_baseline_that_is_adopted_is_in_force_at_once_and_counters_do_not_go_back():
    served = Served()
    served.run(*[1] * 5, *USUAL, 9.0, 9.0)
    (batcher,) = served.plane.pool.batchers()
    before = batcher.baselines.totals()["1"]
    assert (before["judged"], before["marked"]) == (2, 2)
    own = batcher.baselines.frozen()[1]
    batcher.baselines.adopt({1: own})  # the same again is no news
    assert batcher.baselines.totals()["1"] == before
    slow = Baseline(100, 0, 9_000_000, 9_000_000, 100, 1_000, key="node1/door-1/e1")
    batcher.baselines.adopt({1: slow, 4: slow})
    served.run(9.0, 1.0, 9.0)
    after = batcher.baselines.totals()["1"]
    assert after == {"executions": before["executions"] + 3, "judged": 5, "marked": 3, "near": 2}
    calls = [parse_entry(formed.entry) for formed in served.recorder.entries()]
    marks = [entry.data["mark"]["baseline"] for entry in calls if "mark" in entry.data]
    assert marks == [own.key, own.key, slow.key]
    assert batcher.baselines.frozen()[4] == slow


def test_one_alert_when_the_share_leaves_and_none_while_it_stays_out():
    served = Served()
    served.run(*[1] * 5, *USUAL)
    served.run(*[3.0] * 400)
    (alert,) = served.events("alert")
    assert alert["kind"] == "baseline_share"
    assert alert["marked"] > alert["expected"][1]
    assert alert["executions"] <= WINDOW
    assert (alert["bucket"], alert["model"]) == (1, "echo")


def test_it_alerts_again_only_after_a_window_was_calm():
    baseline = make_baseline([1_000_000 + 10_000 * (n % 5) for n in range(1_000)])
    share = Share(baseline)
    share.marked = share.high + 1
    assert share.is_due(1)
    assert share.leaves(10)
    share.marked = share.high + 1
    assert not share.leaves(WINDOW)
    share.marked = share._calm[0]
    assert not share.leaves(WINDOW)
    share.marked = share.high + 1
    assert share.leaves(WINDOW)


def test_too_few_marks_are_news_as_well():
    share = Share(Baseline(1_000, 200, 10, 10, 1_000, 1))
    assert share.low > 0
    share.marked = share.low - 1
    assert not share.is_due(WINDOW - 1)
    assert share.leaves(WINDOW)


@pytest.mark.parametrize("seed", range(5))
def test_chance_alone_is_no_news(seed: int):
    draw = random.Random(seed)
    baseline = make_baseline([int(draw.lognormvariate(13, 0.2)) for _ in range(1_000)])
    share = Share(baseline)
    for _ in range(100):
        share.marked = sum(baseline.is_marked(int(draw.lognormvariate(13, 0.2))) for _ in range(WINDOW))
        assert not share.leaves(WINDOW)


@pytest.mark.parametrize(("marked", "count"), [(0, 20), (1, 20), (20, 20), (46, 1_000), (500, 1_000)])
def test_the_interval_is_the_binomial_one(marked: int, count: int):
    """Against the distribution summed in exact fractions."""
    from fractions import Fraction
    from math import comb

    from pellucid.core.baseline import _wilson

    baseline, window, tail = Baseline(count, marked, 10, 10, count, 1), 40, 1e-6
    low, high = _wilson(marked, count)

    def at_most(k: int, share: float) -> Fraction:
        p = Fraction(share)
        return sum((comb(window, i) * p**i * (1 - p) ** (window - i) for i in range(k + 1)), Fraction(0))

    fewest, most = expected_marks(baseline, tail, window)
    assert at_most(fewest, low) > Fraction(tail)
    assert fewest == 0 or at_most(fewest - 1, low) <= Fraction(tail) * Fraction(1001, 1000)
    assert 1 - at_most(most, high) <= Fraction(tail) * Fraction(1001, 1000)
    assert most == 0 or 1 - at_most(most - 1, high) > Fraction(tail) * Fraction(999, 1000)


@given(st.lists(st.integers(1, 10**9), min_size=20, max_size=200))
def test_a_baseline_says_what_its_words_say(times: list[int]):
    made = make_baseline(times)
    assert made.marked == sum(made.is_marked(each) for each in times) <= made.executions
    assert made.near_median == sum(abs(each - made.median_ns) <= NEAR_NS for each in times)
    assert (
        made.std_ns == max(1, int(statistics.stdev([t - made.mean_ns for t in times]))) or len(set(times)) > 1
    )
    assert read_baseline(made.record(), "") == made


def test_a_few_executions_are_no_baseline_and_half_an_entry_is_none():
    with pytest.raises(FormatError, match="at least 20"):
        make_baseline([1] * 19)
    record = make_baseline([1] * 20).record()
    with pytest.raises(FormatError, match="as numbers"):
        read_baseline({**record, "mean_ns": None}, "k")


def test_a_baseline_frozen_before_is_the_one_in_force():
    baseline = Baseline(100, 4, 1_000_000, 1_000_000, 100, 10_000, "node/door-1/e1")
    served = Served(baselines={1: baseline})
    served.run(1.0, 1.05)
    assert not served.events("stage")
    calls = served.recorder.calls()
    assert [call.mark is not None for call in calls] == [False, True]
    assert calls[1].mark["baseline"] == "node/door-1/e1"
    (batcher,) = served.plane.pool.batchers()
    assert batcher.baselines.totals() == {"1": {"executions": 2, "judged": 2, "marked": 1, "near": 2}}


def test_none_is_made_where_none_is_wanted():
    served = Served(Limits(baseline=BaselineLimits(skip=0, executions=0)))
    served.run(*USUAL, 90)
    assert not served.events("stage")
    assert all(call.mark is None for call in served.recorder.calls())


def test_a_ledger_that_is_full_makes_it_later():
    served = Served()
    served.run(*[1] * 5, *USUAL[:-1])
    event, tries = served.recorder.event, []

    def refusing(*args: Any, **more: Any) -> str:
        tries.append(args)
        raise FormatError("ledger: expected room, got none")

    served.recorder.event = refusing  # type: ignore[method-assign]
    served.run(1.0)
    assert len(tries) == 1
    served.recorder.event = event  # type: ignore[method-assign]
    served.run(*USUAL)
    assert len(served.events("stage")) == 1


def test_a_process_that_warms_up_is_no_news_against_a_baseline_from_before():
    baseline = Baseline(1_000, 0, 1_000_000, 1_000_000, 1_000, 10_000, "node/door-1/e1")
    served = Served(Limits(baseline=BaselineLimits(skip=100)), baselines={1: baseline})
    served.run(*[3.0] * 100)
    assert not served.events("alert")
    assert all(call.mark is not None for call in served.recorder.calls())
    served.run(*[3.0] * 30)
    assert len(served.events("alert")) == 1
