"""Latency baselines: what an engine usually takes, which executions are beyond it, and when that is news.

A baseline belongs to an engine, a bucket and a device, and does not move once it is frozen. An
execution is marked when its compute time is more than two standard deviations from the mean. Some
always are; what is news is that their share leaves the interval in which it should lie by chance.
Source: spec/ledger.md, section 2.6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pellucid.errors import FormatError

NEAR_NS: Final = 3_000_000  # the share within 3 ms of the median is told
MARK_MILLI: Final = 2_000  # two standard deviations, in thousandths of one
WINDOW: Final = 500  # executions over which a share is judged
COUNT_MIN: Final = 20  # fewer say nothing about a spread
_ALERT_TAIL: Final = 1e-6  # limit: by chance, one window in a million lies outside on either side
_CALM_TAIL: Final = 1e-2
_DOUBT: Final = 3.0  # standard errors that the share of the baseline itself may be off
_MEMBERS: Final = ("executions", "marked", "mean_ns", "median_ns", "near_median", "std_ns")


class Baseline(msgspec.Struct, frozen=True):
    """Compute time of an engine in one bucket on one device.

    Attributes:
        executions: How many it was made of.
        marked: How many of these it marks itself.
        near_median: How many of these are within 3 ms of the median.
        key: Its entry; ``""`` before it has one.
    """

    executions: int
    marked: int
    mean_ns: int
    median_ns: int
    near_median: int
    std_ns: int
    key: str = ""

    def deviation(self, infer_ns: int) -> int:
        """Distance from the mean in thousandths of a standard deviation."""
        return (infer_ns - self.mean_ns) * 1000 // self.std_ns

    def is_marked(self, infer_ns: int) -> bool:
        """True beyond two standard deviations on either side."""
        return abs(infer_ns - self.mean_ns) * 1000 > MARK_MILLI * self.std_ns

    def record(self) -> dict[str, int]:
        """Members of its entry."""
        return {name: getattr(self, name) for name in _MEMBERS}


def make_baseline(times_ns: Sequence[int]) -> Baseline:
    """Baseline of compute times; leave out what ran while warming up.

    Raises:
        FormatError: Fewer than 20.
    """
    count = len(times_ns)
    if count < COUNT_MIN:
        raise FormatError(f"baseline: expected at least {COUNT_MIN} executions, got {count}")
    mean, median = sum(times_ns) // count, sorted(times_ns)[count // 2]
    variance = sum((each - mean) ** 2 for each in times_ns) // (count - 1)
    std = max(1, math.isqrt(variance))
    near = sum(abs(each - median) <= NEAR_NS for each in times_ns)
    made = Baseline(count, 0, mean, median, near, std)
    return Baseline(count, sum(map(made.is_marked, times_ns)), mean, median, near, std)


def read_baseline(data: Mapping[str, Any], key: str) -> Baseline:
    """Baseline of its entry's data.

    Raises:
        FormatError: Members are missing, or no numbers.
    """
    values = {name: data.get(name) for name in _MEMBERS}
    if not all(type(value) is int and value >= 0 for value in values.values()) or not values["std_ns"]:
        raise FormatError(f"baseline {key}: expected {', '.join(_MEMBERS)} as numbers, got {values!r:.120}")
    return Baseline(**values, key=key)  # type: ignore[arg-type]


# -- the share of marked executions ---------------------------------------------------------------


def expected_marks(baseline: Baseline, tail: float, window: int = WINDOW) -> tuple[int, int]:
    """Fewest and most marked executions of a window that chance explains.

    The share is the baseline's own, not the 4.6 % of a normal distribution: compute times are not
    normal. How well the baseline knows its share is allowed for (Wilson's interval).
    """
    low, high = _wilson(baseline.marked, baseline.executions)
    fewest = next(k for k, below in enumerate(_cumulated(window, low)) if below > tail)
    most = next(k for k, below in enumerate(_cumulated(window, high)) if 1 - below <= tail)
    return fewest, most


def _wilson(marked: int, count: int) -> tuple[float, float]:
    share, square = marked / count, _DOUBT**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _DOUBT * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _cumulated(window: int, share: float) -> Iterator[float]:
    """Probability of at most 0, 1, 2 ... marks."""
    total = 0.0
    for k in range(window):
        total += math.exp(_log_binomial(window, k, share))
        yield min(1.0, total)
    yield 1.0


def _log_binomial(n: int, k: int, share: float) -> float:
    if share in (0.0, 1.0):
        return 0.0 if k == n * share else -math.inf
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choose + k * math.log(share) + (n - k) * math.log(1 - share)


class Share:
    """Watches the share of marked executions, window by window, and says once when it leaves.

    Attributes:
        low, high: The interval; outside is news.
        marked: In this window; its owner counts, and begins the next with 0.
        is_out: True from the alert until a window lies well inside again.
    """

    __slots__ = ("_calm", "high", "is_out", "low", "marked", "window")

    def __init__(self, baseline: Baseline, window: int = WINDOW) -> None:
        self.low, self.high = expected_marks(baseline, _ALERT_TAIL, window)
        self._calm = expected_marks(baseline, _CALM_TAIL, window)
        self.window, self.marked, self.is_out = window, 0, False

    def is_due(self, executions: int) -> bool:
        """True when there is something to judge: the window is over, or holds too many marks already."""
        return executions >= self.window or self.marked > self.high

    def leaves(self, executions: int) -> bool:
        """Judge a window that is due; True once, when the share leaves its interval."""
        marked, is_whole = self.marked, executions >= self.window
        was_out = self.is_out
        if marked > self.high or (is_whole and marked < self.low):
            self.is_out = True
        elif is_whole and self._calm[0] <= marked <= self._calm[1]:
            self.is_out = False
        return self.is_out and not was_out
