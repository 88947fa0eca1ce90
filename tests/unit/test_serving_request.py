"""The request rules of the conformance list, one row a case: right tensors, or what was expected."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from pellucid.core.tensor import TensorSpec
from pellucid.errors import FormatError, PolicyDeniedError, TensorError, UsageError
from pellucid.serving.model import make_signature
from pellucid.serving.request import InferRequest, parse_infer

ONE = make_signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "FP32", (-1, 3)),), 8)
TWO = make_signature(
    (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,))),
    (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("h", "FP16", (-1, 1))),
    8,
)
FIXED = make_signature((TensorSpec("s", "FP32", (6,)),), (TensorSpec("l", "FP32", (2,)),), 1)


def typed(datatype: str, shape: tuple[int, ...] = (-1, 1)) -> Any:
    return make_signature((TensorSpec("x", datatype, shape),), (TensorSpec("y", "FP32", (-1, 1)),), 8)


def x(**changes: Any) -> dict[str, Any]:
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2.5, -0.0]} | changes
    return {name: value for name, value in item.items() if value is not ...}


def parse(value: Any, signature: Any = ONE, header_length: int | None = None) -> InferRequest:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_infer(body, header_length, signature)


def with_binary(head: dict[str, Any], *data: bytes) -> tuple[bytes, int]:
    text = json.dumps(head).encode()
    return b"".join([text, *data]), len(text)


def test_flat_and_nested_data_give_the_same_bits():
    flat = parse({"inputs": [x(shape=[2, 3], data=[1, 2, 3, 4, 5, 6])]})
    nested = parse({"inputs": [x(shape=[2, 3], data=[[1, 2, 3], [4, 5, 6]])]})
    assert flat.tensors == nested.tensors
    assert flat.rows == 2
    assert bytes(flat.tensors[0].data) == struct.pack("<6f", 1, 2, 3, 4, 5, 6)
    assert flat.from_json


def test_inputs_come_in_the_models_order_whatever_order_was_sent():
    items = [
        {"name": "b", "shape": [2], "datatype": "INT64", "data": [-(2**63), 2**63 - 1]},
        {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [0, 1, 2, 3]},
    ]
    request = parse({"inputs": items, "outputs": [{"name": "y"}]}, TWO)
    assert [t.name for t in request.tensors] == ["a", "b"]
    assert bytes(request.tensors[1].data) == struct.pack("<2q", -(2**63), 2**63 - 1)
    assert request.shapes == ((2, 2), (2,))
    assert request.nbytes == 32


REFUSED: dict[str, tuple[Any, str]] = {
    "OIP-020 array": ([1], "body: expected a JSON object, got an array"),
    "OIP-020 string": (b'"x"', "got a string"),
    "OIP-020 number": (b"1", "got a number"),
    "OIP-020 no inputs": ({}, "inputs: expected an array of tensors, got none"),
    "OIP-020 null inputs": ({"inputs": None}, "inputs: expected an array of tensors, got null"),
    "OIP-020 trailing": (b'{"inputs":[]} ]', "expected valid JSON.*byte"),
    "OIP-023 BOM": (b"\xef\xbb\xbf{}", "expected valid JSON"),
    "OIP-024 twins": (b'{"inputs":[],"inputs":[]}', "once"),
    "OIP-025 id number": ({"id": 1, "inputs": [x()]}, "id: expected a string, got a number"),
    "OIP-025 id null": ({"id": None, "inputs": [x()]}, "id: expected a string, got null"),
    "id too long": ({"id": "i" * 257, "inputs": [x()]}, "id: expected at most 256"),
    "id with a line break": ({"id": "a\nb", "inputs": [x()]}, "without control characters"),
    "id with NUL": ({"id": "a\x00b", "inputs": [x()]}, "without control characters"),
    "id with an escape sequence": ({"id": "\x1b[31m", "inputs": [x()]}, "without control characters"),
    "OIP-026 null": ({"parameters": None, "inputs": [x()]}, "request parameters: expected a JSON object"),
    "OIP-026 array": ({"parameters": [], "inputs": [x()]}, "got an array"),
    "OIP-026 null value": ({"parameters": {"a": None}, "inputs": [x()]}, "got null"),
    "OIP-026 nested": ({"parameters": {"a": {}}, "inputs": [x()]}, "got an object"),
    "OIP-026 triton": ({"parameters": {"triton_x": 1}, "inputs": [x()]}, "reserved"),
    "too many parameters": ({"parameters": {str(i): 1 for i in range(65)}, "inputs": [x()]}, "at most 64"),
    "long parameter": ({"parameters": {"a": "b" * 5000}, "inputs": [x()]}, "at most 4,096"),
    "long parameter name": ({"parameters": {"a" * 300: 1}, "inputs": [x()]}, "at most 256"),
    "subject number": ({"parameters": {"subject": 7}, "inputs": [x()]}, "subject.*string"),
    "subject control": ({"parameters": {"subject": "a\tb"}, "inputs": [x()]}, "control"),
    "OIP-150 sequence": ({"parameters": {"sequence_id": 3}, "inputs": [x()]}, "sequence_id"),
    "OIP-027 no name": ({"inputs": [x(name=...)]}, r"inputs\[0\].name: expected a string, got none"),
    "OIP-027 name number": ({"inputs": [x(name=1)]}, "got a number"),
    "OIP-027 item": ({"inputs": [1]}, r"inputs\[0\]: expected a JSON object"),
    "OIP-027 no shape": ({"inputs": [x(shape=...)]}, "shape as an array"),
    "OIP-027 no datatype": ({"inputs": [x(datatype=...)]}, "datatype FP32, got None"),
    "OIP-027 no data": ({"inputs": [x(data=...)]}, "expected data, got none"),
    "OIP-027 shared memory": (
        {"inputs": [x(data=..., parameters={"shared_memory_region": "r"})]},
        "expected serving.shared_memory = true",
    ),
    "OIP-028 unknown": ({"inputs": [x(name="z")]}, "'z' is not an input; 'x' is missing"),
    "OIP-028 twice": ({"inputs": [x(), x()]}, "'x' stands twice"),
    "OIP-028 none": ({"inputs": []}, "inputs: expected 'x', got none"),
    "OIP-028 many": ({"inputs": [x()] * 257}, "at most 256"),
    "OIP-029 bogus": ({"inputs": [x(datatype="FP99")]}, "datatype FP32, got 'FP99'"),
    "OIP-029 wrong": ({"inputs": [x(datatype="FP64")]}, "datatype FP32, got 'FP64'"),
    "OIP-030 negative": ({"inputs": [x(shape=[-1, 3])]}, "axis 0: expected an integer of 1"),
    "OIP-030 float": ({"inputs": [x(shape=[1.0, 3])]}, "axis 0: expected an integer"),
    "OIP-030 bool": ({"inputs": [x(shape=[True, 3])]}, "axis 0: expected an integer"),
    "OIP-030 string": ({"inputs": [x(shape=["1", 3])]}, "axis 0: expected an integer"),
    "OIP-030 2^64": ({"inputs": [x(shape=[2**64, 3])]}, "axis 0: expected an integer"),
    "OIP-030 huge": ({"inputs": [x(shape=[2**40, 3])]}, "axis 0: expected 1 to 8 rows"),
    "OIP-030 rank": ({"inputs": [x(shape=[3])]}, "expected 2 dimensions"),
    "OIP-030 empty": ({"inputs": [x(shape=[])]}, "expected 2 dimensions"),
    "OIP-030 zero": ({"inputs": [x(shape=[0, 3], data=[])]}, "axis 0: expected an integer of 1"),
    "OIP-030 axis": ({"inputs": [x(shape=[1, 4])]}, r"axis 1: expected 3 \(FP32 \[-1, 3\]\), got 4"),
    "OIP-031 batch": ({"inputs": [x(shape=[9, 3], data=[0] * 27)]}, "axis 0: expected 1 to 8 rows, got 9"),
    "OIP-032 short": ({"inputs": [x(data=[1, 2])]}, "expected 3 elements"),
    "OIP-032 long": ({"inputs": [x(data=[1, 2, 3, 4])]}, "expected 3 elements"),
    "OIP-032 ragged": ({"inputs": [x(shape=[2, 3], data=[[1, 2, 3, 4], [5, 6]])]}, "along axis"),
    "OIP-032 turned": ({"inputs": [x(shape=[2, 3], data=[[1, 2], [3, 4], [5, 6]])]}, "along axis 0"),
    "OIP-032 mixed": ({"inputs": [x(data=[1, [2], 3])]}, "expected FP32 values, got list"),
    "OIP-032 object": ({"inputs": [x(data={"0": 1})]}, "expected data as an array"),
    "OIP-033 null": ({"inputs": [x()], "outputs": None}, "outputs: expected an array"),
    "OIP-033 no name": ({"inputs": [x()], "outputs": [{}]}, r"outputs\[0\].name"),
    "OIP-033 unknown": ({"inputs": [x()], "outputs": [{"name": "n"}]}, "expected some of 'y', got 'n'"),
    "OIP-033 twice": ({"inputs": [x()], "outputs": [{"name": "y"}] * 2}, "expected once"),
    "OIP-140 classification": (
        {"inputs": [x()], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
        "classification",
    ),
    "OIP-053 null": ({"inputs": [x(data=[1, None, 2])]}, "expected FP32 values, got NoneType"),
    "OIP-053 text": ({"inputs": [x(data=["1", "2", "3"])]}, "expected FP32 values, got str"),
    "OIP-053 bool": ({"inputs": [x(data=[True, 1, 2])]}, "expected FP32 values, got bool"),
    "OIP-053 1e39": ({"inputs": [x(data=[1e39, 1, 2])]}, "range"),
    "OIP-053 1e400": (
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1e400,0,0]}]}',
        "JSON",
    ),
    "OIP-060 NaN": (b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[NaN,0,0]}]}', "JSON"),
    "OIP-080 size without header": (
        {"inputs": [x(data=..., parameters={"binary_data_size": 12})]},
        "inference-header-content-length",
    ),
    "OIP-082 text for flag": (
        {"inputs": [x()], "outputs": [{"name": "y", "parameters": {"binary_data": "true"}}]},
        "expected true or false",
    ),
    "OIP-082 number for flag": (
        {"inputs": [x()], "parameters": {"binary_data_output": 1}},
        "expected true or false",
    ),
    "OIP-086 empty": (b"", "body is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_what_was_expected(name: str):
    value, pattern = REFUSED[name]
    with pytest.raises((UsageError, PolicyDeniedError), match=pattern) as caught:
        parse(value)
    assert len(caught.value.message) < 2_000
    assert "expected" in caught.value.message
    assert "got" in caught.value.message


VALUES: dict[str, tuple[str, list[Any], bytes | str]] = {
    "OIP-050 BOOL": ("BOOL", [True], b"\x01"),
    "OIP-050 0": ("BOOL", [0], "expected BOOL values, got int"),
    "OIP-050 1.0": ("BOOL", [1.0], "got float"),
    "OIP-051 UINT8": ("UINT8", [255], b"\xff"),
    "OIP-051 UINT8 256": ("UINT8", [256], "range"),
    "OIP-051 INT8 128": ("INT8", [128], "range"),
    "OIP-051 INT8 -128": ("INT8", [-128], b"\x80"),
    "OIP-051 INT32 2^31": ("INT32", [2**31], "range"),
    "OIP-051 float": ("INT32", [1.0], "got float"),
    "OIP-051 bool": ("INT32", [True], "got bool"),
    "OIP-051 text": ("INT32", ["1"], "got str"),
    "OIP-052 UINT64": ("UINT64", [2**64 - 1], b"\xff" * 8),
    "OIP-052 beyond": ("UINT64", [2**64], "range"),
    "OIP-052 INT64": ("INT64", [-(2**63)], struct.pack("<q", -(2**63))),
    "OIP-052 2^53+1": ("INT64", [2**53 + 1], struct.pack("<q", 2**53 + 1)),
    "OIP-053 integer": ("FP64", [3], struct.pack("<d", 3.0)),
    "OIP-054 -0.0": ("FP64", [-0.0], struct.pack("<d", -0.0)),
    "OIP-055 FP16": ("FP16", [1.0], "expected binary data for FP16"),
    "OIP-055 BF16": ("BF16", [1.0], "expected binary data for BF16"),
    "OIP-056 BYTES": ("BYTES", ["a\u0000ß"], b"\x04\x00\x00\x00a\x00\xc3\x9f"),
    "OIP-056 number": ("BYTES", [1], "expected strings"),
    "OIP-056 bool": ("BYTES", [False], "expected strings"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_exact_or_refused(name: str):
    datatype, data, wanted = VALUES[name]
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": datatype, "data": data}]}
    if isinstance(wanted, bytes):
        assert bytes(parse(body, typed(datatype)).tensors[0].data) == wanted
    else:
        with pytest.raises(TensorError, match=wanted):
            parse(body, typed(datatype))


def binary_x(size: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": [x(data=..., parameters={"binary_data_size": size}, **more)]}


def test_binary_tensors_follow_the_head_in_the_order_of_the_inputs():
    head = {
        "inputs": [
            {"name": "b", "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 8}},
            {"name": "a", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
        ],
        "outputs": [{"name": "h", "parameters": {"binary_data": True}}, {"name": "y"}],
    }
    body, length = with_binary(head, struct.pack("<q", 7), struct.pack("<2f", 1, float("nan")))
    request = parse(body, TWO, length)
    assert bytes(request.tensors[1].data) == struct.pack("<q", 7)
    assert request.outputs == ((0, False), (1, True))
    assert not request.from_json


BINARY_REFUSED: dict[str, tuple[dict[str, Any], bytes, int | None, str]] = {
    "OIP-080 short": (binary_x(12), b"\0" * 11, 0, "at most 11 bytes left"),
    "OIP-080 left over": (binary_x(12), b"\0" * 13, 0, "behind the last tensor, got 1"),
    "OIP-080 size of shape": (binary_x(8), b"\0" * 8, 0, "expected 12 bytes"),
    "OIP-080 text size": (binary_x("12"), b"\0" * 12, 0, "binary_data_size of 0 or more"),
    "OIP-080 negative": (binary_x(-12), b"\0" * 12, 0, "binary_data_size of 0 or more"),
    "OIP-080 bool": (binary_x(True), b"\0", 0, "binary_data_size of 0 or more"),
    "OIP-080 huge": (binary_x(2**70), b"\0" * 12, 0, "at most 12 bytes left"),
    "OIP-081 beyond": (binary_x(12), b"\0" * 12, 10**6, "expected 0 to"),
    "OIP-027 both": ({"inputs": [x(parameters={"binary_data_size": 12})]}, b"\0" * 12, 0, "got both"),
}


@pytest.mark.parametrize("name", BINARY_REFUSED)
def test_binary_refused(name: str):
    head, data, length, pattern = BINARY_REFUSED[name]
    body, own = with_binary(head, data)
    with pytest.raises(UsageError, match=pattern):
        parse(body, ONE, length or own)


BYTES_REFUSED = {
    "OIP-057 length beyond": (b"\xff\xff\xff\xffab", "element length of 4,294,967,295"),
    "OIP-057 cut length": (b"\x01\x00", "4-byte length"),
    "OIP-057 too many": (b"\x01\x00\x00\x00a\x00\x00\x00\x00", "expected 1 BYTES elements, got more"),
}


@pytest.mark.parametrize("name", BYTES_REFUSED)
def test_bytes_tensors_are_counted(name: str):
    data, pattern = BYTES_REFUSED[name]
    item = {"name": "x", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    body, length = with_binary({"inputs": [item]}, data)
    with pytest.raises(TensorError, match=pattern):
        parse(body, typed("BYTES"), length)


def test_too_few_bytes_elements():
    item = {"name": "x", "shape": [2, 1], "datatype": "BYTES", "parameters": {"binary_data_size": 4}}
    body, length = with_binary({"inputs": [item]}, bytes(4))
    with pytest.raises(TensorError, match="expected 2 BYTES elements, got 1"):
        parse(body, typed("BYTES"), length)


def test_bool_bytes_are_zero_or_one():
    item = {"name": "x", "shape": [1, 1], "datatype": "BOOL", "parameters": {"binary_data_size": 1}}
    body, length = with_binary({"inputs": [item]}, b"\x02")
    with pytest.raises(TensorError, match="0 or 1"):
        parse(body, typed("BOOL"), length)


def test_header_equal_to_the_bodys_length_is_plain_json():
    body = json.dumps({"inputs": [x()]}).encode()
    assert parse(body, ONE, len(body)).rows == 1


def test_raw_binary_is_the_one_input_and_all_outputs_are_binary():
    request = parse(struct.pack("<3f", 1, 2, 3), ONE, 0)
    assert (request.rows, request.outputs, request.id) == (1, ((0, True),), None)
    variable = make_signature((TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, 1)),), 8)
    assert parse(b"\0" * 20, variable, 0).shapes == ((1, 5),)
    text = parse(b"hello", typed("BYTES", (-1, 1)), 0)
    assert bytes(text.tensors[0].data) == b"\x05\0\0\0hello"


@pytest.mark.parametrize(
    ("signature", "body", "pattern"),
    [
        (ONE, b"\0" * 11, "expected 12 bytes"),
        (ONE, b"", "expected 12 bytes"),
        (TWO, b"\0" * 8, "one input"),
        (typed("BYTES", (-1, -1)), b"a", "one BYTES element"),
        (typed("FP32", (-1, -1)), b"", "at least one element"),
        (typed("FP32", (-1, -1)), b"\0" * 5, "expected 4 bytes"),
        (typed("FP32", (-1, -1, -1)), b"\0" * 4, "at most one variable"),
    ],
)
def test_raw_binary_refused(signature: Any, body: bytes, pattern: str):
    with pytest.raises(TensorError, match=pattern):
        parse(body, signature, 0)


def test_what_is_wanted_of_the_outputs():
    inputs = [
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [0, 1]},
        {"name": "b", "shape": [1], "datatype": "INT64", "data": [0]},
    ]
    everything = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    assert parse(everything, TWO).outputs == ((0, True), (1, True))
    assert parse(everything | {"outputs": []}, TWO).outputs == ((0, True), (1, True))
    overridden = everything | {
        "outputs": [{"name": "h"}, {"name": "y", "parameters": {"binary_data": False}}]
    }
    assert parse(overridden, TWO).outputs == ((0, False), (1, True))
    with pytest.raises(TensorError, match="binary output") as caught:
        parse({"inputs": inputs}, TWO)
    assert "FP16" in caught.value.hint


def test_rows_of_all_inputs_agree():
    inputs = [
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [0, 1]},
        {"name": "b", "shape": [2], "datatype": "INT64", "data": [0, 1]},
    ]
    with pytest.raises(TensorError, match="same number of rows"):
        parse({"inputs": inputs, "outputs": [{"name": "y"}]}, TWO)


def test_a_model_without_batch_axis_has_one_row():
    item = {"name": "s", "shape": [6], "datatype": "FP32", "data": [0] * 6}
    assert parse({"inputs": [item]}, FIXED).rows == 1
    with pytest.raises(TensorError, match="axis 0: expected 6"):
        parse({"inputs": [item | {"shape": [5], "data": [0] * 5}]}, FIXED)


def test_unknown_members_and_parameters_are_ignored_and_ids_kept():
    body = {"inputs": [x(more=1)], "id": "my id ß", "extra": None, "parameters": {"a": 1, "b": "c", "d": 1.5}}
    request = parse(body)
    assert (request.id, request.subject) == ("my id ß", None)
    assert parse({"inputs": [x()], "id": ""}).id is None
    assert parse({"inputs": [x()], "parameters": {"subject": "p-7"}}).subject == "p-7"


def test_every_refusal_is_an_error_of_the_tree():
    for value in (b"\0", b"[]", b'{"inputs":[{"name":[]}]}'):
        with pytest.raises((FormatError, TensorError)):
            parse(value)
