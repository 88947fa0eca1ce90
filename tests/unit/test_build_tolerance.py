"""Distances between outputs: bits first, then units that mean something."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import Tensor, join_bytes_elements
from pellucid.core.tolerance import ULP_MAX, Difference, Tolerance, compare, is_within, widest
from pellucid.errors import TensorError

np = pytest.importorskip("numpy", reason="NOT RUN numpy: numpy is not installed")


def fp32(*values: float) -> Tensor:
    return Tensor("y", "FP32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def test_the_same_bits_are_the_same() -> None:
    assert compare(fp32(1.0, math.nan), fp32(1.0, math.nan)) == Difference(True)


def test_the_largest_difference_is_named() -> None:
    found = compare(fp32(1.0, 2.0, 4.0), fp32(1.0, 2.5, 4.25))
    assert (found.is_same_bits, found.absolute, found.relative, found.index) == (False, 0.5, 0.25, 1)


def test_zeros_of_both_signs_are_apart_in_bits_only() -> None:
    assert compare(fp32(0.0), fp32(-0.0)) == Difference(False, 0.0, 0.0, 0, -1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_against_none_is_as_far_as_it_gets(bad: float) -> None:
    found = compare(fp32(1.0), fp32(bad))
    assert found.absolute == math.inf
    assert found.ulp > 2**20
    assert not is_within(found, Tolerance(1e30, 2**20))
    assert compare(fp32(math.nan), fp32(1.0)).ulp == ULP_MAX


def test_other_datatypes_compare_too() -> None:
    ints = [Tensor("y", "INT64", (2,), struct.pack("<2q", *v)) for v in ((1, 5), (1, -5))]
    assert (compare(*ints).absolute, compare(*ints).ulp, compare(*ints).index) == (10, 10, 1)
    texts = [Tensor("y", "BYTES", (2,), join_bytes_elements(v)) for v in ([b"a", b"b"], [b"a", b"c"])]
    assert compare(*texts) == Difference(False, 1.0, 1.0, 1, 1)
    flags = [Tensor("y", "BOOL", (1,), v) for v in (b"\0", b"\1")]
    assert compare(*flags).absolute == 1.0


@pytest.mark.parametrize("kind", ["FP16", "BF16", "FP32", "FP64"])
def test_neighbours_are_one_unit_apart(kind: str) -> None:
    size = {"FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}[kind]
    for bits in (0, 1, 0x3F, 0x1234, 1 << (8 * size - 1)):
        pair = [Tensor("y", kind, (1,), (bits + step).to_bytes(size, "little")) for step in (0, 1)]
        assert compare(*pair).ulp == 1


@given(a=st.floats(width=32, min_value=-(2.0**120), max_value=2.0**120))
def test_a_unit_is_numpys(a: float) -> None:
    following = float(np.nextafter(np.float32(a), np.float32(np.inf)))
    if a != 0.0 and following != 0.0:
        assert compare(fp32(a), fp32(following)).ulp == 1


def test_other_tensors_are_refused() -> None:
    with pytest.raises(TensorError):
        compare(fp32(1.0), fp32(1.0, 2.0))
    with pytest.raises(TensorError):
        compare(fp32(1.0), Tensor("z", "FP32", (1,), bytes(4)))


def test_the_widest_of_several() -> None:
    a, b = Difference(False, 1.0, 0.1, 5, 3), Difference(False, 0.5, 0.9, 9, 4)
    assert widest([a, b]) == Difference(False, 1.0, 0.9, 9, 3)
    assert widest([]).is_same_bits
    assert is_within(a, Tolerance(ulp=5))
    assert is_within(a, Tolerance(absolute=1.0))
    assert not is_within(a, Tolerance(absolute=0.9, ulp=4))
