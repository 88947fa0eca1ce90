"""From an output row to a decision, in the words of ``meaning.json``.

Two kinds: ``argmax`` (the largest of the scores names the label) and ``threshold`` (one score at or
above the threshold gives the second label). Pure and exact, so that serving, replay and a stranger
say the same word. Source: spec/package.md, section 'meaning.json'.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pellucid.core.tensor import Tensor, unpack_elements
from pellucid.errors import FormatError

Decided = tuple[str, str] | tuple[None, None]
Decide = Callable[[Sequence[Tensor]], Decided]
_WIDTHS_MAX: Final = 64  # limit: output widths with a short way


def decide(decision: Mapping[str, Any], row: Sequence[Tensor]) -> Decided:
    """Label and confidence (decimal text, 6 places) of one output row.

    Args:
        decision: ``{"kind": "argmax", "output", "labels"}`` or ``{"kind": "threshold", "output",
            "column", "threshold", "labels": [below, at or above]}``; empty when a model decides
            nothing.
        row: The row's output tensors, leading dimension 1.

    Returns:
        ``(None, None)`` when the model decides nothing or a score is not finite.

    Raises:
        FormatError: The output is missing, or scores and labels do not fit.
    """
    if not decision:
        return None, None
    try:
        return _decide(decision, _scores(decision["output"], row))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"meaning: expected a decision of a known kind, got {error!r:.80}") from None


def _decide(decision: Mapping[str, Any], scores: list[float]) -> Decided:
    if not all(map(math.isfinite, scores)):
        return None, None
    labels = decision["labels"]
    if decision["kind"] == "argmax":
        if len(labels) != len(scores):
            raise FormatError(f"meaning: expected {len(scores)} labels, got {len(labels)}")
        best = max(scores)
        return labels[scores.index(best)], f"{best:.6f}"
    if decision["kind"] != "threshold":
        raise FormatError(f"meaning: expected argmax or threshold, got {decision['kind']!r:.40}")
    if not 0 <= decision["column"] < len(scores) or len(labels) != 2:
        raise FormatError("meaning: expected a column of the output and two labels, got others")
    score = scores[decision["column"]]
    over = score >= float(decision["threshold"])
    return labels[over], f"{score if over else 1.0 - score:.6f}"


def _scores(output: str, row: Sequence[Tensor]) -> list[float]:
    for tensor in row:
        if tensor.name == output:
            return [float(value) for value in unpack_elements(tensor)]
    raise FormatError(f"meaning: expected an output named {output!r:.80}, got none")


def make_decide(decision: Mapping[str, Any]) -> Decide:
    """``decide`` of one model, short where the output is the row's first and FP32; tested to be equal."""
    if not decision:
        return lambda _: (None, None)

    def general(row: Sequence[Tensor]) -> Decided:
        return decide(decision, row)

    try:
        name, kind, labels = decision["output"], decision["kind"], decision["labels"]
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            return general
        if kind == "argmax":
            return _argmax(name, labels, general)
        if kind == "threshold" and len(labels) == 2 and type(decision["column"]) is int:
            return _threshold(name, decision["column"], float(decision["threshold"]), labels, general)
    except (KeyError, TypeError, ValueError):
        pass  # the general way says what is wrong, when there is a row
    return general


def _argmax(name: Any, labels: list[str], general: Decide) -> Decide:
    unpack, size = struct.Struct(f"<{len(labels)}f").unpack, 4 * len(labels)

    def argmax(row: Sequence[Tensor]) -> Decided:
        if not row:
            return general(row)
        tensor = row[0]
        if tensor.name != name or tensor.datatype != "FP32" or len(tensor.data) != size:
            return general(row)
        scores = unpack(tensor.data)
        best = max(scores)
        # doubles that hold 32-bit floats cannot overflow when added
        return (labels[scores.index(best)], f"{best:.6f}") if math.isfinite(sum(scores)) else (None, None)

    return argmax


def _threshold(name: Any, column: int, threshold: float, labels: list[str], general: Decide) -> Decide:
    below, above = labels
    # widths that hold the column; wider outputs take the general way
    widths = range(column + 1, _WIDTHS_MAX) if column >= 0 else range(0)
    unpackers = {4 * width: struct.Struct(f"<{width}f").unpack for width in widths}

    def decided(row: Sequence[Tensor]) -> Decided:
        if not row:
            return general(row)
        tensor = row[0]
        unpack = unpackers.get(len(tensor.data))
        if unpack is None or tensor.name != name or tensor.datatype != "FP32":
            return general(row)
        scores = unpack(tensor.data)
        if not math.isfinite(sum(scores)):
            return None, None
        score = scores[column]
        return (above, f"{score:.6f}") if score >= threshold else (below, f"{1.0 - score:.6f}")

    return decided
