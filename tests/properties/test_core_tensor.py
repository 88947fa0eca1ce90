"""Tensors and buckets: bits in, the same bits out, whatever the way."""

from __future__ import annotations

import math
import struct
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.bucket import bucket_for, fill_plan, place, slots_for
from pellucid.core.tensor import (
    DATATYPES,
    Tensor,
    encode_head,
    encode_tensor,
    is_finite,
    join_bytes_elements,
    pack_json,
    row_digest,
    rows,
    split_bytes_elements,
    tensor_digest,
    unpack_elements,
    verify_tensor,
)
from pellucid.errors import TensorError

INTS = {name: d for name, d in DATATYPES.items() if d.kind == "int"}
SHAPES = st.lists(st.integers(0, 3), min_size=1, max_size=3)
NUMPY = {"FP32": "<f4", "FP64": "<f8"} | {
    f"{prefix}INT{bits}": f"<{prefix.lower()[:1] or 'i'}{bits // 8}"
    for prefix in ("U", "")
    for bits in (8, 16, 32, 64)
}


def limits(name: str) -> tuple[int, int]:
    bits = 8 * DATATYPES[name].itemsize
    return (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def elements(name: str) -> st.SearchStrategy:
    if name in INTS:
        return st.integers(*limits(name))
    return {
        "BOOL": st.booleans(),
        "FP32": st.floats(width=32, allow_nan=False),
        "FP64": st.floats(allow_nan=False),
        "BYTES": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    }[name]


@st.composite
def tensors(draw, names=tuple(DATATYPES), first=None, shape=None):
    name = draw(st.sampled_from(names))
    shape = tuple(draw(SHAPES)) if shape is None else shape
    if first is not None:
        shape = (first, *shape)
    count = math.prod(shape)
    if name == "BYTES":
        data = join_bytes_elements([draw(st.binary(max_size=4)) for _ in range(count)])
    elif name == "BOOL":
        data = bytes(draw(st.integers(0, 1)) for _ in range(count))
    else:
        size = count * DATATYPES[name].itemsize
        data = draw(st.binary(min_size=size, max_size=size))
    return Tensor("x", name, shape, data)


def nest(flat: list, shape: tuple[int, ...]) -> list:
    if len(shape) <= 1:
        return flat
    step = math.prod(shape[1:])
    return [nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@pytest.mark.parametrize("name", sorted(set(DATATYPES) - {"FP16", "BF16"}))
@given(data=st.data())
def test_json_values_come_back(name, data):
    shape = tuple(data.draw(SHAPES))
    count = math.prod(shape)
    values = data.draw(st.lists(elements(name), min_size=count, max_size=count))
    flat = pack_json("x", name, shape, values)
    assert pack_json("x", name, shape, nest(values, shape)) == flat
    assert verify_tensor(flat) is flat
    got = unpack_elements(flat)
    assert got == ([v.encode() for v in values] if name == "BYTES" else values)


@pytest.mark.parametrize("name", sorted(NUMPY))
@given(data=st.data())
def test_json_packing_gives_numpys_bits(name, data):
    values = data.draw(st.lists(elements(name), max_size=8))
    packed = pack_json("x", name, [len(values)], values)
    assert packed.data == np.array(values, dtype=NUMPY[name]).tobytes()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_json_numbers_round_to_the_nearest_fp32_or_are_refused(value):
    with np.errstate(over="ignore"):
        nearest = np.float32(value)
    if np.isinf(nearest):
        with pytest.raises(TensorError, match="range"):
            pack_json("x", "FP32", [1], [value])
    else:
        assert pack_json("x", "FP32", [1], [value]).data == nearest.tobytes()


@pytest.mark.parametrize("name", sorted(INTS))
@pytest.mark.parametrize("beyond", [-1, 1])
def test_integers_never_wrap(name, beyond):
    low, high = limits(name)
    value = low - 1 if beyond < 0 else high + 1
    with pytest.raises(TensorError, match="range"):
        pack_json("x", name, [1], [value])


@given(st.lists(st.binary(max_size=6), max_size=6), st.integers(-2, 2))
def test_bytes_elements_come_back_only_in_the_right_number(values, off):
    joined = join_bytes_elements(values)
    assert split_bytes_elements(joined, len(values), subject="x") == values
    if off and len(values) + off >= 0:
        with pytest.raises(TensorError):
            split_bytes_elements(joined, len(values) + off, subject="x")


@given(tensors(), st.integers(1, 9))
def test_a_byte_too_many_or_too_few_is_refused(tensor, extra):
    assert verify_tensor(tensor) is tensor
    for data in (bytes(tensor.data) + bytes(extra), bytes(tensor.data)[:-extra]):
        if data != tensor.data and not (tensor.datatype == "BYTES" and not tensor.data and not data):
            with pytest.raises(TensorError):
                verify_tensor(Tensor("x", tensor.datatype, tensor.shape, data))


@given(tensors(), tensors())
def test_digests_are_equal_only_for_equal_tensors(one, other):
    same = (one.datatype, one.shape, bytes(one.data)) == (other.datatype, other.shape, bytes(other.data))
    assert (tensor_digest(one) == tensor_digest(other)) is same
    assert (row_digest([one]) == row_digest([other])) is same
    assert row_digest([one, other]) != row_digest([one])
    assert tensor_digest(Tensor("y", one.datatype, one.shape, one.data)) != tensor_digest(one)


@given(tensors())
def test_the_head_is_what_stands_before_the_data(tensor):
    head = encode_head(tensor.name, tensor.datatype, tensor.shape, len(tensor.data))
    whole = encode_tensor(tensor.name, tensor.datatype, tensor.shape, memoryview(bytes(tensor.data)))
    assert whole == head + bytes(tensor.data)


@given(st.integers(1, 4), st.data())
def test_rows_of_a_tensor_are_its_parts_in_order(count, data):
    tensor = data.draw(tensors(first=count, shape=(2,)))
    split = rows([tensor])
    assert [row[0].shape for row in split] == [(1, 2)] * count
    assert b"".join(bytes(row[0].data) for row in split) == bytes(tensor.data)
    for row in split:
        verify_tensor(row[0])


def test_rows_need_one_first_dimension():
    one, two = (Tensor("x", "INT8", (n,), bytes(n)) for n in (1, 2))
    with pytest.raises(TensorError, match="share"):
        rows([one, two])
    with pytest.raises(TensorError, match="share"):
        rows([Tensor("x", "INT8", (), b"\x00")])


@pytest.mark.parametrize(
    ("name", "fmt", "bad"),
    [("FP32", "<f", math.nan), ("FP64", "<d", math.inf), ("FP16", "<e", -math.inf), ("BF16", "<H", 0x7FC0)],
)
def test_not_finite_is_seen_in_every_float(name, fmt, bad):
    assert not is_finite(Tensor("x", name, (1,), struct.pack(fmt, bad)))
    assert is_finite(Tensor("x", name, (1,), bytes(struct.calcsize(fmt))))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=5), st.integers(-1, 70))
