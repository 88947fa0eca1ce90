"""Completeness: that nothing we numbered is missing. Pure, over entries, offline.

Every start of a server is an epoch; epochs have no gaps. Within an epoch every worker gives out the
numbers 1 to ``last`` and closes each exactly once; its closing ``epoch`` entry says ``last``.
What it cannot know, it says (``LIMITS``). Source: spec/ledger.md, section 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.core.entry import Entry, parse_entry
from pellucid.core.times import parse_time
from pellucid.errors import CompletenessError, FormatError

LIMITS: Final = (
    "calls that bypassed the server (compare with the gateway's own count)",
    "after a power loss in the journaled mode, calls of the last flush interval: gaps say how many at most",
    "calls that a writer without this machine's keys and folders pretended to make",
)
LISTED_MAX: Final = 20  # limit: numbers named in one finding


@dataclass(slots=True)
class Part:
    """One worker's part of one epoch.

    Attributes:
        last: Last number given out, from the closing entry; ``None`` while it is not closed.
        closed: Numbers with a ``call`` entry.
        twice: Numbers with more than one.
        recovered: True if its owner died and the sequencer closed it.
        recorded: False under ``unsafe_record_nothing``.
    """

    epoch: int
    worker: int
    opened: str = ""
    ended: str = ""
    last: int | None = None
    closed: set[int] = field(default_factory=set)
    twice: set[int] = field(default_factory=set)
    unresolved: int = 0
    calls_in_period: int = 0
    recovered: bool = False
    recorded: bool = True

    @property
    def highest(self) -> int:
        """Highest number known to be given out."""
        return max(self.closed, default=0) if self.last is None else self.last

    @property
    def open(self) -> list[tuple[int, int]]:
        """Numbers given out for certain and without an entry, as ranges (first, last): in flight while
        the epoch lives."""
        return _holes(self.closed, self.highest)


@dataclass(frozen=True, slots=True)
class Completeness:
    """What the entries show about themselves.

    Attributes:
        findings: What is missing or doubled; empty when everything numbered is there.
        parts: Every worker's part of every epoch that touches the period.
        gaps: ``gap`` entries of the period: losses that are known and bounded.
        notes: What holds but should be known (epochs still running, calls in flight).
        limits: What no log can know about itself.
    """

    findings: tuple[str, ...]
    parts: tuple[Part, ...]
    gaps: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    limits: tuple[str, ...] = LIMITS

    @property
    def calls(self) -> int:
        """Calls accepted within the period."""
        return sum(part.calls_in_period for part in self.parts)

    @property
    def is_complete(self) -> bool:
        return not self.findings


def verify_complete(result: Completeness) -> Completeness:
    """The result itself, if nothing is missing.

    Raises:
        CompletenessError: Names everything that is.
    """
    if result.findings:
        raise CompletenessError(f"ledger: {len(result.findings)} findings: " + "; ".join(result.findings))
    return result


def complete(entries: Iterable[bytes | Entry], since_ns: int = 0, until_ns: int = 2**63 - 1) -> Completeness:
    """Judge whether every number of a period is accounted for.

    Args:
        entries: All leaves of the log, in order (the whole log: epochs are counted from 1).
        since_ns: Begin of the period, nanoseconds since 1970.
        until_ns: Its end.

    Raises:
        FormatError: A leaf is not an entry.
    """
    count = _Count(since_ns, until_ns)
    for raw in entries:
        count.add(raw if isinstance(raw, Entry) else parse_entry(raw))
    return count.result()


class _Count:
    def __init__(self, since_ns: int, until_ns: int) -> None:
        self._since, self._until = since_ns, until_ns
        self._parts: dict[tuple[str, int, int], Part] = {}
        self._workers: dict[tuple[str, int], int] = {}
        self._gaps: list[dict[str, Any]] = []
        self._malformed: list[str] = []

    def add(self, entry: Entry) -> None:
        try:
            self._add(entry)
        except FormatError as error:
            self._malformed.append(error.message)

    def _add(self, entry: Entry) -> None:
        if entry.type == "call":
            self._add_call(entry)
        elif entry.type == "epoch":
            self._add_epoch(entry)
        elif entry.type == "gap":
            self._add_gap(entry)

    def _part(self, node: str, epoch: int, worker: int) -> Part:
        return self._parts.setdefault((node, epoch, worker), Part(epoch, worker))

    def _add_call(self, entry: Entry) -> None:
        node, epoch, worker, n = _call_key(entry)
        part = self._part(node, epoch, worker)
        (part.twice if n in part.closed else part.closed).add(n)
        part.unresolved += entry.data.get("outcome") == "unresolved"
        accepted = entry.data.get("accepted")
        if isinstance(accepted, str) and self._since <= parse_time(accepted) <= self._until:
            part.calls_in_period += 1

    def _add_epoch(self, entry: Entry) -> None:
        data, node = entry.data, entry.id.split("/", 1)[0]
        part = self._part(node, _integer(data, "epoch"), _integer(data, "worker"))
        if data.get("phase") == "open":
            part.opened = entry.time
            self._workers[node, part.epoch] = _integer(data, "workers")
        else:
            last = data.get("last")
            if not isinstance(last, list) or len(last) != 1 or type(last[0]) is not int:
                raise FormatError(f"entry {entry.id}: expected last as one number, got {last!r:.60}")
            part.last, part.ended = last[0], entry.time
            part.recovered = data.get("recovered") is True

    def _add_gap(self, entry: Entry) -> None:
        self._gaps.append({"entry": entry.id, "time": entry.time, **entry.data})
        if entry.data.get("reason") == "unsafe_record_nothing":
            node = entry.id.split("/", 1)[0]
            self._part(node, _integer(entry.data, "epoch"), _integer(entry.data, "worker")).recorded = False

    def result(self) -> Completeness:
        parts = {at: part for at, part in sorted(self._parts.items()) if self._touches(part)}
        findings, notes = self._malformed + self._epochs(set(parts)), []
        for (node, epoch, worker), part in parts.items():
            name = f"{node}/{epoch}/{worker}"
            findings += _judge(name, part)
            notes += _notes(name, part)
        gaps = [gap for gap in self._gaps if self._since <= parse_time(gap["time"])]
        return Completeness(tuple(findings), tuple(parts.values()), tuple(gaps), tuple(notes))

    def _touches(self, part: Part) -> bool:
        begins = parse_time(part.opened) if part.opened else 0
        ends = parse_time(part.ended) if part.ended else self._until
        return begins <= self._until and ends >= self._since

    def _epochs(self, within: set[tuple[str, int, int]]) -> list[str]:
        findings = []
        for node in sorted({node for node, _, _ in self._parts}):
            seen = {epoch for name, epoch, _ in self._parts if name == node}
            missing = _holes(seen, max(seen, default=0))
            if missing:
                findings.append(f"{node}: epochs {_listed(missing)} have no entry")
            for epoch in sorted(epoch for name, epoch, _ in within if name == node):
                workers = self._workers.get((node, epoch), 1)
                absent = [w for w in range(min(workers, LISTED_MAX)) if (node, epoch, w) not in self._parts]
                findings += [f"{node}/{epoch}/{worker}: this worker has no entry" for worker in absent]
        return sorted(set(findings))


def _call_key(entry: Entry) -> tuple[str, int, int, int]:
    parts = entry.id.split("/")
    if len(parts) != 4 or not all(part.isascii() and part.isdecimal() for part in parts[1:]):
        raise FormatError(f"entry: expected a call key node/epoch/worker/n, got {entry.id!r:.120}")
    return parts[0], int(parts[1]), int(parts[2]), int(parts[3])


def _integer(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    if type(value) is not int or value < 0:
        raise FormatError(f"entry: expected {name} as a number, got {value!r:.40}")
    return value


def _judge(name: str, part: Part) -> list[str]:
    findings = [f"{name}: numbers {_listed(_runs(part.twice))} are closed twice"] if part.twice else []
    last = part.last
    if last is None:
        return findings  # alive: numbers without an entry may be in flight
    beyond = [n for n in part.closed if n > last]
    if beyond:
        findings.append(f"{name}: numbers {_listed(_runs(beyond))} lie beyond its last, {last}")
    if part.open and part.recorded:
        findings.append(f"{name}: numbers {_listed(part.open)} of 1 to {last} have no entry")
    return findings


def _notes(name: str, part: Part) -> list[str]:
    notes = []
    if part.last is None:
        flying = f", not closed: {_listed(part.open)}" if part.open else ""
        notes.append(f"{name}: runs (or awaits recovery), numbers 1 to {part.highest} seen{flying}")
    if not part.recorded:
        notes.append(f"{name}: served under unsafe_record_nothing: its calls have no entries")
    if part.recovered:
        notes.append(f"{name}: its owner died; {part.unresolved} calls were closed as unresolved")
    return notes


def _holes(present: Iterable[int], last: int) -> list[tuple[int, int]]:
    """What is missing of 1 to ``last``, as ranges: an entry may claim any last."""
    holes, following = [], 1
    for n in sorted(n for n in present if 0 < n <= last):
        if n > following:
            holes.append((following, n - 1))
        following = n + 1
    return holes + ([(following, last)] if following <= last else [])


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for n in sorted(numbers):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], n)
        else:
            ranges.append((n, n))
    return ranges


def _listed(ranges: list[tuple[int, int]]) -> str:
    """Ranges as text, shortened."""
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:LISTED_MAX]]
    more = "" if len(ranges) <= LISTED_MAX else f" and {len(ranges) - LISTED_MAX} more ranges"
    return ", ".join(texts) + more
