"""Qualification: what an engine is worth on this device, measured and never assumed.

Accuracy against the source, variance of the bits, latency and memory per bucket. Every engine run
happens in a process of its own. The result is the predicate of an attestation beside the package.
Source: requirements B8, B9, B15; spec/qualification.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, Protocol

import numpy as np

from pellucid.build import golden, variance
from pellucid.build.answers import Row, Rows, answers, in_parts, size_of
from pellucid.build.isolated import Measured
from pellucid.build.samples import Validation
from pellucid.core.accuracy import Samples, decimal, measure, quantile, text_label
from pellucid.core.decision import decide
from pellucid.core.digest import sha256
from pellucid.core.gap import Gap
from pellucid.core.recipe import DEFAULT_LIMITS
from pellucid.core.tensor import Tensor, TensorSpec, datatype, unpack_elements
from pellucid.core.times import format_time
from pellucid.core.tolerance import Difference, compare, widest
from pellucid.errors import LimitError, RecipeError
from pellucid.ports import Clock, Isolated, IsolatedRun

PROBES: Final = 8  # rows whose bits are followed through every bucket, slot and company
PASSES: Final = 2  # of every trial within one process
PROCESSES: Final = 2
TIMES_MAX: Final = 400
BUDGET_NS: Final = 1_000_000_000  # per bucket: enough for a tail of small models, bearable for large
INPUTS_SHARE: Final = 16  # limit: what one process is given takes at most this part of limits.memory_bytes
_SEED: Final = 7
_SAME: Final = Difference(True)


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
    accuracy, others, flips = _accuracy(subject, runner, judged)
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
    """Bytes of inputs, and of answers as far as they are known, that one process is given."""
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
    """Inputs with variable axes behind the batch as the first profile is tuned for them.

    Raises:
        RecipeError: The profile says nothing of an axis that varies.
    """
    try:
        return golden.tuned(subject.inputs, subject.recipe.get("profiles") or ())
    except (KeyError, IndexError) as error:
        raise RecipeError(
            f"recipe: profiles: expected every axis of every input, got none for {error!s:.80}"
        ) from error


# -- variance -------------------------------------------------------------------------------------


def _variance(subject: Subject, runner: Runner) -> tuple[variance.Judged, dict[str, Any], int]:
    probes = _probes(subject)
    buckets = subject.recipe["buckets"]
    size = variance.size_of_one(buckets, golden.batch_bytes(_shaped(subject), int(bool(buckets))))
    fitting = max(1, _room(subject) // max(size * PASSES, 1))  # of one at least something can be said
    judge = variance.Judge()
    tried = variance.trials(probes[:fitting], buckets)
    for part in in_parts(tried, lambda trial: PASSES * _trial_bytes(subject, trial), _room(subject)):
        for process in range(PROCESSES):
            environment, threads = _follow(subject, runner, judge, part, process)
        judge.forget(part[-1])
    return judge.judged(runs=PROCESSES * PASSES, processes=PROCESSES), environment, threads


def _trial_bytes(subject: Subject, trial: variance.Trial) -> int:
    """What a trial's batch and its answers take, an output's variable axes left out."""
    known = [
        TensorSpec(spec.name, spec.datatype, tuple(max(axis, 1) for axis in spec.shape))
        for spec in subject.outputs
    ]
    return size_of(trial.batch) + golden.batch_bytes(known, trial.bucket)


def _follow(
    subject: Subject, runner: Runner, judge: variance.Judge, part: Sequence[variance.Trial], process: int
) -> tuple[dict[str, Any], int]:
    """Every pass of one process over these trials; gives its environment and threads."""
    # the second process goes backwards: what came before must not matter either
    step = 1 if process % 2 == 0 else -1
    run = _infer(subject, runner, [trial.batch for trial in part[::step]] * PASSES)
    for turn in range(PASSES):
        outputs = run.outputs[turn * len(part) : (turn + 1) * len(part)][::step]
        for trial, answer in zip(part, outputs, strict=True):
            judge.note(trial, answer, process * PASSES + turn)
    return run.environment, run.describe["threads"]


def _infer(subject: Subject, runner: Runner, batches: Sequence[Sequence[Tensor]]) -> IsolatedRun:
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


@dataclass(slots=True)
class _Compared:
    """Engine and source over the rows seen so far; of a row only scores and decisions are kept."""

    source: list[Sequence[float]] = field(default_factory=list)
    engine: list[Sequence[float]] = field(default_factory=list)
    source_labels: list[str | None] = field(default_factory=list)
    engine_labels: list[str | None] = field(default_factory=list)
    gaps: dict[str, Gap] = field(default_factory=dict)
    difference: Difference = _SAME
    between: Difference = _SAME
    flips: int = 0

    def add(self, subject: Subject, source: Row, by_bucket: Mapping[int, Row], serving: int) -> None:
        """Take one row's answers: the source's, and the engine's in every bucket, the serving one too."""
        engine = by_bucket[serving]
        labels = {size: _decide(subject, row) for size, row in by_bucket.items()}
        self.source.append(_scores(subject, source))
        self.engine.append(_scores(subject, engine))
        self.source_labels.append(_decide(subject, source))
        self.engine_labels.append(labels[serving])
        self.flips += len(set(labels.values())) > 1
        self.difference = widest([self.difference, _gap(source, engine)])
        for a, b in zip(source, engine, strict=True):
            if datatype(a.datatype).kind == "float":
                self.gaps.setdefault(a.name, Gap()).add(unpack_elements(a), unpack_elements(b))
        first, *others = by_bucket.values()
        self.between = widest([self.between, *(_gap(first, other) for other in others)])


