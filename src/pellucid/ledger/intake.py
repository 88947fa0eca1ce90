"""The sequencer's view of the journals: what waits, in which order, and what can be dropped."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from pellucid.core.record import Context, decode_record
from pellucid.errors import FormatError, LedgerHaltedError
from pellucid.ledger.board import lock_dead, sync_folder
from pellucid.ledger.forming import entry_count
from pellucid.ledger.journal import SegmentReader, list_segments
from pellucid.ledger.state import Range

PEEK: Final = 64 * 1024  # enough to see whether anything waits
CHUNK: Final = 256 * 1024  # of a segment at once: what a step has no use for is read again by the next
PER_SOURCE_MIN: Final = 256  # no writer keeps the others waiting


class Gathered(msgspec.Struct):
    """Records of one step, in the order that becomes the ledger's."""

    ranges: list[Range] = msgspec.field(default_factory=list)
    records: list[tuple[str, bytes, str]] = msgspec.field(default_factory=list)  # source, payload, place
    entries: int = 0

    def take(
        self, segment: str, source: str, start: int, frames: list[tuple[int, bytes]], entries: int
    ) -> None:
        """Add whole frames of one segment, which give about that many entries."""
        self.ranges.append(Range(segment, start, frames[-1][0]))
        self.records += [(source, payload, f"{segment}:{stop}") for stop, payload in frames]
        self.entries += entries

    def stops(self) -> dict[str, int]:
        """Where each segment is read up to."""
        return {each.segment: each.stop for each in self.ranges}


