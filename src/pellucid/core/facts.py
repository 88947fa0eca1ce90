"""Which source nodes became which engine layers, by comparing two graphs; no log line is believed here.

The backward cone of a layer (from its outputs, stopping at its inputs) is what it computes. Exact
where the builder keeps tensor names. A layer of made-up tensors is a part of the layers that it feeds,
and names their nodes; one that feeds none is reported as unmapped.
Source: requirement B4; spec/package.md, section 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

COMPUTES: Final = ("FP4", "INT4", "UINT4", "FP8", "INT8", "UINT8", "FP16", "BF16", "FP32", "FP64")
"""Datatypes that layers compute in, the narrowest first."""
_NO_WORK: Final = {"Identity", "Dropout", "Constant"}
_QUANTISED: Final = {
    "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat", "QGemm", "QAttention", "QLinearAdd", "QLinearMul", "QLinearSigmoid",
    "QLinearLeakyRelu", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat",
    "QLinearSoftmax", "QLinearWhere", "DynamicQuantizeLSTM", "QEmbedLayerNormalization", "MatMulNBits",
}  # fmt: skip


class Node(msgspec.Struct, frozen=True):
    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Graph(msgspec.Struct, frozen=True):
    """A graph as far as facts need it.

    Attributes:
        constants: Names of initialisers.
        datatypes: Datatype of each tensor that is known.
    """

    nodes: tuple[Node, ...]
    constants: frozenset[str]
    outputs: tuple[str, ...]
    datatypes: Mapping[str, str] = msgspec.field(default_factory=dict)


class _Sides(msgspec.Struct, frozen=True):
    """Both graphs, and the names by which they are followed.

    Attributes:
        places: Name of a source node -> its positions in the source.
    """

    source: Graph
    engine: Graph
    renamed: Mapping[str, str]
    producers: Mapping[str, Node]
    makers: Mapping[str, Node]
    known: frozenset[str]
    places: Mapping[str, Sequence[int]]

    def in_order(self, names: Iterable[str]) -> list[Node]:
        """Source nodes of these names, in the source's order."""
        return [self.source.nodes[i] for i in sorted(i for name in names for i in self.places[name])]

    def name(self, tensor: str) -> str:
        """The source's name of an engine's tensor, or the engine's own."""
        return self.renamed.get(tensor, tensor)

    def reached(self, tensors: Iterable[str]) -> set[str]:
        """Source tensors behind these, through tensors that the builder made up."""
        waiting, seen, found = list(tensors), set(), set()
        while waiting:
            tensor = waiting.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            maker = self.makers.get(tensor)
            if maker is None or self.name(tensor) in self.known:
                found.add(self.name(tensor))
            else:
                waiting += [name for name in maker.inputs if name and name not in self.engine.constants]
        return found


def lowest(kinds: Sequence[str | None]) -> str:
    """The narrowest datatype that computes, else the first that is known, else ``""``."""
    found = [kind for kind in COMPUTES if kind in kinds]
    return found[0] if found else next((kind for kind in kinds if kind), "")


def _sides(source: Graph, engine: Graph, renamed: Mapping[str, str]) -> _Sides:
    producers = {name: node for node in source.nodes for name in node.outputs if name}
    makers = {name: node for node in engine.nodes for name in node.outputs if name}
    known = frozenset(producers) | source.constants | {name for node in source.nodes for name in node.inputs}
    places: dict[str, list[int]] = {}
    for place, node in enumerate(source.nodes):
        places.setdefault(node.name, []).append(place)
    return _Sides(source, engine, renamed, producers, makers, known, places)


