"""``calibration/ranges.json``: the calibration artefact, bound to what it was made from.

Range, scale and zero point of every quantised tensor, weights by channel. It may stand in for a
calibration run of another build, but only for the same graph, the same samples, the same settings
and the same library versions. Source: spec/calibration.md, sections 4 and 5; requirement B6.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pellucid.core import canonical
from pellucid.core.calibration import DOCUMENT_BYTES_MAX, RANGES_PATH, closed
from pellucid.core.digest import parse_digest, sha256
from pellucid.errors import FormatError

FORMAT: Final = "pellucid-ranges/1"
METHODS: Final = ("minmax", "entropy", "percentile")
VERSIONS: Final = ("numpy", "onnx", "onnxruntime", "pellucid")
_KEYS: Final = frozenset(["format", "bound", "method", "samples", "tensors", "weights", "digest"])
_BOUND: Final = frozenset(["model", "data", "samples", "settings", "versions"])
_TENSOR: Final = frozenset(["tensor", "nodes", "min", "max", "scale", "zero_point"])
_WEIGHT: Final = _TENSOR | {"axis"}
_PER_CHANNEL: Final = ("min", "max", "scale", "zero_point")
_FLOAT_MAX: Final = 3.4028234663852886e38


def float32_text(value: float) -> str:
    """Shortest decimal that gives this binary32 back.

    Raises:
        FormatError: Not a finite binary32.
    """
    if not -_FLOAT_MAX <= value <= _FLOAT_MAX or _rounded(value) != value:
        raise FormatError(f"range: expected a finite binary32, got {value!r:.40}")
    for digits in range(1, 10):
        near = float(f"{value:.{digits}g}")
        with contextlib.suppress(OverflowError):  # too few digits of the largest number are one too large
            if _rounded(near) == value:
                return repr(near)
    return repr(value)


def parse_float32(text: Any) -> float:
    """Value of such a decimal.

    Raises:
        FormatError: Another spelling, or no finite binary32.
    """
    try:
        if type(text) is not str or len(text) > 40:
            raise ValueError
        value = _rounded(float(text))
    except (ValueError, OverflowError):
        raise FormatError(f"range: expected the decimal of a binary32, got {text!r:.60}") from None
    if float32_text(value) != text:
        raise FormatError(f"range: expected {float32_text(value)}, got another spelling: {text!r:.60}")
    return value


def _rounded(value: float) -> float:
    number: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return number


class TensorRange(msgspec.Struct, frozen=True):
    """Range of one tensor; tuples have one item, or one a channel of ``axis``.

    Attributes:
        name: Of the tensor; a weight's is the one it had before it was quantised.
        nodes: Names of the nodes that read or write it.
        axis: Of the channels; ``None`` where one scale stands for all.
    """

    name: str
    nodes: tuple[str, ...]
    axis: int | None
    low: tuple[float, ...]
    high: tuple[float, ...]
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


class Ranges(msgspec.Struct, frozen=True):
    """A calibration artefact.

    Attributes:
        bound: ``{model, data, samples, settings, versions}``: digests of the canonical graph before
            its precision, of the data file, of the chosen samples; how; with what.
        method: ``minmax``, ``entropy`` or ``percentile``.
        samples: How many rows were run.
        tensors: Activations, by name; each has one range.
        weights: By name; each has one range a channel, or one.
    """

    bound: dict[str, Any]
    method: str
    samples: int
    tensors: tuple[TensorRange, ...]
    weights: tuple[TensorRange, ...] = ()


def make_ranges(found: Ranges) -> dict[str, Any]:
    """The document of an artefact; its ``digest`` is over everything else in it."""
    document: dict[str, Any] = {
        "format": FORMAT, "bound": found.bound, "method": found.method, "samples": found.samples,
        "tensors": [_tensor_document(tensor) for tensor in found.tensors],
        "weights": [_weight_document(tensor) for tensor in found.weights],
    }  # fmt: skip
    return document | {"digest": sha256(canonical.encode(document))}


def _tensor_document(tensor: TensorRange) -> dict[str, Any]:
    whole = _weight_document(tensor)
    return {key: item[0] if key in _PER_CHANNEL else item for key, item in whole.items() if key != "axis"}


def _weight_document(tensor: TensorRange) -> dict[str, Any]:
    return {
        "tensor": tensor.name, "nodes": list(tensor.nodes), "axis": tensor.axis,
        "min": list(map(float32_text, tensor.low)), "max": list(map(float32_text, tensor.high)),
        "scale": list(map(float32_text, tensor.scale)), "zero_point": list(tensor.zero_point),
    }  # fmt: skip


def parse_ranges(raw: bytes) -> Ranges:
    """Read ``calibration/ranges.json``.

    Raises:
        FormatError: Not canonical JSON, a missing or unknown key, a value of another form, or a
            digest that is not that of its content.
    """
    value = canonical.decode(raw, size_max=DOCUMENT_BYTES_MAX)
    closed(RANGES_PATH, value, _KEYS)
    content = {key: item for key, item in value.items() if key != "digest"}
    if value["digest"] != sha256(canonical.encode_trusted(content)):
        raise FormatError(
            f"{RANGES_PATH}: expected a digest of its content, got {value['digest']!r:.40}",
            hint="the file was edited after it was made: take it from its package again",
        )
    if value["format"] != FORMAT or value["method"] not in METHODS:
        raise FormatError(
            f"{RANGES_PATH}: expected {FORMAT} of {', '.join(METHODS)}, "
            f"got {value['format']!r:.40} of {value['method']!r:.40}"
        )
    if type(value["samples"]) is not int or value["samples"] < 1:
        raise FormatError(f"{RANGES_PATH}: samples: expected 1 or more, got {value['samples']!r:.40}")
    _verify_bound(value["bound"])
    tensors, weights = _parse_list("tensors", value["tensors"]), _parse_list("weights", value["weights"])
    return Ranges(value["bound"], value["method"], value["samples"], tensors, weights)


def _parse_list(key: str, value: Any) -> tuple[TensorRange, ...]:
    if type(value) is not list:
        raise FormatError(f"{RANGES_PATH}: {key}: expected a list of ranges, got {value!r:.40}")
    found = tuple(_parse_tensor(key, item) for item in value)
    names = [tensor.name for tensor in found]
    if names != sorted(set(names)):
        raise FormatError(f"{RANGES_PATH}: {key}: expected each tensor once, by name, got another order")
    return found


def _verify_bound(value: Any) -> None:
    subject = f"{RANGES_PATH}: bound"
    closed(subject, value, _BOUND)
    for key in ("model", "data", "samples"):
        parse_digest(value[key])
    closed(f"{subject}: versions", value["versions"], frozenset(VERSIONS))
    if not all(type(version) is str for version in value["versions"].values()):
        raise FormatError(f"{subject}: versions: expected text, got others")
    if type(value["settings"]) is not dict:
        raise FormatError(f"{subject}: settings: expected an object, got others")


def _parse_tensor(key: str, value: Any) -> TensorRange:
    closed(f"{RANGES_PATH}: {key}", value, _WEIGHT if key == "weights" else _TENSOR)
    name, nodes, axis = value["tensor"], value["nodes"], value.get("axis")
    subject = f"{RANGES_PATH}: tensor {name!r:.80}"
    if type(name) is not str or type(nodes) is not list or not all(type(node) is str for node in nodes):
        raise FormatError(f"{subject}: expected a name and names of nodes, got others")
    if axis is not None and (type(axis) is not int or not 0 <= axis < 32):
        raise FormatError(f"{subject}: axis: expected an axis or null, got {axis!r:.40}")
    parts = [value[part] if key == "weights" else [value[part]] for part in _PER_CHANNEL]
    sizes = {len(part) if type(part) is list else 0 for part in parts}
    if len(sizes) != 1 or 0 in sizes or (axis is None and sizes != {1}):
        raise FormatError(f"{subject}: expected one range a channel, got lists of {sorted(sizes)}")
    low, high, scale = (tuple(map(parse_float32, part)) for part in parts[:3])
    zero = tuple(parts[3])
    if not all(type(z) is int and -(2**31) <= z < 2**31 for z in zero):
        raise FormatError(f"{subject}: zero_point: expected integers, got others")
    if not all(a <= b and s > 0 for a, b, s in zip(low, high, scale, strict=True)):
        raise FormatError(f"{subject}: expected min <= max and a scale above 0, got others")
    return TensorRange(name, tuple(nodes), axis, low, high, scale, zero)


def differences(found: Ranges, expected: Mapping[str, Any], method: str) -> list[str]:
    """What keeps an artefact from standing for a build, in words; ``[]`` when nothing does."""
    words = [
        f"{name} {str(found.bound[key])[:19]}... there, {str(expected[key])[:19]}... here"
        for key, name in (("model", "graph"), ("data", "data file"), ("samples", "chosen samples"))
        if found.bound[key] != expected[key]
    ]
    if found.method != method:
        words.append(f"method {found.method} there, {method} here")
    for key in ("settings", "versions"):
        there, here = found.bound[key], expected[key]
        words += [
            f"{key}.{name} {there.get(name)!r:.60} there, {here.get(name)!r:.60} here"
            for name in sorted(there.keys() | here.keys())
            if there.get(name) != here.get(name)
        ]
    return words


# -- changes --------------------------------------------------------------------------------------


class RangeChange(msgspec.Struct, frozen=True):
    """How one tensor's range moved between two artefacts.

    Attributes:
        kind: ``activation`` or ``weight``.
        old, new: ``(min, max)`` over all channels; ``None`` where the tensor is in one only.
        share: Change of the larger end in units of the old one; infinite where it came or went.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    old: tuple[float, float] | None
    new: tuple[float, float] | None
    share: float


