"""Entries: one ledger leaf each, a CloudEvents 1.0 object in canonical JSON.

The leaf is immutable, so nothing about a person stands in it in the clear: rows, caller, address,
request id, foreign trace id, subject and messages are commitments, HMAC-SHA-256 under keys that
live in the erasable vault (``Opening``). Source: spec/ledger.md, section 2.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec

from pellucid.core import canonical
from pellucid.core.decision import decide
from pellucid.core.digest import hmac_pads, hmac_sha256
from pellucid.core.record import Row
from pellucid.core.subject import Summary
from pellucid.core.tensor import Tensor, row_digest
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
    return hmac_sha256(seed, key_message(kind, row))


def subject_commitment_key(subject_key: bytes, call_key: str, kind: str, row: int) -> bytes:
    """Key of one commitment of a call with subject: shredding the subject's key shreds all."""
    return hmac_sha256(subject_key, subject_key_message(call_key, kind, row))


def key_message(kind: str, row: int) -> bytes:
    """What ``commitment_key`` authenticates."""
    return f"pellucid/key/v1\n{kind}\n{row}".encode()


def subject_key_message(call_key: str, kind: str, row: int) -> bytes:
    """What ``subject_commitment_key`` authenticates."""
    return f"pellucid/subject-key/v1\n{call_key}\n{kind}\n{row}".encode()


def commit(key: bytes, digest: bytes) -> str:
    """Commitment text ``hmac-sha256:<hex>`` of a 32-byte digest."""
    inner, outer = hmac_pads(key)
    return "hmac-sha256:" + sha256(outer + sha256(inner + digest).digest()).hexdigest()


def is_opening(commitment: str, key: bytes, digest: bytes) -> bool:
    """True if key and digest open the commitment (constant time); plain ones need no key."""
    expected = "sha256:" + digest.hex() if commitment.startswith("sha256:") else commit(key, digest)
    return hmac.compare_digest(expected.encode(), commitment.encode("utf-8", "surrogatepass"))


def text_digest(value: str) -> bytes:
    """Digest of a personal text value."""
    return sha256(b"pellucid/text/v1\n" + value.encode("utf-8", "surrogatepass")).digest()


def output_digest(row_digest: bytes, label: str | None, confidence: str | None) -> bytes:
    """Digest of an output row with its decision; ``None`` and ``""`` differ."""
    decided = _optional(label) + _optional(confidence)
    return sha256(b"pellucid/output-row/v1\n" + row_digest + decided).digest()


def _optional(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    raw = text.encode()
    return b"\x01" + len(raw).to_bytes(4, "big") + raw


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


def rows_leaf(row: Mapping[str, str | None]) -> bytes:
    """Leaf of the small tree that stands for many rows."""
    return canonical.encode_trusted(dict(row))


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
