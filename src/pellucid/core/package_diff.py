"""Two builds compared: what differs, ordered by what matters first, with a reason where one is known.

Pure: documents in, differences out. Order of ranks: a tactic with a known reason, precision, a lost
fusion, a tactic without a known reason, accuracy, graph, ranges, formats, gained fusions, memory,
recipe, environment, warnings, bytes. Source: docs/how-to/compare-two-builds.md; requirement B11.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from pellucid.core.package_diff_backends import Builders, builders
from pellucid.core.package_diff_layers import (
    ACCURACY,
    BYTES,
    ENVIRONMENT,
    GRAPH,
    MEMORY,
    RANGES,
    RECIPE,
    UNKNOWN,
    WARNINGS,
    Difference,
    compare_layers,
)
from pellucid.core.package_diff_sides import Side
from pellucid.core.words import counted, printable
from pellucid.errors import FormatError

SECTIONS: Final = (
    "tactics", "precision", "fusions", "graph", "ranges", "accuracy", "formats", "memory", "recipe",
    "environment", "warnings", "engine",
)  # fmt: skip
_OF_THE_TARGET: Final = {"tactics", "precision", "fusions", "formats", "memory"}
WENT_IN: Final = "; what went in differs: "
NOTHING: Final = "no difference in anything that was compared"

_NOT_OF_THE_BUILD: Final = {"name", "version", "previous", "reasons"}  # recipe: who, not how
_OPTION: Final = "options."
_OPTIONS_ELSEWHERE: Final = {"network_name", "targets", "workspace_bytes", "tf32", "profiles"}
_ENVIRONMENT: Final = (
    "backend", "cuda", "driver", "gpu", "mig", "python", "image", "commit",
)  # fmt: skip
_SYSTEM: Final = ("name", "kernel", "libc", "architecture")
_LISTED_MAX: Final = 12  # limit: of one kind in a sentence
_NOISY_MEMORY: Final = {"peak_rss_bytes"}  # of the building process, not of the engine


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two builds side by side.

    Attributes:
        differences: What matters most first.
        same: Sections that were compared and are equal.
        not_compared: Section -> why.
        targets: What A and B were built for, where that differs.
        builders: Who built A and B, where their backends differ.
        causes: What went in and differs, as it stands in the reason of whatever has no better one.
    """

    differences: tuple[Difference, ...]
    same: tuple[str, ...]
    not_compared: Mapping[str, str]
    targets: tuple[str, str] | None = None
    builders: Builders | None = None
    causes: str = ""

    @property
    def first(self) -> str:
        """The most consequential difference in words, with its likely reason."""
        if not self.differences:
            return NOTHING
        found = self.differences[0]
        if self.builders is not None and found.section in _OF_THE_TARGET:
            return f"{self.builders.words}, the likely cause: {found.words}"
        if self.targets is None or found.section not in _OF_THE_TARGET:
            return f"{found.words}; reason: {found.reason}" if found.reason else found.words
        # another GPU has other kernels: padding, formats and shapes at their edges follow from that
        seen = f"; seen in: {found.reason}" if found.reason and not found.reason.startswith(UNKNOWN) else ""
        return f"target {self.targets[0]} in A, {self.targets[1]} in B, the likely cause: {found.words}{seen}"


def compare(a: Side, b: Side) -> Comparison:
    """Everything that differs between two builds.

    Raises:
        FormatError: A document that is not of its form; a stranger's package may hold anything.
    """
    try:
        return _compare(a, b)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FormatError(
            f"packages {a.title!r:.120} and {b.title!r:.120}: expected documents as spec/package.md says, "
            f"got {error!r:.120}"
        ) from error