def test_the_bucket_is_the_smallest_that_holds_the_rows(sizes, count):
    if not 1 <= count <= max(sizes):
        with pytest.raises(TensorError):
            bucket_for(count, sizes)
    else:
        assert bucket_for(count, sizes) == min(size for size in sizes if size >= count)


@given(
    st.dictionaries(st.integers(1, 12), st.integers(0, 9), min_size=1, max_size=4).map(
        lambda gains: {size: sum(gains[s] for s in gains if s <= size) for size in sorted(gains)}
    ),
    st.integers(0, 5),
)
def test_what_waits_is_done_as_soon_as_by_any_way_to_part_it(times, each):
    plan = fill_plan(times, each)
    assert len(plan) == max(times) + 1

    def took(waiting: int) -> int:
        spent = 0
        while waiting:
            spent += times[bucket_for(plan[waiting], list(times))] + each
            waiting -= plan[waiting]
        return spent

    @cache
    def least(waiting: int) -> int:
        if not waiting:
            return 0
        parts = range(1, waiting + 1)
        return min(times[bucket_for(part, list(times))] + each + least(waiting - part) for part in parts)

    for waiting in range(1, max(times) + 1):
        assert plan[waiting] == waiting or plan[waiting] in times
        assert took(waiting) == least(waiting)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 3), st.data())
def test_what_was_placed_comes_back_and_the_rest_is_zero(counts, spare, data):
    name = data.draw(st.sampled_from(sorted(DATATYPES)))
    parts = [data.draw(tensors(names=(name,), first=count, shape=(2,))) for count in counts]
    slots, bucket = slots_for(counts), sum(counts) + spare
    placed = verify_tensor(place(list(zip(slots, parts, strict=True)), bucket))
    split = rows([placed])
    together = [row for part in parts for row in rows([part])]
    assert [bytes(r[0].data) for r in split[: len(together)]] == [bytes(r[0].data) for r in together]
    assert not any(any(bytes(r[0].data)) for r in split[len(together) :])


@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), st.data())
def test_alone_at_its_slot_a_call_lies_where_it_lay_among_others(counts, data):
    name = data.draw(st.sampled_from(sorted(DATATYPES)))
    parts = [data.draw(tensors(names=(name,), first=count, shape=(2,))) for count in counts]
    slots, bucket = slots_for(counts), sum(counts) + 1
    together = rows([place(list(zip(slots, parts, strict=True)), bucket)])
    which = data.draw(st.integers(0, len(counts) - 1))
    alone = rows([place([(slots[which], parts[which])], bucket)])
    for slot in range(bucket):
        mine = slots[which] <= slot < slots[which] + counts[which]
        assert bytes(alone[slot][0].data) == (
            bytes(together[slot][0].data) if mine else bytes(len(alone[slot][0].data))
        )
