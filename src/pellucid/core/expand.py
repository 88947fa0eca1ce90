"""Forming: from a writer's record to its entries, the same bytes every time.

It runs for every call, so what repeats is made once: a context's facts are encoded once, objects are
structs whose members stand in canonical order, and rows whose kept outputs begin alike are completed
alike. ``tests/properties/test_core_expand.py`` says the same plainly, and compares the two.
Source: spec/ledger.md, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256 as _sha256
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pellucid.core import canonical
from pellucid.core.decision import make_decide
from pellucid.core.digest import hmac_pads
from pellucid.core.entry import (
    ENTRY_MAX,
    ROWS_IN_BATCH_MAX,
    ROWS_IN_CALL_MAX,
    Formed,
    Opening,
    SubjectKeys,
    Writer,
    commit,
    decode_outputs,
    key_message,
    output_digest,
    subject_key_message,
    text_digest,
)
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.record import Batch, Call, Context, Event, Record, Row
from pellucid.core.subject import Summary, summarise, text_of
from pellucid.core.tensor import Tensor, row_digest, row_head
from pellucid.core.times import format_time
from pellucid.errors import FormatError

_HEADS_MAX: Final = 64  # limit: sizes of kept outputs that a context remembers
_CALL_FACTS: Final = (
    "model", "version", "package", "engine", "policy", "config", "environment",
    "precision", "device", "threads", "label_variance",
)  # fmt: skip
_JSON: Final = "application/json"
_BATCH_FACTS: Final = ("model", "version", "package", "engine")
_key_message = lru_cache(maxsize=1024)(key_message)


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
    return Expander(writer, dict(contexts), subject_keys).expand(record)


# -- what stands in an entry: members in canonical order, so that they need no sorting --------------


class _Row(msgspec.Struct, frozen=True, gc=False):
    input: str
    output: str | None


class _BatchRow(msgspec.Struct, frozen=True, gc=False):
    input: str
    output: str | None
    slot: int


class _RowsTree(msgspec.Struct, frozen=True, gc=False):
    root: str
    size: int


class _Stages(msgspec.Struct, frozen=True, gc=False):
    decode_ns: int
    infer_ns: int
    queue_ns: int
    total_ns: int


class _CallData(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    accepted: str
    batch: str | None
    bucket: int
    call: str
    config: Raw | UnsetType
    device: Raw | UnsetType
    engine: Raw | UnsetType
    environment: Raw | UnsetType
    error: str | None
    input_bytes: int
    label_variance: Raw | UnsetType
    mark: Raw | UnsetType
    model: Raw | UnsetType
    outcome: str
    output_bytes: int
    package: Raw | UnsetType
    personal: dict[str, str]
    policy: Raw | UnsetType
    precision: Raw | UnsetType
    row_count: int
    rows: list[_Row] | UnsetType
    rows_tree: _RowsTree | UnsetType
    shapes: tuple[tuple[int, ...], ...]
    slot: int
    stages: _Stages
    threads: Raw | UnsetType
    trace: str | None
    version: Raw | UnsetType


class _BatchData(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    bucket: int
    calls: int
    engine: Raw | UnsetType
    infer_ns: int
    model: Raw | UnsetType
    package: Raw | UnsetType
    row_count: int
    rows: list[_BatchRow] | UnsetType
    rows_tree: _RowsTree | UnsetType
    version: Raw | UnsetType


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    data: _CallData | _BatchData
    datacontenttype: str
    id: str
    source: str
    specversion: str
    time: str
    type: str


# -- forming --------------------------------------------------------------------------------------


class _Sealer:
    """Commits, and remembers the openings; commitment keys derive from the seed, or the subject's key."""

    __slots__ = ("_call_key", "_inner", "_outer", "openings", "subject")

    def __init__(self, call_key: str, seed: bytes, subject: str | None, keys: SubjectKeys) -> None:
        self._call_key, self.subject = call_key, subject
        self._inner, self._outer = hmac_pads(seed if subject is None else keys(subject))
        self.openings: list[Opening] = []

    def seal(
        self,
        kind: str,
        row: int,
        digest: bytes,
        value: bytes | None = None,
        label: str | None = None,
        confidence: str | None = None,
        output: bytes | None = None,
    ) -> str:
        """Commitment to a digest; what opens it, with what the vault keeps beside, is remembered."""
        subject = self.subject
        message = (
            _key_message(kind, row) if subject is None else subject_key_message(self._call_key, kind, row)
        )
        key = _sha256(self._outer + _sha256(self._inner + message).digest()).digest()
        kept = key if subject is None else b""
        self.openings.append(Opening(kind, row, kept, value, label, confidence, output))
        return commit(key, digest)

    def seal_personal(self, personal: Mapping[str, str]) -> dict[str, str]:
        return {
            kind: self.seal(kind, -1, text_digest(value), value.encode("utf-8", "surrogatepass"))
            for kind, value in sorted(personal.items())
        }