def _compare(a: Side, b: Side) -> Comparison:
    inputs = [*_recipe(a, b), *_environment(a, b)]
    found = [*compare_layers(a, b), *_graph(a, b), *_ranges(a, b), *_accuracy(a, b), *_memory(a, b), *inputs,
             *_warnings(a, b), *_bytes(a, b)]  # fmt: skip
    causes, types = _causes(a, b, inputs), _types(a, b, inputs)
    explained = [_safe(_with_causes(difference, causes, types)) for difference in found]
    ordered = sorted(explained, key=lambda d: (d.rank, -d.weight, SECTIONS.index(d.section), d.subject))
    missing = _not_compared(a, b)
    touched = {difference.section for difference in ordered}
    same = tuple(s for s in SECTIONS if s not in touched and s not in missing)
    targets = next(((d.a, d.b) for d in inputs if d.subject == "target"), None)
    return Comparison(tuple(ordered), same, missing, targets, builders(a, b), printable(causes))


def _causes(a: Side, b: Side, inputs: list[Difference]) -> str:
    """What went into the builds and differs: the only things that can be behind another engine."""
    is_one_kind = builders(a, b) is None  # options of two backends are no difference of one thing
    matter = [d for d in inputs if _can_matter(d) and (is_one_kind or not is_option(d))]
    words = [f"{d.subject} {d.a} in A, {d.b} in B" for d in matter]
    if _digest(a, "compiled") != _digest(b, "compiled"):
        words.append("the graph that was compiled")
    return "; ".join(words[:_LISTED_MAX])


def is_option(difference: Difference) -> bool:
    """Whether it is an option as the builder read it back."""
    return difference.section == "recipe" and difference.subject.startswith(_OPTION)


def _can_matter(difference: Difference) -> bool:
    """Whether the builder sees it."""
    key = difference.subject.partition(".")[0]
    judged_later = {"gate", "golden", "validation", "reference", "limits", "commitment", "meaning", "model",
                    "nonfinite", "licence_ack", "strict", "pinned_bucket", "batch_delay_us"}  # fmt: skip
    if difference.section == "recipe":
        return key not in judged_later
    return difference.subject in _BUILDERS or key in ("gpu", "driver", "cuda", "device")


_BUILDERS: Final = {
    "tensorrt", "tensorrt_rtx", "tensorrt_rtx_cu13", "tensorrt_rtx_cu13_libs", "onnxruntime", "onnx",
    "backend",
}  # fmt: skip


def _types(a: Side, b: Side, inputs: list[Difference]) -> str:
    """Why layers compute in other types, where that is known; ``""`` otherwise."""
    for difference in inputs:
        if difference.subject == "precision":
            return f"the recipe asks for {difference.a} in A, {difference.b} in B"
    typed = all((side.options or {}).get("strongly_typed") is True for side in (a, b))
    if typed and _digest(a, "compiled") != _digest(b, "compiled"):
        return "the graphs that were compiled differ, and this builder takes its types from the graph"
    return ""


def _with_causes(difference: Difference, causes: str, types: str) -> Difference:
    """An unknown reason, with what else differs beside it; that is a place to look, not a cause."""
    if difference.reason != UNKNOWN or not causes:
        return difference
    if difference.section == "precision" and types:
        return replace(difference, reason=types)
    return replace(difference, reason=f"{UNKNOWN}{WENT_IN}{causes}")


def _safe(difference: Difference) -> Difference:
    """Without any character that moves a cursor: names and values are those of the files."""
    d = difference
    return replace(
        d, subject=printable(d.subject), a=printable(d.a), b=printable(d.b), words=printable(d.words),
        reason=printable(d.reason),
    )  # fmt: skip


def _digest(side: Side, role: str) -> str | None:
    return side.digests.get(role)


def shown(value: Any) -> str:
    """A value in words, one line, not too long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    text = printable(text)
    return text if len(text) <= 240 else text[:237] + "..."


def _changed(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Keys whose values differ, mappings opened."""
    for key in sorted(a.keys() | b.keys()):
        there, here = a.get(key), b.get(key)
        if there == here:
            continue
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            yield from _changed(there, here, f"{prefix}{key}.")
        else:
            yield prefix + key, shown(there), shown(here)


