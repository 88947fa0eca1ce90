"""How far two outputs are apart: bits first, then absolute, relative and units in the last place.

Pure and exact on the tensor's own bits, so that qualification, replay and a stranger measure alike.
Source: spec/replay.md, section 4.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pellucid.core.tensor import Tensor, datatype, element_count, unpack_elements
from pellucid.errors import TensorError

ULP_MAX: Final = 2**53 - 1  # 'as far as it gets': NaN against a number, or beyond canonical JSON
_SIGNED: Final = {"FP16": "h", "BF16": "h", "FP32": "i", "FP64": "q"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of two tensors.

    Attributes:
        is_same_bits: Every bit agrees.
        absolute: In the tensor's unit; ``inf`` where only one side is finite, 1.0 for BOOL and BYTES.
        relative: ``absolute`` over the expected magnitude, largest of all elements.
        ulp: Units in the last place of the datatype; for integers the difference itself.
        index: Flat 0-based index of the largest ``absolute``, or -1 when nothing differs.
    """

    is_same_bits: bool
    absolute: float = 0.0
    relative: float = 0.0
    ulp: int = 0
    index: int = -1


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A bound; an output is within it when ``absolute`` or ``ulp`` is not exceeded."""

    absolute: float = 0.0
    ulp: int = 0


def compare(expected: Tensor, actual: Tensor) -> Difference:
    """Measure how far ``actual`` is from ``expected``; NaN equals NaN.

    Raises:
        TensorError: Names, datatypes or shapes differ.
    """
    if (expected.name, expected.datatype, expected.shape) != (actual.name, actual.datatype, actual.shape):
        raise TensorError(
            f"output {expected.name!r:.80}: expected {expected.datatype} {list(expected.shape)}, "
            f"got {actual.name!r:.80} {actual.datatype} {list(actual.shape)}"
        )
    if bytes(expected.data) == bytes(actual.data):
        return Difference(True)
    kind = datatype(expected.datatype)
    if kind.kind == "float":
        return _compare_floats(expected, actual)
    left, right = unpack_elements(expected), unpack_elements(actual)
    if kind.kind == "int":
        return _largest(left, right, [abs(a - b) for a, b in zip(left, right, strict=True)])
    return Difference(False, 1.0, 1.0, 1, next(i for i, a in enumerate(left) if a != right[i]))


def _compare_floats(expected: Tensor, actual: Tensor) -> Difference:
    left, right = unpack_elements(expected), unpack_elements(actual)
    steps = [abs(a - b) for a, b in zip(_ordered(expected), _ordered(actual), strict=True)]
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if math.isnan(a) and math.isnan(b):
            steps[position] = 0
        elif math.isnan(a) or math.isnan(b):
            steps[position] = ULP_MAX
    return _largest(left, right, steps)


def _largest(left: Sequence[float], right: Sequence[float], steps: Sequence[int]) -> Difference:
    absolute, relative, index = 0.0, 0.0, -1
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        gap = _gap(a, b)
        if gap > absolute:
            absolute, index = gap, position
        if gap:
            relative = max(relative, gap / abs(a) if a and math.isfinite(a) else math.inf)
    return Difference(False, absolute, relative, min(max(steps), ULP_MAX), index)


def _gap(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    gap = abs(float(a) - float(b))
    return gap if math.isfinite(gap) else math.inf


def _ordered(tensor: Tensor) -> list[int]:
    """Bits as integers in the order of the numbers: neighbours differ by one, -0.0 equals 0.0."""
    count, letter = element_count(tensor.shape), _SIGNED[tensor.datatype]
    width = 8 * datatype(tensor.datatype).itemsize
    values = struct.unpack(f"<{count}{letter}", tensor.data)
    return [v if v >= 0 else -(v + (1 << (width - 1))) for v in values]


def is_within(difference: Difference, tolerance: Tolerance) -> bool:
    """True when the difference stays inside the bound."""
    return (
        difference.is_same_bits
        or difference.absolute <= tolerance.absolute
        or difference.ulp <= tolerance.ulp
    )


def widest(differences: Sequence[Difference]) -> Difference:
    """The largest of each measure over several differences."""
    if not differences:
        return Difference(True)
    return Difference(
        all(d.is_same_bits for d in differences),
        max(d.absolute for d in differences),
        max(d.relative for d in differences),
        max(d.ulp for d in differences),
        max(differences, key=lambda d: d.absolute).index,
    )
