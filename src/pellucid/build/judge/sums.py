"""``core.gap`` and the count of what lies outside a range, over arrays: the same sums, only faster."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pellucid.core.gap import Gap, cosine


def add_arrays(gap: Gap, source: Any, measured: Any) -> None:
    """Add rows, flat ``[N, ...]`` of the same shape, as ``Gap.add`` would one by one."""
    count = len(source)
    a = np.asarray(source, dtype=np.float64).reshape(count, -1)
    b = np.asarray(measured, dtype=np.float64).reshape(count, -1)
    gap.elements += a.size
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not same[~finite].all():
            gap.largest = math.inf
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    if finite.any():
        gap.low = min(gap.low, float(a.min(where=finite, initial=math.inf)))
        gap.high = max(gap.high, float(a.max(where=finite, initial=-math.inf)))
        gap.largest = max(gap.largest, float(np.abs(a - b).max()))
    aa, bb, ab = (np.einsum("ij,ij->i", x, y) for x, y in ((a, a), (b, b), (a, b)))
    gap.squares += float(np.square(a - b).sum())
    gap.source_squares += float(aa.sum())
    gap.measured_squares += float(bb.sum())
    gap.dot += float(ab.sum())
    gap.cosines += [cosine(float(x), float(y), float(z)) for x, y, z in zip(ab, aa, bb, strict=True)]


def outside(values: Any, low: float, high: float) -> int:
    """Elements below ``low`` or above ``high``; NaN is outside."""
    return int(values.size - np.count_nonzero((values >= low) & (values <= high)))
