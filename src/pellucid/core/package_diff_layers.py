"""Layers of two builds side by side: matched by the ONNX nodes they compute, never by the builder's names.

A reason is given only where one of the two builds says it: a tensor's format, a datatype, a time that
was measured. Otherwise ``reason`` is ``not in the logs``. Source: docs/how-to/compare-two-builds.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.package_diff_sides import Kernel, Side, is_deferred
from pellucid.core.words import counted

UNKNOWN: Final = "not in the logs"
TACTIC_EXPLAINED, PRECISION, FUSION_LOST, TACTIC, ACCURACY, GRAPH, RANGES = range(1, 8)
FORMATS, FUSION_GAINED, MEMORY, RECIPE, ENVIRONMENT, WARNINGS, BYTES = range(8, 15)

_ALIGNMENT: Final = re.compile(r"align(?:ment)?[a-c]?_?(\d{1,4})|ldg(\d{1,4})", re.ASCII | re.IGNORECASE)
_VECTOR: Final = re.compile(r"[(,]\s*1:(\d{1,3})[,)]", re.ASCII)
_FEATURES: Final = ("winograd", "tensorop", "tensor", "fft")
_SHOWN_MAX: Final = 6  # limit: nodes named in one sentence
_GROUPS_MAX: Final = 4  # limit: layers of each side named in one sentence


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        rank: What kind of difference matters how much, 1 first.
        weight: Within a rank: the heavier layer first.
        a, b: The two values, in words.
        words: The difference in one sentence.
        reason: What one of the builds says about it, ``not in the logs``, or ``""`` where the
            difference is itself something that somebody chose.
    """

    rank: int
    section: str
    subject: str
    a: str
    b: str
    words: str
    reason: str = ""
    weight: float = 0.0

    def record(self) -> dict[str, Any]:
        return {
            "section": self.section, "subject": self.subject, "a": self.a, "b": self.b,
            "words": self.words, "reason": self.reason,
        }  # fmt: skip


Groups = dict[frozenset[str], tuple[Kernel, ...]]


def compare_layers(a: Side, b: Side) -> Iterator[Difference]:
    """Tactics, precision, formats of layers that both have, then fusions that only one has."""
    if a.kernels is None or b.kernels is None:
        return
    first, second = _groups(a.kernels), _groups(b.kernels)
    for nodes in first:
        if nodes in second:
            yield from _matched(nodes, first[nodes], second[nodes])
    yield from _regrouped(first, second)
    yield from _reformats(a.kernels, b.kernels)


def _groups(kernels: Iterable[Kernel]) -> Groups:
    found: dict[frozenset[str], list[Kernel]] = {}
    for kernel in kernels:
        if kernel.nodes:
            found.setdefault(kernel.nodes, []).append(kernel)
    return {nodes: tuple(several) for nodes, several in found.items()}


def name_of(nodes: Iterable[str]) -> str:
    """A layer by its nodes: ``conv1 + relu1``."""
    names = sorted(nodes)
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return " + ".join(names[:_SHOWN_MAX]) + more


def weight_of(kernels: Sequence[Kernel]) -> float:
    """Measured milliseconds where there are any (above all sizes), else elements read and written."""
    times = [float(k.time_ms) for k in kernels if k.time_ms is not None]
    return 1e15 * sum(times) if times else float(sum(k.size for k in kernels))


def _matched(nodes: frozenset[str], a: tuple[Kernel, ...], b: tuple[Kernel, ...]) -> Iterator[Difference]:
    weight, subject = max(weight_of(a), weight_of(b)), name_of(nodes)
    tactics = _tactics(a), _tactics(b)
    types = _precision(a), _precision(b)
    if tactics[0] != tactics[1]:
        reason = explain(a, b)
        rank = TACTIC_EXPLAINED if reason != UNKNOWN else TACTIC
        words = f"layer {subject} runs {_timed(a)} in A and {_timed(b)} in B{_lost(*tactics)}"
        yield Difference(rank, "tactics", subject, *tactics, words, reason, weight)
    if types[0] != types[1]:
        words = f"layer {subject} computes in {types[0]} in A and in {types[1]} in B"
        yield Difference(PRECISION, "precision", subject, *types, words, UNKNOWN, weight)
    if found := _formats(a, b):
        words = f"layer {subject}: {found[2]}"
        yield Difference(FORMATS, "formats", subject, found[0], found[1], words, UNKNOWN, weight)


