"""Qualification's judgement, with a runner that answers as told: no process, no engine."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import yaml

from pellucid.app.clock import SystemClock
from pellucid.build.isolated import Measured
from pellucid.build.qualify import Subject, qualify
from pellucid.build.samples import Validation
from pellucid.core import canonical
from pellucid.core.recipe import effective, parse_recipe
from pellucid.core.tensor import Tensor, TensorSpec, rows
from pellucid.errors import LimitError, RecipeError
from pellucid.ports import IsolatedRun

BASE = {"name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "m.onnx"}
MEANING = {
    "decision": {"kind": "threshold", "output": "y", "column": 0, "threshold": "0.5", "labels": ["no", "yes"]}
}
ROWS = np.linspace(0.05, 0.95, 19, dtype="<f4")[:, None]
Answer = Callable[[str, float, int], float]


class Answered(bytes):
    """Bytes of an answer, counted for as long as anybody holds them."""

    alive = 0

    def __init__(self, _: bytes) -> None:
        Answered.alive += len(self)

    def __del__(self) -> None:
        Answered.alive -= len(self)


class ToyRunner:
    """``y`` of each row is what ``answer`` says of backend, value and bucket."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.given: list[int] = []
        self.alive: list[int] = []
        self.measured: list[list[tuple[int, ...]]] = []

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun:
        outputs = []
        self.alive.append(Answered.alive)
        self.given.append(sum(len(x.data) for [x] in batches))
        for [x] in batches:
            bucket = x.shape[0]
            values = struct.unpack(f"<{bucket}f", x.data)
            y = [self._answer(backend, v, bucket) for v in values]
            outputs.append([Tensor("y", "FP32", (bucket, 1), Answered(struct.pack(f"<{bucket}f", *y)))])
        environment = {"backend": "onnxruntime", "device": {"kind": "cpu", "isa": []}}
        return IsolatedRun(outputs, environment, {"threads": 1})

    def measure(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]],
        *, repeats: int, budget_ns: int,
    ) -> list[Measured]:  # fmt: skip
        self.measured.append([batch[0].shape for batch in batches])
        return [Measured([1000, 3000, 2000], 5, 7)] * len(batches)


def report(
    answer: Answer, *, source: bytes = b"source", truth: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    recipe = effective(parse_recipe(yaml.safe_dump(BASE | {"buckets": [1, 4]} | changes).encode()))
    specs = (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),)
    validation = Validation({"x": ROWS}, tuple(truth))
    subject = Subject(recipe, MEANING, b"engine", source, *specs, validation, "sha256:" + "0" * 64)
    found = qualify(subject, ToyRunner(answer), SystemClock())
    canonical.encode(found)
    return found


def same(backend: str, value: float, bucket: int) -> float:
    return value


def nudged(backend: str, value: float, bucket: int) -> float:
    return value + (0.1 if backend != "reference" and bucket == 1 else 0.0)


def test_the_same_answers_pass() -> None:
    found = report(same, truth=["yes" if v >= 0.5 else "no" for v in ROWS[:, 0]])
    assert found["accuracy"]["passed"]
    assert found["accuracy"]["top1"] == "1"
    assert found["accuracy"]["kl_form"] == "bernoulli"
    assert found["variance"]["label"] == "invariant"
    assert found["latency"][0] == {
        "bucket": 1, "p50_ns": 2000, "p99_ns": 3000, "rows_per_s": "500000", "samples": 3,
    }  # fmt: skip


def test_decisions_that_differ_between_buckets_fail_the_gate_unless_one_is_pinned() -> None:
    found = report(nudged)
    assert found["variance"]["label"] == "bucket-invariant"
    assert found["variance"]["flips_between_buckets"] == 2
    assert float(found["variance"]["bound"]["absolute"]) == pytest.approx(0.1, rel=1e-5)
    assert found["accuracy"]["flips"] == 0  # the largest bucket agrees with the source
    assert not found["accuracy"]["passed"]
    assert "differ between buckets" in found["accuracy"]["findings"][0]
    assert report(nudged, pinned_bucket=4)["accuracy"]["passed"]
    pinned = report(nudged, pinned_bucket=1)["accuracy"]
    assert pinned["flips"] == 2
    assert not pinned["passed"]


def test_a_gate_that_asks_nothing_of_buckets_lets_them_differ() -> None:
    assert report(nudged, gate={"bucket_flips_max": None})["accuracy"]["passed"]


def test_an_engine_that_gives_nan_fails_closed_although_the_source_does_not() -> None:
    found = report(lambda backend, v, bucket: math.nan if backend != "reference" and v > 0.9 else v)
    assert not found["accuracy"]["passed"]
    assert found["accuracy"]["findings"] == [
        "engine: expected finite scores, got 1 rows with NaN or infinity"
    ]


def test_a_package_that_holds_only_the_digest_of_its_source_cannot_be_judged() -> None:
    found = report(same, source=b"")
    assert not found["accuracy"]["passed"]
    assert "source" in found["accuracy"]["findings"][0]
    assert found["variance"]["flips_between_buckets"] is None


def test_truth_that_the_engine_loses_is_a_loss() -> None:
    found = report(
        lambda backend, v, bucket: v if backend == "reference" else 1.0 - v,
        truth=["yes" if v >= 0.5 else "no" for v in ROWS[:, 0]],
    )["accuracy"]
    assert float(found["top1"]) < float(found["top1_source"]) == 1.0
    assert any(f.startswith("loss of top-1") for f in found["findings"])


