"""Facts of a TensorRT build from its log, one message at a time, never from lines of text.

Messages hold names of nodes and tensors as they stand in the model. So a message is of one kind or of
none, by its whole text; a log with a name that could imitate a line yields no facts at all; what is of
no kind is counted, never guessed. Errors and warnings can be read from any log.
Source: spec/tensorrt-facts.md; requirement B4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import msgspec

from pellucid.core.tensorrt_dump import is_plain_name, parse_layers
from pellucid.core.tensorrt_layers import BoundTensor, Layer, fingerprint
from pellucid.core.tensorrt_reader import MESSAGES_MAX, Line, Message, Said, read_messages
from pellucid.errors import FormatError, LimitError, ParseError

__all__ = ["LogFacts", "Message", "Said", "decode_log", "parse_log", "read_messages", "verify_names"]


class LogFacts(msgspec.Struct, frozen=True):
    """What a build did, as far as its log says so.

    Attributes:
        layers: The engine's layers, or nothing where the log holds no Layers dump.
        layer_fingerprint: Identity of the layers, hexadecimal; nothing without a dump.
        layers_of: For each ONNX node that a layer names or stands within, the positions of those layers.
        eliminated: Nodes of the graph that no layer names; nothing when the graph or the dump is missing.
        strangers: Names in layers that are not nodes of the graph, sorted.
    """

    said: Said
    layers: tuple[Layer, ...] | None
    bindings: tuple[BoundTensor, ...]
    layer_fingerprint: str | None
    layers_of: dict[str, tuple[int, ...]]
    eliminated: tuple[str, ...] | None
    strangers: tuple[str, ...]

    @property
    def kernels(self) -> tuple[Layer, ...]:
        """Layers that compute or move data."""
        return tuple(layer for layer in self.layers or () if layer.is_kernel)

    @property
    def fused(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.kernels if layer.is_fused)

    @property
    def quantized(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.kernels if layer.is_quantized)

    @property
    def reformats(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.kernels if layer.is_reformat)

    def memory_bytes(self, line: str) -> int | None:
        """Bytes of a memory line (``Total Weights Memory``), or nothing if it was printed with two values."""
        values = set(self.said.memory.get(line, ()))
        return values.pop() if len(values) == 1 else None

    @property
    def device_peak_bytes(self) -> int | None:
        """Activations and weights together."""
        activations = self.memory_bytes("Total Activation Memory")
        weights = self.memory_bytes("Total Weights Memory")
        return None if activations is None or weights is None else activations + weights


def decode_log(raw: bytes) -> list[Message]:
    """Messages of a log kept as JSON lines with at least ``severity`` and ``message``.

    Raises:
        FormatError: A line that is not such an object.
        LimitError: Too many lines.
    """
    lines = raw.split(b"\n")
    if len(lines) > MESSAGES_MAX:
        raise LimitError(f"build log: expected at most {MESSAGES_MAX:,} messages, got {len(lines):,}")
    return [_decoded(line, number) for number, line in enumerate(lines, 1) if line.strip()]


def parse_log(lines: Iterable[Line], nodes: Sequence[str] | None = None) -> LogFacts:
    """Facts of a build.

    Args:
        lines: All messages in order.
        nodes: Names of the compiled graph's nodes; without them nothing is called eliminated.

    Raises:
        ParseError: A name that could imitate a line, two Layers dumps, or a dump outside the grammar.
        LimitError: A log larger than any build writes.
    """
    said = read_messages(lines)
    verify_names(said, nodes or ())
    if len(said.dumps) > 1:
        raise ParseError(
            f"build log: expected one Layers dump, got {len(said.dumps)}", hint="build for one target"
        )
    if not said.dumps:
        return LogFacts(said, None, (), None, {}, None, ())
    dump = parse_layers(said.dumps[0])
    owners: dict[str, list[int]] = {}
    for position, layer in enumerate(dump.layers):
        for name in dict.fromkeys((*layer.onnx_layers, *layer.within)):
            owners.setdefault(name, []).append(position)
    return LogFacts(
        said=said,
        layers=dump.layers,
        bindings=dump.bindings,
        layer_fingerprint=fingerprint(dump.layers),
        layers_of={name: tuple(positions) for name, positions in owners.items()},
        eliminated=None if nodes is None else tuple(name for name in nodes if name not in owners),
        strangers=() if nodes is None else tuple(sorted(owners.keys() - set(nodes))),
    )


def verify_names(said: Said, nodes: Sequence[str]) -> None:
    """Refuse a log with a name that could imitate a line.

    Raises:
        ParseError: There is one.
    """
    unsafe = [*said.unsafe_names, *(name for name in nodes if not is_plain_name(name))]
    if unsafe:
        raise ParseError(
            f"build log: expected names that cannot imitate a line, got {unsafe[0][:160]!r}"
            f" and {max(said.unsafe_count, len(unsafe)) - 1:,} more",
            hint="rename nodes and tensors before the build (canonicalisation does); the log itself is kept",
        )


def _decoded(line: bytes, number: int) -> Message:
    try:
        value = json.loads(line)
        severity, message = value["severity"], value["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        severity = message = None
    if not isinstance(severity, str) or not isinstance(message, str):
        raise FormatError(
            f"build log, line {number}: expected JSON with severity and message, got {line[:80]!r}"
        )
    return Message(severity, message)
