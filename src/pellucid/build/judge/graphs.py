"""ONNX graphs as the judge needs them: who makes a tensor, who takes it, and how to look at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pellucid.errors import ParseError

_SAME_VALUE: Final = {"Cast", "Identity", "QuantizeLinear", "DequantizeLinear"}
# what precision puts into a graph: the tensor before and the tensor after stand for the same number


class Wiring(msgspec.Struct, frozen=True):
    """The top level of a graph.

    Attributes:
        producers: Tensor -> the node that makes it.
        consumers: Tensor -> the nodes that take it, those with graphs inside that name it included.
        nodes: Name -> node.
        order: Tensor -> its place among all that nodes make.
        inputs, outputs, constants: Names of tensors; an initialiser is no input.
    """

    producers: Mapping[str, onnx.NodeProto]
    consumers: Mapping[str, list[onnx.NodeProto]]
    nodes: Mapping[str, onnx.NodeProto]
    order: Mapping[str, int]
    inputs: frozenset[str]
    outputs: frozenset[str]
    constants: frozenset[str]

    def has(self, tensor: str) -> bool:
        """A tensor whose value depends on what goes in, as far as the top level shows."""
        return tensor in self.producers or tensor in self.inputs


def parse(raw: bytes, subject: str) -> onnx.ModelProto:
    """Model of ONNX bytes, local functions written out.

    Raises:
        ParseError: Not ONNX.
    """
    try:
        model = onnx.load_model_from_string(raw)
    except DecodeError as error:
        raise ParseError(f"{subject}: expected ONNX, got {error!s:.200}") from error
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def wire(model: onnx.ModelProto) -> Wiring:
    """Wiring of a model's top level."""
    graph = model.graph
    producers: dict[str, onnx.NodeProto] = {}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        producers |= {name: node for name in node.output if name}
        for name in dict.fromkeys(taken(node)):
            consumers.setdefault(name, []).append(node)
    constants = frozenset(t.name for t in graph.initializer)
    return Wiring(
        producers,
        consumers,
        {node.name: node for node in graph.node},
        {name: place for place, name in enumerate(producers)},
        frozenset(value.name for value in graph.input) - constants,
        frozenset(value.name for value in graph.output),
        constants,
    )


def taken(node: onnx.NodeProto) -> Iterable[str]:
    """Tensors a node takes, by itself or by a graph inside it."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            for part in inner.node:
                yield from taken(part)
            yield from (value.name for value in inner.output)


def leaving(names: Iterable[str], wiring: Wiring) -> list[str]:
    """Tensors that leave a set of nodes: taken outside it, or outputs of the graph."""
    inside = set(names)
    made = [t for name in inside if name in wiring.nodes for t in wiring.nodes[name].output if t]
    return sorted(
        (
            tensor
            for tensor in made
            if tensor in wiring.outputs
            or any(node.name not in inside for node in wiring.consumers.get(tensor, ()))
        ),
        key=wiring.order.__getitem__,
    )


def origin(tensor: str, compiled: Wiring, source: Wiring, names: Mapping[str, str]) -> str | None:
    """The source's tensor that a compiled one stands for, through casts and Q/DQ; ``None`` if there is none.

    Args:
        names: Compiled name -> source name, where they differ.
    """
    while True:
        there = names.get(tensor, tensor)
        if source.has(there):
            return there
        node = compiled.producers.get(tensor)
        if node is None or node.op_type not in _SAME_VALUE or not node.input:
            return None
        tensor = node.input[0]


def readable(tensor: str, compiled: Wiring) -> str:
    """The tensor itself, or what a quantised one is read as: its first DequantizeLinear's output."""
    node = compiled.producers.get(tensor)
    if node is not None and node.op_type == "QuantizeLinear":
        for reader in compiled.consumers.get(tensor, ()):
            if reader.op_type == "DequantizeLinear" and reader.input[0] == tensor:
                return str(reader.output[0])
    return tensor


def exposing(model: onnx.ModelProto, tensors: Iterable[str]) -> bytes:
    """The model with exactly these tensors as outputs; their types are left to the library to find."""
    own = list(model.graph.output)
    kept = {value.name: value for value in own}
    del model.graph.output[:]
    model.graph.output.extend(
        kept.get(name) or onnx.helper.make_empty_tensor_value_info(name) for name in tensors
    )
    try:
        raw: bytes = model.SerializeToString()
    finally:
        del model.graph.output[:]
        model.graph.output.extend(own)
    return raw


def source_names(names: Mapping[str, Any]) -> dict[str, str]:
    """Compiled tensor name -> the source's, out of ``model/names.json``."""
    return {item["to"]: item["from"] for item in names.get("tensors", [])}
