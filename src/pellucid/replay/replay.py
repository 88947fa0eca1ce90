"""Replay: run a past call again from its original input, and say whether the answer is the same.

The order holds: is it the package that answered; is it the input that was committed to; run it alone
in the recorded bucket and slot, zeros everywhere else; compare. Nothing is compared with an input
that was not first shown to be the right one. Source: spec/replay.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.bucket import place, take
from pellucid.core.digest import sha256
from pellucid.core.divergence import (
    BIT_EXACT,
    Change,
    RowResult,
    find_changes,
    is_recorded,
    judge_row,
    worst,
)
from pellucid.core.entry import Entry, Opening, is_opening, rows_leaf
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.tensor import Tensor, row_digest
from pellucid.core.tolerance import Tolerance
from pellucid.core.trust import TrustedPackage
from pellucid.errors import (
    DigestMismatchError,
    ErasedError,
    NotFoundError,
    ProofError,
    ReplayMismatchError,
    UsageError,
)
from pellucid.ports import Isolated, IsolatedRun
from pellucid.replay.cause import Cause, Trial, find_causes

NO_BOUND: Final = Tolerance(0.0, 0)
Rows = Mapping[int, Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Past:
    """A call as the ledger and the vault hold it.

    Attributes:
        entry: The call's entry.
        openings: What the vault still holds of it.
        erasures: Erasure entries that name this call.
        environment: Environment as recorded when the engine was loaded, whole or its digest;
            ``None`` when nothing was recorded.
    """

    entry: Entry
    openings: tuple[Opening, ...]
    erasures: tuple[Entry, ...] = ()
    environment: Mapping[str, Any] | str | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of it.

    Attributes:
        verdict: ``bit-exact``, ``within bound`` or ``different``.
        rows: One result per row replayed.
        changes: How this environment differs from the recorded one.
        causes: What was tried to find the cause, and what it did; empty when bit-exact.
        cause: The cause in one sentence, or ``""``.
        bucket, slot: Where the rows lay, as recorded.
        bound: What counted as within bound.
        environment: Environment of the replay.
    """

    call: str
    entry_digest: str
    package: str
    verdict: str
    rows: tuple[RowResult, ...]
    changes: tuple[Change, ...]
    causes: tuple[Cause, ...]
    cause: str
    bucket: int
    slot: int
    bound: Tolerance
    environment: Mapping[str, Any] = field(repr=False)


def replay_call(
    past: Past, rows: Rows, package: TrustedPackage, isolated: Isolated, *, tolerance: float = 0.0
) -> ReplayResult:
    """Run the given rows of a past call again.

    Args:
        past: The call.
        rows: Original input rows by row number: tensors in the model's order, leading dimension 1.
            Any non-empty part of the call; each row stands on its own.
        package: The package that answered, verified.
        isolated: Runs the engine in a process of its own.
        tolerance: Declared addition to the bound that qualification measured, in the outputs' unit.

    Raises:
        UsageError: The call never ran, or a row number is not the call's.
        DigestMismatchError: Another package or engine than the one that answered.
        ErasedError: The row was erased; says when and under which rule.
        ReplayMismatchError: The input is not the one that was committed to, or its key is lost.
    """
    data = past.entry.data
    verify_package_of(past.entry, package)
    commitments = verify_inputs(past, rows)
    runner = Runner(rows, package, isolated, data["slot"])
    trial = Trial(bucket=data["bucket"], slot=data["slot"], recipe=package.recipe)
    run = runner.run(trial)
    bound = bound_of(package, tolerance)
    decision = package.meaning.get("decision") or {}
    results = tuple(
        judge_row(number, commitments[number], _output_opening(past, number), runner.row(run, trial, number),
                  decision=decision, bound=bound)
        for number in sorted(rows)
    )  # fmt: skip
    verdict = worst(results)
    changes = tuple(compare_environment(past, package, run))
    causes: tuple[Cause, ...] = ()
    cause = ""
    if verdict != BIT_EXACT:

        def is_same(other: Trial) -> bool:
            again = runner.run(other)
            return all(
                is_recorded(commitments[n], _output_opening(past, n), decision, runner.row(again, other, n))
                for n in rows
            )

        causes, cause = find_causes(trial, runner.width, package.recipe, is_same, changes)
    return ReplayResult(
        call=past.entry.id, entry_digest=sha256(past.entry.raw), package=package.digest, verdict=verdict,
        rows=results, changes=changes, causes=causes, cause=cause, bucket=data["bucket"],
        slot=data["slot"], bound=bound, environment=run.environment,
    )  # fmt: skip


class Runner:
    """Lays the rows into a batch, runs it apart, and takes them out again."""

    def __init__(self, rows: Rows, package: TrustedPackage, isolated: Isolated, first_slot: int) -> None:
        self._rows, self._package, self._isolated = rows, package, isolated
        self.width = max(rows) + 1
        self.first_slot = first_slot

    def run(self, trial: Trial) -> IsolatedRun:
        batch = self._batch(trial)
        backend = self._package.manifest.backend
        return self._isolated.infer(backend, self._package.engine, trial.recipe, [batch])

    def _batch(self, trial: Trial) -> list[Tensor]:
        if not trial.bucket:
            return list(self._rows[0])  # a model without batch axis: the call is one row as a whole
        inputs = len(next(iter(self._rows.values())))
        batch = []
        for number in range(inputs):
            parts = [(trial.slot + row, self._rows[row][number]) for row in sorted(self._rows)]
            if trial.neighbours:
                parts = _fill(parts, trial.bucket)
            batch.append(place(parts, trial.bucket))
        return batch

    @staticmethod
    def row(run: IsolatedRun, trial: Trial, number: int) -> list[Tensor]:
        """Output tensors of one row of the call."""
        if not trial.bucket:
            return run.outputs[0]
        return [take(tensor, trial.slot + number, 1) for tensor in run.outputs[0]]


