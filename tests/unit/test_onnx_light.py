"""Parts of onnx taken without the package's start: the same parts, whoever comes first."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid import onnx_light
from pellucid.testing.models import MODELS

SAME = (
    "assert onnx.ModelProto is onnx_light.ModelProto; assert onnx.TensorProto is onnx_light.TensorProto; "
    "assert onnx.checker.ValidationError is onnx_light.ValidationError; "
    "assert onnx.shape_inference.InferenceError is onnx_light.InferenceError; "
    "from pellucid.testing.models import MODELS; model = onnx_light.parse(MODELS['credit_like']()); "
    "onnx.checker.check_model(model, full_check=True); onnx_light.check(model); "
    "assert onnx.version_converter.convert_version(model, 20).opset_import[0].version == 20; "
    "assert onnx_light.infer_shapes(model) == onnx.shape_inference.infer_shapes(model)"
)
ELSEWHERE = (
    "import importlib.util; find = importlib.util.find_spec; "
    "importlib.util.find_spec = lambda name, *more: None if name == 'onnx' else find(name, *more); "
)


@pytest.mark.parametrize(
    "code",
    [
        f"from pellucid import onnx_light; import onnx, onnx.version_converter; {SAME}",
        f"import onnx, onnx.version_converter; from pellucid import onnx_light; {SAME}",
        f"{ELSEWHERE}from pellucid import onnx_light; import onnx, onnx.version_converter; {SAME}",
    ],
    ids=["parts first", "package first", "parts not found"],
)
def test_they_are_the_very_parts_of_the_package(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "module",
    ["onnx_light", "build.prepare", "backends.tensorrt.graph"],
)
def test_neither_the_package_nor_numpy_is_loaded(module: str) -> None:
    code = f"import sys, pellucid.{module}; print({{'numpy', 'onnx', 'onnxruntime'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "set()"


def test_a_graph_of_float32_is_made_without_numpy() -> None:
    code = (
        "import sys; from pellucid.build import precision; "
        "from pellucid.build.canonical_graph import canonicalise; "
        "recipe = {'buckets': [1, 4], 'precision': 'fp32', 'backend': 'tensorrt-rtx', "
        "'canonical': {'opset': 17, 'fold': True}}; "
        "precision.load(recipe); "
        "made = canonicalise(sys.stdin.buffer.read(), recipe); precision.apply(made.compiled, recipe, {}); "
        "print({'numpy', 'onnx', 'onnxruntime'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], input=MODELS["credit_like"](), check=True, capture_output=True
    )
    assert said.stdout.strip() == b"set()"


def test_errors_are_the_packages_own() -> None:
    model = onnx_light.parse(MODELS["credit_like"]())
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(onnx.checker.ValidationError, match="NoSuchOperator"):
        onnx_light.check(model)
    with pytest.raises(DecodeError):
        onnx_light.parse(b"\xff\xff\xff")
    assert onnx_light.opset_version() == onnx.defs.onnx_opset_version()


# -- structure without large weights --------------------------------------------------------------


def weighty(sizes: list[int], nodes: int = 3) -> onnx.ModelProto:
    """A model whose weights take so many bytes; names, values and inner graphs like any other's."""
    model = onnx_light.parse(MODELS["credit_like"]())
    for number, size in enumerate(sizes):
        tensor = model.graph.initializer.add()
        tensor.name, tensor.data_type = f"w{number}", onnx.TensorProto.UINT8
        tensor.dims.append(size)
        tensor.raw_data = bytes([number]) * size
    for number in range(nodes):
        node = model.graph.node.add()
        node.op_type, node.name = "Constant", f"n{number}"
        node.attribute.append(onnx.helper.make_attribute("value_int", number))
    return model


@given(
    st.lists(st.sampled_from([0, 1, 127, 128, 2**16 - 1, 2**16, 2**16 + 1, 2**20]), max_size=5),
    st.booleans(),
)
@settings(max_examples=60)
def test_a_structure_is_the_model_without_its_large_weights(sizes: list[int], padded: bool) -> None:
    model = weighty(sizes)
    if padded:  # an unknown field, as a later version of the format would bring it
        model.MergeFromString(b"\xfa\x07" + bytes([0x80, 0x80, 0x40]) + bytes(2**20))
    raw = model.SerializeToString(deterministic=True)
    structure = onnx_light.parse_structure(raw)
    expected = onnx_light.parse(raw)
    gone, where = 0, []
    for number, tensor in enumerate(expected.graph.initializer):
        if len(tensor.raw_data) >= 2**16 and len(raw) >= 2**20:
            before = tensor.ByteSize()
            where.append((number, tensor.raw_data))
            tensor.ClearField("raw_data")
            gone += before - tensor.ByteSize()
    assert structure.model == expected
    assert structure.dropped == gone
    assert [(w.number, raw[w.start : w.start + w.size]) for w in structure.weights] == where


@given(st.data())
@settings(max_examples=200)
def test_spoiled_bytes_end_as_with_the_library(data: st.DataObject) -> None:
    """What is cut or changed is refused as the whole reader refuses it, or read with the same names."""
    raw = bytearray(weighty([2**16, 2**20]).SerializeToString(deterministic=True))
    head = list(range(3000)) + [len(raw) - 1 - n for n in range(200)]
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.sampled_from(head))] = data.draw(st.integers(0, 255))
    spoiled = bytes(raw[: data.draw(st.sampled_from([len(raw), 2**20, 2**20 + 9, len(raw) - 1]))])
    try:
        whole = onnx_light.parse(spoiled)
    except DecodeError:
        with pytest.raises(DecodeError):
            onnx_light.parse_structure(spoiled)
        return
    light = onnx_light.parse_structure(spoiled).model
    for model in (whole, light):
        for tensor in model.graph.initializer:
            tensor.ClearField("raw_data")
    assert light == whole


@pytest.mark.parametrize("what", ["tag", "size"])
def test_a_head_that_is_written_too_long_is_refused_as_by_the_library(what: str) -> None:
    """Leaving out the weight behind it would leave out what is wrong."""
    data = bytes(2**21)
    size = onnx_light._as_varint(len(data))
    tag = bytes([9 << 3 | 2])
    if what == "tag":
        tag = bytes([tag[0] | 0x80]) + bytes([0x80] * 4) + bytes(1)
    else:
        size = size[:-1] + bytes([size[-1] | 0x80, 0x80, 0])
    tensor = tag + size + data
    graph = bytes([5 << 3 | 2]) + onnx_light._as_varint(len(tensor)) + tensor
    raw = bytes([7 << 3 | 2]) + onnx_light._as_varint(len(graph)) + graph
    for parse in (onnx_light.parse, onnx_light.parse_structure):
        with pytest.raises(DecodeError):
            parse(raw)
