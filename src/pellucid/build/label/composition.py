"""What the engine is made of: the drawing, and which operations became which layer, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pellucid.build.drawing_cells import precision_of
from pellucid.build.label.content import Figure, Section, Table, counted, cut

_REMOVED_MAX = 8  # limit: names that say little
_NAMES_MAX = 24  # limit: names in one cell


def composition(facts: Mapping[str, Any], drawing: str) -> Section:
    """Composition as facts.json says it."""
    layers = facts["layers"]
    if facts.get("layers_reason"):  # nothing is drawn or counted that nobody knows
        known = [*_graphs(facts), ("Engine layers", facts["layers_reason"])]
        return Section("What it is made of", known)
    rows = [
        *_graphs(facts),
        ("Engine layers", f"{len(layers):,}"),
        ("Fused layers", f"{facts['fused_layers']:,}"),
        ("Removed or folded", _removed(facts["eliminated"])),
        ("Engine layers that compute quantised", f"{facts['quantized_ops_count']:,}"),
    ]
    if facts.get("reformats_count") is not None:
        rows.append(("Layers that only move or reshape", f"{facts['reformats_count']:,}"))
    if facts.get("other_layers"):
        rows.append(("Waits and jumps, not listed", f"{facts['other_layers']:,}"))
    if "tactics" in facts:
        rows.append(("Kernels", facts["tactics"]))
    figures = []
    if drawing:
        rows.append(("Drawing", "drawing.svg in this package; label.html shows it"))
        figures.append(
            Figure(drawing, "The graph before and after fusion; the table below says it in words", True)
        )
    return Section("What it is made of", rows, figures=figures, tables=[_table(facts)])


def _graphs(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Sizes of the graph as given and of the one the builder got, which canonicalisation makes another."""
    given = facts.get("source_nodes")
    rows = [("Operators of the source graph", f"{given:,}")] if given is not None else []
    got, inner = f"{len(facts['nodes']):,}", facts.get("inner_nodes")
    if inner:
        got += f", and {inner:,} inside branches and loops, whose layers this builder does not tell apart"
    return [*rows, ("Operators of the graph that the builder got", got)]


def _table(facts: Mapping[str, Any]) -> Table:
    shown, rest = cut(facts["layers"], "facts.json")
    kinds = {node["name"]: node.get("op", "") for node in facts["nodes"]}
    rows = [
        (str(number), _kind(layer), _made_of(layer, kinds), precision_of(layer, (), tf32=False) or "not told")
        for number, layer in enumerate(shown, 1)
    ]
    fused = counted(facts["fused_layers"], "layer")
    return Table(
        f"Layers of the engine and the operations in each; {fused} fused",
        ("Layer", "Kind", "Made of", "Precision"), rows, (0,), rest,
    )  # fmt: skip


def _kind(layer: Mapping[str, Any]) -> str:
    return f"{layer['op']}, fused" if layer.get("fused") else str(layer["op"])


def _made_of(layer: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    if not layer["nodes"]:
        return f"{layer['name']}, made by the builder itself"
    told = {name: f"{name} ({kinds[name]})" if kinds.get(name) else name for name in layer["nodes"]}
    within = set(layer.get("within") or ())
    inside = f", inside {_names([told.get(n, n) for n in layer['within']])}" if within else ""
    return _names([told[name] for name in layer["nodes"] if name not in within], " + ") + inside


def _removed(names: list[str]) -> str:
    shown, rest = cut(names, "facts.json", _REMOVED_MAX)
    return (", ".join(shown) or "none") + (f"; {rest}" if rest else "")


def _names(names: list[str], between: str = ", ") -> str:
    """Names in one line, the rest of very many counted."""
    if len(names) <= _NAMES_MAX:
        return between.join(names)
    return between.join(names[:_NAMES_MAX]) + f" and {len(names) - _NAMES_MAX:,} more"


def precisions(facts: Mapping[str, Any], *, tf32: bool) -> str:
    """How many layers compute in what."""
    kinds = {node["name"]: node.get("op", "") for node in facts["nodes"]}
    found = Counter(
        precision_of(layer, [kinds.get(name, "") for name in layer["nodes"]], tf32=tf32) or "not told"
        for layer in facts["layers"]
    )
    return ", ".join(f"{kind}: {counted(count, 'layer')}" for kind, count in sorted(found.items()))
