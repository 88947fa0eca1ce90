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
from pellucid.core.tensor import Tensor, TensorSpec
from pellucid.ports import IsolatedRun

BASE = {"name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "m.onnx"}
MEANING = {
    "decision": {"kind": "threshold", "output": "y", "column": 0, "threshold": "0.5", "labels": ["no", "yes"]}
}
ROWS = np.linspace(0.05, 0.95, 19, dtype="<f4")[:, None]
Answer = Callable[[str, float, int], float]


class ToyRunner:
    """``y`` of each row is what ``answer`` says of backend, value and bucket."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun:
        outputs = []
        for [x] in batches:
            bucket = x.shape[0]
            values = struct.unpack(f"<{bucket}f", x.data)
            y = [self._answer(backend, v, bucket) for v in values]
            outputs.append([Tensor("y", "FP32", (bucket, 1), struct.pack(f"<{bucket}f", *y))])
        environment = {"backend": "onnxruntime", "device": {"kind": "cpu", "isa": []}}
        return IsolatedRun(outputs, environment, {"threads": 1})

    def measure(self, *_: Any, repeats: int, budget_ns: int) -> list[Measured]:
        return [Measured([1000, 3000, 2000], 5, 7)] * 2


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