def _accuracy(
    subject: Subject, runner: Runner, judged: variance.Judged
) -> tuple[dict[str, Any], Difference, int | None]:
    """The accuracy report, the rows' largest difference between buckets, and decisions that differ."""
    gate, validation = subject.recipe["gate"], subject.validation
    if validation is None or not subject.source:
        report = measure(Samples((), (), (), ()), gate)
        if validation is not None:
            report["findings"] = ["source: expected the source model in the package, got its digest only"]
        return report, _SAME, None
    sizes = subject.recipe["buckets"] or [0]
    serving = subject.recipe["pinned_bucket"] or sizes[-1]

    def row(index: int) -> list[Tensor]:
        return validation.row(subject.inputs, index, batched=bool(subject.recipe["buckets"]))

    is_alone = judged.report["label"] == "variant"  # as it will be served
    asked = Rows(row, validation.count, sizes, is_alone, size_of(row(0)) + judged.row_bytes)
    engine = answers(asked, lambda batches: _infer(subject, runner, batches).outputs, _room(subject))
    source = answers(
        replace(asked, sizes=[serving]),
        lambda batches: runner.infer("reference", subject.source, subject.recipe, batches).outputs,
        _room(subject),
    )
    found = _Compared()
    for there, here in zip(source, engine, strict=True):
        found.add(subject, there[serving], here, serving)
    samples = Samples(
        source=found.source,
        engine=found.engine,
        source_labels=found.source_labels,
        engine_labels=found.engine_labels,
        truth=validation.truth,
        slices=validation.slices,
        error=found.difference.absolute,
        gaps=list(found.gaps.values()),
    )
    report = measure(samples, gate)
    _judge_buckets(report, gate, found.flips, subject.recipe)
    return report, found.between, found.flips


def _deciding(subject: Subject, row: Row) -> Tensor:
    name = (subject.meaning.get("decision") or {}).get("output")
    return next((tensor for tensor in row if tensor.name == name), row[0])


def _scores(subject: Subject, row: Row) -> Sequence[float]:
    """Numbers of the deciding output, packed: they are kept of every row."""
    tensor = _deciding(subject, row)
    if datatype(tensor.datatype).kind == "bytes":
        return ()
    return array("d", unpack_elements(tensor))


def _decide(subject: Subject, row: Row) -> str | None:
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


def _gap(there: Row, here: Row) -> Difference:
    """Largest difference over all outputs of one row."""
    return widest([compare(a, b) for a, b in zip(there, here, strict=True)])


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
    sizes = in_parts(
        subject.recipe["buckets"] or [0],
        lambda bucket: golden.batch_bytes(_shaped(subject), bucket),
        _room(subject),
    )
    for buckets in sizes:
        cases = golden.draw(_shaped(subject), buckets, count=1, seed=_SEED)
        measured = runner.measure(
            subject.recipe["backend"], subject.engine, subject.recipe, [batch for _, batch in cases],
            repeats=TIMES_MAX, budget_ns=BUDGET_NS,
        )  # fmt: skip
        latency += [_latency(bucket, one.times_ns) for (bucket, _), one in zip(cases, measured, strict=True)]
        last = measured[-1]
    assert last is not None
    return latency, {"rss_bytes": last.rss_bytes, "peak_rss_bytes": last.peak_rss_bytes}


def _latency(bucket: int, times: list[int]) -> dict[str, Any]:
    seconds = sum(times) / 1e9
    return {
        "bucket": bucket,
        "p50_ns": int(quantile(times, 0.5)),
        "p99_ns": int(quantile(times, 0.99)),
        "rows_per_s": decimal((bucket or 1) * len(times) / seconds),
        "samples": len(times),
    }
