"""From records to entries: deterministic, so that a plan can be finished after a crash.

What it decides depends on the records, the committed call numbers and the index alone. A second
close of a number, and a record that gives no entry, become ``alert`` entries: neither is dropped in
silence, and neither stops the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from pellucid.core.entry import Formed, SubjectKeys, Writer, expand
from pellucid.core.record import Batch, Call, Context, Event, Record, decode_record
from pellucid.errors import FormatError
from pellucid.ledger.state import Numbers

EMPTY_CONTEXT = Context(0, {})


class Former:
    """Forms the entries of one step.

    Args:
        node: This log's node; alerts are written under ``node/sequencer``.
        first: Index of the first entry.
        contexts: Contexts by source and id; grows as records are seen.
        numbers: Committed call numbers of a source.
        subject_keys: Gives a subject's key.
    """

    def __init__(
        self,
        node: str,
        first: int,
        *,
        contexts: dict[str, dict[int, Context]],
        numbers: Callable[[str], Numbers],
        subject_keys: SubjectKeys,
    ) -> None:
        self._sequencer = Writer(f"{node}/sequencer")
        self._first, self._contexts = first, contexts
        self._committed, self._subject_keys = numbers, subject_keys
        self._before: dict[str, Numbers] = {}
        self._closed: dict[str, set[int]] = defaultdict(set)
        self._last_event: dict[str, int] = defaultdict(int)
        self._ended: set[str] = set()
        self.formed: list[Formed] = []

    def add(self, source: str, payload: bytes, place: str) -> None:
        """Form what one record gives.

        Args:
            source: Whose journal it stands in.
            payload: The record's wire form.
            place: Segment and offset, for an alert.
        """
        try:
            record = decode_record(payload)
        except FormatError as error:
            self._alert({"error": error.message, "kind": "record", "place": place}, 0)
            return
        if isinstance(record, Context):
            self._contexts.setdefault(source, {})[record.id] = record
        elif isinstance(record, Event):
            self._add_event(source, record, place)
        elif isinstance(record, Call):
            self._add_calls(source, record, (record,), place)
        else:
            self._add_calls(source, record, record.calls, place)

    def _add_event(self, source: str, event: Event, place: str) -> None:
        if self._try(source, event, place):
            self._last_event[source] = max(self._last_event[source], event.n)
            if event.kind == "epoch" and event.data.get("phase") == "closed":
                self._ended.add(source)

    def _add_calls(self, source: str, record: Call | Batch, calls: tuple[Call, ...], place: str) -> None:
        if source not in self._before:
            self._before[source] = self._committed(source)
        if not calls:
            self._alert({"error": "a batch without calls", "kind": "record", "place": place}, 0)
        fresh: list[Call] = []
        for call in calls:
            if self._before[source].is_number_closed(call.n) or call.n in self._closed[source]:
                self._alert({"call": f"{source}/{call.n}", "kind": "closed_twice"}, call.closed_ns)
            else:
                self._closed[source].add(call.n)
                fresh.append(call)
        if not fresh:
            return
        whole = record if isinstance(record, Call) else msgspec.structs.replace(record, calls=tuple(fresh))
        if not self._try(source, whole, place):
            for call in fresh:
                self._form(source, _unformable(call))

    def _try(self, source: str, record: Record, place: str) -> bool:
        try:
            self._form(source, record)
        except (FormatError, KeyError, TypeError, ValueError) as error:
            # from a writer of ours, but a disk or a bug must not stop the log of everyone else
            text = f"{type(error).__name__}: {error}"[:500].encode("ascii", "replace").decode()
            self._alert({"error": text, "kind": "record", "place": place}, 0)
            return False
        return True

    def _form(self, source: str, record: Record) -> None:
        contexts = {0: EMPTY_CONTEXT} | self._contexts.get(source, {})
        self.formed += expand(
            record, writer=Writer(source), contexts=contexts, subject_keys=self._subject_keys
        )

    def _alert(self, data: dict[str, str], time_ns: int) -> None:
        # numbered by its index: unique, and the same when the plan is finished after a crash
        event = Event(self._first + len(self.formed), "alert", time_ns, dict(data))
        self.formed += expand(event, writer=self._sequencer, contexts={}, subject_keys=self._subject_keys)

    def numbers(self) -> dict[str, Numbers]:
        """Call numbers of every writer concerned, as they are once these entries are committed."""
        changed = {}
        for source in {*self._closed, *self._last_event, *self._ended}:
            if is_worker(source):
                before = self._committed(source)
                changed[source] = Numbers(
                    last_event=max(before.last_event, self._last_event[source]),
                    is_closed=before.is_closed or source in self._ended,
                    closed_below=before.closed_below,
                    above=before.above,
                ).close(self._closed[source])
        return changed


def is_worker(source: str) -> bool:
    """True for ``node/epoch/worker``: a writer of calls, with a board."""
    parts = source.split("/")
    return len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()


def entry_count(payload: bytes) -> int:
    """About how many entries a record gives, cheaply; 0 for a context."""
    if payload[1:3] == b"\xa1x":
        return 0
    if payload[1:3] != b"\xa1b":
        return 1
    try:
        record = decode_record(payload)
    except FormatError:
        return 1
    return len(record.calls) + 1 if isinstance(record, Batch) else 1


def _unformable(call: Call) -> Call:
    """What is left of a call whose record gives no entry: its number is closed all the same."""
    return msgspec.structs.replace(
        call, context=0, outcome="unresolved", error="record", rows=(), shapes=(), personal={}, trace=None,
        accepted_ns=max(0, call.accepted_ns), closed_ns=max(0, call.closed_ns), slot=-1, bucket=0,
    )  # fmt: skip
