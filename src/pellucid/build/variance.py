"""Does an answer depend on anything but its own input? Measured, then said in one word.

``invariant``: same bits in every bucket, slot and company. ``bucket-invariant``: same bits in the
same bucket and slot, whatever the neighbours. ``variant``: neighbours or repetition change bits.
Source: requirement B9; spec/qualification.md, section 3.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.core.accuracy import decimal
from pellucid.core.bucket import place
from pellucid.core.tensor import Tensor, datatype, rows, tensor_digest
from pellucid.core.tolerance import Difference, compare, widest
from pellucid.errors import BuildError

NEIGHBOURS: Final = ("zeros", "others", "large")
SLOTS_MAX: Final = 5  # limit: first, second, middle, last and one between
DIFFERENCES_MAX: Final = 20  # limit: a report names examples, not everything
_LARGE: Final = 30_000.0  # below the largest FP16, far above any scaled feature


@dataclass(frozen=True, slots=True)
class Trial:
    """One row at one place in one company, and the batch that holds it."""

    probe: int
    bucket: int
    slot: int
    neighbours: str
    batch: list[Tensor]


@dataclass(slots=True)
class Seen:
    """Outputs of a row at one bucket and slot: distinct bits, and under which company they came."""

    outputs: list[Tensor]
    digests: dict[str, str] = field(default_factory=dict)


def slots(bucket: int) -> list[int]:
    """Slots worth trying: all of a small bucket, the telling ones of a large one."""
    if bucket <= SLOTS_MAX:
        return list(range(bucket))
    return sorted({0, 1, bucket // 3, bucket // 2, bucket - 1})


def trials(probes: Sequence[Sequence[Tensor]], buckets: Sequence[int]) -> list[Trial]:
    """Every probe in every bucket, slot and company; bucket 0 is a model without a batch axis."""
    if not buckets:
        return [Trial(i, 0, 0, "none", list(probe)) for i, probe in enumerate(probes)]
    return [
        Trial(i, bucket, slot, company, _batch(probes, i, bucket, slot, company))
        for bucket in buckets
        for slot in slots(bucket)
        for i in range(len(probes))
        for company in (NEIGHBOURS if bucket > 1 else NEIGHBOURS[:1])
    ]


def size_of_one(buckets: Sequence[int], row_bytes: int) -> int:
    """Bytes of all batches that one probe goes through."""
    if not buckets:
        return row_bytes
    return row_bytes * sum(
        bucket * len(slots(bucket)) * (len(NEIGHBOURS) if bucket > 1 else 1) for bucket in buckets
    )


def _batch(
    probes: Sequence[Sequence[Tensor]], own: int, bucket: int, slot: int, company: str
) -> list[Tensor]:
    batch = []
    for position in range(len(probes[own])):
        parts = []
        for place_at in range(bucket):
            if place_at == slot:
                parts.append((place_at, probes[own][position]))
            elif company == "others":
                other = probes[(own + 1 + place_at) % len(probes)][position]
                parts.append((place_at, other))
            elif company == "large":
                parts.append((place_at, _large(probes[own][position], place_at)))
        batch.append(place(parts, bucket))
    return batch


def _large(row: Tensor, position: int) -> Tensor:
    """The same row with extreme floats of alternating sign; other datatypes keep their values."""
    kind = datatype(row.datatype)
    if kind.kind != "float":
        return row
    count = len(row.data) // kind.itemsize
    values = [_LARGE * (1 if (position + i) % 2 else -1) for i in range(count)]
    if row.datatype == "BF16":
        data = b"".join(struct.pack("<f", value)[2:] for value in values)
    else:
        data = struct.pack(f"<{count}{kind.code}", *values)
    return Tensor(row.name, row.datatype, row.shape, data)


def own_rows(trial: Trial, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The probe's own part of a batch's outputs.

    Raises:
        BuildError: An output does not follow the batch axis, so that no row has a part of its own.
    """
    if not trial.bucket:
        return list(outputs)
    for output in outputs:
        if output.shape[:1] != (trial.bucket,):
            raise BuildError(
                f"output {output.name!r:.80}: expected {trial.bucket} rows for {trial.bucket} rows in, "
                f"got shape {list(output.shape)}",
                hint="a model whose outputs mix its rows cannot be batched: give it buckets: [1]",
            )
    return list(rows(outputs)[trial.slot])


