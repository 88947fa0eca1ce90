"""Metrics: their names, what they mean, and the Prometheus text they are told in.

Where a number means what Triton means by one, it has Triton's name (``nv_*``), so that dashboards
made for it work; what Triton has no word for is ``pellucid_*``; what a process uses is ``process_*``
as every Prometheus client says it. Source: Prometheus text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BITS: Final = range(15, 33)  # histograms have the bounds 2**15 ns (33 us) to 2**32 ns (4.3 s)


@dataclass(frozen=True, slots=True)
class Histogram:
    """One series: how many durations had how many bits as nanoseconds, from 0 on; and their sum."""

    counts: tuple[int, ...]
    sum_ns: int


Value = int | float | Histogram


@dataclass(frozen=True, slots=True)
class Metric:
    """One name."""

    name: str
    kind: str  # counter, gauge or histogram
    text: str
    labels: tuple[str, ...] = ()


_MODEL: Final = ("model", "version")
_BUCKET: Final = ("model", "version", "bucket")
METRICS: Final = (
    Metric("nv_inference_request_success", "counter", "Calls that were answered", _MODEL),
    Metric(
        "nv_inference_request_failure",
        "counter",
        "Calls that reached a model and were not answered: BACKEND (the engine failed), REJECTED "
        "(its queue was full), OTHER",
        (*_MODEL, "reason"),
    ),
    Metric("nv_inference_count", "counter", "Rows inferred, padding not counted", _MODEL),
    Metric("nv_inference_exec_count", "counter", "Executions: a batch counts once", _MODEL),
    Metric("nv_inference_pending_request_count", "gauge", "Calls that wait for an execution", _MODEL),
    Metric(
        "nv_inference_request_duration_us",
        "counter",
        "Microseconds from acceptance to answer, over answered calls",
        _MODEL,
    ),
    Metric(
        "nv_inference_queue_duration_us",
        "counter",
        "Microseconds in the queue, over executed calls",
        _MODEL,
    ),
    Metric(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Microseconds in the engine; each call of a batch counts all of them",
        _MODEL,
    ),
    Metric("nv_gpu_utilization", "gauge", "Share of time in which kernels ran, 0 to 1", ("gpu_uuid",)),
    Metric("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU", ("gpu_uuid",)),
    Metric("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU in use, by anyone", ("gpu_uuid",)),
    Metric("nv_cpu_utilization", "gauge", "Share of the host's processors in use, 0 to 1"),
    Metric("nv_cpu_memory_total_bytes", "gauge", "Memory of the host"),
    Metric("nv_cpu_memory_used_bytes", "gauge", "Memory of the host that is not available"),
    Metric(
        "pellucid_request_duration_seconds",
        "histogram",
        "From acceptance to closing, over executed calls",
        _MODEL,
    ),
    Metric("pellucid_queue_duration_seconds", "histogram", "In the queue, over executed calls", _MODEL),
    Metric("pellucid_compute_duration_seconds", "histogram", "In the engine, over executions", _MODEL),
    Metric("pellucid_executions_total", "counter", "Executions by the bucket they ran in", _BUCKET),
    Metric("pellucid_baseline_judged_total", "counter", "Executions held against a baseline", _BUCKET),
    Metric(
        "pellucid_baseline_marked_total",
        "counter",
        "Of these, beyond two standard deviations of compute time",
        _BUCKET,
    ),
    Metric(
        "pellucid_baseline_near_total", "counter", "Of these, within 3 ms of the baseline's median", _BUCKET
    ),
    Metric(
        "pellucid_calls_refused_total",
        "counter",
        "Calls refused before they ran, by the error's code; beyond ledger.refusals_per_s they have"
        " no entry of their own",
        ("code",),
    ),
    Metric("pellucid_calls_accepted_total", "counter", "Numbers given out"),
    Metric("pellucid_calls_recorded_total", "counter", "Numbers closed in the journal"),
    Metric("pellucid_calls_open", "gauge", "Numbers given out and not closed"),
    Metric("pellucid_entries_integrated", "gauge", "Entries in the tree"),
    Metric("pellucid_entries_published", "gauge", "Entries that the published checkpoint covers"),
    Metric(
        "pellucid_journal_backlog_bytes",
        "gauge",
        "Journal bytes that wait to be integrated, or to be collected",
    ),
    Metric(
        "pellucid_journal_backlog_max_bytes",
        "gauge",
        "Where calls are refused: ledger.backlog_max_bytes",
    ),
    Metric(
        "pellucid_follower_behind_entries",
        "gauge",
        "Entries that the index or a sink has not got yet",
        ("follower",),
    ),
    Metric(
        "pellucid_follower_behind_seconds",
        "gauge",
        "Age of the first of these; 0 without any",
        ("follower",),
    ),
    Metric(
        "pellucid_follower_failing",
        "gauge",
        "1 while the sequencer says that it fails or hangs, 0 otherwise",
        ("follower",),
    ),
    Metric("pellucid_workers", "gauge", "Serving processes that are ready"),
    Metric("pellucid_worker_starts_total", "counter", "Serving processes started, the first included"),
    Metric(
        "pellucid_worker_recycles_total",
        "counter",
        "Serving processes replaced because their memory grew",
    ),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory", ("worker",)),
    Metric("process_cpu_seconds_total", "counter", "Processor time, user and system", ("worker",)),
    Metric("process_open_fds", "gauge", "Open descriptors", ("worker",)),
)
_BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Samples:
    """Values by metric and labels, in the order in which they came."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[tuple[str, ...], Value]]] = {}

    def add(self, name: str, value: Value | None, *labels: str) -> None:
        """A series' value; ``None``: it was not measured, and no line says otherwise."""
        metric = _BY_NAME[name]
        assert len(labels) == len(metric.labels), name
        if value is not None:
            self._found.setdefault(name, []).append((labels, value))

    def render(self) -> str:
        """Text in the order of ``METRICS``; a metric without a value is left out."""
        return "".join(
            _family(metric, self._found[metric.name]) for metric in METRICS if metric.name in self._found
        )


def _family(metric: Metric, series: Iterable[tuple[tuple[str, ...], Value]]) -> str:
    lines = [f"# HELP {metric.name} {metric.text}.", f"# TYPE {metric.name} {metric.kind}"]
    for labels, value in series:
        pairs = dict(zip(metric.labels, labels, strict=True))
        if isinstance(value, Histogram):
            lines += _buckets(metric.name, pairs, value)
        else:
            lines.append(f"{metric.name}{_labels(pairs)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _buckets(name: str, pairs: Mapping[str, str], value: Histogram) -> list[str]:
    lines = []
    for bits in BITS:
        limit = _number(2**bits / 1e9)
        lines.append(f"{name}_bucket{_labels({**pairs, 'le': limit})} {sum(value.counts[: bits + 1])}")
    total = sum(value.counts)
    lines.append(f"{name}_bucket{_labels({**pairs, 'le': '+Inf'})} {total}")
    return [
        *lines,
        f"{name}_sum{_labels(pairs)} {_number(value.sum_ns / 1e9)}",
        f"{name}_count{_labels(pairs)} {total}",
    ]


def _labels(pairs: Mapping[str, str]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
