"""Counters of one model version, as the protocol's statistics extension words them.

They never go back while the model is loaded. Calls refused at the door count nowhere here: they never
reached the model. Every call of an execution counts the execution's durations once.
"""

from __future__ import annotations

from typing import Any


class _Duration:
    """How often, and how long altogether."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns

    def record(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


_STAGES = ("compute_input", "compute_infer", "compute_output")


class Statistics:
    """What one batcher did so far. Lives on the event loop's thread."""

    __slots__ = ("_by_rows", "_fail", "_queue", "_stages", "_success", "executions", "inferences", "last_ms")

    def __init__(self) -> None:
        self._success, self._fail, self._queue = _Duration(), _Duration(), _Duration()
        self._stages = (_Duration(), _Duration(), _Duration())
        self._by_rows: dict[int, tuple[_Duration, _Duration, _Duration]] = {}
        self.inferences = self.executions = self.last_ms = 0

    def executed(
        self, rows: int, calls: int, queue_ns: int, stages: tuple[int, int, int], wall_ns: int
    ) -> None:
        """Count one execution.

        Args:
            rows: Real rows in it, not the bucket.
            queue_ns: Waiting time of its calls, added up.
            stages: Nanoseconds of input, inference and output.
        """
        self.inferences += rows
        self.executions += 1
        self.last_ms = wall_ns // 1_000_000
        self._queue.add(queue_ns, calls)
        batch = self._by_rows.get(rows)
        if batch is None:
            batch = self._by_rows[rows] = (_Duration(), _Duration(), _Duration())
        for number, took in enumerate(stages):
            self._stages[number].add(took * calls, calls)
            batch[number].add(took)

    def succeeded(self, total_ns: int, calls: int = 1) -> None:
        """Count calls that were answered; their times from acceptance to answer, added up."""
        self._success.add(total_ns, calls)

    def failed(self, total_ns: int) -> None:
        """Count a call that reached the model's queue and was not answered."""
        self._fail.add(total_ns)

    def record(self, name: str, version: str) -> dict[str, Any]:
        """The protocol's ``ModelStatistics``."""
        named = zip(_STAGES, self._stages, strict=True)
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self._success.record(),
                "fail": self._fail.record(),
                "queue": self._queue.record(),
                **{stage: duration.record() for stage, duration in named},
                "cache_hit": {"count": 0, "ns": 0},
                "cache_miss": {"count": 0, "ns": 0},
            },
            "response_stats": {},
            "batch_stats": [
                {"batch_size": rows}
                | {stage: took.record() for stage, took in zip(_STAGES, durations, strict=True)}
                for rows, durations in sorted(self._by_rows.items())
            ],
            "memory_usage": [],
        }
