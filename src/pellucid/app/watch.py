"""What the serving processes counted, gathered where it is told: metrics in Prometheus' text.

A worker's counters die with it, and counters must not go back: what it counted last is kept by
whoever gathers. Facts of ledger and host are read when somebody asks.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pellucid.app.clock import SystemClock
from pellucid.app.nvml import Gpus
from pellucid.app.probe import host_memory, host_ticks, process_facts, resident_bytes
from pellucid.core.metrics import Histogram, Samples
from pellucid.errors import PellucidError

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.ports import EventRecorder
    from pellucid.serving.dataplane import Dataplane
    from pellucid.serving.doors import Knock
    from pellucid.serving.watchdog import Watchdog

Snapshot = dict[str, Any]


class Telling(Protocol):
    """A listener that tells metrics: where it listens, and its end."""

    port: int

    def close(self) -> None: ...


class Admits(Protocol):
    """Who may read metrics; raises ``AuthError`` or ``RateError``. Called on several threads.

    Attributes:
        forwarded_header: In which a trusted proxy says for whom it asks.
    """

    forwarded_header: str

    def __call__(self, knock: Knock) -> None: ...


class Tell(Protocol):
    """Begins to listen; port 0 takes any, ``text`` makes the answer, ``context`` is of TLS."""

    def __call__(
        self,
        host: str,
        port: int,
        text: Callable[[], str],
        admits: Admits,
        context: ssl.SSLContext | None,
    ) -> Telling: ...


def snapshot(plane: Dataplane, recorder: Any) -> Snapshot:
    """What one serving process counted (``totals``), and how it is (``now``), as JSON."""
    waiting: dict[str, dict[str, int]] = {}
    for batcher in plane.pool.batchers():
        waiting.setdefault(batcher.model.name, {})[batcher.model.version] = batcher.waiting
    accepted, still = getattr(recorder, "last", 0), getattr(recorder, "in_flight", 0)
    return {
        "totals": {
            "models": plane.pool.totals(), "refused": dict(plane.refused),
            "accepted": accepted, "recorded": accepted - still,
        },
        "now": {"waiting": waiting, "open": still, "process": process_facts()},
    }  # fmt: skip


def make_watchdog(site: Site, plane: Dataplane, recorder: EventRecorder) -> Watchdog:
    """The memory watchdog of this process, as the configuration wants it."""
    from pellucid.serving.watchdog import Watchdog, WatchdogLimits

    serving = site.config.serving
    limits = WatchdogLimits(
        serving.recycle_resident_max_bytes, serving.recycle_growth_max_bytes_per_h, serving.recycle_window_s
    )
    batchers = {f"{b.model.name}:{b.model.version}": b for b in plane.pool.batchers()}
    return Watchdog(
        limits,
        recorder,
        clock=SystemClock(),
        resident=resident_bytes,
        calls=lambda: {name: batcher.meter.calls for name, batcher in batchers.items()},
        engines={name: str(batcher.model.facts.get("engine")) for name, batcher in batchers.items()},
    )


class Watch:
    """Gathers snapshots of workers by number; safe for several threads."""

    def __init__(self, site: Site) -> None:
        self._site, self._lock = site, threading.Lock()
        self._totals: dict[int, Any] = {}
        self._now: dict[int, Any] = {}
        self._retiring: set[int] = set()
        self._gone: dict[str, Any] = {}
        self._gpus = Gpus()
        self._ticks = host_ticks()
        self._source: Callable[[], Snapshot] | None = None
        self.starts = self.recycles = 0

    def take(self, worker: int, told: Snapshot, *, label: str = "0") -> None:
        """The newest of a worker, which is told of under that label."""
        with self._lock:
            self._totals[worker] = told["totals"]
            self._now[worker] = told["now"] | {"label": label}

    def retire(self, worker: int) -> None:
        """Another has a worker's place; what it still does counts."""
        with self._lock:
            self._retiring.add(worker)

    def lose(self, worker: int) -> None:
        """A worker ended: what it counted stays."""
        from pellucid.serving.meter import added

        with self._lock:
            self._gone = added(self._gone, self._totals.pop(worker, {}))
            self._now.pop(worker, None)
            self._retiring.discard(worker)

    def ask(self, source: Callable[[], Snapshot]) -> None:
        """Where the one serving process is this one: asked whenever somebody wants to know."""
        self._source = source

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        from pellucid.serving.meter import added

        if self._source is not None:
            self.take(0, self._source())
        with self._lock:
            totals, now = self._gone, dict(self._now)
            serving = {worker: each for worker, each in now.items() if worker not in self._retiring}
            for each in self._totals.values():
                totals = added(totals, each)
        samples = Samples()
        _tell_models(samples, totals.get("models", {}))
        _tell_waiting(samples, now)
        for code, count in sorted(totals.get("refused", {}).items()):
            samples.add("pellucid_calls_refused_total", count, code)
        samples.add("pellucid_calls_accepted_total", totals.get("accepted", 0))
        samples.add("pellucid_calls_recorded_total", totals.get("recorded", 0))
        samples.add("pellucid_calls_open", sum(each["open"] for each in now.values()))
        samples.add("pellucid_workers", len(serving))
        samples.add("pellucid_worker_starts_total", self.starts)
        samples.add("pellucid_worker_recycles_total", self.recycles)
        _tell_processes(samples, serving.values())
        _tell_ledger(samples, self._site)
        self._tell_host(samples)
        return samples.render()

    def _tell_host(self, samples: Samples) -> None:
        before, self._ticks = self._ticks, host_ticks()
        if before and self._ticks and self._ticks[0] > before[0]:
            share = (self._ticks[1] - before[1]) / (self._ticks[0] - before[0])
            samples.add("nv_cpu_utilization", share)
        memory = host_memory()
        if memory is not None:
            samples.add("nv_cpu_memory_total_bytes", memory[0])
            samples.add("nv_cpu_memory_used_bytes", memory[1])
        for gpu in self._gpus.read():
            permille = gpu["permille"]
            samples.add("nv_gpu_utilization", None if permille is None else permille / 1000, gpu["uuid"])
            samples.add("nv_gpu_memory_total_bytes", gpu["memory_total_bytes"], gpu["uuid"])
            samples.add("nv_gpu_memory_used_bytes", gpu["memory_used_bytes"], gpu["uuid"])