def changes(old: Ranges, new: Ranges) -> list[RangeChange]:
    """Every tensor whose range is another, largest relative change first."""
    found = [
        *_changed("activation", old.tensors, new.tensors), *_changed("weight", old.weights, new.weights)
    ]  # fmt: skip
    return sorted(found, key=lambda change: (-change.share, change.name))


def _changed(kind: str, old: Sequence[TensorRange], new: Sequence[TensorRange]) -> Iterator[RangeChange]:
    before, after = ({tensor.name: tensor for tensor in each} for each in (old, new))
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None or (a.low, a.high, a.scale) != (b.low, b.high, b.scale):
            nodes = b.nodes if b else a.nodes if a else ()
            was, now = _whole(a), _whole(b)
            yield RangeChange(name, kind, nodes, was, now, _share(was, now))


def _whole(tensor: TensorRange | None) -> tuple[float, float] | None:
    return None if tensor is None else (min(tensor.low), max(tensor.high))


def _share(old: tuple[float, float] | None, new: tuple[float, float] | None) -> float:
    if old is None or new is None:
        return float("inf")
    moved = max(abs(new[0] - old[0]), abs(new[1] - old[1]))
    reach = max(abs(old[0]), abs(old[1]))
    return moved / reach if reach else (float("inf") if moved else 0.0)