class _Facts:
    """One context, with all of it that is the same for each of its calls."""

    __slots__ = (
        "_decide",
        "_heads",
        "context",
        "is_plain",
        "model",
        "of_batch",
        "of_call",
        "package",
        "version",
    )

    def __init__(self, context: Context) -> None:
        self.context, facts = context, context.facts
        encoded = {name: Raw(canonical.encode_trusted(facts[name])) for name in _CALL_FACTS if name in facts}
        self.of_call = {name: encoded.get(name, UNSET) for name in _CALL_FACTS}
        self.of_batch = {name: encoded.get(name, UNSET) for name in _BATCH_FACTS}
        self.model, self.version, self.package = (text_of(facts, n) for n in ("model", "version", "package"))
        self.is_plain = facts.get("commitment") == "plain"
        self._decide = make_decide(facts.get("decision") or {})
        self._heads: dict[int, tuple[bytes, bytes, Tensor]] = {}

    def complete(self, row: Row) -> tuple[bytes, str | None, str | None]:
        """``core.entry.complete_row``: digest of its outputs, label, confidence."""
        value = row.value
        if row.output or value is None:
            return row.output, row.label, row.confidence
        known = self._heads.get(len(value))
        if known is None or not value.startswith(known[0]):
            return self._learn(value)
        # equal up to a lone tensor's data, whose length stands in the head, and as long: it
        # decodes to the same tensor with other data
        head, hashed, tensor = known
        data = value[len(head) :]
        label, confidence = self._decide((Tensor(tensor.name, tensor.datatype, tensor.shape, data),))
        return _sha256(hashed + data).digest(), label, confidence

    def _learn(self, value: bytes) -> tuple[bytes, str | None, str | None]:
        outputs = decode_outputs(value)
        digest, decided = row_digest(outputs), self._decide(outputs)
        if len(outputs) == 1 and len(self._heads) < _HEADS_MAX:
            tensor = outputs[0]
            head = value[: len(value) - len(tensor.data)]
            self._heads[len(value)] = head, row_head(tensor), tensor
        return digest, *decided


@dataclass(slots=True)
class _Prepared:
    """A call whose commitments are made: its batch's entry comes before its own."""

    call: Call
    key: str
    facts: _Facts
    rows: list[_Row]
    personal: dict[str, str]
    seal: _Sealer


