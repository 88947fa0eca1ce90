"""The classification extension: the best classes of an output as text, ``value:index[:label]``."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pellucid.core.tensor import Tensor, datatype, join_bytes_elements, unpack_elements
from pellucid.errors import TensorError

NO_LABELS: Final[Sequence[str]] = ()


def labels_of(decision: Mapping[str, Any], output: str) -> Sequence[str]:
    """Names of an output's columns, where ``meaning.json`` gives each a label."""
    labels = decision.get("labels")
    if decision.get("kind") != "argmax" or decision.get("output") != output or not isinstance(labels, list):
        return NO_LABELS
    return labels


def classified(
    outputs: Sequence[Tensor], classes: Mapping[int, int], batched: bool, decision: Mapping[str, Any]
) -> list[Tensor]:
    """The outputs, with classes in place of those that a request wants so (``classes``: by position)."""
    changed = list(outputs)
    for position, count in classes.items():
        tensor = outputs[position]
        labels = labels_of(decision, tensor.name)
        changed[position] = classify(tensor, count, batched=batched, labels=labels)
    return changed


def classify(tensor: Tensor, count: int, *, batched: bool, labels: Sequence[str] = NO_LABELS) -> Tensor:
    """The ``count`` best classes, best first; of equal ones the lower index first.

    Returns:
        BYTES of shape ``[batch, N]``, or ``[N]`` for a model without batch axis.

    Raises:
        TensorError: A value is NaN: it has no place in an order.
    """
    values = unpack_elements(tensor)
    rows = tensor.shape[0] if batched else 1
    width = len(values) // rows
    wanted = min(count, width)
    elements: list[bytes] = []
    for start in range(0, len(values), width or 1):
        elements += _best(tensor, values[start : start + width], wanted, labels)
    shape = (rows, wanted) if batched else (wanted,)
    return Tensor(tensor.name, "BYTES", shape, join_bytes_elements(elements))


def _best(tensor: Tensor, row: list[Any], wanted: int, labels: Sequence[str]) -> list[bytes]:
    if datatype(tensor.datatype).kind == "float" and any(map(math.isnan, row)):
        raise TensorError(
            f"output {tensor.name!r:.80}: expected values that can be ordered, got NaN",
            hint="ask for the output without classification, as binary",
        )
    order = heapq.nsmallest(wanted, range(len(row)), key=lambda index: (-row[index], index))
    return [_text(row[index], index, labels).encode() for index in order]


def _text(value: Any, index: int, labels: Sequence[str]) -> str:
    number = f"{value:.6f}" if type(value) is float else str(int(value))
    return f"{number}:{index}:{labels[index]}" if index < len(labels) else f"{number}:{index}"
