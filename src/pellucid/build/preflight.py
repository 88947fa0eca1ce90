"""Before the builder sees a graph: check it, refuse what cannot be promised, make its names safe.

Runs in the build worker, never in the caller's process: a hostile file may crash its reader. Names
end up in logs and facts, so that one with a line break could speak as the builder; they are renamed
and the map is kept. The graph that comes out is ``compiled.onnx``, what the builder gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pellucid.errors import ParseError

_SAFE: Final = re.compile(r"[A-Za-z0-9_./:+-]{1,200}")
_RANDOM: Final = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}
_INVALID: Final = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    TypeError,
)
_DOMAINS: Final = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A graph fit to build.

    Attributes:
        compiled: ONNX bytes with safe, unique names.
        names: ``{"nodes": [...], "tensors": [...]}`` of ``{"from", "to"}``, only what changed.
        notes: What a reader should know, in words.
    """

    compiled: bytes
    names: dict[str, Any]
    notes: list[str]


def prepare(raw: bytes, recipe: Mapping[str, Any]) -> Prepared:
    """Check and canonicalise a model's bytes for a recipe.

    Raises:
        ParseError: Not ONNX, invalid, external data, names of inputs that are not safe, variable
            axes beyond the batch, or buckets that do not fit the model.
    """
    model = _parse(raw)
    _verify_embedded(model)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    _verify_valid(model)
    _verify_interface(model, recipe)
    notes = _notes(model)
    names = _rename(model.graph)
    _drop_comments(model.graph)
    return Prepared(model.SerializeToString(deterministic=True), names, notes)


def _parse(raw: bytes) -> onnx.ModelProto:
    if not raw:
        raise ParseError("model: expected ONNX, got an empty file")
    try:
        model = onnx.load_model_from_string(raw)
    except DecodeError as error:
        raise ParseError(f"model: expected ONNX, got {error!s:.200}") from error
    if not model.graph.node:
        raise ParseError("model: expected a graph with nodes, got none")
    return model


def _verify_embedded(model: onnx.ModelProto) -> None:
    names = [
        f"{t.name!r:.60} in {_location(t)!r:.80}"
        for graph in _graphs(model.graph)
        for t in graph.initializer
        if t.data_location == onnx.TensorProto.EXTERNAL
    ]
    if names:
        raise ParseError(
            f"model: expected all weights inside the file, got {len(names)} outside: {', '.join(names[:5])}",
            hint="embed them: onnx.save(onnx.load(path), path, save_as_external_data=False)",
        )


def _location(tensor: onnx.TensorProto) -> str:
    return next((item.value for item in tensor.external_data if item.key == "location"), "")


def _verify_valid(model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except _INVALID as error:
        raise ParseError(f"model: expected valid ONNX, got: {' '.join(str(error).split())[:300]}") from error


def _verify_interface(model: onnx.ModelProto, recipe: Mapping[str, Any]) -> None:
    constants = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    for value in [*inputs, *model.graph.output]:
        if not _SAFE.fullmatch(value.name):
            raise ParseError(
                f"model: input or output {value.name!r:.80}: expected a name of [A-Za-z0-9_./:+-]",
                hint="clients send these names: rename it where the model is exported",
            )
    variable = {value.name: _variable_axes(value) for value in inputs}
    for name, axes in variable.items():
        if set(axes) - {0}:
            raise ParseError(
                f"model: input {name!r:.80}: expected no variable axis but the batch, got axes {axes}",
                hint="fix the other axes at export: batches are padded along axis 0 only",
            )
    _verify_buckets({name: 0 in axes for name, axes in variable.items()}, recipe["buckets"])
    for value in model.graph.output if recipe["buckets"] else []:
        if value.type.tensor_type.HasField("shape") and 0 not in _variable_axes(value):
            raise ParseError(
                f"model: output {value.name!r:.80}: expected the batch axis first, got none",
                hint="a model whose outputs mix its rows cannot be batched",
            )


def _verify_buckets(batched: Mapping[str, bool], buckets: list[int]) -> None:
    if any(batched.values()) and not all(batched.values()):
        fixed = sorted(name for name, is_batched in batched.items() if not is_batched)
        raise ParseError(f"model: expected a batch axis on every input or on none, got none on {fixed}")
    has_batch = bool(batched) and all(batched.values())
    if has_batch and not buckets:
        raise ParseError("recipe: buckets: expected at least one for a model with a batch axis, got none")
    if not has_batch and buckets:
        raise ParseError(
            f"recipe: buckets: expected [] for a model without a batch axis, got {buckets}",
            hint="each call runs alone with the model's own shape",
        )


def _variable_axes(value: onnx.ValueInfoProto) -> list[int]:
    shape = value.type.tensor_type.shape
    return [i for i, d in enumerate(shape.dim) if not (d.HasField("dim_value") and d.dim_value >= 0)]


def _notes(model: onnx.ModelProto) -> list[str]:
    notes = []
    for node in (node for graph in _graphs(model.graph) for node in graph.node):
        if node.op_type in _RANDOM:
            notes.append(
                f"node {node.name!r:.80}: {node.op_type} draws random numbers: replay cannot promise bits"
            )
        if node.domain not in _DOMAINS:
            notes.append(
                f"node {node.name!r:.80}: operator {node.op_type!r:.60} of domain {node.domain!r:.60}"
            )
    return notes


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _graphs(inner)


def _rename(top: onnx.GraphProto) -> dict[str, Any]:
    """Unique safe names for every node and inner tensor, in place; gives what changed."""
    graphs = list(_graphs(top))
    tensors = _tensor_names(graphs)
    taken: set[str] = set()
    nodes = []
    for graph in graphs:
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [tensors.get(name, name) for name in names]
            wanted = node.name if _SAFE.fullmatch(node.name) else _made_up(node)
            name = _unique(wanted, taken)
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
    return f"node_of_{first}"[:180] if _SAFE.fullmatch(first) else f"node_{node.op_type}"[:180]


def _tensor_names(graphs: list[onnx.GraphProto]) -> dict[str, str]:
    """Unsafe tensor names and what they become; ONNX names are unique over a graph and its inner ones."""
    seen: dict[str, None] = {}
    for graph in graphs:
        named = [v.name for v in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]]
        named += [sparse.values.name for sparse in graph.sparse_initializer]
        named += [name for node in graph.node for name in [*node.input, *node.output]]
        seen.update(dict.fromkeys(named))
    taken = {name for name in seen if _SAFE.fullmatch(name)}
    return {name: _unique("tensor", taken) for name in seen if name and not _SAFE.fullmatch(name)}


def _unique(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def _drop_comments(top: onnx.GraphProto) -> None:
    """Doc strings hold paths and stack traces of the exporter's machine; axis names are text, too."""
    top.name = top.name if _SAFE.fullmatch(top.name) else "graph"
    for graph in _graphs(top):
        graph.doc_string = ""
        for item in [*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
            item.doc_string = ""
        for value in [*graph.input, *graph.output, *graph.value_info]:
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.HasField("dim_param") and not _SAFE.fullmatch(dimension.dim_param):
                    dimension.ClearField("dim_param")
