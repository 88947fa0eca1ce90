"""From an output row to a decision, in the words of ``meaning.json``.

Two kinds: ``argmax`` (the largest of the scores names the label) and ``threshold`` (one score at or
above the threshold gives the second label). Pure and exact, so that serving, replay and a stranger
say the same word. Source: spec/package.md, section 'meaning.json'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.core.tensor import Tensor, unpack_elements
from pellucid.errors import FormatError


def decide(decision: Mapping[str, Any], row: Sequence[Tensor]) -> tuple[str, str] | tuple[None, None]:
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


def _decide(decision: Mapping[str, Any], scores: list[float]) -> tuple[str, str] | tuple[None, None]:
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
