"""Messages of a kind that was read before say what a full reading says; answers are what protobuf writes."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import Tensor, TensorSpec
from pellucid.errors import PellucidError
from pellucid.servers.grpc.codec import read_request, render
from pellucid.servers.grpc.known import KINDS_MAX, Messages, split
from pellucid.servers.grpc.messages import InferRequest, InferResponse, read_message
from pellucid.serving.shared_memory import Regions
from pellucid.testing.plane import echo_model

MODEL = echo_model(
    "two", TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,)), TensorSpec("c", "BOOL", (-1,))
)
PLAIN = echo_model("two", TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,)))
SIZES = {"a": 8, "b": 8, "c": 1}
KINDS = {"a": "FP32", "b": "INT64", "c": "BOOL"}
ids = st.sampled_from(["", "x", "ä", "a\nb", "y" * 257, "\x00"]) | st.text(max_size=8)
parameters = st.dictionaries(
    st.sampled_from(["subject", "timeout", "classification", "note"]),
    st.sampled_from([{"string_param": "s"}, {"int64_param": 5}, {"uint64_param": 0}]), max_size=2,
)  # fmt: skip


@st.composite
def messages(draw: st.DrawFn) -> Any:
    names = draw(st.permutations(["a", "b"]) | st.permutations(["a", "b", "c"]))
    rows = draw(st.integers(1, 2))
    shapes = {"a": [rows, 2], "b": [rows], "c": [rows]}
    raw = [draw(st.binary(min_size=SIZES[n] * rows, max_size=SIZES[n] * rows)) for n in names]
    outputs = draw(st.lists(st.sampled_from(["a_out", "b_out", "n"]), max_size=2))
    return InferRequest(
        model_name="two", model_version=draw(st.sampled_from(["", "1.0.0"])), id=draw(ids),
        parameters=draw(parameters),
        inputs=[{"name": n, "datatype": KINDS[n], "shape": shapes[n]} for n in names],
        outputs=[{"name": name} for name in outputs],
        raw_input_contents=raw[: draw(st.sampled_from([len(raw), len(raw), len(raw), 1]))],
    )  # fmt: skip


def in_full(data: bytes, model: Any) -> Any:
    personal: dict[str, str] = {}
    try:
        message = read_message(InferRequest, data)
        request = read_request(message, Regions(), model.signature, personal)
    except PellucidError as error:
        return type(error), str(error), personal
    return message.model_name, message.model_version or None, told(request), personal


def told(request: Any) -> Any:
    tensors = [(t.name, t.datatype, tuple(t.shape), bytes(t.data)) for t in request.tensors]
    return tensors, *[getattr(request, name) for name in type(request).__struct_fields__ if name != "tensors"]


def by_kind(known: Messages, data: bytes, model: Any) -> Any:
    personal: dict[str, str] = {}
    try:
        name, version, read = known.open(data, Regions())
        request = read(model.signature, personal)
    except PellucidError as error:
        return type(error), str(error), personal
    return name, version, told(request), personal


@given(messages(), st.lists(ids, max_size=3), st.data())
def test_a_message_says_the_same_however_often_its_kind_came(
    first: Any, others: list[str], draw: st.DataObject
):
    known = Messages()
    for model in (MODEL, PLAIN):
        for each in [first.id] * 3 + others:
            again = InferRequest.FromString(first.SerializeToString())
            again.id = each
            for position, raw in enumerate(first.raw_input_contents):
                if draw.draw(st.booleans()):
                    size = draw.draw(st.sampled_from([len(raw), len(raw), len(raw) + 1]))
                    again.raw_input_contents[position] = draw.draw(st.binary(min_size=size, max_size=size))
            data = again.SerializeToString()
            assert by_kind(known, data, model) == in_full(data, model)


@given(messages(), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_message_with_other_bytes_says_what_a_full_reading_says(
    message: Any, changes: list[tuple[int, int]]
):
    known, data = Messages(), message.SerializeToString()
    for _ in range(3):
        by_kind(known, data, MODEL)
        by_kind(known, data, PLAIN)
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    for model in (MODEL, PLAIN):
        assert by_kind(known, bytes(changed), model) == in_full(bytes(changed), model)


PIECES = [b"\x0a\x01a", b"\x1a\x01b", b"\x3a\x00", b"\x3a\x81\x00x", b"\x1a\x00", b"\x80\x01", b"\x08\x01"]


@given(st.binary(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))
def test_any_bytes_are_split_as_protobuf_reads_them(data: bytes):
    parts = split(data)
    if parts is None:
        return
    try:
        message = InferRequest.FromString(data)
    except Exception:
        return  # what is no message inside its fields is found where it is read in full
    assert list(message.raw_input_contents) == [data[start:stop] for start, stop in parts.raw]
    assert message.id.encode() == data[parts.id_start : parts.id_stop]
    around = parts.key[0] + parts.key[1]
    rest = InferRequest.FromString(around)
    assert not rest.id
    assert not rest.raw_input_contents
    message.ClearField("id")
    message.ClearField("raw_input_contents")
    assert message == rest


def test_a_kind_is_learned_at_its_second_message_and_not_without_end():
    known, good = Messages(), InferRequest(
        model_name="two", inputs=[{"name": "b", "datatype": "INT64", "shape": [1]},
                                  {"name": "a", "datatype": "FP32", "shape": [1, 2]}],
        raw_input_contents=[struct.pack("<q", 7), struct.pack("<2f", 1, 2)],
    )  # fmt: skip
    data = good.SerializeToString()
    for count in (0, 0, 1, 1):
        assert len(known._known) == count
        by_kind(known, data, PLAIN)
    for number in range(2 * KINDS_MAX):
        good.parameters["note"].int64_param = number
        for _ in range(2):
            by_kind(known, good.SerializeToString(), PLAIN)
    assert len(known._known) <= KINDS_MAX


@given(messages(), st.text("0123456789/ab", min_size=1, max_size=300))
def test_answers_are_what_protobuf_writes(message: Any, call: str):
    try:
        request = read_request(message, Regions(), PLAIN.signature, {})
    except PellucidError:
        return
    outputs = [
        Tensor("a_out", "FP32", (2, 2), bytes(300)),
        Tensor("b_out", "INT64", (2,), memoryview(b"12345678")),
    ]
    answer = render("two", "1.0.0", request, outputs, call, "t")
    wanted = InferResponse(model_name="two", model_version="1.0.0", id=request.id or "")
    wanted.parameters["pellucid-call"].string_param = call
    for position, _ in request.outputs:
        tensor = outputs[position]
        wanted.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        wanted.raw_output_contents.append(bytes(tensor.data))
    assert answer.body == wanted.SerializeToString()