@dataclass(frozen=True, slots=True)
class Judged:
    """The variance report, and the largest difference of one row between buckets and slots."""

    report: dict[str, Any]
    between: Difference


def judge(tried: Sequence[Trial], passes: Sequence[Sequence[Sequence[Tensor]]], *, processes: int) -> Judged:
    """Compare every repetition of every trial.

    Args:
        tried: Trials in order.
        passes: For each repetition, the outputs of every trial in that order.

    Raises:
        BuildError: An output does not follow the batch axis.
    """
    seen: dict[tuple[int, int, int], Seen] = {}
    differences: list[dict[str, Any]] = []
    for number, outputs in enumerate(passes):
        for trial, batch in zip(tried, outputs, strict=True):
            _note(seen, differences, trial, own_rows(trial, batch), number)
    differences.sort(key=lambda found: found["factor"], reverse=True)  # repetition explains the rest
    report = {
        "label": "variant" if differences else "invariant",
        "runs": len(passes),
        "processes": processes,
        "sessions": processes,
        "slots": len({(trial.bucket, trial.slot) for trial in tried}),
        "neighbours": sorted({trial.neighbours for trial in tried}),
        "probes": len({trial.probe for trial in tried}),
        "buckets": _bits(seen),
        "differences": differences[:DIFFERENCES_MAX],
        "differences_count": len(differences),
    }
    return Judged(report, _between(seen))


def conclude(judged: Judged, others: Difference, flips: int | None) -> dict[str, Any]:
    """The whole variance report, with what the validation rows showed between buckets as well."""
    between = widest([judged.between, others])
    label = judged.report["label"]
    if label == "invariant" and not between.is_same_bits:
        label = "bucket-invariant"
    bound = {"absolute": decimal(between.absolute), "ulp": between.ulp}
    return judged.report | {"label": label, "bound": bound, "flips_between_buckets": flips}


def _note(
    seen: dict[tuple[int, int, int], Seen],
    differences: list[dict[str, Any]],
    trial: Trial,
    own: list[Tensor],
    number: int,
) -> None:
    digest = _digest(own)
    where = (trial.probe, trial.bucket, trial.slot)
    first = seen.setdefault(where, Seen(own, {trial.neighbours: digest}))
    known = first.digests.setdefault(trial.neighbours, digest)
    factor = ""
    if known != digest:
        factor = "repetition"
    elif digest != next(iter(first.digests.values())):
        factor = "neighbours"
    if factor:
        gap = widest([compare(a, b) for a, b in zip(first.outputs, own, strict=True)])
        differences.append(
            {
                "factor": factor, "bucket": trial.bucket, "slot": trial.slot, "neighbours": trial.neighbours,
                "probe": trial.probe, "run": number, "absolute": decimal(gap.absolute), "ulp": gap.ulp,
            }
        )  # fmt: skip


def _digest(tensors: Sequence[Tensor]) -> str:
    return hashlib.sha256(b"".join(map(tensor_digest, tensors))).hexdigest()


def _between(seen: dict[tuple[int, int, int], Seen]) -> Difference:
    firsts: dict[int, Seen] = {}
    gaps = []
    for (probe, _, _), here in seen.items():
        first = firsts.setdefault(probe, here)
        gaps += [compare(a, b) for a, b in zip(first.outputs, here.outputs, strict=True)]
    return widest(gaps)


def _bits(seen: dict[tuple[int, int, int], Seen]) -> list[dict[str, Any]]:
    """One digest a bucket, over the probes at their first slot: equal digests mean equal bits."""
    buckets: dict[int, list[str]] = {}
    for (_, bucket, slot), here in sorted(seen.items()):
        if slot == 0:
            buckets.setdefault(bucket, []).append(_digest(here.outputs))
    return [
        {"bucket": bucket, "bits": "sha256:" + hashlib.sha256("".join(digests).encode()).hexdigest()}
        for bucket, digests in buckets.items()
    ]
