"""What every precision needs of a graph: reading, writing, steps with digests, names that stay safe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pellucid import onnx_light
from pellucid.core.digest import sha256
from pellucid.errors import PrecisionError

if TYPE_CHECKING:
    import onnx

_SAFE: Final = re.compile(r"[A-Za-z0-9_./:+-]{1,200}")
_INVALID: Final = (
    onnx_light.ValidationError, onnx_light.InferenceError, RuntimeError, ValueError, TypeError,
)  # fmt: skip


class Precise(msgspec.Struct, frozen=True):
    """A graph of the wanted precision.

    Attributes:
        steps: ``{"step", "before", "after", "detail"}`` of what was done.
        documents: Path in the package -> value of the canonical profile.
        notes: What a reader should know, in words.
    """

    model: bytes
    steps: list[dict[str, Any]] = msgspec.field(default_factory=list)
    documents: dict[str, Any] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)


def read(raw: bytes) -> onnx.ModelProto:
    """Graph of ONNX bytes.

    Raises:
        PrecisionError: Not ONNX.
    """
    try:
        return onnx_light.parse(raw)
    except DecodeError as error:
        raise PrecisionError(f"model: expected ONNX, got {error!s:.200}") from error


def encode(model: onnx.ModelProto) -> bytes:
    """The one byte form of a graph."""
    raw: bytes = model.SerializeToString(deterministic=True)
    return raw


def step(name: str, before: bytes, after: bytes, detail: str) -> dict[str, Any]:
    """One step from graph to graph."""
    return {"step": name, "before": sha256(before), "after": sha256(after), "detail": detail}


def opset(model: onnx.ModelProto) -> int:
    """Version of the standard's operators; 0 where none is named."""
    return max((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from graphs(inner)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, inner graphs included."""
    for graph in graphs(model.graph):
        yield from graph.node


def name_nodes(model: onnx.ModelProto) -> None:
    """Give nodes that a library added safe and unique names: they end up in logs and facts."""
    taken: set[str] = set()
    for node in nodes(model):
        name = node.name if _SAFE.fullmatch(node.name) else f"node_{node.op_type}"[:180]
        unique, number = name, 1
        while unique in taken:
            unique, number = f"{name[:180]}_{number}", number + 1
        taken.add(unique)
        node.name = unique


def sort_nodes(model: onnx.ModelProto) -> None:
    """Every node behind those it reads from, otherwise in their order; libraries append at the end."""
    for each in graphs(model.graph):
        given = list(each.node)
        makers = {name: position for position, node in enumerate(given) for name in node.output if name}
        order: dict[int, None] = {}
        for position in range(len(given)):
            _place(position, given, makers, order)
        ordered = [given[position] for position in order]
        copies = [onnx_light.NodeProto() for _ in ordered]
        for copy, node in zip(copies, ordered, strict=True):
            copy.CopyFrom(node)
        del each.node[:]
        each.node.extend(copies)


def _place(first: int, given: list[onnx.NodeProto], makers: dict[str, int], order: dict[int, None]) -> None:
    waiting, open_ = [first], set[int]()
    while waiting:
        position = waiting[-1]
        before = {makers[name] for name in _reads(given[position]) if name in makers} - order.keys()
        before -= {position}
        if position in order or not before or before & open_:  # a circle is the checker's to report
            order.setdefault(position)
            waiting.pop()
        else:
            open_.add(position)
            waiting += sorted(before, reverse=True)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node takes, also from outside into its inner graphs."""
    yield from node.input
    for attribute in node.attribute:
        for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            for each in inner.node:
                yield from _reads(each)


def verify(model: onnx.ModelProto, what: str, hint: str = "") -> None:
    """Check a graph that a library changed.

    Raises:
        PrecisionError: It is not valid ONNX any more.
    """
    try:
        onnx_light.check(model)
    except _INVALID as error:
        raise PrecisionError(
            f"{what}: expected a valid graph, got: {' '.join(str(error).split())[:300]}",
            hint=hint or "an operator of the model has no such precision: keep the model at fp32",
        ) from error
