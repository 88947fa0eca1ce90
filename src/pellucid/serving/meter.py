"""Counters of one served model: plain integers, written on the event loop's thread, read from any.

Only what is known anyway is counted, and histograms have powers of two for bounds, so that a call
pays for a few additions. A reader may see one call in one counter and not yet
in the next; no counter ever goes back.
"""

from __future__ import annotations

from typing import Any, Final

_WIDTH: Final = 64  # a count for each length of an integer in bits; ``core.metrics`` says which are told


class Meter:
    """What one model version did so far.

    Attributes:
        rows, infer_ns: Over executions; ``queue_ns``, ``total_ns`` over their calls.
        shared_infer_ns: As ``infer_ns``, each call of a batch counting all of it.
        failed, failed_ns: Calls whose execution failed; ``unanswered``: whose answer could not be made.
        rejected: Calls that found the queue full.
    """

    __slots__ = (
        "failed", "failed_ns", "infer_counts", "infer_ns", "queue_counts", "queue_ns", "rejected",
        "rows", "shared_infer_ns", "total_counts", "total_ns", "unanswered",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows = self.infer_ns = self.shared_infer_ns = self.queue_ns = self.total_ns = 0
        self.failed = self.unanswered = self.failed_ns = self.rejected = 0
        self.queue_counts, self.total_counts, self.infer_counts = [0] * _WIDTH, [0] * _WIDTH, [0] * _WIDTH

    def executed(self, rows: int, calls: int, infer_ns: int) -> None:
        """Count one execution."""
        self.rows += rows
        self.infer_ns += infer_ns
        self.shared_infer_ns += infer_ns * calls
        self.infer_counts[infer_ns.bit_length()] += 1

    def closed(self, queue_ns: int, total_ns: int) -> None:
        """Count one executed call."""
        self.queue_ns += queue_ns
        self.total_ns += total_ns
        self.queue_counts[queue_ns.bit_length()] += 1
        self.total_counts[total_ns.bit_length()] += 1

    def broke(self, total_ns: int, *, engine: bool) -> None:
        """Say of a call just counted that it has no answer: the engine failed, or rendering did."""
        self.failed += engine
        self.unanswered += not engine
        self.failed_ns += total_ns

    @property
    def calls(self) -> int:
        """Calls that were executed."""
        return sum(self.total_counts)

    def totals(self) -> dict[str, Any]:
        """Everything counted, as JSON; two of these add up number by number."""
        return {
            "success": self.calls - self.failed - self.unanswered,
            "success_ns": self.total_ns - self.failed_ns,
            "failure": {"BACKEND": self.failed, "REJECTED": self.rejected, "OTHER": self.unanswered},
            "rows": self.rows,
            "queue": {"counts": list(self.queue_counts), "ns": self.queue_ns},
            "total": {"counts": list(self.total_counts), "ns": self.total_ns},
            "infer": {"counts": list(self.infer_counts), "ns": self.infer_ns},
            "shared_infer_ns": self.shared_infer_ns,
        }  # fmt: skip


def added(one: Any, other: Any) -> Any:
    """Two such JSON values, number by number; what only one of them has stands as it is."""
    if isinstance(one, dict):
        both = {name: added(value, other[name]) if name in other else value for name, value in one.items()}
        return both | {name: value for name, value in other.items() if name not in one}
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other
