"""Memory that creeps: how fast, robustly, and which engine it goes with.

The slope is Theil and Sen's, the median of the slopes between all pairs: a third of the readings may
be anything. Which engine is at fault cannot be seen from outside of a process; where several engines
are served, what is said is with whose calls the growth goes together, and how sure that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

READINGS_MAX: Final = 60  # limit: all pairs are looked at, on a thread that has calls to answer
READINGS_MIN: Final = 5
_SURE: Final = 0.8  # limit: rank correlation above which growth 'goes with' an engine's calls
_AHEAD: Final = 0.15  # limit: and by how much it must lie above that of the next engine


@dataclass(frozen=True, slots=True)
class Reading:
    """Resident bytes at a moment, and how many calls each engine had answered by then."""

    time_ns: int
    resident_bytes: int
    calls: Mapping[str, int]


def slope_per_s(readings: Sequence[Reading]) -> float | None:
    """Growth in bytes a second; ``None`` where there are too few readings."""
    if len(readings) < READINGS_MIN:
        return None
    slopes = sorted(
        (late.resident_bytes - early.resident_bytes) * 1e9 / (late.time_ns - early.time_ns)
        for number, early in enumerate(readings)
        for late in readings[number + 1 :]
        if late.time_ns > early.time_ns
    )
    return slopes[len(slopes) // 2] if slopes else None


def rough_slope_per_s(readings: Sequence[Reading]) -> float:
    """Growth in bytes a second from the middle of the first third to that of the last; costs little."""
    third = len(readings) // 3
    if not third:
        return 0.0
    early, late = _middle(readings[:third]), _middle(readings[-third:])
    return (late.resident_bytes - early.resident_bytes) * 1e9 / max(1, late.time_ns - early.time_ns)


def _middle(readings: Sequence[Reading]) -> Reading:
    return sorted(readings, key=lambda reading: reading.resident_bytes)[len(readings) // 2]


@dataclass(frozen=True, slots=True)
class Suspect:
    """The engine that growth is laid to, and in which words.

    Attributes:
        engine: Its name; ``None`` where nothing points to one.
        how: ``only`` (no other is served), ``goes_with`` (growth goes together with its calls and
            less with any other's), ``unclear``.
        bytes_per_call: Growth over its calls in the window, where there were any.
    """

    engine: str | None
    how: str
    bytes_per_call: int | None = None


def suspect(readings: Sequence[Reading]) -> Suspect:
    """Which engine growth goes with, over the steps between readings."""
    if not readings:
        return Suspect(None, "unclear")
    first, last = readings[0], readings[-1]
    grown = last.resident_bytes - first.resident_bytes
    called = {name: count - first.calls.get(name, 0) for name, count in last.calls.items()}
    if len(last.calls) == 1:
        (name,) = last.calls
        return Suspect(name, "only", _each(grown, called[name]))
    growth = [late.resident_bytes - early.resident_bytes for early, late in pairwise(readings)]
    scores = sorted(
        ((_correlation(growth, _steps(readings, name)), name) for name, count in called.items() if count > 0),
        reverse=True,
    )
    if scores and scores[0][0] >= _SURE and (len(scores) == 1 or scores[0][0] - scores[1][0] >= _AHEAD):
        name = scores[0][1]
        return Suspect(name, "goes_with", _each(grown, called[name]))
    return Suspect(None, "unclear")


def _each(grown: int, calls: int) -> int | None:
    return grown // calls if calls > 0 else None


def _steps(readings: Sequence[Reading], name: str) -> list[int]:
    counts = [reading.calls.get(name, 0) for reading in readings]
    return [late - early for early, late in pairwise(counts)]


def _correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Spearman's rank correlation; 0 where one of them does not vary."""
    a, b = _ranks(one), _ranks(other)
    mean = (len(a) - 1) / 2
    spread_a, spread_b = sum((x - mean) ** 2 for x in a), sum((y - mean) ** 2 for y in b)
    if not spread_a or not spread_b:
        return 0.0
    together = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return float(together / (spread_a * spread_b) ** 0.5)


def _ranks(values: Sequence[int]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for place in order[start:stop]:
            ranks[place] = (start + stop - 1) / 2
        start = stop
    return ranks
