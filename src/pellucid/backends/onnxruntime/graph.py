"""ONNX files as the plain graphs that ``core.facts`` compares."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pellucid import onnx_light
from pellucid.core.facts import Graph, Node
from pellucid.core.tensor import DATATYPES
from pellucid.errors import ParseError
from pellucid.onnx_light import TensorProto

if TYPE_CHECKING:
    import onnx

    from pellucid.core.digest import Data

_DATATYPES: Final = {
    TensorProto.FLOAT: "FP32", TensorProto.DOUBLE: "FP64", TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16", TensorProto.STRING: "BYTES", TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8", TensorProto.UINT16: "UINT16", TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64", TensorProto.INT8: "INT8", TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32", TensorProto.INT64: "INT64",
}  # fmt: skip

_CASTS: Final = ("InsertedPrecisionFreeCast_", "InsertedCast_")  # the library's names for what it casts
_WEIGHTS_MIN: Final = 2**16


@dataclass(frozen=True, slots=True)
class Read:
    """One file, read for facts.

    Attributes:
        fingerprint: Digest of operators, attributes and wiring, without names and weights.
        unnamed: Names that were made up here, for nodes without one.
        inner: Nodes of graphs inside nodes (``If``, ``Loop``, ``Scan``), which ``graph`` leaves out.
    """

    graph: Graph
    initializers: tuple[str, ...]
    weights_bytes: int
    fingerprint: str
    unnamed: frozenset[str]
    inner: int


def renamed(source: Graph, engine: Graph) -> dict[str, str]:
    """Engine tensors that are a source's under the name of a cast that the library put beside it."""
    given = source.constants.union(*(node.outputs for node in source.nodes))
    found = {}
    for tensor in engine.constants.union(*(node.outputs for node in engine.nodes)):
        plain = tensor
        while plain not in given and (prefix := next((p for p in _CASTS if plain.startswith(p)), "")):
            plain = plain.removeprefix(prefix)
        if plain != tensor and plain in given:
            found[tensor] = plain
    return found


def read(raw: Data) -> Read:
    """Graph of an ONNX file's bytes.

    Raises:
        ParseError: Not ONNX.
    """
    try:
        structure = onnx_light.parse_structure(raw)
    except DecodeError as error:
        raise ParseError(f"engine: expected ONNX, got {error!s:.200}") from error
    model = structure.model
    initializers = tuple(t.name for t in model.graph.initializer)
    weights = structure.dropped + sum(_lightened(t) for t in model.graph.initializer)
    nodes = tuple(
        Node(n.name or _made_up(n), n.op_type, n.domain, tuple(n.input), tuple(n.output))
        for n in model.graph.node
    )
    outputs = tuple(value.name for value in model.graph.output)
    graph = Graph(nodes, frozenset(initializers), outputs, _datatypes(model))
    unnamed = frozenset(_made_up(n) for n in model.graph.node if not n.name)
    return Read(graph, initializers, weights, _fingerprint(model), unnamed, _inner(model.graph))


def _inner(graph: onnx.GraphProto) -> int:
    inside = [
        part
        for node in graph.node
        for a in node.attribute
        for part in [*([a.g] if a.HasField("g") else []), *a.graphs]
    ]
    return sum(len(part.node) + _inner(part) for part in inside)


def _lightened(tensor: onnx.TensorProto) -> int:
    """Its size as it was written; large weights are dropped, since asking for their types copies them.

    What a type depends on, such as the shape that something is brought to, is far smaller.
    """
    size = len(tensor.raw_data)
    dropped = 0
    if size > _WEIGHTS_MIN:
        tensor.ClearField("raw_data")
        dropped = 1 + -(-size.bit_length() // 7) + size  # a field: tag, length, bytes
    return int(tensor.ByteSize()) + dropped


def _made_up(node: onnx.NodeProto) -> str:
    """Parts of an operator that the library wrote out have no name of their own."""
    return f"node_of_{next((name for name in node.output if name), node.op_type)}"


def _datatypes(model: onnx.ModelProto) -> dict[str, str]:
    """Datatype of every tensor that can be told; operators outside the standard stay unknown."""
    try:
        model = onnx_light.infer_shapes(model)
    except (onnx_light.InferenceError, RuntimeError, ValueError):
        return {}  # a tensor whose type is not known is reported so
    found = {t.name: _DATATYPES.get(t.data_type, "") for t in model.graph.initializer}
    for value in [*model.graph.input, *model.graph.value_info, *model.graph.output]:
        found[value.name] = _DATATYPES.get(value.type.tensor_type.elem_type, "")
    return {name: kind for name, kind in found.items() if kind in DATATYPES}


def _fingerprint(model: onnx.ModelProto) -> str:
    numbers: dict[str, int] = {"": -1}
    for name in [*(v.name for v in model.graph.input), *(t.name for t in model.graph.initializer)]:
        numbers.setdefault(name, len(numbers))
    rows: list[Any] = []
    for node in model.graph.node:
        ins = [numbers.setdefault(name, len(numbers)) for name in node.input]
        for name in node.output:
            numbers.setdefault(name, len(numbers))
        settings = [a.SerializeToString(deterministic=True).hex() for a in node.attribute]
        rows.append([node.domain, node.op_type, sorted(settings), ins, len(node.output)])
    text = json.dumps(rows, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
