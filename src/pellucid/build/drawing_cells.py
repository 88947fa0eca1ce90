"""What the two halves of a drawing show: boxes of operations before, boxes of layers after.

Each engine layer has a number; an operation carries the number of the layer it went into, and the
operations of one fused layer share a box. Source: requirement B14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pellucid.build.drawing_graph import Graph, GraphNode
from pellucid.core.facts import lowest

ROWS_MAX: Final = 18  # operations listed in one box; the rest is counted
CONSTANTS_MAX: Final = 12  # operations on constants drawn; more are counted
_CONTRACTS: Final = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention"}
_TITLE_MAX: Final = 12  # names spelled out in a title


class Row(msgspec.Struct, frozen=True):
    """One line of a box.

    Attributes:
        badge: Numbers of the engine's layers.
        gone: Removed, folded, or named by no layer.
    """

    badge: str
    op: str
    name: str
    precision: str
    title: str
    gone: bool = False


class Cell(msgspec.Struct):
    """One box: an input or output of the graph, one operation or layer, or the operations of a fused layer.

    Attributes:
        inner: Lines between rows of this box.
    """

    kind: str
    rows: list[Row]
    fused: bool = False
    inner: list[tuple[int, int]] = msgspec.field(default_factory=list)


class Half(msgspec.Struct):
    """One half of the drawing.

    Attributes:
        edges: ``(box, row, box, row)``, from and to.
        count: Operations or layers in all; hidden: those on constants that are not drawn.
    """

    cells: list[Cell]
    edges: list[tuple[int, int, int, int]]
    count: int
    hidden: int = 0


def before(graph: Graph, layers: Sequence[Mapping[str, Any]], eliminated: Collection[str]) -> Half:
    """Boxes of the graph that the builder got."""
    owners = _owners(layers)
    gone = {n.name for n in graph.nodes if n.name in eliminated or n.name not in owners}
    still = {n.name for n in graph.nodes if n.constant}
    hidden = still if len(still) > CONSTANTS_MAX else set()
    nodes = [n for n in graph.nodes if n.name not in hidden]
    fused = {number for number, layer in enumerate(layers, 1) if layer.get("fused")}
    half = Half([], [], len(graph.nodes), len(hidden))
    places = _place_nodes(half, nodes, owners, gone, fused)
    _wire(half, graph, nodes, places)
    return half


def _owners(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    owners: dict[str, list[int]] = {}
    for number, layer in enumerate(layers, 1):
        for name in dict.fromkeys(layer["nodes"]):
            owners.setdefault(name, []).append(number)
    return owners


def _place_nodes(
    half: Half, nodes: list[GraphNode], owners: dict[str, list[int]], gone: set[str], fused: set[int]
) -> dict[int, tuple[int, int]]:
    """Box and row of each node, by its position; fills ``half.cells``."""
    group = [_group(node, owners, gone, fused) for node in nodes]
    group = _without_cycles(nodes, group)
    places: dict[int, tuple[int, int]] = {}
    cell_of: dict[int, int] = {}
    for at, node in enumerate(nodes):
        number, row = group[at], _node_row(node, owners.get(node.name, []), node.name in gone)
        if number and number in cell_of:
            cell = half.cells[cell_of[number]]
            places[at] = (cell_of[number], len(cell.rows))
            cell.rows.append(row)
            continue
        places[at] = (len(half.cells), 0)
        if number:
            cell_of[number] = len(half.cells)
        shares = bool(set(owners.get(node.name, [])) & fused) and node.name not in gone
        half.cells.append(Cell("node", [row], fused=shares))
    return places


def _group(node: GraphNode, owners: dict[str, list[int]], gone: set[str], fused: set[int]) -> int:
    """The fused layer whose box a node stands in; 0 for a box of its own."""
    if node.name in gone:
        return 0
    return next((number for number in owners[node.name] if number in fused), 0)


def _without_cycles(nodes: list[GraphNode], group: list[int]) -> list[int]:
    """Groups whose boxes would wait for each other are taken apart; their numbers still tell."""
    keys = [number or -1 - at for at, number in enumerate(group)]
    made = {name: at for at, node in enumerate(nodes) for name in node.outputs}
    after: dict[int, set[int]] = {key: set() for key in keys}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            if name in made and keys[made[name]] != keys[at]:
                after[keys[made[name]]].add(keys[at])
    knotted = _knotted(after)
    return [0 if number in knotted else number for number in group]


def _knotted(after: Mapping[int, Collection[int]]) -> set[int]:
    """Members of cycles: what is left after taking away all without predecessor, then without successor."""
    back: dict[int, set[int]] = {key: set() for key in after}
    for key, targets in after.items():
        for target in targets:
            back[target].add(key)
    left = set(after)
    for links, other in ((back, after), (after, back)):
        waits = {key: sum(o in left for o in links[key]) for key in left}
        ready = [key for key in waits if not waits[key]]
        while ready:
            key = ready.pop()
            left.discard(key)
            for target in other[key]:
                if target in left:
                    waits[target] -= 1
                    if not waits[target]:
                        ready.append(target)
    return left


def _node_row(node: GraphNode, numbers: list[int], gone: bool) -> Row:
    said = [f"{node.op} {node.name}", node.precision or "datatype not told"]
    if gone:
        said.append("removed, folded, or named by no layer")
    elif numbers:
        said.append(f"in layer {', '.join(map(str, numbers))}")
    badge = "" if gone else _badge(numbers)
    return Row(badge, node.op, node.name, node.precision, "; ".join(said), gone)


def _badge(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) if len(numbers) < 3 else f"{numbers[0]},{numbers[1]}\u2026"


def _wire(half: Half, graph: Graph, nodes: list[GraphNode], places: Mapping[int, tuple[int, int]]) -> None:
    made: dict[str, tuple[int, int]] = {}
    edges: dict[tuple[int, int, int, int], None] = {}
    for name, said in graph.inputs:
        made[name] = (len(half.cells), 0)
        half.cells.append(_end("in", name, said))
    for at, node in enumerate(nodes):
        for name in node.inputs:
            if name in made:
                edges[(*made[name], *places[at])] = None
        made.update(dict.fromkeys(node.outputs, places[at]))
    for name, said in graph.outputs:
        if name in made:
            edges[(*made[name], len(half.cells), 0)] = None
        half.cells.append(_end("out", name, said))
    for a, row, b, to in edges:
        if a != b:
            half.edges.append((a, row, b, to))
        elif row != to:
            half.cells[a].inner.append((row, to))


def _end(kind: str, name: str, said: str) -> Cell:
    word = "input" if kind == "in" else "output"
    return Cell(kind, [Row("", name, said, said.split(" ")[0], f"{word} {name}: {said}")])


# -- after ----------------------------------------------------------------------------------------


def after(
    graph: Graph, layers: Sequence[Mapping[str, Any]], eliminated: Collection[str], *, tf32: bool
) -> Half:
    """Boxes of the engine's layers, in the builder's order."""
    ops = {n.name: n.op for n in graph.nodes if not n.constant and n.name not in eliminated}
    half = Half([], [], len(layers))
    for number, layer in enumerate(layers, 1):
        half.cells.append(
            Cell("layer", [_layer_row(number, layer, ops, tf32=tf32)], bool(layer.get("fused")))
        )
    names = [list(dict.fromkeys(t["name"] for t in layer.get("inputs") or ())) for layer in layers]
    pairs = dict.fromkeys(_by_tensor(half, layers, names))
    for pair in _by_node(graph, layers, {b for _, b in pairs}):
        pairs.setdefault(pair)
    half.edges = [(a, 0, b, 0) for a, b in sorted(pairs)]
    _ends(half, graph, layers, names)
    return half


def _layer_row(number: int, layer: Mapping[str, Any], ops: Mapping[str, str], *, tf32: bool) -> Row:
    kinds = [ops[name] for name in layer["nodes"] if name in ops]
    kind = layer["op"].rsplit(":", 1)[-1]
    op = "+".join(_runs(kinds)) or readable(layer["name"])
    precision = precision_of(layer, kinds, tf32=tf32)
    said = [f"layer {number}: {layer['op']} {layer['name']}", precision or "datatype not told"]
    if layer["nodes"]:
        more = len(layer["nodes"]) - _TITLE_MAX
        said.append(
            "made of " + ", ".join(layer["nodes"][:_TITLE_MAX]) + (f" and {more} more" if more > 0 else "")
        )
    else:
        said.append("made by the builder itself")
    if layer.get("tactic"):
        said.append(f"kernel {layer['tactic']}")
    name = kind if kind != op else layer["name"]
    return Row(str(number), op, name, precision, "; ".join(said))


def _runs(kinds: Iterable[str]) -> list[str]:
    """Repeated neighbours counted: Conv, Relu, Relu -> Conv, Relu x2."""
    runs: list[tuple[str, int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + 1)
        else:
            runs.append((kind, 1))
    return [kind if count == 1 else f"{kind}\u00d7{count}" for kind, count in runs]


def readable(name: str) -> str:
    """A builder's made-up name without its wrapping: ``__myl_Move_myl0_1`` -> ``Move``."""
    bare = name.removeprefix("__myl_").removeprefix("__mye")
    head, mark, _ = bare.partition("_myl")
    return head if mark and head else name


