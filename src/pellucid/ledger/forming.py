"""From records to entries: deterministic, so that a plan can be finished after a crash.

What it decides depends on the records, the committed numbers and the index alone. A second close of
a number, a number used twice, and a record that gives no entry become ``alert`` entries: nothing is
dropped in silence, and nothing stops the log. A call whose record is spoiled is closed all the same,
as ``unresolved``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from pellucid.core.canonical import INTEGER_MAX
from pellucid.core.entry import TYPES, Formed, SubjectKeys, Writer
from pellucid.core.expand import Expander
from pellucid.core.record import Batch, Call, Context, Event, Record, decode_record
from pellucid.errors import FormatError, TensorError
from pellucid.ledger.state import Numbers

EMPTY_CONTEXT = Context(0, {})
_SPOILED: Final = (  # what a spoiled record raises; never what a vault or a disk does
    FormatError, TensorError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
    struct.error,
)  # fmt: skip


@dataclass(slots=True)
class _Seen:
    """One writer's numbers within this step."""

    is_worker: bool
    before: Numbers
    last_event: int
    last_batch: int
    closed: set[int] = field(default_factory=set)
    has_ended: bool = False


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
        self._alerts = Expander(Writer(f"{node}/sequencer"), {}, subject_keys)
        self._expanders: dict[str, Expander] = {}
        self._first, self._contexts = first, contexts
        self._committed, self._subject_keys = numbers, subject_keys
        self._seen: dict[str, _Seen] = {}
        self.formed: list[Formed] = []

    def _of(self, source: str) -> _Seen:
        seen = self._seen.get(source)
        if seen is None:
            before = self._committed(source)
            seen = _Seen(is_worker(source), before, before.last_event, before.last_batch)
            self._seen[source] = seen
        return seen

    def _expander(self, source: str) -> Expander:
        found = self._expanders.get(source)
        if found is None:
            contexts = {0: EMPTY_CONTEXT} | self._contexts.get(source, {})
            found = self._expanders[source] = Expander(Writer(source), contexts, self._subject_keys)
        return found

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
        if isinstance(record, Call):
            self._add_calls(source, record, (record,), place)
        elif isinstance(record, Context):
            if self._try(source, record, place):
                self._contexts.setdefault(source, {})[record.id] = record
                self._expander(source).contexts[record.id] = record
        elif isinstance(record, Event):
            self._add_event(source, record, place)
        else:
            self._add_calls(source, record, record.calls, place)

    def _add_event(self, source: str, event: Event, place: str) -> None:
        seen = self._of(source)
        if not seen.last_event < event.n <= INTEGER_MAX:
            self._alert({"entry": f"{source}/e{event.n}", "kind": "event_twice"}, event.time_ns)
        elif self._try(source, event, place):
            seen.last_event = event.n
            seen.has_ended |= event.kind == "epoch" and event.data.get("phase") == "closed"

    def _add_calls(self, source: str, record: Call | Batch, calls: tuple[Call, ...], place: str) -> None:
        fresh = self._unclosed(source, calls, place)
        if not fresh:
            return
        if isinstance(record, Batch) and self._is_new_batch(source, record):
            if len(fresh) < len(calls):
                record = msgspec.structs.replace(record, calls=tuple(fresh))
            if self._try(source, record, place):
                return
        for call in fresh:
            if not self._try(source, call, place):
                self._form(source, _unformable(call))

    def _is_new_batch(self, source: str, batch: Batch) -> bool:
        seen = self._of(source)
        if not seen.last_batch < batch.n <= INTEGER_MAX:
            self._alert({"entry": f"{source}/b{batch.n}", "kind": "batch_twice"}, batch.closed_ns)
            return False
        seen.last_batch = batch.n
        return True

    def _unclosed(self, source: str, calls: tuple[Call, ...], place: str) -> list[Call]:
        """Calls whose number is closed here; an alert for each that was before, or is no number."""
        if not calls:
            self._alert({"error": "a batch without calls", "kind": "record", "place": place}, 0)
        seen, fresh = self._of(source), []
        for call in calls:
            n = call.n
            if not 0 < n <= INTEGER_MAX or not seen.is_worker:
                self._alert({"error": f"no call number: {n}", "kind": "record", "place": place}, 0)
            elif n in seen.closed or seen.before.is_number_closed(n):
                self._alert({"call": f"{source}/{n}", "kind": "closed_twice"}, call.closed_ns)
            else:
                seen.closed.add(n)
                fresh.append(call)
        return fresh

    def _try(self, source: str, record: Record, place: str) -> bool:
        try:
            self._form(source, record)
        except _SPOILED as error:
            # from a writer of ours, but a disk or a bug must not stop the log of everyone else
            text = f"{type(error).__name__}: {error}"[:500].encode("ascii", "replace").decode()
            self._alert({"error": text, "kind": "record", "place": place}, 0)
            return False
        return True

    def _form(self, source: str, record: Record) -> None:
        _check_profile(record)
        self.formed += self._expander(source).expand(record)

    def _alert(self, data: dict[str, str], time_ns: int) -> None:
        # numbered by its index: unique, and the same when the plan is finished after a crash
        event = Event(self._first + len(self.formed), "alert", time_ns, dict(data))
        self.formed += self._alerts.expand(event)

    def numbers(self) -> dict[str, Numbers]:
        """Numbers of every writer concerned, as they are once these entries are committed."""
        return {
            source: replace(
                seen.before,
                last_event=seen.last_event,
                last_batch=seen.last_batch,
                is_closed=seen.before.is_closed or seen.has_ended,
            ).close(seen.closed)
            for source, seen in self._seen.items()
        }


