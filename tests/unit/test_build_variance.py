"""The label is judged from bits; a fake engine shows that every kind of dependence is caught."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from pellucid.build.variance import NEIGHBOURS, Judge, Judged, Trial, conclude, slots, trials
from pellucid.core.bucket import place
from pellucid.core.tensor import Tensor
from pellucid.core.tolerance import Difference
from pellucid.errors import BuildError

Engine = Callable[[list[float], int], list[float]]


def row(*values: float) -> list[Tensor]:
    return [Tensor("x", "FP32", (1, len(values)), struct.pack(f"<{len(values)}f", *values))]


PROBES = [row(1.0), row(2.0), row(3.0)]


def judge(tried: Sequence[Trial], passes: Sequence[Sequence[Sequence[Tensor]]]) -> Judged:
    found = Judge()
    for number, outputs in enumerate(passes):
        for trial, batch in zip(tried, outputs, strict=True):
            found.note(trial, batch, number)
    return found.judged(runs=len(passes), processes=1)


def run(engine: Engine, buckets: Sequence[int] = (1, 2, 8), passes: int = 2) -> dict[str, object]:
    tried = list(trials(PROBES, buckets))
    outputs = []
    for _ in range(passes):
        batch_outputs = []
        for trial in tried:
            [x] = trial.batch
            values = list(struct.unpack(f"<{len(x.data) // 4}f", x.data))
            y = engine(values, trial.bucket)
            batch_outputs.append([Tensor("y", "FP32", (len(y), 1), struct.pack(f"<{len(y)}f", *y))])
        outputs.append(batch_outputs)
    return conclude(judge(tried, outputs), Difference(True), None)


def test_invariant() -> None:
    report = run(lambda values, bucket: [v * 2 for v in values])
    assert (report["label"], report["bound"], report["differences"]) == (
        "invariant", {"absolute": "0", "ulp": 0}, [],
    )  # fmt: skip
    assert len({b["bits"] for b in report["buckets"]}) == 1  # type: ignore[attr-defined]
    assert report["neighbours"] == sorted(NEIGHBOURS)


def test_a_bucket_that_changes_bits() -> None:
    report = run(lambda values, bucket: [v + (bucket == 8) * 0.5 for v in values])
    assert (report["label"], report["differences"]) == ("bucket-invariant", [])
    assert report["bound"]["absolute"] == "0.5"  # type: ignore[index]
    assert len({b["bits"] for b in report["buckets"]}) == 2  # type: ignore[attr-defined]


def test_a_slot_that_changes_bits_is_still_bucket_invariant() -> None:
    report = run(lambda values, bucket: [v + i * 0.25 for i, v in enumerate(values)])
    assert (report["label"], report["differences"]) == ("bucket-invariant", [])
    assert report["bound"]["absolute"] == "1.75"  # type: ignore[index]


def test_neighbours_that_change_bits() -> None:
    report = run(lambda values, bucket: [v / max(map(abs, values)) for v in values])
    assert report["label"] == "variant"
    assert {d["factor"] for d in report["differences"]} == {"neighbours"}  # type: ignore[attr-defined]


def test_only_large_neighbours_that_change_bits() -> None:
    report = run(lambda values, bucket: [v + (max(map(abs, values)) > 1000) for v in values])
    assert report["label"] == "variant"
    assert {d["neighbours"] for d in report["differences"]} == {"large"}  # type: ignore[attr-defined]


def test_repetition_that_changes_bits_is_named_first() -> None:
    count = itertools.count()
    report = run(lambda values, bucket: [v + next(count) for v in values])
    assert report["label"] == "variant"
    assert report["differences"][0]["factor"] == "repetition"  # type: ignore[index]
    assert len(report["differences"]) == 20  # type: ignore[arg-type]
    assert report["differences_count"] > 20  # type: ignore[operator]


def test_validation_rows_can_only_lower_the_label() -> None:
    tried = list(trials(PROBES, [1, 2]))
    judged = judge(tried, [[t.batch for t in tried]])
    assert conclude(judged, Difference(True), 0)["label"] == "invariant"
    lowered = conclude(judged, Difference(False, 0.5, 0.1, 7, 0), 3)
    assert (lowered["label"], lowered["bound"]) == ("bucket-invariant", {"absolute": "0.5", "ulp": 7})
    assert lowered["flips_between_buckets"] == 3


@pytest.mark.parametrize("kind", ["slots", "neighbours", "repetition"])
def test_trials_may_be_told_and_forgotten_one_by_one(kind: str) -> None:
    count = itertools.count()
    tried = list(trials(PROBES, (1, 2, 8)))

    def answer(trial: Trial) -> list[Tensor]:
        [x] = trial.batch
        values = struct.unpack(f"<{trial.bucket}f", x.data)
        more = {"slots": trial.slot, "neighbours": max(map(abs, values)), "repetition": next(count)}[kind]
        y = [v + more for v in values]
        return [Tensor("y", "FP32", (trial.bucket, 1), struct.pack(f"<{trial.bucket}f", *y))]

    passes = [[answer(trial) for trial in tried] for _ in range(2)]
    judge_in_parts = Judge()
    for trial, *outputs in zip(tried, *passes, strict=True):
        for number, batch in enumerate(outputs):
            judge_in_parts.note(trial, batch, number)
        judge_in_parts.forget(trial)
    assert judge_in_parts.judged(runs=2, processes=1) == judge(tried, passes)


def test_what_is_forgotten_takes_no_memory() -> None:
    size = 2**18
    judge_in_parts, answer = Judge(), Tensor("y", "UINT8", (1, size), bytes(size))
    tracemalloc.start()
    try:
        for bucket in range(1, 17):
            batch = [place([(0, answer)], bucket)]
            for slot in range(bucket):
                trial = Trial(0, bucket, slot, "zeros", [])
                judge_in_parts.note(trial, batch, 0)
                judge_in_parts.forget(trial)
            del batch
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < held < 4 * size  # the first of all, and the last


def test_no_batch_axis_means_no_company() -> None:
    tried = list(trials([[Tensor("x", "FP32", (2,), bytes(8))]], []))
    assert [(t.bucket, t.slot, t.neighbours) for t in tried] == [(0, 0, "none")]
    assert judge(tried, [[tried[0].batch]] * 2).report["label"] == "invariant"


def test_outputs_that_mix_the_rows_cannot_be_batched() -> None:
    with pytest.raises(BuildError, match="expected 2 rows"):
        run(lambda values, bucket: [sum(values)], buckets=[2])


@pytest.mark.parametrize("bucket", [1, 2, 5, 6, 32, 4096])
def test_slots_cover_the_ends(bucket: int) -> None:
    found = slots(bucket)
    assert found[0] == 0
    assert found[-1] == bucket - 1
    assert len(found) == len(set(found)) == min(bucket, 5)


@pytest.mark.parametrize("kind", ["FP16", "BF16", "FP64", "INT64", "BOOL"])
def test_large_neighbours_exist_in_every_datatype(kind: str) -> None:
    size = {"FP16": 2, "BF16": 2, "FP64": 8, "INT64": 8, "BOOL": 1}[kind]
    tried = list(trials([[Tensor("x", kind, (1, 2), bytes(2 * size))]], [4]))
    for trial in tried:
        assert trial.batch[0].shape == (4, 2)
        assert len(trial.batch[0].data) == 8 * size
    large = next(t for t in tried if t.neighbours == "large")
    assert any(large.batch[0].data) == (kind in ("FP16", "BF16", "FP64"))
