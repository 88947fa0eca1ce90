"""Closing what a dead writer left open.

A worker that died leaves its board. Once its journal is wholly integrated, every number it gave
out and did not close becomes a ``call`` entry with outcome ``unresolved``; after a power loss
(another boot) a ``gap`` says how many numbers may be unknown and when; an ``epoch`` entry ends its
part of the epoch. All of it is one journal segment of the same writer, written whole or not at all,
so that it takes the path of every other record. The board goes last: killed before, the next
attempt finds everything closed and only removes it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pellucid.core.record import Call, Context, Event, Record, encode_record
from pellucid.core.times import format_time
from pellucid.errors import FormatError, LedgerHaltedError
from pellucid.ledger.board import BLOCK, BoardImage, lock_dead, parse_board, read_boot_id, sync_folder
from pellucid.ledger.events import closed_epoch
from pellucid.ledger.intake import Intake
from pellucid.ledger.journal import parse_segment_name, write_segment
from pellucid.ledger.state import Numbers, State
from pellucid.ports import Clock

NUMBERS_MAX: Final = 4 * BLOCK  # limit: more were never given out beyond what the journal has
DRAFT_AGE_NS: Final = 60 * 10**9


class Recovery:
    """Finds dead boards and writes what closes them.

    Args:
        folder: The ledger's folder.
        node: This log's node.
        boot_id: This boot's id; tests give others.
    """

    def __init__(
        self, folder: Path, node: str, *, state: State, intake: Intake, clock: Clock, boot_id: bytes = b""
    ) -> None:
        self._boards, self._journal, self._node = folder / "board", folder / "journal", node
        self._state, self._intake, self._clock = state, intake, clock
        self._boot_id = boot_id or read_boot_id()

    def waiting(self) -> frozenset[str]:
        """Sources that still have a board."""
        return frozenset(self._source(path) for path in self._paths())

    def _paths(self) -> list[Path]:
        return sorted(self._boards.glob("[0-9]*-[0-9]*.board"))

    def _source(self, path: Path) -> str:
        epoch, worker = path.stem.split("-")
        return f"{self._node}/{epoch}/{worker}"

    def run(self) -> int:
        """Recover every dead board whose journal is integrated; returns how many segments it wrote."""
        return sum(self._recover(path) for path in self._paths()) + self._report_unreadable()

    def _recover(self, path: Path) -> bool:
        fd = lock_dead(path)
        if fd is None:
            return False
        try:
            source = self._source(path)
            if self._intake.has_waiting(source):
                return False
            numbers = self._state.numbers(source)
            if numbers.is_closed:
                path.unlink()
                sync_folder(path.parent)
                return False
            image = self._read(fd, source, numbers)
            records = self._records(source, image, numbers)
            payloads = [encode_record(record) for record in records]
            write_segment(self._journal, source, self._intake.next_seq(source), payloads)
            return True
        finally:
            os.close(fd)

    def _read(self, fd: int, source: str, numbers: Numbers) -> BoardImage:
        known = numbers.highest + 1
        try:
            image = parse_board(os.pread(fd, os.fstat(fd).st_size, 0))
        except FormatError:
            image = None
        if image is None or image.next > known + NUMBERS_MAX:
            # a damaged disk: only the journal's numbers are certain, a block may be unknown
            return BoardImage(source, bytes(16), 0, known, known + BLOCK, 0, {})
        if image.source != source:
            raise LedgerHaltedError(f"board: expected source {source!r}, got {image.source!r}")
        opened = {n: slot for n, slot in image.open.items() if n <= known + NUMBERS_MAX}
        return replace(image, open=opened)

    def _records(self, source: str, image: BoardImage, numbers: Numbers) -> list[Record]:
        now_ns = self._clock.now_ns()
        last = max(image.next - 1, numbers.highest, *image.open, 0)
        unresolved = [n for n in range(numbers.closed_below, last + 1) if not numbers.is_number_closed(n)]
        contexts = self._intake.contexts.get(source, {})
        records: list[Record] = [*contexts.values()]
        for n in unresolved:
            accepted_ns, context = image.open.get(n, (image.started_ns, 0))
            known = context if context in contexts else 0
            records.append(_unresolved(n, known, min(accepted_ns, 2**62), now_ns))
        if 0 not in contexts:
            records.insert(0, Context(0, {}))
        event = numbers.last_event
        epoch, worker = (int(part) for part in source.split("/")[1:])
        if image.boot_id != self._boot_id:
            event += 1
            gap = _gap(epoch, worker, image, last, now_ns)
            records.append(Event(event, "gap", now_ns, gap))
        data = closed_epoch(epoch, worker, last=last, unresolved=len(unresolved), recovered=True)
        data["torn_bytes"] = self._intake.torn_bytes(source)
        return [*records, Event(event + 1, "epoch", now_ns, data)]

    def _report_unreadable(self) -> int:
        """Set a damaged segment aside and say so; once, whenever we are killed."""
        for name, reason in self._intake.unreadable.items():
            path = self._journal / name
            if not path.exists() or (named := parse_segment_name(name)) is None:
                continue
            data = {"error": reason, "kind": "segment", "place": name, "source": named[0]}
            door = f"{self._node}/door-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
            path.rename(path.with_suffix(".damaged"))
            write_segment(
                self._journal, door, 1, [encode_record(Event(1, "alert", self._clock.now_ns(), data))]
            )
        found, self._intake.unreadable = len(self._intake.unreadable), {}
        return found


def _unresolved(n: int, context: int, accepted_ns: int, now_ns: int) -> Call:
    return Call(
        n=n, context=context, outcome="unresolved", error="unresolved",
        accepted_ns=accepted_ns, closed_ns=now_ns, stages=(0, 0, 0, 0), slot=-1, bucket=0,
        rows=(), shapes=(), nbytes=(0, 0), seed=b"", personal={},
    )  # fmt: skip


def _gap(epoch: int, worker: int, image: BoardImage, last: int, now_ns: int) -> dict[str, Any]:
    """At most how many numbers are unknown, and between which moments they were given out."""
    return {
        "after": format_time(image.flushed_ns),
        "at_most": max(0, image.reserved_until - 1 - last),
        "before": format_time(now_ns),
        "epoch": epoch,
        "first": last + 1,
        "reason": "power_loss",
        "worker": worker,
    }


def remove_drafts(folder: Path, now_ns: int) -> None:
    """Remove boards and segments that a killed writer never named; young ones may still be made."""
    for path in [*(folder / "board").glob(".*"), *(folder / "journal").glob(".*")]:
        try:
            fd = lock_dead(path)
            if fd is not None:
                os.close(fd)
                if now_ns - path.stat().st_mtime_ns > DRAFT_AGE_NS:
                    path.unlink()
        except FileNotFoundError:
            continue  # it was young after all, and has its name now
