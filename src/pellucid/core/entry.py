"""Entries: one ledger leaf each, a CloudEvents 1.0 object in canonical JSON.

The leaf is immutable, so nothing about a person stands in it in the clear: rows, caller, address,
request id, foreign trace id, subject and messages are commitments, HMAC-SHA-256 under keys that
live in the erasable vault (``Opening``). Source: spec/ledger.md, section 2.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pellucid.core import canonical
from pellucid.core.decision import decide
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.record import STAGES, Batch, Call, Context, Event, Record, Row
from pellucid.core.subject import Summary, summarise
from pellucid.core.tensor import Tensor, row_digest
from pellucid.core.times import format_time
from pellucid.errors import FormatError

ENTRY_MAX: Final = 65_535  # limit of C2SP tlog-tiles entry bundles
ROWS_IN_CALL_MAX: Final = 16  # beyond, the entry holds the root of a small tree
ROWS_IN_BATCH_MAX: Final = 128
TYPES: Final = frozenset([
    "call", "batch", "build", "rebuild", "recalibration", "package", "qualification", "approval", "stage",
    "load", "load.refused", "unload", "recycle", "policy", "config", "epoch", "key", "read", "export",
    "replay", "erasure", "hold", "archive", "anchor", "gap", "alert",
])  # fmt: skip

SubjectKeys = Callable[[str], bytes]  # 32-byte key of a subject; made on first use by the vault


@dataclass(frozen=True, slots=True)
class Writer:
    """Whose journal it is; its text is the first part of every key."""

    source: str  # "node/epoch/worker", or "node/door-<hex>" for commands

    @property
    def node(self) -> str:
        return self.source.split("/", 1)[0]


class Opening(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What opens one commitment; kept in the vault until it is erased.

    Attributes:
        kind: ``input``, ``output``, a name of ``record.PERSONAL``, or ``rows``: the rows'
            commitments of a call whose entry holds only their root (value: canonical JSON).
        row: Row number, or -1 for what belongs to the whole call.
        key: 32 bytes; empty when the key derives from the subject's key.
        value: Text in UTF-8, or kept outputs; ``None`` when only the key is kept.
        label: Decision and confidence of an output row (part of its commitment).
        confidence: As above.
        digest: Row digest of the outputs; needed to open the commitment without the tensors.
    """

    kind: str
    row: int
    key: bytes
    value: bytes | None = None
    label: str | None = None
    confidence: str | None = None
    digest: bytes | None = None


class Formed(msgspec.Struct, frozen=True, gc=False):
    """An entry ready for the log, what the vault keeps for it, and what an index says of it."""

    key: str
    type: str
    entry: bytes
    subject: str | None
    openings: tuple[Opening, ...]
    summary: Summary


# -- commitments ----------------------------------------------------------------------------------


def commitment_key(seed: bytes, kind: str, row: int) -> bytes:
    """Key of one commitment of a call without subject, from the call's random seed."""
    return hmac.digest(seed, f"pellucid/key/v1\n{kind}\n{row}".encode(), "sha256")


def subject_commitment_key(subject_key: bytes, call_key: str, kind: str, row: int) -> bytes:
    """Key of one commitment of a call with subject: shredding the subject's key shreds all."""
    message = f"pellucid/subject-key/v1\n{call_key}\n{kind}\n{row}".encode()
    return hmac.digest(subject_key, message, "sha256")


def commit(key: bytes, digest: bytes) -> str:
    """Commitment text ``hmac-sha256:<hex>`` of a 32-byte digest."""
    return "hmac-sha256:" + hmac.digest(key, digest, "sha256").hex()


def is_opening(commitment: str, key: bytes, digest: bytes) -> bool:
    """True if key and digest open the commitment (constant time); plain ones need no key."""
    expected = "sha256:" + digest.hex() if commitment.startswith("sha256:") else commit(key, digest)
    return hmac.compare_digest(expected.encode(), commitment.encode("utf-8", "surrogatepass"))


def text_digest(value: str) -> bytes:
    """Digest of a personal text value."""
    return hashlib.sha256(b"pellucid/text/v1\n" + value.encode("utf-8", "surrogatepass")).digest()


