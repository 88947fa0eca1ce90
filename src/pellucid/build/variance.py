"""Does an answer depend on anything but its own input? Measured, then said in one word.

``invariant``: same bits in every bucket, slot and company. ``bucket-invariant``: same bits in the
same bucket and slot, whatever the neighbours. ``variant``: neighbours or repetition change bits.
Source: requirement B9; spec/qualification.md, section 3.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.build.answers import size_of
from pellucid.build.golden import verify_rows
from pellucid.core.accuracy import decimal
from pellucid.core.bucket import place
from pellucid.core.tensor import Tensor, datatype, rows, tensor_digest
from pellucid.core.tolerance import Difference, compare, widest

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
    """Outputs of a row at one bucket and slot: the first of all, and the first bits in each company."""

    outputs: list[Tensor]
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of the first outputs."""
        return next(iter(self.digests.values()))


def slots(bucket: int) -> list[int]:
    """Slots worth trying: all of a small bucket, the telling ones of a large one."""
    if bucket <= SLOTS_MAX:
        return list(range(bucket))
    return sorted({0, 1, bucket // 3, bucket // 2, bucket - 1})


def trials(probes: Sequence[Sequence[Tensor]], buckets: Sequence[int]) -> Iterator[Trial]:
    """Every probe in every bucket, slot and company; bucket 0 is a model without a batch axis.

    Made when they are due; those of one probe, bucket and slot follow each other.
    """
    if not buckets:
        for i, probe in enumerate(probes):
            yield Trial(i, 0, 0, "none", list(probe))
    for bucket in buckets:
        for slot in slots(bucket):
            for i in range(len(probes)):
                for company in NEIGHBOURS if bucket > 1 else NEIGHBOURS[:1]:
                    yield Trial(i, bucket, slot, company, _batch(probes, i, bucket, slot, company))


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
    """The probe's own part of a batch's outputs, which holds nothing else of them.

    Raises:
        BuildError: An output does not follow the batch axis.
    """
    if not trial.bucket:
        return list(outputs)
    verify_rows(trial.bucket, outputs)
    return [Tensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in rows(outputs)[trial.slot]]


@dataclass(frozen=True, slots=True)
class Judged:
    """What following the probes showed.

    Attributes:
        report: The variance report.
        between: Largest difference of one row between buckets and slots.
        row_bytes: What the outputs of one row take.
    """

    report: dict[str, Any]
    between: Difference
    row_bytes: int


class Judge:
    """Compares every repetition of every trial, told one by one."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], Seen] = {}
        self._firsts: dict[int, list[Tensor]] = {}
        self._between = Difference(True)
        self._neighbours: set[str] = set()
        self._differences: list[dict[str, Any]] = []

    def note(self, trial: Trial, outputs: Sequence[Tensor], number: int) -> None:
        """Take the outputs of a trial's batch in that repetition.

        Raises:
            BuildError: An output does not follow the batch axis.
        """
        own = own_rows(trial, outputs)
        digest = _digest(own)
        where = _where(trial)
        self._neighbours.add(trial.neighbours)
        if where not in self._seen:
            self._seen[where] = Seen(own)
            first = self._firsts.setdefault(trial.probe, own)
            self._between = widest([self._between, _gap(first, own)])
        seen = self._seen[where]
        known = seen.digests.setdefault(trial.neighbours, digest)
        if known != digest:
            self._differ("repetition", trial, _gap(seen.outputs, own), number)
        elif digest != seen.digest:
            self._differ("neighbours", trial, _gap(seen.outputs, own), number)

    def _differ(self, factor: str, trial: Trial, gap: Difference, number: int) -> None:
        self._differences.append(
            {
                "factor": factor, "bucket": trial.bucket, "slot": trial.slot, "neighbours": trial.neighbours,
                "probe": trial.probe, "run": number, "absolute": decimal(gap.absolute), "ulp": gap.ulp,
            }
        )  # fmt: skip

    def forget(self, last: Trial) -> None:
        """Keep no outputs of trials that are through, but those beside the last one's."""
        for where, seen in self._seen.items():
            if where != _where(last):
                seen.outputs = []

    def judged(self, *, runs: int, processes: int) -> Judged:
        """The verdict on all that was noted."""
        # repetition explains the rest
        found = sorted(self._differences, key=lambda one: (one["factor"] != "repetition", one["run"]))
        report = {
            "label": "variant" if found else "invariant",
            "runs": runs,
            "processes": processes,
            "sessions": processes,
            "slots": len({(bucket, slot) for _, bucket, slot in self._seen}),
            "neighbours": sorted(self._neighbours),
            "probes": len(self._firsts),
            "buckets": _bits(self._seen),
            "differences": found[:DIFFERENCES_MAX],
            "differences_count": len(found),
        }
        return Judged(report, self._between, max(map(size_of, self._firsts.values()), default=0))


def _where(trial: Trial) -> tuple[int, int, int]:
    return trial.probe, trial.bucket, trial.slot


def _gap(there: Sequence[Tensor], here: Sequence[Tensor]) -> Difference:
    return widest([compare(a, b) for a, b in zip(there, here, strict=True)])


def conclude(judged: Judged, others: Difference, flips: int | None) -> dict[str, Any]:
    """The whole variance report, with what the validation rows showed between buckets as well."""
    between = widest([judged.between, others])
    label = judged.report["label"]
    if label == "invariant" and not between.is_same_bits:
        label = "bucket-invariant"
    bound = {"absolute": decimal(between.absolute), "ulp": between.ulp}
    return judged.report | {"label": label, "bound": bound, "flips_between_buckets": flips}


def _digest(tensors: Sequence[Tensor]) -> str:
    return hashlib.sha256(b"".join(map(tensor_digest, tensors))).hexdigest()


def _bits(seen: dict[tuple[int, int, int], Seen]) -> list[dict[str, Any]]:
    """One digest a bucket, over the probes at their first slot: equal digests mean equal bits."""
    buckets: dict[int, list[str]] = {}
    for (_, bucket, slot), here in sorted(seen.items()):
        if slot == 0:
            buckets.setdefault(bucket, []).append(here.digest)
    return [
        {"bucket": bucket, "bits": "sha256:" + hashlib.sha256("".join(digests).encode()).hexdigest()}
        for bucket, digests in buckets.items()
    ]
