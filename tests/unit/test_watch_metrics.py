"""Counters and their text: what is counted, that it adds up, that nothing from outside becomes a line."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pellucid.app.nvml import Gpus
from pellucid.app.probe import LoadProbe, process_facts
from pellucid.core import canonical
from pellucid.core.metrics import BITS, METRICS, Histogram, Samples
from pellucid.core.tensor import TensorSpec
from pellucid.errors import TensorError
from pellucid.serving.limits import Limits
from pellucid.serving.meter import Meter, added
from pellucid.serving.statistics import statistics_of
from pellucid.testing.plane import echo_model, exchange, make_plane
from pellucid.testing.session import EchoSession


def request(rows: int = 1, marker: float = 0.0) -> tuple[str, str, bytes]:
    item = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": [marker] * (3 * rows)}
    return "POST", "/v2/models/echo/infer", json.dumps({"inputs": [item]}).encode()


def test_a_batch_counts_once_as_execution_and_each_call_once():
    plane = make_plane([echo_model()])
    exchange(plane, [request() for _ in range(6)])
    (batcher,) = plane.pool.batchers()
    told = batcher.meter.totals()
    assert (told["success"], told["rows"]) == (6, 6)
    assert batcher.baselines.totals()["8"]["executions"] == 1
    assert sum(told["infer"]["counts"]) == 1
    assert told["shared_infer_ns"] == 6 * told["infer"]["ns"]
    assert sum(told["queue"]["counts"]) == sum(told["total"]["counts"]) == 6


def test_an_engine_that_went_stays_counted():
    plane = make_plane([echo_model()])
    exchange(plane, [request(), request()])
    before = plane.pool.totals()
    plane.pool.add(echo_model())  # the same version again: the engine before it closes
    assert plane.pool.totals() == before
    exchange(plane, [request()])
    name, version = plane.pool.batchers()[0].model.name, plane.pool.batchers()[0].model.version
    assert plane.pool.totals()[name][version]["success"] == before[name][version]["success"] + 1 == 3


def test_an_engine_that_fails_is_a_failure_of_the_backend():
    session = EchoSession([TensorSpec("x", "FP32", (-1, 3))])
    plane = make_plane([echo_model(session=session)])
    session.fault = TensorError("engine: expected health, got none")
    exchange(plane, [request()])
    (batcher,) = plane.pool.batchers()
    told = batcher.meter.totals()
    assert told["failure"] == {"BACKEND": 1, "REJECTED": 0, "OTHER": 0}
    assert (told["success"], told["success_ns"], told["rows"]) == (0, 0, 0)


def test_a_full_queue_rejects_and_the_door_counts_the_refusal():
    plane = make_plane([echo_model()], limits=Limits(queue_max=2))
    replies = exchange(plane, [request() for _ in range(5)])
    (batcher,) = plane.pool.batchers()
    refused = sum(reply.status == 503 for reply in replies)
    assert refused == batcher.meter.rejected == plane.refused["unavailable"] > 0
    assert batcher.meter.totals()["success"] == 5 - refused


def test_what_a_disk_refused_was_not_answered():
    from pellucid.testing.recorder import MemoryRecorder

    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    recorder.broken = "disk: expected to write, got nothing"
    exchange(plane, [request()])
    (batcher,) = plane.pool.batchers()
    told = batcher.meter.totals()
    assert (told["success"], told["success_ns"], told["failure"]["OTHER"]) == (0, 0, 1)


executions = st.tuples(
    st.integers(1, 8), st.lists(st.sampled_from(["answered", "unanswered"]), min_size=1, max_size=4)
)


@given(st.lists(executions | st.sampled_from(["failed", "expired", "rejected"]), max_size=20))
def test_metrics_and_statistics_are_two_views_of_one_count(happened: list[Any]):
    meter, durations = Meter(), itertools.count(7)
    answered, broken, queued, infer_ns = [], [], [], []
    for each in happened:
        queue_ns, total_ns, took = next(durations), 100 * next(durations), next(durations)
        if each == "rejected":
            meter.rejected += 1
        elif each == "expired":
            meter.expire(total_ns)
            broken.append(total_ns)
        elif each == "failed":
            meter.closed(queue_ns, total_ns)
            meter.broke(queue_ns, total_ns, engine=True)
            broken.append(total_ns)
        else:
            rows, calls = each
            meter.executed(rows, len(calls), (1, took, 2), 5 * 10**6)
            infer_ns.append((rows, len(calls), took))
            for outcome in calls:
                meter.closed(queue_ns, total_ns)
                queued.append(queue_ns)
                (answered if outcome == "answered" else broken).append(total_ns)
                if outcome != "answered":
                    meter.broke(queue_ns, total_ns, engine=False)
    told, totals = statistics_of(meter, "m", "1"), meter.totals()
    stats = {name: (took["count"], took["ns"]) for name, took in told["inference_stats"].items()}
    assert stats["success"] == (totals["success"], totals["success_ns"]) == (len(answered), sum(answered))
    assert stats["fail"] == (len(broken), sum(broken))
    assert stats["fail"][0] == totals["failure"]["BACKEND"] + totals["failure"]["OTHER"]
    assert totals["failure"] == {
        "BACKEND": happened.count("failed"), "REJECTED": happened.count("rejected"),
        "OTHER": len(broken) - happened.count("failed"),
    }  # fmt: skip
    assert stats["queue"] == (len(queued), sum(queued))
    assert stats["compute_infer"] == (len(queued), totals["shared_infer_ns"])
    assert totals["shared_infer_ns"] == sum(calls * took for _, calls, took in infer_ns)
    assert told["inference_count"] == totals["rows"] == sum(rows for rows, _, _ in infer_ns)
    assert told["execution_count"] == sum(totals["infer"]["counts"]) == len(infer_ns)
    assert totals["infer"]["ns"] == sum(took for _, _, took in infer_ns)
    by_rows = {each["batch_size"]: each["compute_infer"] for each in told["batch_stats"]}
    assert sum(each["count"] for each in by_rows.values()) == len(infer_ns)
    for wanted, each in by_rows.items():
        assert each["ns"] == sum(took for rows, _, took in infer_ns if rows == wanted)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=30))
def test_two_meters_add_up_to_one_that_saw_all(durations: list[tuple[int, int]]):
    one, other, both = Meter(), Meter(), Meter()
    for number, (queue, total) in enumerate(durations):
        for meter in (both, one if number % 2 else other):
            meter.executed(2, 1, (0, queue, 0), 0)
            meter.closed(queue, total)
    assert added(added({}, one.totals()), other.totals()) == both.totals()


@given(
    st.text(min_size=1, max_size=40).filter(
        lambda text: ("\r" not in text and text.isprintable()) or "\n" in text
    )
)
def test_a_models_name_stays_a_label(name: str):
    samples = Samples()
    samples.add("nv_inference_count", 7, name, "1")
    (family,) = text_string_to_metric_families(samples.render().replace("\r", " "))
    (sample,) = family.samples
    assert sample.value == 7


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_a_histogram_counts_what_is_below_each_bound(durations: list[int]):
    counts = [0] * 64
    for duration in durations:
        counts[duration.bit_length()] += 1
    samples = Samples()
    samples.add("pellucid_compute_duration_seconds", Histogram(tuple(counts), sum(durations)), "m", "1")
    (family,) = text_string_to_metric_families(samples.render())
    found = {s.labels.get("le"): s.value for s in family.samples if s.name.endswith("_bucket")}
    assert found.pop("+Inf") == len(durations)
    assert len(found) == len(BITS)
    for limit, count in found.items():
        assert count == sum(duration < round(float(limit) * 1e9) for duration in durations)


def test_names_stand_once_and_end_as_their_kind_wants():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    ours = [metric for metric in METRICS if metric.name.startswith("pellucid_")]
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in ours)


def test_facts_of_the_process_fit_an_entry_and_say_why_one_is_missing():
    load = LoadProbe(Gpus("libno-such-library.so.9")).read()
    canonical.encode(load)
    assert load["gpus"] is None
    assert load["gpus_reason"] == "no NVIDIA driver on this machine"
    assert load["resident_bytes"] > 2**20
    assert process_facts()["cpu_s"] > 0


def test_a_thread_that_waits_for_a_processor_is_seen():
    """As many busy threads as this process may use, and one more: some of them wait."""
    import hashlib
    import os
    import threading

    probe, done = LoadProbe(Gpus("libno-such-library.so.9")), threading.Event()
    data = bytes(2**20)

    def spin() -> None:
        while not done.is_set():
            hashlib.sha256(data).digest()  # lets go of the interpreter's lock

    threads = [threading.Thread(target=spin) for _ in range(2 * len(os.sched_getaffinity(0)) + 1)]
    for thread in threads:
        thread.start()
    probe.read()
    seen = []
    for _ in range(20):
        done.wait(0.05)
        seen.append(probe.read()["cpu_wait_permille"])
        if None in seen or max(seen) > 100:
            break
    done.set()
    for thread in threads:
        thread.join()
    if seen[0] is None:
        assert not os.path.exists("/proc/self/schedstat")
    else:
        assert max(seen) > 100
