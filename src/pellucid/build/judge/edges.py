"""Error at the edge of each layer of the engine: the compiled graph's tensors against the source's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import onnx

from pellucid.build.judge import graphs
from pellucid.build.judge.runs import Rows, walk
from pellucid.build.judge.sums import add_arrays
from pellucid.core.boundary import Boundary, Edge
from pellucid.core.gap import Gap
from pellucid.ports import Backend

ROWS_MAX: Final = 256  # limit: rows whose inner tensors are compared, spread over the validation set


class _Layer(msgspec.Struct, frozen=True):
    name: str
    nodes: Sequence[str]
    leaving: Sequence[tuple[str, str, str]]  # compiled tensor, what it is read as, source tensor
    reason: str


def measure(
    backend: Backend,
    runs: Sequence[onnx.ModelProto],
    compiled: graphs.Wiring,
    origin: Callable[[str], str | None],
    layers: Sequence[Mapping[str, Any]],
    rows: Rows,
) -> list[Boundary]:
    """Every layer's boundary, in the order of ``layers``.

    Args:
        runs: Source and compiled graph as they run here.
        compiled: The graph whose nodes stand behind the layers.
        origin: Gives the source's tensor that a compiled one stands for.
        layers: ``facts.layers`` of the engine.
    """
    found = [_layer(layer, compiled, origin) for layer in layers]
    pairs = list(dict.fromkeys((there, here) for layer in found for _, here, there in layer.leaving))
    gaps: list[Gap | None] = [None] * len(pairs)
    failed: dict[int, str] = {}

    def visit(position: int, _batch: Sequence[int], arrays: list[Any]) -> None:
        a, b = arrays
        if position in failed:
            return
        if a.shape != b.shape:
            failed[position] = f"shape {list(a.shape)} in the source, {list(b.shape)} in the graph compiled"
            return
        gap = gaps[position] = gaps[position] or Gap()
        add_arrays(gap, np.ravel(a)[np.newaxis], np.ravel(b)[np.newaxis])

    count = min(rows.data.count, ROWS_MAX)
    spread = [int(i) for i in np.linspace(0, rows.data.count - 1, count)]
    wanted = [there for there, _ in pairs], [here for _, here in pairs]
    failed |= walk(backend, runs, wanted, rows, [spread], visit)
    places = {pair: position for position, pair in enumerate(pairs)}
    return [_boundary(layer, places, gaps, failed) for layer in found]


def _layer(layer: Mapping[str, Any], compiled: graphs.Wiring, origin: Callable[[str], str | None]) -> _Layer:
    # a builder may rename tensors, so that no node is found behind a layer that kept its node's name
    nodes = [name for name in layer["nodes"] or [layer["name"]] if name in compiled.nodes]
    if not nodes:
        return _Layer(layer["name"], nodes, (), "no node of the graph stands behind it")
    edges = graphs.leaving(nodes, compiled)
    if not edges:
        return _Layer(layer["name"], nodes, (), "nothing leaves it")
    origins = [(t, graphs.readable(t, compiled), origin(t)) for t in edges]
    known = [(t, read, there) for t, read, there in origins if there is not None]
    reason = "" if known else f"the source has no tensor {edges[0]!r:.80}"
    return _Layer(layer["name"], nodes, known, reason)


def _boundary(
    layer: _Layer,
    places: Mapping[tuple[str, str], int],
    gaps: Sequence[Gap | None],
    failed: Mapping[int, str],
) -> Boundary:
    edges = []
    for tensor, read, there in layer.leaving:
        place = places[there, read]
        reason = failed.get(place, "")
        edges.append(Edge(there, tensor, None if reason else gaps[place], reason))
    return Boundary(layer.name, layer.nodes, edges, layer.reason)