def _tactics(kernels: Sequence[Kernel]) -> str:
    return ", ".join(_tactic(kernel) for kernel in kernels)


def _tactic(kernel: Kernel) -> str:
    # a library kernel that the GPU picks still has a kind, and two kinds are two choices
    return f"{kernel.op} chosen at run time" if is_deferred(kernel) else kernel.tactic or kernel.op


def _timed(kernels: Sequence[Kernel]) -> str:
    return ", ".join(
        _tactic(k) + (f" ({k.time_ms} ms)" if k.time_ms is not None else "") for k in kernels
    )  # fmt: skip


def _lost(a: str, b: str) -> str:
    """A property that stands in one tactic's name only, in words."""
    for feature in _FEATURES:
        if (feature in a.lower()) != (feature in b.lower()):
            word = feature.capitalize() if feature == "winograd" else feature
            return f": it {'lost' if feature in a.lower() else 'gained'} its {word} tactic"
    return ""


def _precision(kernels: Sequence[Kernel]) -> str:
    return ", ".join(dict.fromkeys(k.precision or "a type that is not said" for k in kernels))


def explain(a: Sequence[Kernel], b: Sequence[Kernel]) -> str:
    """What the two builds say about another choice of tactic, or ``not in the logs``."""
    said = []
    if _precision(a) != _precision(b):
        said.append(f"precision {_precision(a)} in A, {_precision(b)} in B")
    alignments = alignment_of(a), alignment_of(b)
    if alignments[0] != alignments[1]:
        said.append(f"alignment {alignments[0]} in A, {alignments[1]} in B")
    if found := _formats(a, b):
        said.append(found[2])
    if shapes := _shapes(a, b):
        said.append(shapes)
    said += _offers(a, b)
    return "; ".join(said) or UNKNOWN


def alignment_of(kernels: Sequence[Kernel]) -> str:
    """Elements that are moved at once, as names of tactics and formats of tensors say; ``not said``."""
    named = [n or m for k in kernels for n, m in _ALIGNMENT.findall(k.tactic)]
    vectors = [v for k in kernels for text in k.formats for v in _VECTOR.findall(text)]
    words = []
    if named:
        words.append("/".join(dict.fromkeys(named)) + " by the tactic's name")
    if vectors:
        words.append("vectors of " + "/".join(dict.fromkeys(vectors)) + " by the format")
    elif any("(" in text and "->" in text for k in kernels for text in k.formats):
        words.append("no vectors by the format")
    return ", ".join(words) or "not said"


def _formats(a: Sequence[Kernel], b: Sequence[Kernel]) -> tuple[str, str, str] | None:
    texts = [[text for k in side for text in k.formats] for side in (a, b)]
    if texts[0] == texts[1]:
        return None
    if len(texts[0]) != len(texts[1]):
        counts = (counted(len(texts[0]), "tensor"), counted(len(texts[1]), "tensor"))
        return *counts, f"{counts[0]} at its edges in A, {counts[1]} in B"
    there, here = next(pair for pair in zip(*texts, strict=True) if pair[0] != pair[1])
    return there, here, f"format {there or 'not said'} in A, {here or 'not said'} in B"


def _shapes(a: Sequence[Kernel], b: Sequence[Kernel]) -> str:
    """First shape at the layer's edges that differs, in words; ``""`` where none does."""
    shapes = [[shape for k in side for shape in k.shapes] for side in (a, b)]
    if len(shapes[0]) != len(shapes[1]):  # said by the formats already
        return ""
    pairs = [pair for pair in zip(*shapes, strict=True) if pair[0] != pair[1]]
    return f"tensor shape {list(pairs[0][0])} in A, {list(pairs[0][1])} in B" if pairs else ""


