"""Counters of one model version, as the protocol's statistics extension words them.

They never go back while the model is loaded. Calls refused at the door count nowhere here: they never
reached the model. Every call of an execution counts the execution's durations once. All are plain
numbers, because they are added up at every execution.
"""

from __future__ import annotations

from typing import Any

Stages = tuple[int, int, int]  # nanoseconds of input, inference and output
_STAGES = ("compute_input", "compute_infer", "compute_output")


class Statistics:
    """What one batcher did so far. Lives on the event loop's thread."""

    __slots__ = (
        "_by_rows", "answered", "answered_ns", "executions", "failed", "failed_ns", "infer_ns", "inferences",
        "input_ns", "last_ns", "output_ns", "queue_ns", "ran",
    )  # fmt: skip

    def __init__(self) -> None:
        self.inferences = self.executions = self.last_ns = 0
        self.ran = self.queue_ns = self.input_ns = self.infer_ns = self.output_ns = 0
        self.answered = self.answered_ns = self.failed = self.failed_ns = 0
        self._by_rows: dict[int, list[int]] = {}

    def executed(self, rows: int, calls: int, queue_ns: int, stages: Stages, wall_ns: int) -> None:
        """Count one execution.

        Args:
            rows: Real rows in it, not the bucket.
            queue_ns: Waiting time of its calls, added up.
        """
        input_ns, infer_ns, output_ns = stages
        self.inferences += rows
        self.executions += 1
        self.last_ns = wall_ns
        self.ran += calls
        self.queue_ns += queue_ns
        self.input_ns += input_ns * calls
        self.infer_ns += infer_ns * calls
        self.output_ns += output_ns * calls
        batch = self._by_rows.get(rows)
        if batch is None:
            batch = self._by_rows[rows] = [0, 0, 0, 0]
        batch[0] += 1
        batch[1] += input_ns
        batch[2] += infer_ns
        batch[3] += output_ns

    def fail(self, total_ns: int) -> None:
        """Count a call that reached the model's queue and was not answered."""
        self.failed += 1
        self.failed_ns += total_ns

    def record(self, name: str, version: str) -> dict[str, Any]:
        """The protocol's ``ModelStatistics``."""
        stages = zip(_STAGES, (self.input_ns, self.infer_ns, self.output_ns), strict=True)
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ns // 1_000_000,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": _duration(self.answered, self.answered_ns),
                "fail": _duration(self.failed, self.failed_ns),
                "queue": _duration(self.ran, self.queue_ns),
                **{stage: _duration(self.ran, ns) for stage, ns in stages},
                "cache_hit": _duration(0, 0),
                "cache_miss": _duration(0, 0),
            },
            "response_stats": {},
            "batch_stats": [
                {"batch_size": rows}
                | {stage: _duration(count, ns) for stage, ns in zip(_STAGES, took, strict=True)}
                for rows, (count, *took) in sorted(self._by_rows.items())
            ],
            "memory_usage": [],
        }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