def wide(
    width: int, *, buckets: Sequence[int], memory: int, **changes: Any
) -> tuple[ToyRunner, dict[str, Any]]:
    """Rows of that many numbers, without a validation set, in so much memory."""
    recipe = effective(parse_recipe(yaml.safe_dump(BASE | {"buckets": list(buckets)}).encode()))
    recipe |= {"limits": recipe["limits"] | {"memory_bytes": memory}} | changes
    specs = (TensorSpec("x", "FP32", (-1, width)),), (TensorSpec("y", "FP32", (-1, 1)),)
    runner = FirstColumn(same)
    return runner, qualify(Subject(recipe, {}, b"engine", b"", *specs, None, None), runner, SystemClock())


class FirstColumn(ToyRunner):
    """``y`` is the first number of each row."""

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun:
        first = [
            [Tensor("x", "FP32", (x.shape[0], 1), b"".join(row.data[:4] for [row] in rows([x])))]
            for [x] in batches
        ]
        run = super().infer(backend, engine, recipe, first)
        self.given[-1] = sum(len(x.data) for [x] in batches)
        return run


def test_buckets_are_timed_in_as_many_processes_as_their_inputs_need() -> None:
    """Rows of 4 KiB, 16 KiB of room: 1 and 2 fit together, 4 fills a process."""
    runner, found = wide(1024, buckets=[1, 2, 4], memory=16 * 16384)
    assert runner.measured == [[(1, 1024), (2, 1024)], [(4, 1024)]]
    assert [one["bucket"] for one in found["latency"]] == [1, 2, 4]


def test_fewer_rows_are_followed_where_eight_would_not_fit() -> None:
    free, found = wide(1024, buckets=[1, 4], memory=2**34)
    assert found["variance"]["probes"] == 8
    room = max(free.given) // 3
    runner, found = wide(1024, buckets=[1, 4], memory=16 * room)
    assert found["variance"]["probes"] == 2
    assert max(runner.given) <= room


def with_rows(buckets: Sequence[int], memory: int, answer: Answer = same) -> tuple[ToyRunner, dict[str, Any]]:
    """A thousand validation rows of 4 bytes, in so much memory; without what is timed."""
    recipe = effective(parse_recipe(yaml.safe_dump(BASE | {"buckets": list(buckets)}).encode()))
    recipe |= {"limits": recipe["limits"] | {"memory_bytes": memory}}
    specs = (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),)
    many = Validation({"x": np.linspace(0.05, 0.95, 1000, dtype="<f4")[:, None]})
    runner = ToyRunner(answer)
    found = qualify(Subject(recipe, MEANING, b"engine", b"source", *specs, many, None), runner, SystemClock())
    del found["qualified"]
    return runner, found


@pytest.mark.parametrize("answer", [same, nudged, lambda backend, v, bucket: v + bucket / 64])
def test_what_is_measured_in_parts_is_what_is_measured_at_once(answer: Answer) -> None:
    buckets, room = [1, 3, 4, 16, 24], 1600
    whole, expected = with_rows(buckets, 2**34, answer)
    parts, found = with_rows(buckets, 16 * room, answer)
    assert len(whole.given) == 4  # variance in two processes, then the engine and its source
    assert len(parts.given) > 20
    assert max(parts.given) <= room
    probes = found["variance"].pop("probes"), expected["variance"].pop("probes")
    assert probes == (1, 8)
    for report in (found, expected):  # of fewer probes
        del report["variance"]["buckets"]
    assert found["accuracy"] == expected["accuracy"]
    assert found["variance"]["flips_between_buckets"] == expected["variance"]["flips_between_buckets"]
    assert found["variance"]["label"] == expected["variance"]["label"]


def test_a_probe_is_followed_in_parts_as_well() -> None:
    """One probe's batches in all buckets take more than the room: the verdict is the same."""
    expected, found = (with_rows(range(1, 17), memory, nudged)[1] for memory in (16 * 2**20, 16 * 400))
    assert found["variance"]["probes"] == 1
    assert found["variance"]["slots"] == expected["variance"]["slots"]
    assert found["variance"]["neighbours"] == expected["variance"]["neighbours"]
    assert found["variance"]["bound"] == expected["variance"]["bound"]


@pytest.mark.parametrize("answer", [same, lambda backend, v, bucket: v + bucket / 64])
def test_more_buckets_hold_no_more_in_memory(answer: Answer) -> None:
    room = 1600
    for buckets in ([4, 16], range(1, 17)):
        runner, found = with_rows(buckets, 16 * room, answer)
        assert found["accuracy"]["samples"] == 1000
        assert max(runner.given) <= room
        assert max(runner.alive) <= 2 * room
    assert Answered.alive == 0


def test_a_bucket_too_large_to_be_measured_is_refused_before_anything_runs() -> None:
    with pytest.raises(LimitError, match=r"bucket 8: expected inputs of at most 16,384 bytes .* got 32,768"):
        wide(1024, buckets=[1, 8], memory=16 * 16384)
    with pytest.raises(LimitError, match="bucket 1: "):
        wide(10**12, buckets=[1], memory=2**34)


def test_axes_that_vary_are_as_the_first_profile_is_tuned_for_them() -> None:
    shapes = {"min": [1, 8], "opt": [1, 32], "max": [1, 64]}
    runner, _ = wide(-1, buckets=[1], memory=2**34, profiles=[{"name": "p", "inputs": {"x": shapes}}])
    assert runner.measured == [[(1, 32)]]


@pytest.mark.parametrize("inputs", [{}, {"x": {"min": [1], "opt": [1], "max": [1]}}])
def test_a_profile_that_does_not_cover_an_axis_is_said(inputs: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="profiles: expected every axis of every input"):
        wide(-1, buckets=[1], memory=2**34, profiles=[{"name": "p", "inputs": inputs}])
