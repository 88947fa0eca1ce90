"""What was counted of one model version, as the protocol's statistics extension words it.

Numbers never go back while the model is loaded. Calls refused at the door count nowhere here: they
never reached the model. Every call of an execution counts the execution's durations once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from pellucid.serving.meter import Meter

_STAGES = ("compute_input", "compute_infer", "compute_output")


def statistics_of(meter: Meter, name: str, version: str) -> dict[str, Any]:
    """The protocol's ``ModelStatistics`` of what was counted."""
    ran = meter.calls - meter.failed
    broken = meter.failed + meter.unanswered + meter.expired
    batches = sorted(meter.by_rows.items())
    return {
        "name": name,
        "version": version,
        "last_inference": meter.last_ns // 1_000_000,
        "inference_count": sum(rows * batch[0] for rows, batch in batches),
        "execution_count": sum(batch[0] for _, batch in batches),
        "inference_stats": {
            "success": _duration(meter.answered, meter.total_ns - meter.broken_ns),
            "fail": _duration(broken, meter.broken_ns + meter.expired_ns),
            "queue": _duration(ran, meter.queue_ns - meter.failed_queue_ns),
            **{stage: _duration(ran, ns) for stage, ns in zip(_STAGES, meter.shared_ns, strict=True)},
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "response_stats": {},
        "batch_stats": [
            {"batch_size": rows}
            | {stage: _duration(count, ns) for stage, ns in zip(_STAGES, took, strict=True)}
            for rows, (count, *took) in batches
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
