"""Memory that creeps: how fast, with which engine, and when it is said."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.creep import READINGS_MIN, Reading, _correlation, slope_per_s, suspect
from pellucid.errors import FormatError
from pellucid.serving.watchdog import AGAIN_NS, Watchdog, WatchdogLimits
from pellucid.testing.clock import FakeClock
from pellucid.testing.recorder import MemoryRecorder

MIB = 2**20


def readings(bytes_: list[int], **calls: list[int]) -> list[Reading]:
    counts = [dict(zip(calls, each, strict=True)) for each in zip(*calls.values(), strict=True)] or [
        {}
    ] * len(bytes_)
    return [
        Reading(n * 10**9, size, count) for n, (size, count) in enumerate(zip(bytes_, counts, strict=True))
    ]


@given(
    st.integers(-(2**20), 2**20), st.lists(st.integers(0, 29), max_size=8, unique=True), st.integers(0, 2**40)
)
def test_a_few_wild_readings_do_not_move_the_slope(slope: int, wild: list[int], start: int):
    sizes = [start + slope * n for n in range(30)]
    for place in wild:
        sizes[place] += 2**34
    found = slope_per_s(readings(sizes))
    assert found is not None
    if not wild:
        assert found == pytest.approx(slope)
    assert abs(found - slope) <= 2**34 / 2


def test_a_third_of_wild_readings_leaves_the_slope_near():
    draw = random.Random(3)
    sizes = [100 * MIB + n * MIB + draw.randrange(1000) for n in range(60)]
    for place in draw.sample(range(60), 15):
        sizes[place] += draw.randrange(50 * MIB)
    assert slope_per_s(readings(sizes)) == pytest.approx(MIB, rel=0.15)


def test_too_few_readings_have_no_slope():
    assert slope_per_s(readings([1] * (READINGS_MIN - 1))) is None
    assert slope_per_s([Reading(5, n, {}) for n in range(20)]) is None


def test_the_only_engine_is_named_with_what_a_call_costs():
    found = suspect(readings([0, 500, 1_000], a=[0, 5, 10]))
    assert (found.engine, found.how, found.bytes_per_call) == ("a", "only", 100)


def test_growth_that_goes_with_one_engines_calls_is_laid_to_it():
    draw = random.Random(5)
    a, b, sizes = [0], [0], [0]
    for _ in range(60):
        a.append(a[-1] + draw.randrange(100))
        b.append(b[-1] + draw.randrange(100))
        sizes.append(sizes[-1] + (a[-1] - a[-2]) * 1_000 + draw.randrange(500))
    found = suspect(readings(sizes, a=a, b=b))
    assert (found.engine, found.how) == ("a", "goes_with")
    assert found.bytes_per_call == pytest.approx(1_000, rel=0.05)


def test_engines_that_are_called_alike_are_not_told_apart():
    draw = random.Random(7)
    a, b, sizes = [0], [0], [0]
    for _ in range(60):
        step = draw.randrange(100)
        a.append(a[-1] + step)
        b.append(b[-1] + step + draw.randrange(3))
        sizes.append(sizes[-1] + step * 1_000)
    assert suspect(readings(sizes, a=a, b=b)).engine is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=30))
def test_the_correlation_is_spearmans(pairs: list[tuple[int, int]]):
    one, other = [p[0] for p in pairs], [p[1] for p in pairs]
    found = _correlation(one, other)
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    if len(set(one)) > 1:
        assert _correlation(one, one) == pytest.approx(1)
        assert _correlation(one, [-x for x in one]) == pytest.approx(-1)
    assert found == pytest.approx(_correlation(other, one))


class Grows:
    """A process whose memory and calls the test moves."""

    def __init__(self, limits: WatchdogLimits, **engines: str) -> None:
        self.clock, self.recorder, self.resident = FakeClock(), MemoryRecorder(), 100 * MIB
        self.calls = dict.fromkeys(engines or {"m:1": "sha256:e"}, 0)
        self.dog = Watchdog(
            limits, self.recorder, clock=self.clock, resident=lambda: self.resident,
            calls=lambda: self.calls, engines=engines or {"m:1": "sha256:e"},
        )  # fmt: skip

    def live(self, seconds: int, bytes_per_s: int) -> list[str]:
        said = []
        for _ in range(seconds):
            self.clock.move(1)
            self.resident += bytes_per_s
            self.calls = {name: count + 10 for name, count in self.calls.items()}
            if reason := self.dog.look():
                said.append(reason)
        return said

    def entries(self) -> list[dict[str, Any]]:
        return [record.data for record in self.recorder.records[1:]]


def test_a_limit_on_memory_names_slope_and_engine_once():
    grown = Grows(WatchdogLimits(resident_max_bytes=150 * MIB, window_s=60))
    said = grown.live(100, MIB)
    assert len(said) == 1
    assert (
        "limit 157,286,400, growing by 3,774,873,600 bytes an hour with m:1, the only engine here" in said[0]
    )
    (entry,) = grown.entries()
    assert entry["growth_bytes_per_h"] == 3_600 * MIB
    assert (entry["model"], entry["version"], entry["engine"]) == ("m", "1", "sha256:e")
    assert (entry["attributed"], entry["bytes_per_call"]) == ("only", MIB // 10)


def test_growth_alone_is_enough_once_it_was_watched_for_long_enough():
    grown = Grows(WatchdogLimits(growth_max_bytes_per_h=100 * MIB, window_s=60))
    assert not grown.live(59, MIB)
    assert grown.live(10, MIB)


def test_memory_that_stays_is_left_alone():
    grown = Grows(WatchdogLimits(growth_max_bytes_per_h=MIB, resident_max_bytes=200 * MIB, window_s=60))
    assert not grown.live(500, 0)
    assert not grown.entries()


def test_without_a_limit_nothing_is_ever_said():
    assert not Grows(WatchdogLimits()).live(500, 100 * MIB)


def test_it_asks_again_when_nothing_came_of_it():
    grown = Grows(WatchdogLimits(resident_max_bytes=MIB, window_s=60))
    assert len(grown.live(AGAIN_NS // 10**9 + 5, 0)) == 2


def test_without_its_entry_nothing_is_asked():
    grown = Grows(WatchdogLimits(resident_max_bytes=MIB))

    def refuse(*_: Any) -> str:
        raise FormatError("ledger: expected room, got none")

    grown.recorder.event = refuse  # type: ignore[method-assign]
    assert not grown.live(5, 0)


def test_where_memory_cannot_be_read_nothing_is_said():
    grown = Grows(WatchdogLimits(resident_max_bytes=MIB))
    grown.dog._resident = lambda: None
    assert not grown.live(5, 0)


def test_two_engines_that_cannot_be_told_apart_are_not_named():
    limits = WatchdogLimits(resident_max_bytes=150 * MIB, window_s=60)
    grown = Grows(limits, **{"a:1": "sha256:a", "b:1": "sha256:b"})
    (said,) = grown.live(60, MIB)
    assert said.endswith("which engine, its calls do not show")
    (entry,) = grown.entries()
    assert (entry["engine"], entry["attributed"]) == (None, "unclear")