# -- sections -------------------------------------------------------------------------------------


def _recipe(a: Side, b: Side) -> Iterator[Difference]:
    if a.recipe is None or b.recipe is None:
        return
    there, here = (
        {k: v for k, v in (side.recipe or {}).items() if k not in _NOT_OF_THE_BUILD} for side in (a, b)
    )
    for key, old, new in _changed(there, here):
        weight = {"precision": 3, "target": 2, "backend": 2}.get(key, 0)
        yield Difference(RECIPE, "recipe", key, old, new, f"recipe: {key} is {old} in A and {new} in B",
                         weight=weight)  # fmt: skip
    there, here = (
        {k: v for k, v in (side.options or {}).items() if k not in _OPTIONS_ELSEWHERE} for side in (a, b)
    )
    for key, old, new in _changed(there, here):
        words = f"option as read back: {key} is {old} in A and {new} in B"
        yield Difference(RECIPE, "recipe", _OPTION + key, old, new, words)


def _environment(a: Side, b: Side) -> Iterator[Difference]:
    if a.environment is None or b.environment is None:
        return
    for key, old, new in _changed(_of_environment(a.environment), _of_environment(b.environment)):
        weight = 1 if key in _BUILDERS or key.startswith(("gpu", "device", "driver", "cuda")) else 0
        words = f"environment: {key} is {old} in A and {new} in B"
        yield Difference(ENVIRONMENT, "environment", key, old, new, words, weight=weight)


def _of_environment(said: Mapping[str, Any]) -> dict[str, Any]:
    """What two builds are compared by: versions, device, system; not who, when and where."""
    packages = {p["name"]: p["version"] for p in said.get("packages", [])}
    system = said.get("system") or {}
    device = said.get("device")
    known = {key: said[key] for key in _ENVIRONMENT if said.get(key) is not None}
    if isinstance(device, Mapping):
        known |= {f"device.{key}": value for key, value in device.items() if key != "uuid"}
    hermetic = {f"hermetic.{k}": v for k, v in (said.get("hermetic") or {}).items() if k != "left_behind"}
    return packages | known | hermetic | {f"system.{k}": system[k] for k in _SYSTEM if k in system}


def _graph(a: Side, b: Side) -> Iterator[Difference]:
    if a.nodes is None or b.nodes is None:
        return
    added, removed = sorted(b.nodes.keys() - a.nodes.keys()), sorted(a.nodes.keys() - b.nodes.keys())
    for names, where, side in ((removed, "A", a), (added, "B", b)):
        if names:
            listed = ", ".join(f"{shown(n)} ({(side.nodes or {})[n]})" for n in names[:_LISTED_MAX])
            more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
            words = f"graph: {counted(len(names), 'node')} only in {where}: {listed}{more}"
            counts = (str(len(names)), "0") if where == "A" else ("0", str(len(names)))
            yield Difference(GRAPH, "graph", f"nodes only in {where}", *counts, words, weight=len(names))
    for name in sorted(a.nodes.keys() & b.nodes.keys()):
        if a.nodes[name] != b.nodes[name]:
            words = f"graph: node {shown(name)} is {a.nodes[name]} in A and {b.nodes[name]} in B"
            yield Difference(GRAPH, "graph", shown(name), a.nodes[name], b.nodes[name], words, weight=0.5)
    sources = _digest(a, "source"), _digest(b, "source")
    if None not in sources and sources[0] != sources[1]:
        words = "graph: the models that were given are not the same file"
        if not added and not removed:
            words += ", though their nodes have the same names: weights or attributes differ"
        yield Difference(GRAPH, "graph", "source", str(sources[0]), str(sources[1]), words)


