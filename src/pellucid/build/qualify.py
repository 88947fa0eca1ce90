"""Qualification: what an engine is worth on this device, measured and never assumed.

Accuracy against the source, variance of the bits, latency and memory per bucket. Every engine run
happens in a process of its own. The result is the predicate of an attestation beside the package.
Source: requirements B8, B9, B15; spec/qualification.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

import numpy as np

from pellucid.build import golden, variance
from pellucid.build.isolated import Measured
from pellucid.build.samples import Validation
from pellucid.core.accuracy import Samples, decimal, measure, quantile, text_label
from pellucid.core.bucket import place
from pellucid.core.decision import decide
from pellucid.core.digest import sha256
from pellucid.core.gap import Gap
from pellucid.core.recipe import DEFAULT_LIMITS
from pellucid.core.tensor import Tensor, TensorSpec, datatype, rows, unpack_elements
from pellucid.core.times import format_time
from pellucid.core.tolerance import Difference, compare, widest
from pellucid.errors import LimitError
from pellucid.ports import Clock, Isolated

PROBES: Final = 8  # rows whose bits are followed through every bucket, slot and company
PASSES: Final = 2  # of every trial within one process
PROCESSES: Final = 2
TIMES_MAX: Final = 400
BUDGET_NS: Final = 1_000_000_000  # per bucket: enough for a tail of small models, bearable for large
INPUTS_SHARE: Final = 16  # limit: inputs of one process take at most this part of limits.memory_bytes
_SEED: Final = 7


class Runner(Isolated, Protocol):
    """Runs engines in fresh processes, and times them there."""

    def measure(
        self,
        backend: str,
        engine: bytes,
        recipe: Mapping[str, Any],
        batches: Sequence[Sequence[Tensor]],
        *,
        repeats: int,
        budget_ns: int,
    ) -> list[Measured]: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """What is qualified.

    Attributes:
        recipe: Effective recipe of the package.
        source: Source ONNX, or ``b""`` when the package holds only its digest.
        inputs, outputs: As in the package's facts.
        validation: Rows, or ``None``; ``data`` is the digest of their file.
    """

    recipe: Mapping[str, Any]
    meaning: Mapping[str, Any]
    engine: bytes
    source: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    validation: Validation | None
    data: str | None


Progress = Callable[[str], None]


def qualify(
    subject: Subject, runner: Runner, clock: Clock, progress: Progress = lambda step: None
) -> dict[str, Any]:
    """Measure everything; the predicate of the attestation, canonical profile.

    Raises:
        BuilderCrashedError, BuildError: The engine does not run here at all.
        LimitError: One batch of a bucket is too large for the memory that the recipe allows.
    """
    _verify_sizes(subject)
    qualified = format_time(clock.now_ns())
    progress("variance")
    judged, environment, threads = _variance(subject, runner)
    progress("accuracy")
    is_alone = judged.report["label"] == "variant"  # as it will be served
    accuracy, others, flips = _accuracy(subject, runner, is_alone=is_alone)
    progress("latency")
    latency, memory = _speed(subject, runner)
    environment = environment | {"threads": threads}
    return {
        "qualified": qualified,
        "device": environment["device"] | {"threads": threads},
        "environment": environment,
        "engine": sha256(subject.engine),
        "precision": subject.recipe["precision"],
        "serve_level": subject.recipe["serve_level"],
        "validation": subject.data,
        "accuracy": accuracy,
        "variance": variance.conclude(judged, others, flips),
        "latency": latency,
        "memory": memory,
    }


def _room(subject: Subject) -> int:
    """Bytes of inputs that one process is given."""
    limits = DEFAULT_LIMITS | dict(subject.recipe.get("limits") or {})
    return limits["memory_bytes"] // INPUTS_SHARE


def _verify_sizes(subject: Subject) -> None:
    room = _room(subject)
    for bucket in subject.recipe["buckets"] or [0]:
        size = golden.batch_bytes(_shaped(subject), bucket)
        if size > room:
            raise LimitError(
                f"bucket {bucket}: expected inputs of at most {room:,} bytes to measure it, got {size:,}",
                hint=f"smaller buckets; limits.memory_bytes allows {INPUTS_SHARE} times as much",
            )


def _shaped(subject: Subject) -> list[TensorSpec]:
    """Inputs with variable axes behind the batch as the first profile is tuned for them."""
    return golden.tuned(subject.inputs, subject.recipe.get("profiles") or ())


# -- variance -------------------------------------------------------------------------------------


def _variance(subject: Subject, runner: Runner) -> tuple[variance.Judged, dict[str, Any], int]:
    probes = _probes(subject)
    buckets = subject.recipe["buckets"]
    size = variance.size_of_one(buckets, golden.batch_bytes(_shaped(subject), int(bool(buckets))))
    fitting = max(1, _room(subject) // max(size * PASSES, 1))  # of one at least something can be said
    tried = variance.trials(probes[:fitting], buckets)
    once = [trial.batch for trial in tried]
    passes = []
    run = None
    for process in range(PROCESSES):
        # the second process goes backwards: what came before must not matter either
        order = list(range(len(once))) if process % 2 == 0 else list(reversed(range(len(once))))
        run = _infer(subject, runner, [once[i] for i in order] * PASSES)
        for start in range(0, len(run.outputs), len(once)):
            part = dict(zip(order, run.outputs[start : start + len(once)], strict=True))
            passes.append([part[i] for i in range(len(once))])
    assert run is not None
    return variance.judge(tried, passes, processes=PROCESSES), run.environment, run.describe["threads"]


def _infer(subject: Subject, runner: Runner, batches: Sequence[Sequence[Tensor]]) -> Any:
    return runner.infer(subject.recipe["backend"], subject.engine, subject.recipe, batches)


def _probes(subject: Subject) -> list[list[Tensor]]:
    """Rows of the validation set, spread over it; synthetic ones where there is none."""
    batched = bool(subject.recipe["buckets"])
    if subject.validation is not None:
        chosen = np.linspace(0, subject.validation.count - 1, PROBES).astype(int)
        return [
            subject.validation.row(subject.inputs, int(i), batched=batched) for i in dict.fromkeys(chosen)
        ]
    generator = np.random.default_rng(_SEED)
    return [[golden.synthetic(s, int(batched), generator) for s in _shaped(subject)] for _ in range(PROBES)]


# -- accuracy -------------------------------------------------------------------------------------


def _accuracy(
    subject: Subject, runner: Runner, *, is_alone: bool
) -> tuple[dict[str, Any], Difference, int | None]:
    """The accuracy report, the rows' largest difference between buckets, and decisions that differ."""
    gate, validation = subject.recipe["gate"], subject.validation
    if validation is None or not subject.source:
        report = measure(Samples((), (), (), ()), gate)
        if validation is not None:
            report["findings"] = ["source: expected the source model in the package, got its digest only"]
        return report, Difference(True), None
    sizes = subject.recipe["buckets"] or [0]
    serving = subject.recipe["pinned_bucket"] or sizes[-1]
    by_bucket = _answers(subject, runner, validation, sizes, is_alone=is_alone)
    source = _answers(subject, runner, validation, [serving], is_alone=is_alone, is_source=True)[serving]
    labels = {size: [_decide(subject, row) for row in answers] for size, answers in by_bucket.items()}
    engine = by_bucket[serving]
    samples = Samples(
        source=[_scores(subject, row) for row in source],
        engine=[_scores(subject, row) for row in engine],
        source_labels=[_decide(subject, row) for row in source],
        engine_labels=labels[serving],
        truth=validation.truth,
        slices=validation.slices,
        error=_gap(source, engine).absolute,
        gaps=_gaps(source, engine),
    )
    report = measure(samples, gate)
    flips = sum(len(set(row)) > 1 for row in zip(*labels.values(), strict=True))
    _judge_buckets(report, gate, flips, subject.recipe)
    between = widest([_gap(by_bucket[sizes[0]], answers) for answers in by_bucket.values()])
    return report, between, flips


