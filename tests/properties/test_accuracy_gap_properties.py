"""PSNR, cosine, RMS and largest error against NumPy's definitions; arrays give the sums that rows give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pellucid.build.judge.sums import add_arrays, outside
from pellucid.core.gap import Gap

finite = st.floats(-1e6, 1e6, width=32)
anything = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]))


def pairs(elements: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[Any, Any]]:
    shapes = st.tuples(st.integers(1, 6), st.integers(1, 8))
    return shapes.flatmap(
        lambda shape: st.tuples(*(hnp.arrays(np.float32, shape, elements=elements) for _ in range(2)))
    )


def by_rows(a: Any, b: Any) -> Gap:
    gap = Gap()
    for source, measured in zip(a.tolist(), b.tolist(), strict=True):
        gap.add(source, measured)
    return gap


def by_arrays(a: Any, b: Any, cuts: Sequence[int] = ()) -> Gap:
    gap = Gap()
    for x, y in zip(np.split(a, cuts), np.split(b, cuts), strict=True):
        if len(x):
            add_arrays(gap, x, y)
    return gap


def verify_same(left: Gap, right: Gap) -> None:
    assert left.elements == right.elements
    for name in ("squares", "source_squares", "measured_squares", "dot", "largest", "low", "high", "cosines"):
        here, there = getattr(left, name), getattr(right, name)
        scale = left.source_squares + left.measured_squares
        assert here == pytest.approx(there, rel=1e-9, abs=1e-9 + 1e-12 * scale), name


@given(pair=pairs(finite))
def test_measures_are_numpys(pair: tuple[Any, Any]) -> None:
    a, b = (side.astype(np.float64) for side in pair)
    gap = by_rows(*pair)
    noise, peak = np.mean((a - b) ** 2), a.max() - a.min() or abs(a.max())
    assert gap.largest == np.abs(a - b).max()
    assert gap.rms == pytest.approx(math.sqrt(noise), rel=1e-9)
    if noise == 0:
        assert gap.psnr_db == math.inf
    elif peak == 0:
        assert gap.psnr_db == -math.inf
    else:
        assert gap.psnr_db == pytest.approx(10 * math.log10(peak**2 / noise), rel=1e-9, abs=1e-9)
    for value, x, y in zip(gap.cosines, a, b, strict=True):
        norm = np.linalg.norm(x) * np.linalg.norm(y)
        if norm > 1e-30:
            assert value == pytest.approx(float(x @ y) / norm, abs=1e-9)
    power = math.sqrt(np.mean(a**2))
    if power > 1e-30:
        assert gap.relative_rms == pytest.approx(math.sqrt(noise) / power, rel=1e-9)


@given(pair=pairs(anything))
def test_arrays_add_what_rows_add(pair: tuple[Any, Any]) -> None:
    verify_same(by_rows(*pair), by_arrays(*pair))


@given(pair=pairs(anything), cuts=st.lists(st.integers(0, 6), max_size=4))
def test_how_rows_come_in_batches_changes_nothing(pair: tuple[Any, Any], cuts: list[int]) -> None:
    verify_same(by_arrays(*pair, sorted(cuts)), by_arrays(*pair))


@given(pair=pairs(anything))
def test_one_side_that_is_not_finite_is_never_a_small_error(pair: tuple[Any, Any]) -> None:
    a, b = pair
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    odd = ~(np.isfinite(a) & np.isfinite(b)) & ~same
    gap = by_arrays(a, b)
    assert gap.is_finite == (not odd.any())
    if odd.any():
        assert (gap.relative_rms, gap.psnr_db) == (math.inf, -math.inf)
    assert not math.isnan(gap.relative_rms)
    assert not math.isnan(gap.cosine)
    assert -1.0 <= gap.cosine <= 1.0


@given(
    values=hnp.arrays(np.float32, st.integers(0, 20), elements=anything),
    ends=st.tuples(*[st.floats(-10, 10, width=32)] * 2),  # ranges are binary32
)
def test_what_lies_outside_is_counted_one_by_one(values: Any, ends: tuple[float, float]) -> None:
    low, high = sorted(ends)
    assert outside(values, low, high) == sum(not low <= value <= high for value in values.tolist())


def test_zeros_and_nothing_are_defined() -> None:
    nothing = Gap()
    assert (nothing.rms, nothing.relative_rms, nothing.psnr_db, nothing.cosine) == (0, 0, math.inf, 1)
    silent = Gap()
    silent.add([0.0, 0.0], [0.0, 0.0])
    assert (silent.relative_rms, silent.psnr_db, silent.cosines) == (0, math.inf, [1.0])
    wrong = Gap()
    wrong.add([0.0, 0.0], [0.0, 1.0])
    assert (wrong.relative_rms, wrong.psnr_db, wrong.cosines) == (math.inf, -math.inf, [0.0])
    constant = Gap()
    constant.add([2.0, 2.0], [2.0, 2.2])
    assert constant.psnr_db == pytest.approx(10 * math.log10(4 / (0.04 / 2)))
