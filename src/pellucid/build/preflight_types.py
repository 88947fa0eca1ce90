"""Types that a build would refuse or change: weights that FP16 cannot hold, graphs that came quantised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from pellucid.build.canonical_names import graphs_of, nodes_of
from pellucid.build.precision_quantised import tensorrt_problems, verify_float
from pellucid.core.words import counted
from pellucid.errors import PrecisionError
from pellucid.ports import PreflightFinding

_FP16_MAX: Final = 65504.0
_FP16_NORMAL_MIN: Final = 2.0**-14
QUANTISED: Final = "types.quantised"
_SHOWN: Final = 50  # limit: weights named one by one
_WEIGHTS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def fp16_findings(model: onnx.ModelProto, recipe: Mapping[str, Any]) -> Iterator[PreflightFinding]:
    """Weights that FP16 would overflow, or keep with fewer digits, where FP16 is asked for."""
    if recipe["precision"] != "fp16":
        return
    overflowing, tiny_values, tiny_tensors = 0, 0, 0
    for tensor in _weights(model):
        with np.errstate(invalid="ignore"):  # weights that are not numbers stay so
            values = np.abs(np.asarray(numpy_helper.to_array(tensor), dtype=np.float64))
        over = int(np.count_nonzero(values > _FP16_MAX))
        tiny = int(np.count_nonzero((values > 0) & (values < _FP16_NORMAL_MIN)))
        tiny_values, tiny_tensors = tiny_values + tiny, tiny_tensors + bool(tiny)
        overflowing += bool(over)
        if over and overflowing <= _SHOWN:
            yield PreflightFinding(
                "risk", "types.fp16", f"tensor {tensor.name!r:.80}",
                f"{over:,} of {counted(values.size, 'value')} beyond {_FP16_MAX:.0f}, "
                "which FP16 has no number for",
                "keep it in FP32, scale it, or use bf16",
            )  # fmt: skip
    if overflowing > _SHOWN:
        what = f"{counted(overflowing - _SHOWN, 'further weight')} beyond {_FP16_MAX:.0f}"
        yield PreflightFinding("risk", "types.fp16", "model", what)
    if tiny_values:
        what = (
            f"{counted(tiny_values, 'value')} of {counted(tiny_tensors, 'weight')} below FP16's normal "
            "numbers: there it keeps fewer digits, or none"
        )
        yield PreflightFinding("note", "types.fp16", "model", what)


def quantised_findings(model: onnx.ModelProto, recipe: Mapping[str, Any]) -> Iterator[PreflightFinding]:
    """What a build refuses of a graph that came quantised: one finding a kind, at its first node."""
    if recipe["precision"] != "fp32":
        try:
            verify_float(model, recipe["precision"])
        except PrecisionError as error:
            yield PreflightFinding("refused", QUANTISED, "model", error.message, error.hint)
    elif recipe["backend"] != "onnxruntime":
        for found in tensorrt_problems(model):
            yield PreflightFinding("refused", QUANTISED, place(found.nodes[0]), found.words, found.hint)


def quantised_places(model: onnx.ModelProto) -> set[str]:
    """Every node that such a finding is about, as a backend would name it."""
    return {place(node) for found in tensorrt_problems(model) for node in found.nodes}


def place(node: onnx.NodeProto) -> str:
    return f"node {node.name} ({node.op_type})"


def _weights(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    held = [t for graph in graphs_of(model.graph) for t in graph.initializer]
    held += [
        a.t
        for node in nodes_of(model.graph)
        if node.op_type == "Constant"
        for a in node.attribute
        if a.HasField("t")
    ]
    for tensor in held:
        if tensor.data_type in _WEIGHTS and tensor.data_location != onnx.TensorProto.EXTERNAL:
            yield tensor