def _offers(a: Sequence[Kernel], b: Sequence[Kernel]) -> list[str]:
    """What each builder measured of the tactic that the other one chose."""
    said = []
    for mine, other, here, there in ((b, a, "B", "A"), (a, b, "A", "B")):
        for kernel, chosen in zip(mine, other, strict=False):
            if not kernel.timed or chosen.tactic == kernel.tactic:
                continue
            time = kernel.timed.get(chosen.tactic)
            if time is None:
                said.append(f"{here} did not time the tactic of {there}")
            else:
                said.append(f"{here} timed the tactic of {there} at {time} ms")
    return said


# -- fusions --------------------------------------------------------------------------------------


def _regrouped(first: Groups, second: Groups) -> Iterator[Difference]:
    """Sets of layers that compute the same nodes cut in another way."""
    waiting = _Waiting(nodes for nodes in first if nodes not in second)
    others = _Waiting(nodes for nodes in second if nodes not in first)
    for start in list(waiting.places):
        if start not in waiting.places:
            continue
        a, b = waiting.take(start), list[frozenset[str]]()
        fresh = start
        while fresh:  # all that touch what was found in the last round
            more_b, more_a = others.take(fresh), waiting.take(fresh)
            a += more_a
            b += more_b
            fresh = frozenset().union(*more_a, *more_b)
        if b:
            yield _fusion(a, b, first, second)


class _Waiting:
    """Groups that no set has taken yet, found by the nodes they hold."""

    def __init__(self, groups: Iterable[frozenset[str]]) -> None:
        self.places = {nodes: place for place, nodes in enumerate(groups)}
        self._holding: dict[str, list[frozenset[str]]] = {}
        for nodes in self.places:
            for node in nodes:
                self._holding.setdefault(node, []).append(nodes)

    def take(self, nodes: frozenset[str]) -> list[frozenset[str]]:
        """Those that hold any of these nodes, in their order; they wait no longer."""
        held = {group for node in nodes for group in self._holding.pop(node, ())}
        found = sorted(held & self.places.keys(), key=self.places.__getitem__)
        for group in found:
            del self.places[group]
        return found


def _fusion(a: list[frozenset[str]], b: list[frozenset[str]], first: Groups, second: Groups) -> Difference:
    kernels = [k for n in a for k in first[n]], [k for n in b for k in second[n]]
    texts = [_listed(side) for side in (a, b)]
    counts = [f"{len(side)} layer{'s' * (len(side) != 1)}" for side in kernels]
    is_lost, is_gained = len(kernels[0]) < len(kernels[1]), len(kernels[0]) > len(kernels[1])
    verb = "split" if is_lost else "merged" if is_gained else "cut in another way"
    subject = name_of(frozenset().union(*a, *b))
    words = f"layers of {subject} are {verb}: {counts[0]} in A ({texts[0]}), {counts[1]} in B ({texts[1]})"
    types = _precision(kernels[0]), _precision(kernels[1])
    reason = f"precision {types[0]} in A, {types[1]} in B" if types[0] != types[1] else UNKNOWN
    rank = FUSION_GAINED if is_gained else FUSION_LOST
    weight = max(weight_of(kernels[0]), weight_of(kernels[1]))
    return Difference(rank, "fusions", subject, texts[0], texts[1], words, reason, weight)


def _listed(groups: list[frozenset[str]]) -> str:
    more = f"; and {len(groups) - _GROUPS_MAX} more" if len(groups) > _GROUPS_MAX else ""
    return "; ".join(name_of(nodes) for nodes in groups[:_GROUPS_MAX]) + more


def _reformats(a: Sequence[Kernel], b: Sequence[Kernel]) -> Iterator[Difference]:
    counts = [sum(k.is_reformat for k in side) for side in (a, b)]
    if counts[0] != counts[1]:
        words = f"{counts[0]} layers only move or convert data in A, {counts[1]} in B"
        yield Difference(FORMATS, "formats", "reformats", str(counts[0]), str(counts[1]), words, UNKNOWN)