def is_worker(source: str) -> bool:
    """True for ``node/epoch/worker``: a writer of calls, with a board."""
    parts = source.split("/")
    return len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()


class _Outline(msgspec.Struct, array_like=True, tag="b", gc=False):
    """A batch of which only the number of its calls is asked."""

    n: int
    context: int
    bucket: int
    closed_ns: int
    infer_ns: int
    calls: list[msgspec.Raw]


_outlines: Final = msgspec.msgpack.Decoder(_Outline)


def entry_count(payload: bytes) -> int:
    """About how many entries a record gives, cheaply; 0 for a context."""
    tag = payload[1:3]
    if tag == b"\xa1x":
        return 0
    if tag != b"\xa1b":
        return 1
    try:
        return len(_outlines.decode(payload).calls) + 1
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def _check_profile(record: Record) -> None:
    """What forming does not check: an event's type, and that the integers of calls fit into JSON."""
    if isinstance(record, Event):
        if record.kind not in TYPES or record.kind in ("call", "batch"):
            raise FormatError(f"event: expected a type of entry that is no call, got {record.kind!r:.40}")
    elif not isinstance(record, Context):
        calls: tuple[Call, ...] = (record,) if isinstance(record, Call) else record.calls
        values = [record.bucket, record.infer_ns] if isinstance(record, Batch) else []
        for call in calls:
            values += (*call.stages, *call.nbytes, call.bucket, call.slot + 1)  # -1: it never ran
            for shape in call.shapes:
                values += shape
            if call.accepted_ns < 0 or call.closed_ns < 0:
                raise FormatError(f"call {call.n}: expected times since 1970, got earlier ones")
        if not 0 <= min(values) <= max(values) <= INTEGER_MAX:
            raise FormatError("record: expected integers of 0 to 2**53 - 1, got others")


def _unformable(call: Call) -> Call:
    """What is left of a call whose record gives no entry: its number is closed all the same."""
    return msgspec.structs.replace(
        call, context=0, outcome="unresolved", error="record", rows=(), shapes=(), personal={}, trace=None,
        accepted_ns=max(0, call.accepted_ns), closed_ns=max(0, call.closed_ns), slot=-1, bucket=0,
        stages=(0, 0, 0, 0), nbytes=(0, 0), mark=None,
    )  # fmt: skip
