"""The original input, in the forms in which people have it."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import TensorSpec
from pellucid.errors import FormatError, PellucidError, TensorError, UsageError
from pellucid.replay.original import input_specs, parse_original, pick_rows

ONE = [TensorSpec("x", "FP32", (-1, 2))]
TWO = [TensorSpec("a", "INT64", (-1, 1)), TensorSpec("b", "FP16", (-1, 1))]
BITS = struct.pack("<4f", 1.0, 2.5, -3.0, 4.0)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[1,2.5,-3,4]}]}',
        b'{"id":"q","inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2.5],[-3,4]]}]}',
        b"[1, 2.5, -3, 4]",
        b"[[1, 2.5], [-3, 4]]",
        b"1,2.5\n-3,4\n",
        b"1 2.5 -3 4",
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":"%s"}]}' % base64.b64encode(BITS),
    ],
)
def test_every_form_gives_the_same_bits(raw: bytes) -> None:
    (tensor,) = parse_original(raw, ONE)
    assert (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) == ("x", "FP32", (2, 2), BITS)


def test_inputs_come_in_the_models_order() -> None:
    half = base64.b64encode(struct.pack("<e", 1.5)).decode()
    b = {"name": "b", "datatype": "FP16", "shape": [1, 1], "data": half}
    raw = json.dumps({"inputs": [b, {"name": "a", "datatype": "INT64", "shape": [1, 1], "data": [7]}]})
    assert [t.name for t in parse_original(raw.encode(), TWO)] == ["a", "b"]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"x,y", b"null", b"7", b"{}", b'{"inputs":[]}', b'{"inputs":[7]}', b"[1,2,3]", b"[]",
        b'{"inputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1,2],"data":[1,2]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":"!"}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[-1,2],"data":[1,2]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]},'
        b'{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":"2","data":[1,2]}]}',
    ],
)  # fmt: skip
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(PellucidError):
        parse_original(raw, ONE)


def test_bare_values_need_a_model_with_one_input() -> None:
    with pytest.raises(UsageError, match="2 named inputs"):
        parse_original(b"[1,2]", TWO)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_bytes_from_outside_raise_only_the_tree(raw: bytes) -> None:
    with contextlib.suppress(PellucidError):
        parse_original(raw, ONE)


DATA: dict[str, Any] = {"bucket": 4, "row_count": 2}


def test_rows_by_number() -> None:
    whole, single = parse_original(b"[1,2,3,4]", ONE), parse_original(b"[3,4]", ONE)
    assert sorted(pick_rows(whole, DATA, None)) == [0, 1]
    first, second = pick_rows(whole, DATA, 1), pick_rows(single, DATA, 1)
    assert list(first) == list(second) == [1]
    assert bytes(first[1][0].data) == bytes(second[1][0].data) == struct.pack("<2f", 3.0, 4.0)


def test_rows_that_do_not_fit_are_usage() -> None:
    three, single = parse_original(b"[1,2,3,4,5,6]", ONE), parse_original(b"[1,2]", ONE)
    for tensors, row in ((three, None), (three, 0), (single, None), (single, 2), (single, -1)):
        with pytest.raises(UsageError):
            pick_rows(tensors, DATA, row)


def test_a_model_without_batch_axis_is_one_row() -> None:
    spec = [TensorSpec("x", "FP32", (3,))]
    tensors = parse_original(b"[1,2,3]", spec)
    assert pick_rows(tensors, {"bucket": 0, "row_count": 1}, None) == {0: tuple(tensors)}


def test_specs_come_from_the_golden_cases() -> None:
    case = {"bucket": 8, "inputs": [{"name": "x", "datatype": "FP32", "shape": [8, 2], "data": ""}]}
    package = cast(Any, SimpleNamespace(golden={"cases": [case]}))
    assert input_specs(package) == ONE
    for golden in ({}, {"cases": []}, {"cases": [{}]}):
        with pytest.raises(UsageError):
            input_specs(cast(Any, SimpleNamespace(golden=golden)))


def test_errors_are_of_their_kind() -> None:
    with pytest.raises(FormatError):
        parse_original(b"\xff", ONE)
    with pytest.raises(TensorError):
        parse_original(b"[1,2,3]", ONE)