def precision_of(layer: Mapping[str, Any], kinds: Sequence[str], *, tf32: bool) -> str:
    """What a layer computes in: as the builder says, else the lowest datatype of its tensors."""
    tensors = [*(layer.get("inputs") or ()), *(layer.get("outputs") or ())]
    found = layer.get("precision") or lowest([t.get("datatype") for t in tensors])
    return "TF32" if tf32 and found == "FP32" and set(kinds) & _CONTRACTS else str(found or "")


def _by_tensor(
    half: Half, layers: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Lines by tensor names; where several layers write what several read, they meet in a box of its own."""
    made: dict[str, list[int]] = {}
    readers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for at, layer in enumerate(layers):
        for name in names[at]:
            if name in made:
                readers.setdefault((name, tuple(made[name])), []).append(at)
        for tensor in layer.get("outputs") or ():
            made.setdefault(tensor["name"], []).append(at)
    pairs = []
    for (name, writers), taken in readers.items():
        if len(writers) < 2 or len(taken) < 2:
            pairs += [(a, b) for a in writers for b in taken]
            continue
        said = f"tensor {name}, written by layers {', '.join(str(at + 1) for at in writers[:_TITLE_MAX])}"
        box = len(half.cells)
        half.cells.append(Cell("join", [Row("", "", name, "", said)]))
        pairs += [(a, box) for a in writers] + [(box, b) for b in taken]
    return pairs


def _by_node(graph: Graph, layers: Sequence[Mapping[str, Any]], fed: set[int]) -> Iterable[tuple[int, int]]:
    """Lines for layers whose tensors nothing drawn makes: by the operations they are made of."""
    last = {name: at for at, layer in enumerate(layers) for name in layer["nodes"]}
    made = {name: node.name for node in graph.nodes for name in node.outputs}
    taken = {node.name: node.inputs for node in graph.nodes}
    for at, layer in enumerate(layers):
        if at in fed:
            continue
        for node in layer["nodes"]:
            sources = {last.get(made.get(name, ""), at) for name in taken.get(node, ())}
            yield from ((source, at) for source in sorted(sources) if source < at)


def _ends(
    half: Half, graph: Graph, layers: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]
) -> None:
    """The graph's inputs and outputs, joined by tensor name, else by the operations around them."""
    owners = _owners(layers)
    given = [{t["name"] for t in layer.get("outputs") or ()} for layer in layers]
    for kind, ends in (("in", graph.inputs), ("out", graph.outputs)):
        for name, said in ends:
            if kind == "in":
                found = [at for at, taken in enumerate(names) if name in taken]
                nodes = [n.name for n in graph.nodes if name in n.inputs]
            else:
                found = [at for at, tensors in enumerate(given) if name in tensors][-1:]
                nodes = [n.name for n in graph.nodes if name in n.outputs]
            joined = found or sorted({n - 1 for node in nodes for n in owners.get(node, ())})
            box = len(half.cells)
            half.cells.append(_end(kind, name, said))
            half.edges += [(box, 0, at, 0) if kind == "in" else (at, 0, box, 0) for at in joined]