class Expander:
    """Forms the entries of one writer's records.

    Args:
        contexts: Contexts of this writer seen so far, by id; add what is seen later.
        subject_keys: Gives a subject's key.
    """

    def __init__(self, writer: Writer, contexts: dict[int, Context], subject_keys: SubjectKeys) -> None:
        self._prefix, self._source = f"{writer.source}/", f"pellucid:{writer.node}"
        self.contexts, self._subject_keys = contexts, subject_keys
        self._facts: dict[int, _Facts] = {}

    def expand(self, record: Record) -> list[Formed]:
        """See ``expand``."""
        if isinstance(record, Call):
            return [self._call(self._prepare(record), None)]
        if isinstance(record, Context):
            canonical.encode(record.facts)  # copied into entries unchecked: refuse here, once
            return []
        if isinstance(record, Event):
            return [self._event(record)]
        prepared = [self._prepare(call) for call in record.calls]
        if len(prepared) == 1:
            return [self._call(prepared[0], None)]  # ran alone: there are no neighbours to name
        batch = self._batch(record, prepared)
        digest = "sha256:" + _sha256(batch.entry).hexdigest()
        return [batch, *[self._call(each, digest) for each in prepared]]

    def _facts_of(self, number: int) -> _Facts:
        context = self.contexts.get(number)
        if context is None:
            raise FormatError(f"journal record: expected a known context, got {number}")
        known = self._facts.get(number)
        if known is None or known.context is not context:
            known = self._facts[number] = _Facts(context)
        return known

    def _prepare(self, call: Call) -> _Prepared:
        facts, key = self._facts_of(call.context), f"{self._prefix}{call.n}"
        seal = _Sealer(key, call.seed, call.personal.get("subject"), self._subject_keys)
        make = _plain_row if facts.is_plain else _row
        rows = [make(seal, number, row, facts) for number, row in enumerate(call.rows)]
        return _Prepared(call, key, facts, rows, seal.seal_personal(call.personal), seal)

    def _call(self, prepared: _Prepared, batch: str | None) -> Formed:
        call, facts, rows, seal = prepared.call, prepared.facts, prepared.rows, prepared.seal
        decode_ns, queue_ns, infer_ns, total_ns = call.stages
        is_listed = len(rows) <= ROWS_IN_CALL_MAX
        data = _CallData(
            accepted=format_time(call.accepted_ns),
            batch=batch,
            bucket=call.bucket,
            call=prepared.key,
            error=call.error,
            input_bytes=call.nbytes[0],
            # the one part of a call that is free in form
            mark=UNSET if call.mark is None else Raw(canonical.encode(call.mark)),
            outcome=call.outcome,
            output_bytes=call.nbytes[1],
            personal=prepared.personal,
            row_count=len(rows),
            rows=rows if is_listed else UNSET,
            rows_tree=UNSET if is_listed else _rows_tree(rows),
            shapes=call.shapes,
            slot=call.slot,
            stages=_Stages(decode_ns, infer_ns, queue_ns, total_ns),
            trace=call.trace,
            **facts.of_call,
        )
        if not is_listed:
            # one row can only be opened beside the commitments of the others: keep them, they tell nothing
            seal.openings.append(Opening("rows", -1, b"", canonical.encode_ordered(rows)))
        entry = self._envelope("call", prepared.key, call.closed_ns, data)
        summary = Summary(
            call.closed_ns, facts.model, facts.version, facts.package, call.outcome, call.trace or ""
        )
        return Formed(prepared.key, "call", entry, seal.subject, tuple(seal.openings), summary)

    def _batch(self, batch: Batch, prepared: list[_Prepared]) -> Formed:
        facts, key = self._facts_of(batch.context), f"{self._prefix}b{batch.n}"
        rows = [
            _BatchRow(row.input, row.output, each.call.slot + number)
            for each in prepared
            for number, row in enumerate(each.rows)
        ]
        is_listed = len(rows) <= ROWS_IN_BATCH_MAX
        data = _BatchData(
            bucket=batch.bucket,
            calls=len(prepared),
            infer_ns=batch.infer_ns,
            row_count=len(rows),
            rows=rows if is_listed else UNSET,
            rows_tree=UNSET if is_listed else _rows_tree(rows),
            **facts.of_batch,
        )
        entry = self._envelope("batch", key, batch.closed_ns, data)
        summary = Summary(batch.closed_ns, facts.model, facts.version, facts.package, "", "")
        return Formed(key, "batch", entry, None, (), summary)

    def _event(self, event: Event) -> Formed:
        key = f"{self._prefix}e{event.n}"
        seal = _Sealer(key, event.seed, event.personal.get("subject"), self._subject_keys)
        data = dict(event.data)
        if event.personal:
            data["personal"] = seal.seal_personal(event.personal)
        envelope = {
            "data": data, "datacontenttype": _JSON, "id": key, "source": self._source, "specversion": "1.0",
            "time": format_time(event.time_ns), "type": event.kind,
        }  # fmt: skip
        entry = _bounded(key, canonical.encode(envelope))
        summary = summarise(event.kind, event.time_ns, data)
        return Formed(key, event.kind, entry, seal.subject, tuple(seal.openings), summary)

    def _envelope(self, kind: str, key: str, time_ns: int, data: _CallData | _BatchData) -> bytes:
        envelope = _Envelope(data, _JSON, key, self._source, "1.0", format_time(time_ns), kind)
        return _bounded(key, canonical.encode_ordered(envelope))


def _bounded(key: str, entry: bytes) -> bytes:
    if len(entry) > ENTRY_MAX:
        raise FormatError(f"entry {key}: expected at most {ENTRY_MAX:,} bytes, got {len(entry):,}")
    return entry


def _row(seal: _Sealer, number: int, row: Row, facts: _Facts) -> _Row:
    output, label, confidence = facts.complete(row)
    read = seal.seal("input", number, row.input)
    if not output:
        return _Row(read, None)
    digest = output_digest(output, label, confidence)
    return _Row(read, seal.seal("output", number, digest, row.value, label, confidence, output))


def _plain_row(seal: _Sealer, number: int, row: Row, facts: _Facts) -> _Row:
    output, label, confidence = facts.complete(row)
    if not output:
        return _Row("sha256:" + row.input.hex(), None)
    seal.openings.append(Opening("output", number, b"", row.value, label, confidence, output))
    digest = output_digest(output, label, confidence)
    return _Row("sha256:" + row.input.hex(), "sha256:" + digest.hex())


def _rows_tree(rows: list[_Row] | list[_BatchRow]) -> _RowsTree:
    """The small tree that stands for many rows; its leaf is a row's canonical JSON."""
    root = root_of([hash_leaf(canonical.encode_ordered(row)) for row in rows])
    return _RowsTree(root.hex(), len(rows))