def _tell_models(samples: Samples, models: Mapping[str, Mapping[str, Any]]) -> None:
    for name, versions in sorted(models.items()):
        for version, each in sorted(versions.items()):
            _tell_model(samples, each, name, version)


def _tell_model(samples: Samples, counted: Mapping[str, Any], name: str, version: str) -> None:
    samples.add("nv_inference_request_success", counted["success"], name, version)
    for reason, count in counted["failure"].items():
        samples.add("nv_inference_request_failure", count, name, version, reason)
    samples.add("nv_inference_count", counted["rows"], name, version)
    samples.add(
        "nv_inference_exec_count",
        sum(each["executions"] for each in counted["buckets"].values()),
        name,
        version,
    )
    samples.add("nv_inference_request_duration_us", counted["success_ns"] // 1000, name, version)
    samples.add("nv_inference_queue_duration_us", counted["queue"]["ns"] // 1000, name, version)
    samples.add("nv_inference_compute_infer_duration_us", counted["shared_infer_ns"] // 1000, name, version)
    for word, stage in (("request", "total"), ("queue", "queue"), ("compute", "infer")):
        value = Histogram(tuple(counted[stage]["counts"]), counted[stage]["ns"])
        samples.add(f"pellucid_{word}_duration_seconds", value, name, version)
    for bucket, told in sorted(counted["buckets"].items(), key=lambda pair: int(pair[0])):
        samples.add("pellucid_executions_total", told["executions"], name, version, bucket)
        for word in ("judged", "marked", "near"):
            samples.add(f"pellucid_baseline_{word}_total", told[word], name, version, bucket)


def _tell_waiting(samples: Samples, now: Mapping[int, Any]) -> None:
    from pellucid.serving.meter import added

    waiting: dict[str, dict[str, int]] = {}
    for each in now.values():
        waiting = added(waiting, each["waiting"])
    for name, versions in sorted(waiting.items()):
        for version, count in sorted(versions.items()):
            samples.add("nv_inference_pending_request_count", count, name, version)


def _tell_processes(samples: Samples, now: Iterable[Any]) -> None:
    for each in sorted(now, key=lambda each: int(each["label"])):
        process, label = each["process"], each["label"]
        samples.add("process_resident_memory_bytes", process["resident_bytes"], label)
        samples.add("process_cpu_seconds_total", process["cpu_s"], label)
        samples.add("process_open_fds", process["descriptors"], label)


def _tell_ledger(samples: Samples, site: Site) -> None:
    from pellucid.app.followers import ledger_state

    samples.add("pellucid_journal_backlog_max_bytes", site.config.ledger.backlog_max_bytes)
    with contextlib.suppress(PellucidError, OSError):  # a ledger just being made
        state = ledger_state(site)
        samples.add("pellucid_journal_backlog_bytes", state.backlog_bytes)
        samples.add("pellucid_entries_integrated", state.integrated)
        samples.add("pellucid_entries_published", state.published)
        for each in state.followers:
            behind_s = 0.0 if each.since_ns is None else max(0, time.time_ns() - each.since_ns) / 1e9
            samples.add("pellucid_follower_behind_entries", each.behind, each.name)
            samples.add("pellucid_follower_behind_seconds", behind_s, each.name)
            samples.add("pellucid_follower_failing", int(bool(each.failing)), each.name)