def _answers(
    subject: Subject,
    runner: Runner,
    validation: Validation,
    sizes: Sequence[int],
    *,
    is_alone: bool,
    is_source: bool = False,
) -> dict[int, list[list[Tensor]]]:
    """Output rows of every validation row, for each bucket, all from one process."""
    batched = bool(subject.recipe["buckets"])
    each = [validation.row(subject.inputs, i, batched=batched) for i in range(validation.count)]
    plan = {size: _batched(each, size, 1 if is_alone else size) for size in sizes}
    backend, model = (
        ("reference", subject.source) if is_source else (subject.recipe["backend"], subject.engine)
    )
    whole = [batch for size in sizes for batch, _ in plan[size]]
    outputs = iter(runner.infer(backend, model, subject.recipe, whole).outputs)
    answers: dict[int, list[list[Tensor]]] = {}
    for size in sizes:
        answers[size] = []
        for _, count in plan[size]:
            batch = next(outputs)
            answers[size] += [list(row) for row in rows(batch)[:count]] if size else [batch]
    return answers


def _batched(each: list[list[Tensor]], size: int, at_once: int) -> list[tuple[list[Tensor], int]]:
    """Batches of one bucket and how many rows of each count; the rest is padding."""
    if not size:
        return [(row, 1) for row in each]
    chunks = [each[start : start + at_once] for start in range(0, len(each), at_once)]
    return [
        ([place(list(enumerate(parts)), size) for parts in zip(*chunk, strict=True)], len(chunk))
        for chunk in chunks
    ]


