"""How a replay differs from what was recorded: per row, per environment, and in one word.

Verdicts: ``bit-exact`` (the output commitment opens with the replayed row, label and confidence),
``within bound`` (not the same bits, but inside what the qualification measured plus a declared
tolerance, and the decision is the same) and ``different``. Source: spec/replay.md, sections 3 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.decision import decide
from pellucid.core.entry import Opening, decode_outputs, is_opening, output_digest
from pellucid.core.tensor import Tensor, row_digest
from pellucid.core.tolerance import Difference, Tolerance, compare, is_within, widest
from pellucid.errors import FormatError, TensorError

BIT_EXACT: Final = "bit-exact"
WITHIN_BOUND: Final = "within bound"
DIFFERENT: Final = "different"
VERDICTS: Final = (BIT_EXACT, WITHIN_BOUND, DIFFERENT)  # best first
DEPTH_MAX: Final = 16
ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row, then and now.

    Attributes:
        row: Row number in the call.
        verdict: One of ``VERDICTS``.
        label, confidence: As recorded.
        replayed_label, replayed_confidence: As replayed.
        difference: Between kept and replayed outputs, or ``None`` when none were kept.
        reason: Why the verdict is no better, or ``""``.
    """

    row: int
    verdict: str
    label: str | None
    confidence: str | None
    replayed_label: str | None
    replayed_confidence: str | None
    difference: Difference | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was recorded."""

    what: str
    recorded: str
    now: str


def is_recorded(
    commitment: str, opening: Opening, decision: Mapping[str, Any], row: Sequence[Tensor]
) -> bool:
    """True if this row, with the decision it leads to, is what was committed to."""
    label, confidence = decide(decision, row)
    return is_opening(commitment, opening.key, output_digest(row_digest(row), label, confidence))


def judge_row(
    number: int,
    commitment: str,
    opening: Opening,
    replayed: Sequence[Tensor],
    *,
    decision: Mapping[str, Any],
    bound: Tolerance,
) -> RowResult:
    """Compare one replayed output row with its commitment, and with the outputs if they were kept.

    Args:
        number: Row number in the call.
        commitment: The row's output commitment in the entry.
        opening: Its opening; ``value`` holds kept outputs or ``None``.
        replayed: Output tensors of the row, leading dimension 1.
        decision: ``meaning.json``'s decision.
        bound: Largest difference that still counts as the same.
    """
    label, confidence = decide(decision, replayed)
    told = (opening.label, opening.confidence, label, confidence)
    if is_recorded(commitment, opening, decision, replayed):
        return RowResult(number, BIT_EXACT, *told, difference=Difference(True))
    if opening.value is None:
        reason = "the recorded outputs were not kept, so how far they are apart cannot be measured"
        return RowResult(number, DIFFERENT, *told, reason=reason)
    try:
        recorded = decode_outputs(opening.value)
        if not _is_kept(commitment, opening, recorded):
            reason = (
                "the vault's outputs do not open the commitment in the entry: they are not what was recorded"
            )
            return RowResult(number, DIFFERENT, *told, reason=reason)
        difference = _difference(recorded, replayed)
    except (TensorError, FormatError) as error:
        return RowResult(number, DIFFERENT, *told, reason=error.message)
    if label != opening.label:
        reason = f"the decision flipped from {opening.label!r} to {label!r}"
        return RowResult(number, DIFFERENT, *told, difference=difference, reason=reason)
    if is_within(difference, bound):
        return RowResult(number, WITHIN_BOUND, *told, difference=difference, reason=_far(difference))
    reason = f"{_far(difference)}, the bound is {bound.absolute:.9g} or {bound.ulp} units in the last place"
    return RowResult(number, DIFFERENT, *told, difference=difference, reason=reason)


def _is_kept(commitment: str, opening: Opening, recorded: Sequence[Tensor]) -> bool:
    """True if the kept outputs are those of the commitment: a vault may not vouch for itself."""
    digest = output_digest(row_digest(recorded), opening.label, opening.confidence)
    return is_opening(commitment, opening.key, digest)


def _difference(recorded: Sequence[Tensor], replayed: Sequence[Tensor]) -> Difference:
    if len(recorded) != len(replayed):
        raise TensorError(f"outputs: expected {len(recorded)} tensors as recorded, got {len(replayed)}")
    return widest([compare(a, b) for a, b in zip(recorded, replayed, strict=True)])


def _far(difference: Difference) -> str:
    return f"{difference.absolute:.9g} apart, {difference.ulp} units in the last place"


def worst(results: Sequence[RowResult]) -> str:
    """The one word for several rows: as good as the worst of them."""
    return max((result.verdict for result in results), key=VERDICTS.index)


def find_changes(recorded: Any, now: Any, prefix: str = "") -> list[Change]:
    """Every difference of two documents, leaf by leaf, in the order of their names."""
    left, right = _leaves(recorded, prefix, 0), _leaves(now, prefix, 0)
    return [
        Change(name, left.get(name, ABSENT), right.get(name, ABSENT))
        for name in sorted(left.keys() | right.keys())
        if left.get(name, ABSENT) != right.get(name, ABSENT)
    ]


def _leaves(value: Any, name: str, depth: int) -> dict[str, str]:
    if isinstance(value, Mapping) and depth < DEPTH_MAX:
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= _leaves(item, f"{name}.{key}" if name else str(key), depth + 1)
        return found
    return {name: value if isinstance(value, str) else repr(value)}
