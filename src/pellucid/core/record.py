"""What a writer appends to its journal: compact, so that the reply does not wait for the entry.

The sequencer forms canonical entries from these records, deterministically, in another process
(``core.expand``). Records live only until their segment is integrated; digests and values in
them are not yet commitments. Wire form: MessagePack arrays. Source: spec/ledger.md, section 3.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pellucid.errors import FormatError

OUTCOMES: Final = ("answered", "failed", "refused", "unresolved")
STAGES: Final = ("decode_ns", "queue_ns", "infer_ns", "total_ns")
PERSONAL: Final = ("caller", "address", "request_id", "trace_id", "subject", "message")


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row of a call.

    Attributes:
        input: Row digest of its inputs, 32 bytes.
        output: Row digest of its outputs, 32 bytes; empty when there are none, or when it follows
            with label and confidence from ``value`` (``core.entry.complete_row``).
        label: Decision in the model's words, from ``meaning.json``.
        confidence: Decimal text.
        value: Outputs kept for replay within a bound (``core.entry.encode_outputs``), or ``None``.
    """

    input: bytes
    output: bytes = b""
    label: str | None = None
    confidence: str | None = None
    value: bytes | None = None


class Context(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """What many calls share; written again at the head of every segment that needs it.

    Attributes:
        id: Number that calls refer to; unique within the writer; 0 is the node itself.
        facts: JSON of the canonical profile, copied into each entry: model, version, package,
            engine, policy, config, environment, precision, device, threads. Not copied: the
            commitment mode, and ``decision`` by which rows are completed.
    """

    id: int
    facts: dict[str, Any]


class Call(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A call that is closed.

    Attributes:
        n: Its reserved number within the writer.
        context: Id of its ``Context``.
        outcome: One of ``OUTCOMES``.
        error: Code of the error tree, or ``None``.
        accepted_ns: Wall clock at acceptance, nanoseconds since 1970.
        closed_ns: Wall clock at closing.
        stages: Durations in nanoseconds, in the order of ``STAGES``.
        slot: First slot in its batch, or -1 when it never ran.
        bucket: Rows of the batch it ran in, or 0.
        rows: Its rows, in order.
        shapes: Shape of every input as sent, in the model's order (rows first).
        nbytes: Input and output bytes.
        seed: 32 random bytes from which this call's commitment keys derive.
        personal: Values that the entry only commits to; keys from ``PERSONAL``.
        trace: Trace id in the clear, only when it is our own; from outside it is personal.
        mark: Where its execution is beyond the baseline: by how much, and what the machine did then.
    """

    n: int
    context: int
    outcome: str
    error: str | None
    accepted_ns: int
    closed_ns: int
    stages: tuple[int, int, int, int]
    slot: int
    bucket: int
    rows: tuple[Row, ...]
    shapes: tuple[tuple[int, ...], ...]
    nbytes: tuple[int, int]
    seed: bytes
    personal: dict[str, str]
    trace: str | None = None
    mark: dict[str, Any] | None = None


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """One execution: the calls that shared it, closed together in one append.

    Attributes:
        n: Its number within the writer, from 1.
    """

    n: int
    context: int
    bucket: int
    closed_ns: int
    infer_ns: int
    calls: tuple[Call, ...]


class Event(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Anything that is not a call: build, load, read, replay, epoch ...

    Attributes:
        n: Number within the writer, from 1.
        kind: Entry type.
        data: JSON of the canonical profile, in the clear: nothing about a person.
        personal: Name to value, committed only.
    """

    n: int
    kind: str
    time_ns: int
    data: dict[str, Any]
    seed: bytes = b""
    personal: dict[str, str] = {}


Record = Context | Call | Batch | Event

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)

encode_record = _encoder.encode


def decode_record(data: bytes) -> Record:
    """Record of its wire form.

    Raises:
        FormatError: Not a record.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"journal record: expected a record, got {error}") from error