def map_layers(source: Graph, engine: Graph, renamed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Facts of an engine against its source: both directions, fusions, eliminations, precision.

    Args:
        renamed: The engine's name of a tensor -> the source's, where the builder gave another.

    Returns:
        ``layers`` (each with its source nodes), ``nodes`` (each with its layers and fate),
        ``fused_layers``, ``eliminated``, ``unmapped_layers``, ``quantized_ops_count``.
    """
    sides = _sides(source, engine, renamed or {})
    folded = _folded(source)
    layers = [_layer(node, sides, folded) for node in engine.nodes]
    _name_parts(layers, sides)
    owners: dict[str, list[str]] = {}
    for layer in layers:
        for name in layer["nodes"]:
            owners.setdefault(name, []).append(layer["name"])
    kept = {(layer["name"], layer["op"]) for layer in layers}
    nodes = [_fate(node, owners.get(node.name, []), folded, kept) for node in source.nodes]
    return {
        "layers": layers,
        "nodes": nodes,
        "fused_layers": sum(layer["fused"] for layer in layers),
        "eliminated": [n["name"] for n in nodes if n["fate"] != "computed"],
        "unmapped_layers": [layer["name"] for layer in layers if not layer["mapped"]],
        "quantized_ops_count": sum(node.op in _QUANTISED for node in engine.nodes),
    }


def _name_parts(layers: list[dict[str, Any]], sides: _Sides) -> None:
    """Layers of made-up tensors get the nodes of the layers that they feed, in place; last first."""
    readers: dict[str, list[dict[str, Any]]] = {}
    for node, layer in reversed(list(zip(sides.engine.nodes, layers, strict=True))):
        if not layer["mapped"] and not layer["nodes"]:
            fed = [reader for name in node.outputs for reader in readers.get(name, ())]
            wanted = {name for reader in fed for name in reader["nodes"]}
            layer["nodes"] = [node.name for node in sides.in_order(wanted)]
            layer["mapped"] = bool(wanted)
        for name in node.inputs:
            readers.setdefault(name, []).append(layer)


def _folded(source: Graph) -> set[str]:
    """Nodes whose value does not depend on any input: builders compute them once."""
    constant = set(source.constants) | {""}
    folded: set[str] = set()
    for node in source.nodes:  # ONNX keeps nodes in topological order
        if all(name in constant for name in node.inputs) and not node.op.startswith("Random"):
            folded.add(node.name)
            constant.update(node.outputs)
    return folded


def _layer(node: Node, sides: _Sides, folded: set[str]) -> dict[str, Any]:
    source, engine = sides.source, sides.engine
    cone, mapped = _cone(node, sides)
    nodes = sides.in_order(cone)
    work = [n.name for n in nodes if n.name not in folded and n.op not in _NO_WORK]
    return {
        "name": node.name,
        "op": f"{node.domain}:{node.op}" if node.domain else node.op,
        "nodes": [n.name for n in nodes],
        "mapped": mapped,
        "fused": len(work) > 1,
        "inputs": [
            _tensor(name, source, engine) for name in node.inputs if name and name not in engine.constants
        ],
        "outputs": [_tensor(name, source, engine) for name in node.outputs if name],
    }


def _tensor(name: str, source: Graph, engine: Graph) -> dict[str, Any]:
    return {"name": name, "datatype": engine.datatypes.get(name) or source.datatypes.get(name)}


def _cone(node: Node, sides: _Sides) -> tuple[set[str], bool]:
    """Names of the source nodes a layer computes, and whether all its tensors are in the source."""
    stop = sides.reached(name for name in node.inputs if name and name not in sides.engine.constants)
    waiting = [sides.name(name) for name in node.outputs if name]
    mapped = all(name in sides.producers for name in waiting)
    cone: set[str] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in stop or name in seen or name not in sides.producers:
            continue
        seen.add(name)
        producer = sides.producers[name]
        cone.add(producer.name)
        waiting.extend(producer.inputs)
    return cone, mapped


def _fate(node: Node, owners: list[str], folded: set[str], kept: set[tuple[str, str]]) -> dict[str, Any]:
    """What became of a node; ``kept`` are layers by name and operator."""
    if node.name in folded:
        fate = "folded into a constant"
    elif not owners:
        fate = "removed"
    elif node.op in _NO_WORK and not any((name, node.op) in kept for name in owners):
        fate = "absorbed"
    else:
        fate = "computed"
    return {"name": node.name, "op": node.op, "domain": node.domain, "layers": owners, "fate": fate}