def _fill(parts: list[tuple[int, Tensor]], bucket: int) -> list[tuple[int, Tensor]]:
    """The rows where they are, and copies of the first one as neighbours."""
    taken = dict(parts)
    return [(slot, taken.get(slot, parts[0][1])) for slot in range(bucket)]


def verify_package_of(entry: Entry, package: TrustedPackage) -> None:
    """The package is the one that answered, its engine too.

    Raises:
        UsageError: The call never ran.
        DigestMismatchError: It is another.
    """
    data = entry.data
    if entry.type != "call" or data.get("outcome") != "answered":
        raise UsageError(
            f"call {entry.id}: expected an answered call, got {data.get('outcome', entry.type)!r}",
            hint="a call that was refused or failed has no answer to compare with",
        )
    for what, recorded, got in (
        ("package", data["package"], package.digest),
        ("engine", data["engine"], package.engine_digest),
    ):
        if recorded != got:
            raise DigestMismatchError(
                f"{what} of call {entry.id}: expected {recorded[:19]}..., got {got[:19]}...",
                hint="replay needs the package that answered; find it by its digest",
            )


def verify_inputs(past: Past, rows: Rows) -> dict[int, str]:
    """Every row given is the row that was committed to; returns the output commitments.

    Raises:
        UsageError: No rows, or a row the call does not have.
        ErasedError, ReplayMismatchError: As in ``replay_call``.
    """
    entry = past.entry
    count = entry.data["row_count"]
    if not rows or not all(0 <= number < count for number in rows):
        raise UsageError(f"call {entry.id}: expected rows of 0 to {count - 1}, got {sorted(rows)!r:.80}")
    openings = {number: _input_opening(past, number) for number in sorted(rows)}
    committed = committed_rows(past)
    wrong = []
    for number, row in sorted(rows.items()):
        if not is_opening(str(committed[number]["input"]), openings[number].key, row_digest(row)):
            wrong.append(number)
    if wrong:
        raise ReplayMismatchError(
            f"input of call {entry.id}: expected the original input, got another in row "
            f"{', '.join(map(str, wrong))}",
            hint="the values, their order, datatype or shape differ from what was sent",
        )
    return {number: str(committed[number]["output"]) for number in rows}


def committed_rows(past: Past) -> list[dict[str, str | None]]:
    """Commitments of the call's rows; beyond a few they stand below the root in the entry.

    Raises:
        NotFoundError: They are neither in the entry nor in the vault.
        ProofError: What the vault holds is not what the entry's root says.
    """
    data = past.entry.data
    if "rows" in data:
        return list(data["rows"])
    kept = next((o.value for o in past.openings if o.kind == "rows" and o.value is not None), None)
    if kept is None:
        raise NotFoundError(f"call {past.entry.id}: expected its rows' commitments in the vault, got none")
    rows: list[dict[str, str | None]] = canonical.decode(kept, size_max=256 * 2**20)
    root = root_of([hash_leaf(rows_leaf(row)) for row in rows])
    if len(rows) != data["row_count"] or root.hex() != data["rows_tree"]["root"]:
        raise ProofError(f"call {past.entry.id}: expected the rows whose root is in the entry, got others")
    return rows


def _input_opening(past: Past, row: int) -> Opening:
    for opening in past.openings:
        if opening.kind == "input" and opening.row == row:
            return opening
    plain = [o for o in past.openings if o.kind == "output" and o.row == row]
    commitment = past.entry.data.get("rows", [{}] * (row + 1))[row].get("input")
    if plain and isinstance(commitment, str) and commitment.startswith("sha256:"):
        return Opening("input", row, b"")  # plain commitments have no key
    raise gone(past, row)


def _output_opening(past: Past, row: int) -> Opening:
    for opening in past.openings:
        if opening.kind == "output" and opening.row == row:
            return opening
    raise gone(past, row)


def gone(past: Past, row: int) -> ErasedError | ReplayMismatchError:
    """Why a row cannot be opened any more: erased on purpose, or lost."""
    for erasure in past.erasures:
        rows = erasure.data.get("rows")
        if not rows or row in rows:  # no rows named: all of them
            rule = erasure.data.get("rule") or "no rule given"
            return ErasedError(
                f"call {past.entry.id} row {row}: erased on {erasure.time} under {rule}",
                hint="its proofs still hold; what it said cannot be opened any more",
            )
    return ReplayMismatchError(
        f"call {past.entry.id} row {row}: its key is lost: the vault has none, and no erasure entry says why",
        hint="restore the vault from its backup; a missing key is never taken for an erased one",
    )


def bound_of(package: TrustedPackage, tolerance: float) -> Tolerance:
    """What qualification measured for this engine, plus the declared tolerance."""
    measured = (package.qualification or {}).get("variance", {}).get("bound") or {}
    absolute = float(measured.get("absolute") or 0) + tolerance
    return Tolerance(absolute, int(measured.get("ulp") or 0))


def compare_environment(past: Past, package: TrustedPackage, run: IsolatedRun) -> list[Change]:
    """Every difference between the recorded environment and this one."""
    if isinstance(past.environment, Mapping):
        return find_changes(past.environment, run.environment)
    now = sha256(canonical.encode(run.environment))
    recorded = past.environment or past.entry.data.get("environment")
    if recorded == now:
        return []
    digests = [Change("environment digest", str(recorded), now)]
    qualified = (package.qualification or {}).get("environment")
    if isinstance(qualified, Mapping):
        # only the digest was recorded: what qualification saw on its device is the nearest whole list
        digests += find_changes(qualified, run.environment, "since qualification")
    return digests
