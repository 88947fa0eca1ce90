"""Counters of one model version, as the protocol's statistics extension words them.

They never go back while the model is loaded. Calls refused at the door count nowhere here: they never
reached the model. Every call of an execution counts the execution's durations once. All are plain
numbers, because they are added up at every execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

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


class Peers(Protocol):
    """The other serving processes behind the same port."""

    async def statistics(self, name: str | None, version: str | None) -> list[list[dict[str, Any]]]:
        """What each of them has counted.

        Raises:
            UnavailableError: One did not answer.
        """
        ...


def add_up(counted: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The statistics of several processes as one; models in the order in which they are first named."""
    models: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for records in counted:
        for record in records:
            models.setdefault((record["name"], record["version"]), []).append(record)
    return [_added(records) for records in models.values()]


def _added(records: list[dict[str, Any]]) -> dict[str, Any]:
    stages = records[0]["inference_stats"]
    by_rows: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        for batch in record["batch_stats"]:
            by_rows.setdefault(batch["batch_size"], []).append(batch)
    return records[0] | {
        "last_inference": max(record["last_inference"] for record in records),
        "inference_count": sum(record["inference_count"] for record in records),
        "execution_count": sum(record["execution_count"] for record in records),
        "inference_stats": {
            stage: _summed([record["inference_stats"][stage] for record in records]) for stage in stages
        },
        "batch_stats": [
            {"batch_size": rows} | {stage: _summed([each[stage] for each in batches]) for stage in _STAGES}
            for rows, batches in sorted(by_rows.items())
        ],
    }


def _summed(durations: Sequence[dict[str, int]]) -> dict[str, int]:
    return _duration(sum(d["count"] for d in durations), sum(d["ns"] for d in durations))
