"""Graphs with FP16 or BF16 made to run here as they say: each result rounded, on every CPU alike.

ONNX Runtime's CPU kernels know no BF16, and run most FP16 operators in FP32 with the roundings
between them left out, so that its answer would be better than what is claimed. Here every operator
works in FP32 and its result is rounded to the type it has in the graph. A GPU may keep more digits
inside one fused kernel: this is the careful side. Source: spec/accuracy.md, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NARROW: Final = {TensorProto.FLOAT16: "FP16", TensorProto.BFLOAT16: "BF16"}
_TYPE_ATTRIBUTES: Final = {"to", "dtype", "output_dtype", "stash_type"}
_MOVES: Final = {  # give values that were there before: nothing to round
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "GatherND",
    "GatherElements", "Concat", "Split", "Expand", "Tile", "MaxPool", "GlobalMaxPool", "Relu", "Max", "Min",
    "Dropout", "DepthToSpace", "SpaceToDepth", "If", "Loop", "Scan",
}  # fmt: skip


def narrow_types(model: onnx.ModelProto) -> list[str]:
    """Names of the 16-bit types anywhere in a graph."""
    found: set[int] = set()
    for graph in _graphs(model.graph):
        found.update(t.data_type for t in graph.initializer)
        found.update(v.type.tensor_type.elem_type for v in [*graph.input, *graph.output, *graph.value_info])
        for node in graph.node:
            for attribute in node.attribute:
                found.update(t.data_type for t in _tensors(attribute))
                if attribute.name in _TYPE_ATTRIBUTES:
                    found.add(attribute.i)
    return sorted(NARROW[kind] for kind in found & NARROW.keys())


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph that gives, in FP32, what the model's 16-bit operators give; the names stay."""
    types = _types(model)
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for graph in _graphs(wide.graph):
        rounded = [part for node in graph.node for part in _rounded(node, types)]
        del graph.node[:]
        graph.node.extend(rounded)
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        del graph.value_info[:]
        for value in [*graph.input, *graph.output]:
            if value.type.tensor_type.elem_type in NARROW:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide


def _rounded(node: onnx.NodeProto, types: dict[str, int]) -> Iterator[onnx.NodeProto]:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
        for tensor in _tensors(attribute):
            _widen_tensor(tensor)
    casts = []
    for position, name in enumerate(node.output):
        kind = types.get(name)
        if kind in NARROW and node.op_type not in _MOVES:
            exact, narrow = f"{name}:exact", f"{name}:narrow"
            node.output[position] = exact
            casts.append(helper.make_node("Cast", [exact], [narrow], name=narrow, to=kind))
            casts.append(
                helper.make_node("Cast", [narrow], [name], name=f"{name}:wide", to=TensorProto.FLOAT)
            )
    yield node
    yield from casts


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of every tensor that can be told, graphs inside nodes included."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        inferred = model
    types: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        types |= {t.name: t.data_type for t in graph.initializer}
        for value in [*graph.input, *graph.output, *graph.value_info]:
            types[value.name] = value.type.tensor_type.elem_type
        for node in graph.node:
            kinds = [types[name] for name in node.input if types.get(name) in NARROW]
            for name in node.output:  # operators outside the standard keep the type they take
                if not types.get(name) and kinds and node.domain not in ("", "ai.onnx"):
                    types[name] = kinds[0]
    return types


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _graphs(inner)


def _tensors(attribute: Any) -> list[onnx.TensorProto]:
    return [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in NARROW:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
