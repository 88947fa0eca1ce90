"""Tactics of a log of the classic form (TensorRT 10, 11), where the builder times them one by one.

Written from the public grammar of such logs and never compared with a real one: ``FORM`` says so in
every fact. For each layer the builder tries combinations of tensor formats and chooses a tactic in
each; which combination won stands only in its list of layers at the end. Source:
spec/tensorrt-facts.md, section 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from pellucid.core.tensorrt_dump import is_plain_name
from pellucid.core.tensorrt_log import verify_names
from pellucid.core.tensorrt_reader import ChosenTactic, Line, Said, TimedTactic, read_messages
from pellucid.errors import ParseError

FORM: Final = "classic, not verified against a real log"
LISTED: Final = "the builder's list of layers names it"
ONLY: Final = "the only combination of formats that was tried"
FASTEST: Final = "the fastest of those chosen; the log does not say which combination of formats won"

_ENGINE_LAYER: Final = re.compile(
    r"Layer\(\w{1,64}\): (?P<name>.{1,4096}?), Tactic: (?P<tactic>0x[0-9a-f]{1,32})(?:, .*)?", re.ASCII
)
_DUMP_LAYER: Final = re.compile(
    r"Name: (?P<name>[^,]{1,4096}), LayerType: .*, TacticValue: (?P<tactic>0x[0-9a-f]{1,32}),.*", re.ASCII
)
_WRAPPED: Final = re.compile(r"PWN\((?P<inside>[^()]*)\)")
_DATATYPE: Final = re.compile(r"(?P<word>[A-Z][A-Za-z0-9]*)\(")
_DATATYPES: Final = {
    "Float": "FP32", "Half": "FP16", "BFloat16": "BF16", "Int8": "INT8", "Int32": "INT32", "Int64": "INT64",
    "Bool": "BOOL", "FP8": "FP8", "Int4": "INT4",
}  # fmt: skip


class ClassicLayer(msgspec.Struct, frozen=True):
    """A layer whose tactics were timed.

    Attributes:
        nodes: ONNX nodes in its name.
        name_of_tactic: As printed with its time, or ``""``.
        time_ms: As printed, or ``""`` where the log has no time for it.
        format: Formats of its tensors, as printed.
        why: How the choice is known.
        timed: Every tactic that was timed for it, in any combination of formats.
    """

    name: str
    nodes: tuple[str, ...]
    runner: str
    tactic: str
    name_of_tactic: str
    time_ms: str
    format: str
    why: str
    timed: tuple[TimedTactic, ...]

    @property
    def precision(self) -> str | None:
        """Datatype of its first input, by the format's first word."""
        found = _DATATYPE.match(self.format)
        return _DATATYPES.get(found["word"], found["word"]) if found else None


class ClassicLog(msgspec.Struct, frozen=True):
    """Layers in the order in which they were timed; ``unread`` counts those with names of no known form."""

    said: Said
    layers: tuple[ClassicLayer, ...]
    unread: int


def parse_classic(lines: Iterable[Line]) -> ClassicLog:
    """Layers and their tactics.

    Raises:
        ParseError: A name that could imitate a line, or no timed tactic: the log is of another form.
    """
    said = read_messages(lines)
    verify_names(said, ())
    if said.form != "classic":
        raise ParseError("build log: expected tactics with their times, got none")
    listed = dict(_listed(said))
    choices: dict[str, list[ChosenTactic]] = {}
    for chosen in said.chosen:
        choices.setdefault(chosen.layer, []).append(chosen)
    timed: dict[str, list[TimedTactic]] = {}
    for tactic in said.timed:
        timed.setdefault(tactic.layer, []).append(tactic)
    layers, unread = [], 0
    for name, options in choices.items():
        nodes = _nodes(name)
        if nodes is None:
            unread += 1
        else:
            layers.append(_layer(name, nodes, options, listed.get(name), timed.get(name, ())))
    return ClassicLog(said, tuple(layers), unread)


def _listed(said: Said) -> Iterator[tuple[str, str]]:
    """Layer -> tactic, of the list at the end of the log."""
    for message, pattern in (
        *((text, _ENGINE_LAYER) for text in said.engine_layers),
        *((text, _DUMP_LAYER) for text in said.dumps),
    ):
        for line in message.split("\n"):
            if found := pattern.fullmatch(line):
                yield found["name"], found["tactic"]


def _nodes(layer: str) -> tuple[str, ...] | None:
    """ONNX nodes in a layer's name, ``a + PWN(b)``; nothing where it is of another form."""
    parts: list[str] = []
    for part in layer.split(" + "):
        wrapped = _WRAPPED.fullmatch(part)
        parts += [inside.strip() for inside in wrapped["inside"].split(",")] if wrapped else [part]
    return tuple(parts) if all(map(is_plain_name, parts)) else None


def _layer(
    name: str,
    nodes: tuple[str, ...],
    options: list[ChosenTactic],
    listed: str | None,
    timed: Sequence[TimedTactic],
) -> ClassicLayer:
    """One layer; ``timed`` are the tactics of this layer only."""
    first: dict[tuple[str, str], TimedTactic] = {}
    for tactic in timed:
        first.setdefault((tactic.tactic, tactic.format), tactic)

    def time(option: ChosenTactic) -> Decimal:
        found = first.get((option.tactic, option.format))
        return Decimal(found.time_ms) if found else Decimal("Infinity")

    best = min(options, key=time)
    agreed = [option for option in options if option.tactic == listed]
    chosen, why = (best, FASTEST if len(options) > 1 else ONLY)
    if agreed:
        chosen, why = min(agreed, key=time), LISTED
    measured = first.get((chosen.tactic, chosen.format))
    return ClassicLayer(
        name=name, nodes=nodes, runner=chosen.runner, tactic=chosen.tactic,
        name_of_tactic=measured.name if measured else "", time_ms=measured.time_ms if measured else "",
        format=chosen.format, why=why, timed=tuple(timed),
    )  # fmt: skip


def classic_facts(log: ClassicLog) -> dict[str, Any]:
    """The same as a value of the canonical profile."""
    return {
        "form": FORM,
        "unread": log.unread,
        "layers": [
            {
                "name": layer.name, "nodes": list(layer.nodes), "runner": layer.runner,
                "tactic": layer.tactic, "tactic_name": layer.name_of_tactic, "time_ms": layer.time_ms,
                "format": layer.format, "precision": layer.precision, "why": layer.why,
            }
            for layer in log.layers
        ],
    }  # fmt: skip
