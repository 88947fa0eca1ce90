"""Why a model was slow at a moment: what changed before, and what its calls took before and after.

Pure: changes and calls in, a cause in words out. Nothing here proves a cause: it names the change
behind which the latency rose most, and by which stage; whoever reads it sees the numbers beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.core.slow import find_slow

STAGES: Final = ("queue", "compute", "rest", "total")
RISE: Final = 1.5  # limit: a smaller rise of a quantile is not called one
CALLS_MIN: Final = 5  # fewer calls have no quantiles worth a word
_PARTS: Final = {"queue": "queue", "compute": "compute", "rest": "time between the stages"}


@dataclass(frozen=True, slots=True)
class Window:
    """Latency of the calls of a stretch of time.

    Attributes:
        p50, p99: Nanoseconds by stage: queue, compute, rest (everything else), total.
        marked: Calls beyond their baseline; parts: what these were, by ``core.slow``.
    """

    calls: int
    p50: dict[str, int]
    p99: dict[str, int]
    marked: int
    parts: dict[str, int]

    def record(self) -> dict[str, Any]:
        """As one object for machines."""
        return {name: getattr(self, name) for name in self.__slots__}


def make_window(calls: Sequence[Mapping[str, Any]]) -> Window:
    """Window of executed calls (``data`` of their entries)."""
    by_stage: dict[str, list[int]] = {stage: [] for stage in STAGES}
    parts: dict[str, int] = {}
    marked = 0
    for call in calls:
        told = call["stages"]
        queue, compute, total = told["queue_ns"], told["infer_ns"], told["total_ns"]
        for stage, took in zip(STAGES, (queue, compute, max(0, total - queue - compute), total), strict=True):
            by_stage[stage].append(took)
        if "mark" in call:
            marked += 1
            part = find_slow(call).part
            parts[part] = parts.get(part, 0) + 1
    ordered = {stage: sorted(values) for stage, values in by_stage.items()}
    return Window(
        len(calls),
        {stage: quantile(values, 50) for stage, values in ordered.items()},
        {stage: quantile(values, 99) for stage, values in ordered.items()},
        marked,
        parts,
    )


def quantile(ordered: Sequence[int], percent: int) -> int:
    """Nearest-rank quantile; 0 of nothing."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else 0


@dataclass(frozen=True, slots=True)
class Change:
    """What changed at a moment, in sentences.

    Attributes:
        what: The main thing, for example ``load of credit 1.1.0 with buckets up to 32 (before: 8)``.
        more: What else changed with it.
        approved: Who approved the package that was loaded.
        entries: Keys of the entries that say so.
    """

    time_ns: int
    time: str
    what: str
    more: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Weighed:
    """A change between two windows, and the stage that rose most over it.

    Told by the 99th percentile; where that did not rise, by the median: one stall among the calls
    before a change must not hide that all calls are slower since.
    """

    change: Change
    before: Window
    after: Window
    stage: str = field(init=False)
    rise: float = field(init=False)
    quantile: str = field(init=False)

    def __post_init__(self) -> None:
        chosen = max(("p99", "p50"), key=lambda name: (self._ratio(name) >= RISE, name))
        before, after = getattr(self.before, chosen), getattr(self.after, chosen)
        stage = max((name for name in STAGES if name != "total"), key=lambda name: after[name] - before[name])
        enough = min(self.before.calls, self.after.calls) >= CALLS_MIN
        object.__setattr__(self, "stage", stage)
        object.__setattr__(self, "quantile", chosen)
        object.__setattr__(self, "rise", self._ratio(chosen) if enough else 0.0)

    def _ratio(self, quantile: str) -> float:
        before: int = getattr(self.before, quantile)["total"]
        after: int = getattr(self.after, quantile)["total"]
        return after / max(1, before)

    def gain_ns(self) -> int:
        """By how much the total rose."""
        after: int = getattr(self.after, self.quantile)["total"]
        return after - int(getattr(self.before, self.quantile)["total"])

    def sentence(self) -> str:
        """The change and what the latency did over it."""
        approved = f"; approved by {', '.join(self.change.approved)}" if self.change.approved else ""
        return f"{self.change.what} at {self.change.time}: {self.numbers()}{approved}"

    def numbers(self) -> str:
        """The stage that rose most, before and after."""
        before = getattr(self.before, self.quantile)[self.stage]
        after = getattr(self.after, self.quantile)[self.stage]
        if min(self.before.calls, self.after.calls) < CALLS_MIN:
            return f"{self.before.calls} calls before and {self.after.calls} after: too few to compare"
        word = "queue" if self.stage == "queue" else _PARTS[self.stage]
        return f"{word} {self.quantile} {_ms(before)} -> {_ms(after)}"

    def record(self) -> dict[str, Any]:
        """As one object for machines."""
        return {
            "time": self.change.time, "what": self.change.what, "more": list(self.change.more),
            "approved": list(self.change.approved), "entries": list(self.change.entries),
            "stage": self.stage if self.rise else None, "before": self.before.record(),
            "after": self.after.record(),
        }  # fmt: skip


def find_cause(weighed: Sequence[Weighed], lately: Window, before: Window) -> tuple[str, Weighed | None]:
    """The most likely cause in words, and the change that it is, if it is one.

    Args:
        weighed: Changes, newest first.
        lately: The calls just before the moment; ``before``: those before these, for the case that
            nothing changed.
    """
    risen = [each for each in weighed if each.rise >= RISE]
    if risen:
        worst = max(risen, key=Weighed.gain_ns)
        return worst.sentence(), worst
    last = (
        "nothing changed before"
        if not weighed
        else f"no change made it slower (the last: {weighed[0].change.what})"
    )
    if min(lately.calls, before.calls) < CALLS_MIN:
        return f"{last}; {lately.calls} calls lately and {before.calls} before: too few to compare", None
    drift = Weighed(Change(0, "", ""), before, lately)
    if drift.rise < RISE:
        rise = f"total p99 {_ms(before.p99['total'])} -> {_ms(lately.p99['total'])}"
        return f"{last}, and it was not slower: {rise}", None
    return f"{last}, but {drift.numbers()}{_blamed(lately)}", None


def _blamed(window: Window) -> str:
    """What the marked calls of a window were."""
    if not window.parts:
        return ""
    part = max(window.parts, key=lambda name: window.parts[name])
    return f"; of {window.marked} marked calls {window.parts[part]} were the {part}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3g} ms" if ns < 10**9 else f"{ns / 1e6:,.0f} ms"