class Intake:
    """Reads segments behind their committed positions.

    Args:
        folder: ``ledger/journal``.
        positions: Committed positions by segment; kept up to date by ``advance``.
    """

    def __init__(self, folder: Path, positions: Mapping[str, int]) -> None:
        self.folder = folder
        self._positions = dict(positions)
        self._readers: dict[str, SegmentReader] = {}
        self.contexts: dict[str, dict[int, Context]] = {}
        self.unreadable: dict[str, str] = {}

    def gather(self, entries_max: int) -> Gathered:
        """What waits now, up to about that many entries; synced, so that a plan may name it."""
        gathered = Gathered()
        segments = self.refresh()
        sources = {source for source, _ in segments.values()}
        budget = max(PER_SOURCE_MIN, entries_max // max(1, len(sources)))
        taken = dict.fromkeys(sources, 0)
        # newest first: what a segment holds now was appended after all that the ones before it will
        # ever hold, and their ends are looked up after this one's
        ends = {name: self._readers[name].size() for name in reversed(segments) if name in self._readers}
        for name, (source, _) in segments.items():
            if name not in self._readers or taken[source] >= budget:
                continue
            start = self._position(name)
            for frames in self._batches(name, ends[name]):
                frames, entries = _cut(frames, budget - taken[source])
                if not frames:
                    break
                gathered.take(name, self._readers[name].head.source, start, frames, entries)
                taken[source] += entries
                start = frames[-1][0]
        for name in {each.segment for each in gathered.ranges}:
            self._readers[name].sync()
        return gathered

    def _batches(self, name: str, end: int | None = None) -> Iterator[list[tuple[int, bytes]]]:
        position = self._position(name)
        while frames := self._readers[name].frames(position, chunk=CHUNK):
            if end is not None and frames[-1][0] > end:
                frames = [frame for frame in frames if frame[0] <= end]
                if frames:
                    yield frames
                return
            yield frames
            position = frames[-1][0]

    def read(self, ranges: tuple[Range, ...]) -> Gathered:
        """The records of a plan, exactly.

        Raises:
            LedgerHaltedError: A segment of the plan is gone or shorter than it was.
        """
        gathered = Gathered()
        self.refresh()
        for each in ranges:
            if each.segment not in self._readers:
                raise LedgerHaltedError(
                    f"{each.segment}: expected the segment of an unfinished plan, got none"
                )
            reader = self._readers[each.segment]
            frames = reader.frames(each.start, each.stop)
            if not frames or frames[-1][0] != each.stop:
                raise LedgerHaltedError(
                    f"{each.segment}: expected whole records up to {each.stop:,}, got fewer"
                )
            gathered.take(each.segment, reader.head.source, each.start, *_cut(frames, math.inf))
        return gathered

    def refresh(self) -> dict[str, tuple[str, int]]:
        """Open what is new in the folder; returns all segments in order."""
        segments = list_segments(self.folder)
        for name in segments:
            if name not in self._readers and name not in self.unreadable:
                self._open(name)
        return segments

    def _open(self, name: str) -> None:
        try:
            reader = SegmentReader(self.folder / name)
        except FormatError as error:
            self.unreadable[name] = error.message  # whole before it was named: a damaged disk
            return
        self._readers[name] = reader
        if name in self._positions:
            self._recall_contexts(reader, self._positions[name])

    def _recall_contexts(self, reader: SegmentReader, stop: int) -> None:
        """Contexts in the part that is committed already."""
        position = reader.head.stop
        while position < stop and (frames := reader.frames(position)):
            for end, payload in frames:
                if end <= stop and payload[1:3] == b"\xa1x":
                    record = decode_record(payload)
                    if isinstance(record, Context):
                        self.contexts.setdefault(reader.head.source, {})[record.id] = record
            position = frames[-1][0]

    def _position(self, name: str) -> int:
        return self._positions.get(name, self._readers[name].head.stop)

    def advance(self, positions: Mapping[str, int]) -> None:
        """These positions are committed."""
        self._positions.update(positions)

    def has_waiting(self, source: str) -> bool:
        """True if a source has whole records that are not committed."""
        for name, (owner, _) in self.refresh().items():
            if owner == source and name in self._readers and self._waits(name):
                return True
        return False

    def _waits(self, name: str) -> bool:
        position = self._position(name)
        while frames := self._readers[name].frames(position, chunk=PEEK):
            if any(entry_count(payload) for _, payload in frames):
                return True
            position = frames[-1][0]
        return False

    def torn_bytes(self, source: str) -> int:
        """Bytes at the ends of a dead source's segments that are no whole record."""
        total = 0
        for name, (owner, _) in self.refresh().items():
            if owner == source and name in self._readers:
                stop = self._position(name)
                for frames in self._batches(name):
                    stop = frames[-1][0]
                total += self._readers[name].size() - stop
        return total

    def next_seq(self, source: str) -> int:
        """A segment number that the source never used among those that are left."""
        return (
            max((seq for owner, seq in list_segments(self.folder).values() if owner == source), default=0) + 1
        )

    def drop_finished(self, keep: frozenset[str]) -> list[str]:
        """Delete segments that are wholly committed and whose writer let go of them.

        Args:
            keep: Sources whose board is not recovered yet: their newest segment is still needed.

        Returns:
            Names that are gone from the disk for good; their positions may be forgotten.
        """
        dropped = []
        segments = list_segments(self.folder)
        newest = dict(segments.values())
        for name, (source, seq) in segments.items():
            needed = source in keep and seq == newest[source]  # its contexts, its number, its torn end
            if name in self._readers and not needed and self._is_finished(name):
                self._readers.pop(name).close()
                (self.folder / name).unlink()
                dropped.append(name)
        if dropped:
            # first gone from the disk, then from the state: otherwise a segment that comes back
            # after a power loss would be read again from its start
            sync_folder(self.folder)
        for name in dropped:
            self._positions.pop(name, None)
        return dropped

    def _is_finished(self, name: str) -> bool:
        fd = lock_dead(self.folder / name)
        if fd is None:
            return False
        os.close(fd)
        return not self._waits(name)

    def stale_positions(self) -> list[str]:
        """Positions of segments that are no longer there (killed between deletion and forgetting)."""
        return [name for name in self._positions if not (self.folder / name).exists()]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def _cut(frames: list[tuple[int, bytes]], budget: float) -> tuple[list[tuple[int, bytes]], int]:
    """As many frames as give about ``budget`` entries, at least one if there is any budget; and how many."""
    total = 0
    for position, (_, payload) in enumerate(frames):
        if total >= budget:
            return frames[:position], total
        total += entry_count(payload)
    return frames, total
