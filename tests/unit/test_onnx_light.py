"""Parts of onnx taken without the package's start: the same parts, whoever comes first."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from google.protobuf.message import DecodeError

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
