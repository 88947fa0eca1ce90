"""The Layers dump of a TensorRT build, split at bracket depth, line by line: read whole or not at all.

One line outside the grammar, and no layer of the dump is believed. The caller makes sure first that
no name of the log could imitate this grammar.
Source: spec/tensorrt-facts.md, section 3; requirement B4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from pellucid.core.tensorrt_layers import BoundTensor, Layer, LayerTensor
from pellucid.errors import LimitError, ParseError

DUMP_START: Final = "Layers:\n"
DUMP_MAX: Final = 64 * 2**20  # limit: characters; the largest dump measured has 76 layers in 0.1 MiB
LAYERS_MAX: Final = 100_000  # limit: a graph of this many kernels is no dump of ours
DEPTH_MAX: Final = 8  # limit: the grammar nests three deep

_PLAIN_NAME: Final = re.compile(r"[!-+.-Z\\^-z|~-]{1,512}")  # printable, without space , [ ] { }
_LAYER_NAME: Final = re.compile(r"[ -+\x2d-~]{1,4096}")  # printable, without comma
_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9/_ -]{0,63}")
_WORD: Final = re.compile(r"\w{1,64}", re.ASCII)
_INTEGERS: Final = re.compile(r"\[(?:-?\d{1,19}(?:, ?-?\d{1,19})*)?\]", re.ASCII)
# the builder adds how it made one operator of another (measured: __gemm_from_conv1x1, in FP16)
_NODE: Final = re.compile(
    r"\[ONNX Layer: ([!-+.-Z\\^-z|~-]{1,512})"
    r"((?: \| [!-+.-Z\\^-z|~-]{1,512} \((?:then|else)_branch\) \| [!-+.-Z\\^-z|~-]{1,512} \(If\)){0,8})"
    r"\](?:__[a-z0-9_]{1,64})?"
)
# a plain name holds no space, so that no name can bring such a suffix of its own
_OUTER: Final = re.compile(r" \| [^ ]+ \((?:then|else)_branch\) \| ([^ ]+) \(If\)")
_PAIRS: Final = {"[": "]", "{": "}"}
_MARKS: Final = re.compile(r"[\[\]{}]|, ")


def is_plain_name(name: str) -> bool:
    """Whether a name holds no separator of any line of the log, so that it cannot imitate one."""
    return _PLAIN_NAME.fullmatch(name) is not None


class Dump(msgspec.Struct, frozen=True):
    layers: tuple[Layer, ...]
    bindings: tuple[BoundTensor, ...]


def parse_layers(message: str) -> Dump:
    """Read a Layers dump whole.

    Raises:
        ParseError: Any line that is not of the grammar.
        LimitError: More characters or layers than a dump may have.
    """
    if len(message) > DUMP_MAX:
        raise LimitError(f"Layers dump: expected at most {DUMP_MAX:,} characters, got {len(message):,}")
    if not message.startswith(DUMP_START):
        raise _refused("Layers dump", "'Layers:' and one line a layer", message)
    body, _, rest = message.removeprefix(DUMP_START).partition("\n\nI/O Tensors:\n")
    bindings, _, metadata = rest.partition("\n\nEngine Metadata:\n")
    lines = body.split("\n") if body else []
    if len(lines) > LAYERS_MAX:
        raise LimitError(f"Layers dump: expected at most {LAYERS_MAX:,} layers, got {len(lines):,}")
    if not all(_LAYER_NAME.fullmatch(line) for line in metadata.split("\n") if metadata):
        raise _refused("Layers dump: engine metadata", "lines of 'key: value'", metadata)
    return Dump(
        layers=tuple(_layer(line) for line in lines),
        bindings=tuple(_binding(line) for line in bindings.split("\n") if bindings),
    )


def _layer(line: str) -> Layer:
    head, found, metadata = line.rpartition(", Metadata: ")
    if not found:
        raise _refused("Layers dump", "', Metadata: ' in the line of a layer", line)
    fields = _fields(head)
    missing = [key for key in ("LayerType", "Inputs", "Outputs") if key not in fields]
    if next(iter(fields)) != "Name" or missing or not _WORD.fullmatch(fields["LayerType"]):
        raise _refused("Layers dump", "a layer with Name, LayerType, Inputs and Outputs", line)
    tactic = fields.get("TacticName") or fields.get("TacticValue") or ""
    if tactic and not is_plain_name(tactic):
        raise _refused("Layers dump: tactic", "a name without separators", tactic)
    nodes = _nodes(metadata)
    return Layer(
        name=_name(fields["Name"]),
        type=fields["LayerType"],
        inputs=_tensors(fields["Inputs"]),
        constants=_tensors(fields.get("Constants", "[]")),
        outputs=_tensors(fields["Outputs"]),
        printed_tactic=tactic,
        onnx_layers=tuple(node[1] for node in nodes),
        within=tuple(dict.fromkeys(name for node in nodes for name in _OUTER.findall(node[2]))),
    )


def _binding(line: str) -> BoundTensor:
    fields = _fields(line.removeprefix(" "))
    mode, datatype = fields.get("IOMode", ""), fields.get("DataType", "")
    if next(iter(fields)) != "Name" or mode not in ("Input", "Output") or not _WORD.fullmatch(datatype):
        raise _refused("Layers dump: I/O tensor", "Name, IOMode, DataType and Dimensions", line)
    return BoundTensor(
        name=_name(fields["Name"]),
        mode=mode,
        datatype=datatype,
        dimensions=_integers(fields.get("Dimensions", "")),
        profiles=tuple(
            (_integers(p["MinShape"]), _integers(p.get("OptShape", "")), _integers(p.get("MaxShape", "")))
            for p in _records(fields.get("ProfileInfo", "[]"))
            if "MinShape" in p
        ),
    )


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    return tuple(_tensor(fields) for fields in _records(text))


def _tensor(fields: dict[str, str]) -> LayerTensor:
    if "Format/Datatype" in fields:  # another builder's form: the datatype stands inside the words
        datatype, layout = "", fields["Format/Datatype"]
    else:
        datatype, layout = fields.get("Datatype", ""), fields.get("Format", "")
        if not _WORD.fullmatch(datatype) or not layout or "Strides" not in fields:
            raise _refused("Layers dump: tensor", "Strides, Datatype and Format", str(fields))
    return LayerTensor(
        name=_name(fields.get("Name", "")),
        dimensions=_integers(fields.get("Dimensions", "")),
        strides=_integers(fields.get("Strides", "[]")),
        datatype=datatype,
        format=layout.strip(),
    )


def _records(text: str) -> Iterator[dict[str, str]]:
    """Of ``[ { a: b, c: d }, { .. }]``."""
    if not (text.startswith("[") and text.endswith("]")):
        raise _refused("Layers dump", "a list in brackets", text)
    inside = text[1:-1].strip()
    for item in _split(inside) if inside else ():
        if not (item.startswith("{ ") and item.endswith("}")):
            raise _refused("Layers dump", "'{ key: value }'", item)
        yield _fields(item[2:-1].strip())


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in _split(text):
        key, found, value = part.partition(":")
        if not found or not _KEY.fullmatch(key) or key in fields or (value and not value.startswith(" ")):
            raise _refused("Layers dump", "'key: value', each key once", part)
        fields[key] = value[1:]
    return fields


def _split(text: str) -> list[str]:
    """Parts between commas outside all brackets; a bracket that does not close is no grammar."""
    parts: list[str] = []
    closing: list[str] = []
    start = 0
    for mark in _MARKS.finditer(text):
        sign = mark[0]
        if sign in _PAIRS:
            closing.append(_PAIRS[sign])
        elif sign != ", " and (not closing or closing.pop() != sign):
            raise _refused("Layers dump", "brackets in pairs", text)
        elif sign == ", " and not closing:
            parts.append(text[start : mark.start()])
            start = mark.end()
        if len(closing) > DEPTH_MAX:
            raise _refused("Layers dump", f"at most {DEPTH_MAX} brackets inside each other", text)
    if closing:
        raise _refused("Layers dump", "brackets in pairs", text)
    return [*parts, text[start:]]


def _name(text: str) -> str:
    if not _LAYER_NAME.fullmatch(text):
        raise _refused("Layers dump: name", "printable text without commas", text)
    return text


def _nodes(text: str) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    for part in text.split("\x1f") if text else ():
        node = _NODE.fullmatch(part)
        if node is None:
            raise _refused("Layers dump: metadata", "'[ONNX Layer: name]' with a plain name", part)
        found.append(node)
    return found


def _integers(text: str) -> tuple[int, ...]:
    if not _INTEGERS.fullmatch(text):
        raise _refused("Layers dump", "whole numbers in brackets", text)
    return tuple(int(number) for number in text[1:-1].split(",")) if text != "[]" else ()


def _refused(subject: str, expected: str, got: str) -> ParseError:
    return ParseError(
        f"{subject}: expected {expected}, got {got[:160]!r}",
        hint="the engine's layers are not known: rename nodes and tensors (canonicalisation does), rebuild",
    )