def output_digest(row_digest: bytes, label: str | None, confidence: str | None) -> bytes:
    """Digest of an output row with its decision; ``None`` and ``""`` differ."""
    parts = [_optional(label), _optional(confidence)]
    return hashlib.sha256(b"pellucid/output-row/v1\n" + row_digest + b"".join(parts)).digest()


def _optional(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    raw = text.encode()
    return b"\x01" + struct.pack(">I", len(raw)) + raw


def encode_outputs(row: Sequence[Tensor]) -> bytes:
    """Kept outputs of one row, MessagePack ``[[name, datatype, shape, data], ...]``."""
    return msgspec.msgpack.encode([(t.name, t.datatype, t.shape, bytes(t.data)) for t in row])


def decode_outputs(data: bytes) -> list[Tensor]:
    """Tensors of kept outputs."""
    kind = list[tuple[str, str, tuple[int, ...], bytes]]
    try:
        return [Tensor(*parts) for parts in msgspec.msgpack.decode(data, type=kind)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"kept outputs: expected tensors, got {error}") from error


# -- forming --------------------------------------------------------------------------------------


def expand(
    record: Record,
    *,
    writer: Writer,
    contexts: Mapping[int, Context],
    subject_keys: SubjectKeys,
) -> list[Formed]:
    """Form the entries of one record: deterministic, so a crash in between can repeat it.

    Args:
        record: What the writer appended; a ``Context`` gives no entry.
        writer: The journal's writer.
        contexts: Contexts of this writer seen so far, by id.
        subject_keys: Gives a subject's key.

    Raises:
        FormatError: A context is missing or outside the JSON profile, or an entry would exceed
            65,535 bytes.
    """
    if isinstance(record, Context):
        canonical.encode(record.facts)  # copied into entries unchecked: refuse here, once
        return []
    if isinstance(record, Event):
        return [_form_event(record, writer, subject_keys)]
    if isinstance(record, Call):
        return [_form_call(_prepare(record, writer, contexts, subject_keys), None)]
    prepared = [_prepare(call, writer, contexts, subject_keys) for call in record.calls]
    if len(prepared) == 1:
        return [_form_call(prepared[0], None)]  # ran alone: there are no neighbours to name
    batch = _form_batch(record, writer, contexts, prepared)
    digest = "sha256:" + hashlib.sha256(batch.entry).hexdigest()
    return [batch, *(_form_call(p, digest) for p in prepared)]


@dataclass(slots=True)
class _Prepared:
    call: Call
    key: str
    node: str
    facts: dict[str, Any]
    rows: list[dict[str, str | None]]
    personal: dict[str, str | None]
    openings: list[Opening]
    subject: str | None


def _prepare(call: Call, writer: Writer, contexts: Mapping[int, Context], keys: SubjectKeys) -> _Prepared:
    facts = _facts(contexts, call.context)
    key = f"{writer.source}/{call.n}"
    seal = _Sealer(key, call.seed, call.personal.get("subject"), keys, facts.get("commitment") == "plain")
    decision = facts.get("decision") or {}
    rows = [_commit_row(seal, n, complete_row(row, decision)) for n, row in enumerate(call.rows)]
    personal = _commit_personal(seal, call.personal)
    return _Prepared(call, key, writer.node, facts, rows, personal, seal.openings, seal.subject)


def _facts(contexts: Mapping[int, Context], number: int) -> dict[str, Any]:
    if number not in contexts:
        raise FormatError(f"journal record: expected a known context, got {number}")
    return contexts[number].facts


class _Sealer:
    """Commits and remembers the openings."""

    __slots__ = ("call_key", "openings", "plain", "seed", "subject", "subject_key")

    def __init__(self, key: str, seed: bytes, subject: str | None, keys: SubjectKeys, plain: bool) -> None:
        self.call_key, self.seed, self.subject, self.plain = key, seed, subject, plain
        self.subject_key = keys(subject) if subject is not None else None
        self.openings: list[Opening] = []

    def key(self, kind: str, row: int) -> bytes:
        if self.subject_key is not None:
            return subject_commitment_key(self.subject_key, self.call_key, kind, row)
        return commitment_key(self.seed, kind, row)

    def kept(self, key: bytes) -> bytes:
        return b"" if self.subject_key is not None else key

    def text(self, kind: str, value: str) -> str:
        key = self.key(kind, -1)
        self.openings.append(Opening(kind, -1, self.kept(key), value.encode("utf-8", "surrogatepass")))
        return commit(key, text_digest(value))


def complete_row(row: Row, decision: Mapping[str, Any]) -> Row:
    """The row with the digest and the decision that follow from its kept outputs.

    A writer may leave them out: they are made here, off the call's path.

    Args:
        decision: ``decision`` of the call's context; see ``core.decision``.

    Raises:
        FormatError: The kept outputs are none, or do not fit the decision.
    """
    if row.output or row.value is None:
        return row
    outputs = decode_outputs(row.value)
    label, confidence = decide(decision, outputs)
    return Row(row.input, row_digest(outputs), label, confidence, row.value)


def _commit_row(seal: _Sealer, number: int, row: Row) -> dict[str, str | None]:
    output = output_digest(row.output, row.label, row.confidence) if row.output else None
    if seal.plain:
        if output is not None:
            seal.openings.append(
                Opening("output", number, b"", row.value, row.label, row.confidence, row.output)
            )
        return {
            "input": "sha256:" + row.input.hex(),
            "output": "sha256:" + output.hex() if output else None,
        }
    key = seal.key("input", number)
    seal.openings.append(Opening("input", number, seal.kept(key)))
    committed: dict[str, str | None] = {"input": commit(key, row.input), "output": None}
    if output is not None:
        key = seal.key("output", number)
        seal.openings.append(
            Opening("output", number, seal.kept(key), row.value, row.label, row.confidence, row.output)
        )
        committed["output"] = commit(key, output)
    return committed


def _commit_personal(seal: _Sealer, personal: Mapping[str, str]) -> dict[str, str | None]:
    return {kind: seal.text(kind, value) for kind, value in sorted(personal.items())}


def rows_leaf(row: Mapping[str, str | None]) -> bytes:
    """Leaf of the small tree that stands for many rows."""
    return canonical.encode_trusted(dict(row))


def _rows_or_root(rows: list[dict[str, str | None]], limit: int) -> dict[str, Any]:
    if len(rows) <= limit:
        return {"rows": rows}
    root = root_of([hash_leaf(rows_leaf(row)) for row in rows])
    return {"rows_tree": {"root": root.hex(), "size": len(rows)}}


_CALL_FACTS: Final = (
    "model", "version", "package", "engine", "policy", "config", "environment",
    "precision", "device", "threads", "label_variance",
)  # fmt: skip
_BATCH_FACTS: Final = ("model", "version", "package", "engine")


def _form_call(prepared: _Prepared, batch: str | None) -> Formed:
    call, facts = prepared.call, prepared.facts
    data: dict[str, Any] = {name: facts[name] for name in _CALL_FACTS if name in facts}
    data |= {
        "accepted": format_time(call.accepted_ns),
        "batch": batch,
        "bucket": call.bucket,
        "call": prepared.key,
        "error": call.error,
        "input_bytes": call.nbytes[0],
        "outcome": call.outcome,
        "output_bytes": call.nbytes[1],
        "personal": prepared.personal,
        "row_count": len(call.rows),
        "shapes": [list(shape) for shape in call.shapes],
        "slot": call.slot,
        "stages": dict(zip(STAGES, call.stages, strict=True)),
        "trace": call.trace,
    }
    if call.mark is not None:
        canonical.encode(call.mark)  # the one part of a call that is free in form
        data["mark"] = call.mark
    data |= _rows_or_root(prepared.rows, ROWS_IN_CALL_MAX)
    if "rows_tree" in data:
        # one row can only be opened beside the commitments of the others: keep them, they tell nothing
        prepared.openings.append(Opening("rows", -1, b"", canonical.encode_trusted(prepared.rows)))
    entry = _envelope("call", prepared.key, prepared.node, call.closed_ns, data)
    summary = summarise("call", call.closed_ns, data)
    return Formed(prepared.key, "call", entry, prepared.subject, tuple(prepared.openings), summary)


def _form_batch(
    batch: Batch, writer: Writer, contexts: Mapping[int, Context], prepared: list[_Prepared]
) -> Formed:
    facts = _facts(contexts, batch.context)
    key = f"{writer.source}/b{batch.n}"
    rows = [
        {"input": row["input"], "output": row["output"], "slot": p.call.slot + number}
        for p in prepared
        for number, row in enumerate(p.rows)
    ]
    data: dict[str, Any] = {name: facts[name] for name in _BATCH_FACTS if name in facts}
    data |= {
        "bucket": batch.bucket,
        "calls": len(prepared),
        "infer_ns": batch.infer_ns,
        "row_count": len(rows),
    }
    if len(rows) <= ROWS_IN_BATCH_MAX:
        data["rows"] = rows
    else:
        root = root_of([hash_leaf(canonical.encode_trusted(row)) for row in rows])
        data["rows_tree"] = {"root": root.hex(), "size": len(rows)}
    entry = _envelope("batch", key, writer.node, batch.closed_ns, data)
    return Formed(key, "batch", entry, None, (), summarise("batch", batch.closed_ns, data))


def _form_event(event: Event, writer: Writer, keys: SubjectKeys) -> Formed:
    key = f"{writer.source}/e{event.n}"
    seal = _Sealer(key, event.seed, event.personal.get("subject"), keys, plain=False)
    data = dict(event.data)
    if event.personal:
        data["personal"] = _commit_personal(seal, event.personal)
    entry = _envelope(event.kind, key, writer.node, event.time_ns, data, check=True)
    summary = summarise(event.kind, event.time_ns, data)
    return Formed(key, event.kind, entry, seal.subject, tuple(seal.openings), summary)


def _envelope(
    kind: str, key: str, node: str, time_ns: int, data: dict[str, Any], *, check: bool = False
) -> bytes:
    event = {
        "data": data,
        "datacontenttype": "application/json",
        "id": key,
        "source": f"pellucid:{node}",
        "specversion": "1.0",
        "time": format_time(time_ns),
        "type": kind,
    }
    entry = canonical.encode(event) if check else canonical.encode_trusted(event)
    if len(entry) > ENTRY_MAX:
        raise FormatError(f"entry {key}: expected at most {ENTRY_MAX:,} bytes, got {len(entry):,}")
    return entry


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A leaf, read."""

    id: str
    type: str
    time: str
    source: str
    data: dict[str, Any]
    raw: bytes


def parse_entry(raw: bytes) -> Entry:
    """Read a leaf's bytes.

    Raises:
        FormatError: Not canonical JSON, not CloudEvents 1.0, or an unknown type.
    """
    value = canonical.decode(raw, size_max=ENTRY_MAX)
    if not isinstance(value, dict) or value.get("specversion") != "1.0":
        raise FormatError("entry: expected a CloudEvents 1.0 object, got something else")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in TYPES or not isinstance(value.get("data"), dict):
        raise FormatError(f"entry: expected a known type with data, got {kind!r:.40}")
    texts = [value.get(name) for name in ("id", "type", "time", "source")]
    if not all(isinstance(text, str) for text in texts):
        raise FormatError("entry: expected id, type, time and source as text, got something else")
    return Entry(value["id"], value["type"], value["time"], value["source"], value["data"], raw)


class _Envelope(msgspec.Struct):
    id: str
    type: str
    time: str
    source: str
    data: dict[str, Any]


_envelopes: Final = msgspec.json.Decoder(_Envelope)


def parse_trusted(raw: bytes) -> Entry:
    """``parse_entry`` for leaves this log made itself and committed; skips the canonical check.

    Raises:
        FormatError: Not an entry at all.
    """
    try:
        found = _envelopes.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"entry: expected a CloudEvents object, got {error}") from error
    return Entry(found.id, found.type, found.time, found.source, found.data, raw)
