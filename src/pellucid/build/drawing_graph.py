"""The graph a drawing needs, as plain values: names, operators, wiring, datatypes; no weights.

``graph_of`` runs in the child that read the model, since the file may be hostile; what it gives
travels to the parent as JSON and is drawn there. Source: requirement B14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pellucid.core.facts import COMPUTES, lowest

_NAMES: Final = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16", 17: "FP8", 18: "FP8", 19: "FP8",
    20: "FP8", 21: "UINT4", 22: "INT4", 23: "FP4",
}  # fmt: skip
_NO_DATA: Final = {"Shape", "Size"}  # their output is the same whatever the numbers are


class GraphNode(msgspec.Struct, frozen=True):
    """One operation.

    Attributes:
        precision: Lowest datatype it takes or gives, ``""`` where the file does not tell.
        constant: Its value does not depend on any input of the graph.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: str = ""
    constant: bool = False


class Graph(msgspec.Struct, frozen=True):
    """Operations in topological order, and what goes in and out.

    Attributes:
        inputs, outputs: Pairs of tensor name and its type in words, for example ``FP32 [-1, 20]``.
    """

    nodes: tuple[GraphNode, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    "name": n.name, "op": n.op, "inputs": n.inputs, "outputs": n.outputs,
                    "precision": n.precision, "constant": n.constant,
                }
                for n in self.nodes
            ],
            "inputs": self.inputs,
            "outputs": self.outputs,
        }  # fmt: skip


def from_json(value: Mapping[str, Any]) -> Graph:
    """What ``Graph.as_json`` gave, after a travel."""
    nodes = tuple(
        GraphNode(
            n["name"], n["op"], tuple(n["inputs"]), tuple(n["outputs"]), n["precision"], bool(n["constant"])
        )
        for n in value["nodes"]
    )
    return Graph(
        nodes,
        tuple((name, said) for name, said in value["inputs"]),
        tuple((name, said) for name, said in value["outputs"]),
    )


def graph_of(model: Any) -> Graph:
    """Graph of an ``onnx.ModelProto``; nested graphs (If, Loop) stay inside their operation.

    An operation without a name is called after its first output.
    """
    graph = model.graph
    weights = {t.name: _NAMES.get(t.data_type, "") for t in graph.initializer}
    kinds = dict(weights)
    for value in [*graph.value_info, *graph.output, *graph.input]:
        kinds.setdefault(value.name, _NAMES.get(value.type.tensor_type.elem_type, ""))
    constant = set(weights) | {""}
    nodes = [_node(node, kinds, constant) for node in graph.node]
    return Graph(
        tuple(nodes),
        tuple((v.name, _type(v)) for v in graph.input if v.name not in weights),
        tuple((v.name, _type(v)) for v in graph.output),
    )


def _node(node: Any, kinds: dict[str, str], constant: set[str]) -> GraphNode:
    inputs, outputs = tuple(n for n in node.input if n), tuple(n for n in node.output if n)
    fixed = all(name in constant for name in inputs) or node.op_type in _NO_DATA
    fixed = fixed and not node.op_type.startswith("Random")
    if fixed:
        constant.update(outputs)
    given = _given(node, [kinds.get(name, "") for name in inputs])
    for name in outputs:
        kinds[name] = kinds.get(name) or given
    taken = [kinds.get(name, "") for name in (*inputs, *outputs)]
    return GraphNode(
        node.name or (outputs[0] if outputs else node.op_type), node.op_type, inputs, outputs,
        lowest(taken), fixed,
    )  # fmt: skip


def _given(node: Any, taken: Sequence[str]) -> str:
    """Datatype of what an operation gives, where the file does not say: a guess only for colour."""
    if node.op_type == "Cast":
        return next((_NAMES.get(a.i, "") for a in node.attribute if a.name == "to"), "")
    if node.op_type == "DequantizeLinear":
        return taken[1] if len(taken) > 1 else ""
    if node.op_type in ("QuantizeLinear", "QLinearConv", "QLinearMatMul"):
        return taken[-1] if taken and taken[-1] in ("INT8", "UINT8") else ""
    return next((kind for kind in taken if kind in COMPUTES), "")


def _type(value: Any) -> str:
    tensor = value.type.tensor_type
    dims = ", ".join(str(d.dim_value) if d.HasField("dim_value") else "-1" for d in tensor.shape.dim)
    return f"{_NAMES.get(tensor.elem_type, '?')} [{dims}]"