def _deciding(subject: Subject, row: Sequence[Tensor]) -> Tensor:
    name = (subject.meaning.get("decision") or {}).get("output")
    return next((tensor for tensor in row if tensor.name == name), row[0])


def _scores(subject: Subject, row: Sequence[Tensor]) -> list[float]:
    tensor = _deciding(subject, row)
    if datatype(tensor.datatype).kind == "bytes":
        return []
    return [float(value) for value in unpack_elements(tensor)]


def _decide(subject: Subject, row: Sequence[Tensor]) -> str | None:
    """Label of a row; without a meaning, the text, the whole number, or the position of the largest score."""
    decision = subject.meaning.get("decision") or {}
    if decision:
        return decide(decision, row)[0]
    tensor = _deciding(subject, row)
    kind, scores = datatype(tensor.datatype).kind, _scores(subject, row)
    if kind == "bytes":
        return text_label(unpack_elements(tensor))
    if len(scores) == 1 and kind != "float":
        return str(int(scores[0]))
    return str(scores.index(max(scores))) if len(scores) > 1 and max(scores) == max(scores) else None


def _gap(there: Sequence[Sequence[Tensor]], here: Sequence[Sequence[Tensor]]) -> Difference:
    """Largest difference over all outputs of all rows."""
    pairs = (pair for a, b in zip(there, here, strict=True) for pair in zip(a, b, strict=True))
    return widest([compare(a, b) for a, b in pairs])


def _gaps(source: Sequence[Sequence[Tensor]], engine: Sequence[Sequence[Tensor]]) -> list[Gap]:
    """One of each output of floats."""
    gaps: dict[str, Gap] = {}
    for here, there in zip(source, engine, strict=True):
        for a, b in zip(here, there, strict=True):
            if datatype(a.datatype).kind == "float":
                gaps.setdefault(a.name, Gap()).add(unpack_elements(a), unpack_elements(b))
    return list(gaps.values())


def _judge_buckets(
    report: dict[str, Any], gate: Mapping[str, Any], flips: int, recipe: Mapping[str, Any]
) -> None:
    limit = gate["bucket_flips_max"]
    if limit is None or recipe["pinned_bucket"] is not None or not report["samples"]:
        return
    share = Decimal(flips) / report["samples"]
    if share > Decimal(limit):
        report["findings"].append(
            f"decisions that differ between buckets: expected at most {limit}, got {share:.6g}"
        )
        report["passed"] = False


# -- speed ----------------------------------------------------------------------------------------


def _speed(subject: Subject, runner: Runner) -> tuple[list[dict[str, Any]], dict[str, int]]:
    latency, last = [], None
    for buckets in _parts(subject):
        cases = golden.draw(_shaped(subject), buckets, count=1, seed=_SEED)
        measured = runner.measure(
            subject.recipe["backend"], subject.engine, subject.recipe, [batch for _, batch in cases],
            repeats=TIMES_MAX, budget_ns=BUDGET_NS,
        )  # fmt: skip
        latency += [_latency(bucket, one.times_ns) for (bucket, _), one in zip(cases, measured, strict=True)]
        last = measured[-1]
    assert last is not None
    return latency, {"rss_bytes": last.rss_bytes, "peak_rss_bytes": last.peak_rss_bytes}


def _parts(subject: Subject) -> list[list[int]]:
    """Buckets, in order, as many to a process as fit into the memory for inputs."""
    parts: list[list[int]] = []
    left = 0
    for bucket in subject.recipe["buckets"] or [0]:
        size = golden.batch_bytes(_shaped(subject), bucket)
        if not parts or size > left:
            parts.append([])
            left = _room(subject)
        parts[-1].append(bucket)
        left -= size
    return parts


def _latency(bucket: int, times: list[int]) -> dict[str, Any]:
    seconds = sum(times) / 1e9
    return {
        "bucket": bucket,
        "p50_ns": int(quantile(times, 0.5)),
        "p99_ns": int(quantile(times, 0.99)),
        "rows_per_s": decimal((bucket or 1) * len(times) / seconds),
        "samples": len(times),
    }
