"""Accuracy of an engine against its source: what the gate judges, and why it failed.

Pure arithmetic over scores and decisions; fails closed on nothing measured and on non-finite
numbers. Decimals leave as text, ``inf`` where nothing differs (PSNR). Source: requirement B8;
spec/accuracy.md, sections 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from pellucid.core.gap import Gap
from pellucid.errors import UsageError

KL_FLOOR: Final = 1e-12  # below float32's resolution of a probability; keeps KL finite on zeros
_TINY: Final = 1e-300

Rows = Sequence[Sequence[float]]


class Samples(msgspec.Struct, frozen=True):
    """One validation set, run through source and engine; row ``i`` is the same sample everywhere.

    Attributes:
        source, engine: Scores of the deciding output, flat per row.
        source_labels, engine_labels: What each decides, ``None`` where a score is not finite.
        truth: True labels, or ``()`` when there are none.
        slices: Name of a slice -> value per row.
        error: Largest difference over all outputs, where there are more than the deciding one.
        gaps: One of each output of floats, all rows added; ``()`` measures the deciding one alone.
        subject: What ``engine`` is, in a finding.
    """

    source: Rows
    engine: Rows
    source_labels: Sequence[str | None]
    engine_labels: Sequence[str | None]
    truth: Sequence[str] = ()
    slices: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    error: float = 0.0
    gaps: Sequence[Gap] = ()
    subject: str = "engine"


def decimal(value: float) -> str:
    """A number as text with nine significant digits."""
    return format(value, ".9g")


def clopper_pearson_upper(hits: int, trials: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper bound of a rate seen ``hits`` times in ``trials``; 1.0 when none were made.

    Raises:
        UsageError: ``hits`` outside 0 to ``trials``, or a confidence outside (0, 1).
    """
    if not 0 <= hits <= trials or not 0.0 < confidence < 1.0:
        raise UsageError(f"bound: expected 0 <= hits <= trials, got {hits} of {trials} at {confidence}")
    if hits == trials:
        return 1.0
    low, high = hits / trials, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        if incomplete_beta(hits + 1, trials - hits, middle) < confidence:
            low = middle
        else:
            high = middle


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function, by continued fraction on the side that converges."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method; steps grow with the square root of the parameters."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 100_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _nonzero(1.0 + numerator * d)
            c = _nonzero(1.0 + numerator / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def distribution(row: Sequence[float], form: str) -> list[float]:
    """Probabilities of one row of scores, as ``score_form`` says of the source.

    An engine may leave the simplex by a little (rounding) or by a lot: what is negative counts as 0
    and the rest is brought to a sum of 1; a row without anything positive stays 0 throughout, which
    is as far from any distribution as it gets.
    """
    if form == "probabilities":
        kept = [max(value, 0.0) for value in row]
        total = math.fsum(kept)
        return [value / total for value in kept] if total > 0.0 else kept
    if form == "bernoulli":
        value = min(max(row[0], 0.0), 1.0)
        return [1.0 - value, value]
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def text_label(elements: Sequence[bytes]) -> str:
    """What a row of text decides: its one word, or all of them."""
    words = [element.decode("utf-8", "replace") for element in elements]
    return words[0] if len(words) == 1 else str(words)


def score_form(rows: Rows) -> str:
    """How scores read as a distribution: ``probabilities``, ``bernoulli`` or ``softmax`` of them."""
    if all(0.0 <= v <= 1.0 for row in rows for v in row):
        if all(len(row) == 1 for row in rows):
            return "bernoulli"
        if all(abs(sum(row) - 1.0) < 1e-3 for row in rows):
            return "probabilities"
    return "softmax"


def kl_divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """KL(p||q) in nats; zeros are defined: 0 where ``p`` is 0, ``q`` floored at ``KL_FLOOR``."""
    total = sum(a * math.log(a / max(b, KL_FLOOR)) for a, b in zip(p, q, strict=True) if a > 0.0)
    return max(total, 0.0)


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest-rank quantile: a value that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure(samples: Samples, gate: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy report of the qualification predicate, judged by the recipe's gate.

    Fails closed: no samples, or any score that is not finite, cannot pass.
    """
    count, confidence = len(samples.engine), float(gate["confidence"])
    findings = _unmeasurable(samples)
    report: dict[str, Any] = {
        "samples": count, "confidence": gate["confidence"], "top1": None, "top1_source": None,
        "kl_form": None, "kl_mean": None, "kl_p999": None, "kl_max": None, "error_max": None,
        "psnr_db": None, "cosine_min": None, "cosine_mean": None,
        "flips": None, "flips_upper": None, "slices": [],
    }  # fmt: skip
    if not findings:
        report |= _divergence(samples) | _fidelity(samples) | _tally(samples, range(count), confidence)
        report["slices"] = _slices(samples, confidence)
        findings = judge(report, gate)
    return report | {"passed": not findings, "findings": findings}


def _unmeasurable(samples: Samples) -> list[str]:
    if not samples.engine:
        return ["samples: expected a validation set, got none"]
    findings = []
    for who, rows in (("source", samples.source), (samples.subject, samples.engine)):
        bad = sum(not all(map(math.isfinite, row)) for row in rows)
        if bad:
            findings.append(f"{who}: expected finite scores, got {bad} rows with NaN or infinity")
    decided = {label for label in samples.source_labels if label is not None}
    if decided and all(map(str.isdecimal, decided)):
        strange = next((label for label in samples.truth if not label.isdecimal()), None)
        if strange is not None:  # wrong for both alike, so that no loss could be seen
            findings.append(f"labels: expected whole numbers as the model decides, got {strange!r:.60}")
    if not findings and not all(map(math.isfinite, [samples.error, *(gap.largest for gap in samples.gaps)])):
        findings.append("outputs: expected finite differences, got NaN or infinity on one side")
    return findings


def _divergence(samples: Samples) -> dict[str, Any]:
    if not any(samples.source):
        return {}  # an output of text has no scores
    form = score_form(samples.source)
    pairs = list(zip(samples.source, samples.engine, strict=True))
    kl = [kl_divergence(distribution(s, form), distribution(e, form)) for s, e in pairs]
    error = max(abs(a - b) for s, e in pairs for a, b in zip(s, e, strict=True))
    error = max([error, samples.error, *(gap.largest for gap in samples.gaps)])
    if form == "softmax" and all(len(row) == 1 for row in samples.source):
        return {"error_max": decimal(error)}  # of one number there is no distribution: it would always be 1
    return {
        "kl_form": form,
        "kl_mean": decimal(math.fsum(kl) / len(kl)),
        "kl_p999": decimal(quantile(kl, 0.999)),
        "kl_max": decimal(max(kl)),
        "error_max": decimal(error),
    }


def _fidelity(samples: Samples) -> dict[str, Any]:
    """PSNR of the worst output; cosine of the worst row of any, and the mean."""
    gaps = [gap for gap in samples.gaps if gap.elements] or _deciding(samples)
    cosines = [value for gap in gaps for value in gap.cosines]
    if not cosines:
        return {}
    return {
        "psnr_db": decimal(min(gap.psnr_db for gap in gaps)),
        "cosine_min": decimal(min(cosines)),
        "cosine_mean": decimal(math.fsum(cosines) / len(cosines)),
    }


def _deciding(samples: Samples) -> list[Gap]:
    gap = Gap()
    for source, engine in zip(samples.source, samples.engine, strict=True):
        if source:
            gap.add(source, engine)
    return [gap]


def _tally(samples: Samples, rows: Sequence[int], confidence: float) -> dict[str, Any]:
    if all(samples.source_labels[i] is None and samples.engine_labels[i] is None for i in rows):
        return {"flips": None, "flips_upper": None, "top1": None, "top1_source": None}  # nothing is decided
    flips = sum(samples.source_labels[i] != samples.engine_labels[i] for i in rows)
    tally: dict[str, Any] = {
        "flips": flips,
        "flips_upper": decimal(clopper_pearson_upper(flips, len(rows), confidence)),
        "top1": None,
        "top1_source": None,
    }
    if samples.truth:
        tally["top1"] = decimal(sum(samples.engine_labels[i] == samples.truth[i] for i in rows) / len(rows))
        source = sum(samples.source_labels[i] == samples.truth[i] for i in rows)
        tally["top1_source"] = decimal(source / len(rows))
    return tally


def _slices(samples: Samples, confidence: float) -> list[dict[str, Any]]:
    tallies = []
    for name, values in sorted(samples.slices.items()):
        groups: dict[str, list[int]] = {}
        for row, value in enumerate(values):
            groups.setdefault(value, []).append(row)
        tallies += [
            {"slice": name, "value": value, "samples": len(rows), **_tally(samples, rows, confidence)}
            for value, rows in sorted(groups.items())
        ]
    return tallies


def judge(report: Mapping[str, Any], gate: Mapping[str, Any]) -> list[str]:
    """Every limit of the gate that the report breaks, in words; ``[]`` when it holds.

    A limit that nobody has by default is somebody's demand: it fails when it could not be measured.
    """
    findings = []
    if report["samples"] < gate["samples_min"]:
        findings.append(f"samples: expected at least {gate['samples_min']:,}, got {report['samples']:,}")
    for what, key, value in _checks(report):
        findings += _check(what, key, value, gate.get(key))
    return findings


def is_unjudged(report: Mapping[str, Any], gate: Mapping[str, Any]) -> bool:
    """True where the model neither decides nor gives a distribution, and the gate limits nothing else."""
    limits = ("error_max", "psnr_db_min", "cosine_min")
    return report["kl_form"] is None and report["flips"] is None and all(gate.get(k) is None for k in limits)


def _checks(report: Mapping[str, Any]) -> list[tuple[str, str, Decimal | None]]:
    """Words, key of the gate, and what was measured."""
    checks: list[tuple[str, str, Decimal | None]] = [
        ("KL mean", "kl_mean_max", _number(report["kl_mean"])),
        ("KL p99.9", "kl_p999_max", _number(report["kl_p999"])),
        ("KL max", "kl_max_max", _number(report["kl_max"])),
        ("largest error", "error_max", _number(report["error_max"])),
        ("PSNR in dB", "psnr_db_min", _number(report["psnr_db"])),
        ("smallest cosine", "cosine_min", _number(report["cosine_min"])),
        ("flipped decisions", "flips_max", _rate(report)),
        ("flipped decisions, upper bound", "flips_upper_max", _number(report["flips_upper"])),
        ("loss of top-1", "top1_drop_max", _drop(report)),
    ]
    for s in report["slices"]:
        where = f"slice {s['slice']}={s['value']}: "
        checks.append((where + "flipped decisions", "slice_flips_max", _rate(s)))
        checks.append((where + "upper bound of flips", "slice_flips_upper_max", _number(s["flips_upper"])))
    return checks


_DEMANDED: Final = frozenset(
    ["kl_p999_max", "kl_max_max", "error_max", "psnr_db_min", "cosine_min", "flips_upper_max",
     "slice_flips_upper_max"]
)  # fmt: skip


def _check(what: str, key: str, value: Decimal | None, limit: str | None) -> list[str]:
    if limit is None or (value is None and key not in _DEMANDED):
        return []
    is_least = key.endswith("_min")
    if value is None:
        got = "nothing measured"
    elif value < Decimal(limit) if is_least else value > Decimal(limit):
        got = f"{value:.6g}"
    else:
        return []
    return [f"{what}: expected at {'least' if is_least else 'most'} {limit}, got {got}"]


def _number(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _rate(tally: Mapping[str, Any]) -> Decimal | None:
    return None if tally["flips"] is None else Decimal(tally["flips"]) / tally["samples"]


def _drop(report: Mapping[str, Any]) -> Decimal | None:
    if report["top1"] is None:
        return None
    return Decimal(report["top1_source"]) - Decimal(report["top1"])
