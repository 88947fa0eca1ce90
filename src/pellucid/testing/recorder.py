"""A recorder in memory that polices the contract of ``ports.Recorder`` rather than mock it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pellucid.core import canonical
from pellucid.core.entry import Formed, Writer
from pellucid.core.expand import expand
from pellucid.core.record import (
    OUTCOMES,
    PERSONAL,
    Batch,
    Call,
    Context,
    Event,
    Record,
    decode_record,
    encode_record,
)
from pellucid.errors import LedgerFullError, LedgerHaltedError, UsageError


class MemoryRecorder:
    """Keeps every record; refuses what a real one would, and what only a bug would do.

    Attributes:
        records: What was appended, read back from its wire form.
        limit: Numbers that may be open at once.
        broken: When set, appends fail with this text.
        held: Callbacks that wait for ``flush`` in the ``durable`` mode.
    """

    def __init__(self, mode: str = "journaled", source: str = "node1/1/0", limit: int = 4096) -> None:
        self.mode, self.source, self.limit, self.broken = mode, source, limit, ""
        self.records: list[Record] = [Context(0, {})]
        self.open: dict[int, int] = {}
        self.last, self._events, self._contexts, self._batches = 0, 0, 0, 0
        self.dropped: set[int] = set()
        self.held: list[Callable[[], None]] = []
        self._thread: int | None = None

    def reserve(self, accepted_ns: int) -> int:
        if len(self.open) >= self.limit:
            raise LedgerFullError(f"{self.limit} calls are in flight, the limit is {self.limit}")
        self.last += 1
        self.open[self.last] = accepted_ns
        return self.last

    def call_key(self, n: int) -> str:
        return f"{self.source}/{n}"

    def add_context(self, facts: dict[str, Any]) -> int:
        canonical.encode(facts)
        self._contexts += 1
        self._append(Context(self._contexts, facts))
        return self._contexts

    def drop_context(self, context: int) -> None:
        if context in self.dropped or not 0 < context <= self._contexts:
            raise UsageError(f"context {context}: expected one that is known, got another")
        self.dropped.add(context)

    def close_call(self, call: Call) -> None:
        self._check(call)
        self._append(call)
        del self.open[call.n]

    def close_batch(self, batch: Batch) -> None:
        if batch.n != self._batches + 1 or not batch.calls:
            raise UsageError(f"batch: expected number {self._batches + 1} with calls, got {batch.n}")
        for call in batch.calls:
            self._check(call)
        self._append(batch)
        self._batches = batch.n
        for call in batch.calls:
            del self.open[call.n]

    def _check(self, call: Call) -> None:
        if call.n not in self.open:
            raise UsageError(f"call {call.n}: expected an open number, got a closed one")
        if call.outcome not in OUTCOMES or not set(call.personal) <= set(PERSONAL):
            raise UsageError(f"call {call.n}: expected a known outcome and personal values, got others")
        self._police_thread()
        if call.context > self._contexts:
            raise UsageError(f"call {call.n}: expected a known context, got {call.context}")

    def _police_thread(self) -> None:
        """Models may be added before the loop runs; calls come from its thread only."""
        thread = threading.get_ident()
        self._thread = self._thread or thread
        if self._thread != thread:
            raise UsageError("recorder: expected one thread that closes calls, got another")

    def _append(self, record: Record) -> None:
        if self.broken:
            raise LedgerHaltedError(self.broken)
        self.records.append(decode_record(encode_record(record)))

    def after_durable(self, callback: Callable[[], None]) -> None:
        if self.mode == "durable":
            self.held.append(callback)
        else:
            callback()

    def flush(self) -> None:
        """Let the replies go that wait for the disk."""
        held, self.held = self.held, []
        for callback in held:
            callback()

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        canonical.encode(data)
        self._events += 1
        self._append(Event(self._events, kind, 1, data, b"s" * 32 if personal else b"", dict(personal or {})))
        return f"{self.source}/e{self._events}"

    # -- for assertions ---------------------------------------------------------------------------

    def calls(self) -> list[Call]:
        """Every closed call, batched or not, in order of closing."""
        found: list[Call] = []
        for record in self.records:
            if isinstance(record, Call):
                found.append(record)
            elif isinstance(record, Batch):
                found.extend(record.calls)
        return found

    def batches(self) -> list[Batch]:
        return [record for record in self.records if isinstance(record, Batch)]

    def entries(self) -> list[Formed]:
        """Entries as the sequencer would form them."""
        contexts = {record.id: record for record in self.records if isinstance(record, Context)}
        formed: list[Formed] = []
        for record in self.records:
            formed += expand(
                record, writer=Writer(self.source), contexts=contexts, subject_keys=lambda _: b"k" * 32
            )
        return formed
