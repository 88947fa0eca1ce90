"""Counters of one served model: plain integers, written on the event loop's thread, read from any.

Only what is known anyway is counted, and histograms have powers of two for bounds, so that a call
pays for a few additions. A reader may see one call in one counter and not yet
in the next; no counter ever goes back.
"""

from __future__ import annotations

from typing import Any, Final

_WIDTH: Final = 64  # a count for each length of an integer in bits; ``core.metrics`` says which are told
Stages = tuple[int, int, int]  # nanoseconds of input, inference and output of one execution


class Meter:
    """What one model version did so far.

    ``totals`` tells it as metrics, ``serving.statistics`` as the protocol's statistics.

    Attributes:
        last_ns: Wall clock of the last execution.
        shared_ns: Stages of executions, each call of a batch counting all of them.
        by_rows: By rows of an execution: how many there were, and their stages.
        queue_ns, total_ns: Over executed calls.
        failed: Calls whose execution failed, and ``failed_queue_ns``, which is in ``queue_ns``.
        unanswered: Executed calls whose answer could not be made or recorded.
        broken_ns: Part of ``total_ns`` of calls that failed or were not answered.
        expired, expired_ns: Calls whose turn did not come in time.
        rejected: Calls that found the queue full.
    """

    __slots__ = (
        "broken_ns", "by_rows", "expired", "expired_ns", "failed", "failed_queue_ns", "infer_counts",
        "last_ns", "queue_counts", "queue_ns", "rejected", "shared_ns", "total_counts", "total_ns",
        "unanswered",
    )  # fmt: skip

    def __init__(self) -> None:
        self.last_ns = self.queue_ns = self.total_ns = self.broken_ns = 0
        self.failed = self.failed_queue_ns = self.unanswered = self.rejected = 0
        self.expired = self.expired_ns = 0
        self.shared_ns = [0, 0, 0]
        self.by_rows: dict[int, list[int]] = {}
        self.queue_counts, self.total_counts, self.infer_counts = [0] * _WIDTH, [0] * _WIDTH, [0] * _WIDTH

    def executed(self, rows: int, calls: int, stages: Stages, wall_ns: int) -> None:
        """Count one execution of that many real rows."""
        input_ns, infer_ns, output_ns = stages
        self.last_ns = wall_ns
        self.infer_counts[infer_ns.bit_length()] += 1
        shared = self.shared_ns
        shared[0] += input_ns * calls
        shared[1] += infer_ns * calls
        shared[2] += output_ns * calls
        batch = self.by_rows.get(rows)
        if batch is None:
            batch = self.by_rows[rows] = [0, 0, 0, 0]
        batch[0] += 1
        batch[1] += input_ns
        batch[2] += infer_ns
        batch[3] += output_ns

    def closed(self, queue_ns: int, total_ns: int) -> None:
        """Count one executed call."""
        self.queue_ns += queue_ns
        self.total_ns += total_ns
        self.queue_counts[queue_ns.bit_length()] += 1
        self.total_counts[total_ns.bit_length()] += 1

    def broke(self, queue_ns: int, total_ns: int, *, engine: bool) -> None:
        """Say of a call just counted that it has no answer: the engine failed, or what came after."""
        self.broken_ns += total_ns
        if engine:
            self.failed += 1
            self.failed_queue_ns += queue_ns
        else:
            self.unanswered += 1

    def expire(self, total_ns: int) -> None:
        """Count a call whose turn did not come in time."""
        self.expired += 1
        self.expired_ns += total_ns

    @property
    def calls(self) -> int:
        """Calls that were executed."""
        return sum(self.total_counts)

    @property
    def answered(self) -> int:
        return self.calls - self.failed - self.unanswered

    def totals(self) -> dict[str, Any]:
        """Everything counted, as JSON; two of these add up number by number."""
        batches = list(self.by_rows.items())
        other = self.unanswered + self.expired
        return {
            "success": self.answered,
            "success_ns": self.total_ns - self.broken_ns,
            "failure": {"BACKEND": self.failed, "REJECTED": self.rejected, "OTHER": other},
            "rows": sum(rows * batch[0] for rows, batch in batches),
            "queue": {"counts": list(self.queue_counts), "ns": self.queue_ns},
            "total": {"counts": list(self.total_counts), "ns": self.total_ns},
            "infer": {"counts": list(self.infer_counts), "ns": sum(batch[2] for _, batch in batches)},
            "shared_infer_ns": self.shared_ns[1],
        }


def added(one: Any, other: Any) -> Any:
    """Two such JSON values, number by number; what only one of them has stands as it is."""
    if isinstance(one, dict):
        both = {name: added(value, other[name]) if name in other else value for name, value in one.items()}
        return both | {name: value for name, value in other.items() if name not in one}
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other
