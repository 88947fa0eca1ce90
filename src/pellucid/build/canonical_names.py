"""Names that cannot speak: nodes, tensors and axes of a graph get safe, unique ones, in place.

Names end up in logs and facts, so that one with a line break could speak as the builder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import onnx


SAFE: Final = re.compile(r"[A-Za-z0-9_./:+-]{1,200}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:+()=-]{0,200}")  # who exported it, no path and no markup
Renamed = list[dict[str, str]]


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from graphs_of(inner)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, inner graphs' too."""
    for one in graphs_of(graph):
        yield from one.node


def values_of(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Every declared tensor, inner graphs' too."""
    for one in graphs_of(graph):
        yield from [*one.input, *one.output, *one.value_info]


def dimensions_of(value: onnx.ValueInfoProto) -> Any:
    """Axes of a declared tensor; empty for what is no tensor."""
    return value.type.tensor_type.shape.dim


def rename(top: onnx.GraphProto) -> dict[str, Renamed]:
    """Unique safe names for every node and inner tensor; gives what changed."""
    graphs = list(graphs_of(top))
    tensors = _tensor_names(graphs)
    taken: set[str] = set()
    nodes = []
    for graph in graphs:
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [tensors.get(name, name) for name in names]
            wanted = node.name if SAFE.fullmatch(node.name) else _made_up(node)
            name = unique(wanted, taken)
            if name != node.name:
                nodes.append({"from": node.name, "to": name})
            node.name = name
        for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
            value.name = tensors.get(value.name, value.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = tensors.get(sparse.values.name, sparse.values.name)
    return {"nodes": nodes, "tensors": [{"from": a, "to": b} for a, b in tensors.items()]}


def _made_up(node: onnx.NodeProto) -> str:
    first = next((name for name in node.output if name), "nothing")
    return f"node_of_{first}"[:180] if SAFE.fullmatch(first) else f"node_{node.op_type}"[:180]


def _tensor_names(graphs: list[onnx.GraphProto]) -> dict[str, str]:
    """Unsafe tensor names and what they become; ONNX names are unique over a graph and its inner ones."""
    seen: dict[str, None] = {}
    for graph in graphs:
        seen.update(dict.fromkeys(_names_in(graph)))
    taken = {name for name in seen if SAFE.fullmatch(name)}
    return {name: unique("tensor", taken) for name in seen if name and not SAFE.fullmatch(name)}


def _names_in(graph: onnx.GraphProto) -> list[str]:
    named = [v.name for v in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]]
    named += [sparse.values.name for sparse in graph.sparse_initializer]
    return named + [name for node in graph.node for name in [*node.input, *node.output]]


def unique(wanted: str, taken: set[str]) -> str:
    """``wanted``, or with a number behind it; takes it."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def drop_comments(model: onnx.ModelProto) -> bool:
    """Remove texts that hold paths and stack traces of the exporter's machine; says whether any was."""
    top = model.graph
    dropped = False
    for graph in graphs_of(top):  # a builder prints a branch's name, too
        if not SAFE.fullmatch(graph.name):
            dropped |= graph.name != "graph"
            graph.name = "graph"
    dropped |= sum(_clear(model, kind) for kind in ("doc_string", "metadata_props", "training_info")) > 0
    for kind in ("producer_name", "producer_version", "domain"):
        if not _PLAIN.fullmatch(getattr(model, kind)):
            model.ClearField(kind)
            dropped = True
    for graph in graphs_of(top):
        for item in [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
            dropped |= sum(_clear(item, kind) for kind in ("doc_string", "metadata_props")) > 0
    return dropped


def _clear(message: Any, field: str) -> bool:
    """Empty a field where the message has it; says whether it held anything."""
    if field not in message.DESCRIPTOR.fields_by_name:
        return False
    held = message.HasField(field) if field == "doc_string" else len(getattr(message, field)) > 0
    if held:
        message.ClearField(field)
    return held


def name_axes(model: onnx.ModelProto, inputs: list[onnx.ValueInfoProto], *, batched: bool) -> list[str]:
    """Every variable axis its own name, in place; gives ``INPUT[AXIS]: NAME`` of those that got one.

    Exporters write ``?`` for axes they know nothing about, and a builder takes two of one name for
    equal. The first axis of all inputs is the batch and has one name.
    """
    before = _axes(model)
    batch = _one_batch_name(model, inputs) if batched else ""
    for value in values_of(model.graph):
        for dimension in dimensions_of(value):
            if dimension.HasField("dim_param") and not SAFE.fullmatch(dimension.dim_param):
                dimension.ClearField("dim_param")
            if dimension.HasField("dim_value") and dimension.dim_value < 0:
                dimension.ClearField("dim_value")
    taken = {d.dim_param for value in values_of(model.graph) for d in dimensions_of(value)} | {batch}
    named = []
    for value in inputs:
        for axis, dimension in enumerate(dimensions_of(value)):
            if dimension.HasField("dim_value") or dimension.dim_param:
                continue
            is_batch = batched and axis == 0
            dimension.dim_param = batch if is_batch else unique(f"{value.name}_axis{axis}"[:180], taken)
            named.append(f"{value.name}[{axis}]: {dimension.dim_param}")
    if not named and _axes(model) != before:
        named.append("others")
    return named


def _axes(model: onnx.ModelProto) -> list[bytes]:
    return [d.SerializeToString() for value in values_of(model.graph) for d in dimensions_of(value)]


def _one_batch_name(model: onnx.ModelProto, inputs: list[onnx.ValueInfoProto]) -> str:
    """The name of the first axis of the inputs, which is put in place of every other such name."""
    firsts = [dimensions_of(value)[0].dim_param for value in inputs]
    known = [name for name in dict.fromkeys(firsts) if SAFE.fullmatch(name)]
    if not known:
        others = {d.dim_param for value in values_of(model.graph) for d in dimensions_of(value)}
        return unique("batch", others)
    for value in values_of(model.graph):
        for dimension in dimensions_of(value):
            if dimension.dim_param in known:
                dimension.dim_param = known[0]
    return str(known[0])
