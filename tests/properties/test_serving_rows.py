"""The fast ways equal the definitions, and sharing a batch changes nothing."""

from __future__ import annotations

import itertools
import json
import math
import struct
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.bucket import bucket_for, place, slots_for, take
from pellucid.core.decision import decide, make_decide
from pellucid.core.entry import complete_row, decode_outputs, encode_outputs
from pellucid.core.tensor import (
    DATATYPES,
    Tensor,
    TensorSpec,
    is_finite,
    join_bytes_elements,
    row_digest,
    rows,
)
from pellucid.errors import FormatError, TensorError
from pellucid.serving.digests import RowDigester
from pellucid.serving.finite import is_all_finite
from pellucid.serving.model import make_signature
from pellucid.serving.request import InferRequest, parse_infer
from pellucid.serving.rows import Rows
from pellucid.testing.plane import echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder

FIXED = sorted(set(DATATYPES) - {"BYTES", "BOOL"})


@st.composite
def tensors(draw: Any, datatype: str | None = None, name: str = "x", count: int | None = None) -> Tensor:
    kind = DATATYPES[datatype or draw(st.sampled_from([*FIXED, "BYTES", "BOOL"]))]
    shape = (count or draw(st.integers(1, 5)), *draw(st.lists(st.integers(1, 3), max_size=2)))
    size = math.prod(shape)
    if kind.name == "BYTES":
        elements = st.binary(max_size=5)
        data = join_bytes_elements(draw(st.lists(elements, min_size=size, max_size=size)))
    elif kind.name == "BOOL":
        data = bytes(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    else:
        data = draw(st.binary(min_size=size * kind.itemsize, max_size=size * kind.itemsize))
    return Tensor(name, kind.name, shape, data)


@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_row_digests_equal_their_definition(data: st.DataObject, count: int, inputs: int):
    digester = RowDigester()
    kinds = [data.draw(st.sampled_from([*FIXED, "BYTES", "BOOL"])) for _ in range(inputs)]
    for _ in range(3):  # later times from the remembered parts
        drawn = [data.draw(tensors(kind, f"t{i}", count)) for i, kind in enumerate(kinds)]
        assert digester.digests(drawn, batched=True) == [row_digest(row) for row in rows(drawn)]
        assert digester.digests(drawn, batched=False) == [row_digest(drawn)]


pieces = st.integers(1, 5).flatmap(lambda n: st.binary(min_size=8 * n, max_size=8 * n))


@given(st.lists(pieces, min_size=1, max_size=6), st.sampled_from([8, 32]))
def test_what_is_placed_is_taken_out_again(drawn: list[bytes], bucket: int):
    parts = [Tensor("x", "FP32", (len(data) // 8, 2), data) for data in drawn]
    counts = [part.shape[0] for part in parts]
    slots = slots_for(counts)
    if sum(counts) > bucket:
        with pytest.raises(TensorError):
            place(list(zip(slots, parts, strict=True)), bucket)
        return
    batch = place(list(zip(slots, parts, strict=True)), bucket)
    assert bucket_for(sum(counts), (8, 32)) <= bucket
    for slot, count, part in zip(slots, counts, parts, strict=True):
        assert take(batch, slot, count) == part
        alone = place([(slot, part)], bucket)  # as replay lays it
        assert take(alone, slot, count) == part


@given(st.data())
def test_bytes_rows_are_taken_whole(data: st.DataObject):
    tensor = data.draw(tensors("BYTES", count=4))
    parts = [take(tensor, i, 1) for i in range(4)]
    assert [part.data for part in parts] == [row[0].data for row in rows([tensor])]
    assert place(list(enumerate(parts)), 4) == tensor


def test_rows_that_are_not_there():
    tensor = Tensor("x", "FP32", (2, 1), bytes(8))
    for slot, count in ((0, 3), (2, 1), (-1, 1), (0, 0)):
        with pytest.raises(TensorError, match="rows"):
            take(tensor, slot, count)


@given(tensors())
def test_finiteness_equals_its_definition(tensor: Tensor):
    assert is_all_finite(tensor) == is_finite(tensor)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("count", [3, 2000])
def test_one_value_that_is_not_finite_is_found_anywhere(datatype: str, count: int):
    kind = DATATYPES[datatype]
    largest = {"FP16": b"\xff\x7b", "BF16": b"\x7f\x7f", "FP32": b"\xff\xff\x7f\x7f"}.get(
        datatype, struct.pack("<d", 1.7976931348623157e308)
    )
    bad = {"FP16": b"\x00\xfc", "BF16": b"\x80\xff", "FP32": b"\x00\x00\x80\xff"}.get(
        datatype, struct.pack("<d", math.inf)
    )
    healthy = largest * count
    assert is_all_finite(Tensor("x", datatype, (count,), healthy))
    for position in (0, count // 2, count - 1):
        at = position * kind.itemsize
        data = healthy[:at] + bad + healthy[at + kind.itemsize :]
        assert not is_all_finite(Tensor("x", datatype, (count,), data))


floats = st.floats(width=32) | st.sampled_from([0.5, -0.0, math.nan, math.inf, -math.inf])
THRESHOLD = {"kind": "threshold", "output": "y", "column": 1, "threshold": "0.5", "labels": ["a", "b"]}


@given(st.lists(floats, min_size=1, max_size=4), st.booleans(), st.sampled_from(["y", "z"]))
def test_decisions_equal_their_definition(scores: list[float], argmax: bool, name: str):
    decision: dict[str, Any] = THRESHOLD
    if argmax:
        decision = {"kind": "argmax", "output": "y", "labels": ["a", "b", "c"]}
    row = [Tensor(name, "FP32", (1, len(scores)), struct.pack(f"<{len(scores)}f", *scores))]
    assert outcome(make_decide(decision), row) == outcome(partial(decide, decision), row)


def outcome(function: Any, row: list[Tensor]) -> Any:
    try:
        return function(row)
    except FormatError as error:
        return error.message


@pytest.mark.parametrize("datatype", ["FP64", "FP32", "INT32"])
def test_decisions_on_other_datatypes_and_without_one(datatype: str):
    row = [Tensor("y", datatype, (1, 2), struct.pack(f"<2{DATATYPES[datatype].code}", 0, 1))]
    assert make_decide(THRESHOLD)(row) == decide(THRESHOLD, row) == ("b", "1.000000")
    assert make_decide({})(row) == (None, None)


@pytest.mark.parametrize("kind", ["argmax", "threshold"])
def test_decisions_on_a_row_without_outputs(kind: str):
    decision = THRESHOLD | {"kind": kind}
    assert outcome(make_decide(decision), []) == outcome(partial(decide, decision), [])


@given(st.lists(floats, min_size=3, max_size=3), st.integers(0, 20), st.booleans())
def test_rows_of_a_lone_output_equal_the_general_way(scores: list[float], keep_max: int, decides: bool):
    decision = THRESHOLD | {"output": "x_out"} if decides else {}
    maker = Rows(echo_model(decision=decision), keep_max)
    data = struct.pack("<3f", *scores)
    given_, made = Tensor("x", "FP32", (1, 3), data), Tensor("x_out", "FP32", (1, 3), data)
    request = InferRequest(None, None, [given_], 1, ((0, False),), (given_.shape,), len(given_.data))
    for left_out in (False, keep_max >= 12):
        (short,) = maker.of(request, [made])
        assert (short.output == b"") == left_out
        row = complete_row(short, decision)
        assert (row.label, row.confidence) == decide(decision, [made])
        assert (row.input, row.output) == (row_digest([given_]), row_digest([made]))
        assert row.value == (encode_outputs([made]) if keep_max >= 12 else None)
        assert row.value is None or decode_outputs(row.value) == [made]


numbers = {
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "INT8": st.integers(-128, 127),
    "BOOL": st.booleans(),
    "BYTES": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
}


@given(st.data(), st.sampled_from(sorted(numbers)), st.integers(1, 4), st.integers(1, 3))
def test_json_flat_json_nested_and_binary_give_the_same_digests(
    data: st.DataObject, datatype: str, count: int, width: int
):
    values = data.draw(st.lists(numbers[datatype], min_size=count * width, max_size=count * width))
    signature = make_signature((TensorSpec("x", datatype, (-1, -1)),), (TensorSpec("y", "FP32", (-1, 1)),), 8)
    item = {"name": "x", "datatype": datatype, "shape": [count, width]}
    nested = [values[i * width : (i + 1) * width] for i in range(count)]
    flat_body = json.dumps({"inputs": [item | {"data": values}]}).encode()
    flat = parse_infer(flat_body, None, signature)
    raw = bytes(flat.tensors[0].data)
    head = json.dumps({"inputs": [item | {"parameters": {"binary_data_size": len(raw)}}]}).encode()
    others = [
        parse_infer(json.dumps({"inputs": [item | {"data": nested}]}).encode(), None, signature),
        parse_infer(head + raw, len(head), signature),
        parse_infer(flat_body, None, signature),  # by the remembered plan
    ]
    digester = RowDigester()
    expected = [row_digest(row) for row in rows(flat.tensors)]
    for request in (flat, *others):
        assert request.tensors == flat.tensors
        assert digester.digests(request.tensors, batched=True) == expected


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(-99, 99)), min_size=1, max_size=12))
def test_sharing_a_batch_never_changes_a_row(calls: list[tuple[int, int]]):
    def body(count: int, value: int) -> bytes:
        item = {"name": "x", "shape": [count, 3], "datatype": "FP32", "data": [value] * (3 * count)}
        return json.dumps({"inputs": [item]}).encode()

    requests = [("POST", "/v2/models/echo/infer", body(*call)) for call in calls]
    together, alone = MemoryRecorder(), MemoryRecorder()
    shared = exchange(make_plane([echo_model()], together), requests)
    plane = make_plane([echo_model()], alone)
    single = [exchange(plane, [request])[0] for request in requests]
    for first, second in zip(shared, single, strict=True):
        assert first.json["outputs"] == second.json["outputs"]
    by_number = sorted(together.calls(), key=lambda call: call.n)
    assert [call.rows for call in by_number] == [call.rows for call in alone.calls()]
    for batch in together.batches():
        taken = [(call.slot, call.slot + len(call.rows)) for call in batch.calls]
        assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(taken))
        assert taken[-1][1] <= batch.bucket