def _ranges(a: Side, b: Side) -> Iterator[Difference]:
    if a.ranges is None or b.ranges is None:
        return
    for name in sorted(a.ranges.keys() | b.ranges.keys()):
        old, new = a.ranges.get(name), b.ranges.get(name)
        if old == new:
            continue
        there, here = ("none" if r is None else f"[{r[0]}, {r[1]}]" for r in (old, new))
        change = relative_change(old, new) if old and new else Decimal(1)
        words = f"range of {shown(name)}: {there} in A, {here} in B ({change:.0%} of the wider)"
        yield Difference(RANGES, "ranges", shown(name), there, here, words, weight=float(change))


def relative_change(a: tuple[Decimal, Decimal], b: tuple[Decimal, Decimal]) -> Decimal:
    """Largest move of an end, as a share of the wider range; 0 for two points."""
    width = max(a[1] - a[0], b[1] - b[0])
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) / width if width > 0 else Decimal(a != b)


def _accuracy(a: Side, b: Side) -> Iterator[Difference]:
    if a.accuracy is None or b.accuracy is None:
        return
    for name in sorted(a.accuracy.keys() | b.accuracy.keys()):
        old, new = a.accuracy.get(name), b.accuracy.get(name)
        if old != new:
            there, here = ("not measured" if v is None else str(v) for v in (old, new))
            change = 0.0 if old is None or new is None else float(abs(new - old))
            words = f"accuracy: {name} is {there} in A and {here} in B"
            is_result = not name.endswith((".samples", "_ns"))
            yield Difference(
                ACCURACY, "accuracy", name, there, here, words, weight=change if is_result else -1.0
            )


def _memory(a: Side, b: Side) -> Iterator[Difference]:
    for name in sorted((a.memory or {}).keys() & (b.memory or {}).keys() - _NOISY_MEMORY):
        old, new = (a.memory or {})[name], (b.memory or {})[name]
        if old != new and old is not None and new is not None:
            words = f"memory: {name} is {old:,} bytes in A and {new:,} in B"
            yield Difference(MEMORY, "memory", name, str(old), str(new), words, UNKNOWN, abs(new - old))


def _warnings(a: Side, b: Side) -> Iterator[Difference]:
    if a.warnings is None or b.warnings is None:
        return
    for kind in sorted(a.warnings.keys() | b.warnings.keys()):
        old, new = a.warnings.get(kind, 0), b.warnings.get(kind, 0)
        if old != new:
            words = f"warnings: {old} of kind {kind} in A, {new} in B"
            yield Difference(WARNINGS, "warnings", kind, str(old), str(new), words)


def _bytes(a: Side, b: Side) -> Iterator[Difference]:
    engines = _digest(a, "engine"), _digest(b, "engine")
    if None in engines or engines[0] == engines[1]:
        return
    words = "the engines are not the same bytes"
    if a.fingerprint is not None and b.fingerprint is not None:
        words += ", the layers are the same" if a.fingerprint == b.fingerprint else ", nor the same layers"
    yield Difference(BYTES, "engine", "bytes", str(engines[0]), str(engines[1]), words)


def _not_compared(a: Side, b: Side) -> dict[str, str]:
    """Sections that at least one side says nothing about."""
    parts: dict[str, tuple[Any, Any]] = {
        "tactics": (a.kernels, b.kernels), "precision": (a.kernels, b.kernels),
        "fusions": (a.kernels, b.kernels), "formats": (a.kernels, b.kernels), "graph": (a.nodes, b.nodes),
        "ranges": (a.ranges, b.ranges), "accuracy": (a.accuracy, b.accuracy), "memory": (a.memory, b.memory),
        "recipe": (a.recipe, b.recipe), "environment": (a.environment, b.environment),
        "warnings": (a.warnings, b.warnings), "engine": (_digest(a, "engine"), _digest(b, "engine")),
    }  # fmt: skip
    return {
        section: "neither says"
        if there is None and here is None
        else f"{'A' if there is None else 'B'} does not say"
        for section, (there, here) in parts.items()
        if there is None or here is None
    }
