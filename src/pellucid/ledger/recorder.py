"""Recorders: a writing process's door to the ledger. They append; they never wait for the sequencer.

Order: number on the board (``reserve``) -> the model runs -> record in the journal, one ``write``
(``close_*``) -> slot cleared -> reply. Killed between any two, the number is found open on the
board or closed in the journal, never neither. ``durable`` puts an ``fdatasync`` that covers the
record before the reply; ``journaled`` does it within ``flush_ms``. Source: spec/ledger.md, section 4.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from pellucid.core import canonical
from pellucid.core.record import Batch, Call, Context, encode_record
from pellucid.errors import DiskFullError, LedgerFullError, LedgerHaltedError, PellucidError, UsageError
from pellucid.ledger.board import Board
from pellucid.ledger.events import check_size, closed_epoch, make_event
from pellucid.ledger.journal import JournalWriter, backlog_bytes, open_journal
from pellucid.ports import Clock

MODES: Final = ("journaled", "durable")
CONTEXT_MAX: Final = 16 * 1024  # limit: facts are copied into every entry
CLOSE_BYTES: Final = 512  # of disk space that each open number has for its closing
AHEAD: Final = 2 * 2**20  # and of disk space beside, for what comes between two looks at the disk
_TEND_S: Final = 0.25  # how often the flusher looks at rotation, backlog and the board


class RecorderLimits(msgspec.Struct, frozen=True):
    """Limits and intervals, from the configuration's ledger section."""

    flush_s: float = 0.02
    in_flight_max: int = 4096
    backlog_max_bytes: int = 2**30
    rotate_s: float = 10.0
    rotate_bytes: int = 64 * 2**20


_BACKLOG_HINT: Final = "is the sequencer running? retry later, or raise ledger.backlog_max_bytes"


class JournalRecorder:
    """Records the calls of one worker of one epoch (``ports.Recorder``).

    Calls, batches and events come from one thread at a time; a thread of its own flushes, rotates
    and watches the backlog.

    Args:
        folder: The ledger's folder; ``board`` and ``journal`` lie in it.
        source: ``node/epoch/worker``; never used before.
        mode: ``journaled`` or ``durable``.
        facts: Context 0, for calls that were closed before their model was known.
        start_flusher: False in tests that call ``flush`` and ``tend`` themselves.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        *,
        clock: Clock,
        mode: str = "journaled",
        limits: RecorderLimits | None = None,
        facts: dict[str, Any] | None = None,
        board: Board | None = None,
        start_flusher: bool = True,
    ) -> None:
        if mode not in MODES:
            raise UsageError(f"recording mode: expected one of {', '.join(MODES)}, got {mode!r:.40}")
        self.mode, self.source, self.limits = mode, source, limits or RecorderLimits()
        self._folder, self._clock, self._prefix = folder, clock, source + "/"
        self._lock = threading.Lock()  # appends and the swap of segments
        self._flushing = threading.RLock()  # one flush or rotation at a time
        self._wake, self._stop = threading.Event(), threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._dirty = False
        self._full = self._failed = self._hint = ""
        self._reserve_bytes = self.limits.in_flight_max * CLOSE_BYTES
        self._events = itertools.count(1)
        self._context_ids = itertools.count(1)
        self._board = board or open_board(folder, source, limits=self.limits, clock=clock)
        self._journal = JournalWriter(folder / "journal", source, ahead=self._reserve_bytes + AHEAD)
        self._rotated_ns = clock.monotonic_ns()
        self._journal.append_context(0, encode_record(Context(0, facts or {})))
        self._thread = threading.Thread(target=self._run, name="pellucid-flusher", daemon=True)
        if start_flusher:
            self._thread.start()

    # -- numbers

    def reserve(self, accepted_ns: int, context: int = 0) -> int:
        """Give out the next call number; on the board when this returns.

        Raises:
            LedgerFullError: The backlog is at its limit; retry later.
            TooManyError: ``in_flight_max`` calls are open.
            LedgerHaltedError: The disk failed; nothing more can be promised.
        """
        if self._journal.room < self._reserve_bytes:
            self._secure()
        if self._full:
            self._refuse()
        return self._board.reserve(accepted_ns, context)

    def _secure(self) -> None:
        """Numbers are given out only while the disk has room for the closing of all that are open."""
        try:
            with self._lock:
                self._journal.secure()
        except DiskFullError as error:
            self._fill(error.message, error.hint)
        except LedgerHaltedError as error:
            self._halt(error.message)

    def _fill(self, reason: str, hint: str) -> None:
        if not self._failed:
            self._full, self._hint = reason, hint

    def _refuse(self) -> None:
        if self._failed:
            raise LedgerHaltedError(self._failed)
        raise LedgerFullError(self._full, hint=self._hint)

    def call_key(self, n: int) -> str:
        """Key of a call: ``node/epoch/worker/n``."""
        return self._prefix + str(n)

    @property
    def in_flight(self) -> int:
        """Numbers given out and not closed."""
        return self._board.in_flight

    @property
    def last(self) -> int:
        """Last number given out; 0 when none was."""
        return self._board.next - 1

    # -- records

    def add_context(self, facts: dict[str, Any]) -> int:
        """Append what many calls share; returns the id that they name.

        Raises:
            FormatError: Outside the canonical profile or too large to be copied into entries.
        """
        check_size("context", canonical.encode(facts), CONTEXT_MAX)
        number = next(self._context_ids)
        with self._lock:
            self._journal.append_context(number, encode_record(Context(number, facts)))
        self._touch()
        return number

    def drop_context(self, context: int) -> None:
        """No call that is not closed yet names it: later segments do without."""
        with self._lock:
            self._journal.drop_context(context)

    def close_call(self, call: Call) -> None:
        """Append a call's record, then clear its number.

        Raises:
            DiskFullError: Nothing was appended; the number stays open.
            UsageError: The number is not open.
        """
        self._close((call,), encode_record(call))

    def close_batch(self, batch: Batch) -> None:
        """Append calls that shared an execution, all in one write, then clear their numbers.

        Raises:
            DiskFullError: Nothing was appended; the numbers stay open.
            UsageError: A number is not open.
        """
        self._close(batch.calls, encode_record(batch))

    def _close(self, calls: tuple[Call, ...], payload: bytes) -> None:
        board = self._board
        for call in calls:
            if not board.is_open(call.n):
                raise UsageError(f"call {self.call_key(call.n)}: expected an open number, got a closed one")
        self._append(payload)
        for call in calls:
            board.release(call.n)

    def _append(self, payload: bytes) -> None:
        if self._failed:
            raise LedgerHaltedError(self._failed)
        with self._lock:
            self._journal.append(payload)
        self._touch()

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            if self.mode == "journaled":
                self._wake.set()

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        """Append an event and wait for the disk; returns its key.

        Raises:
            FormatError: Outside the canonical profile or too large for an entry.
        """
        event = make_event(next(self._events), kind, data, personal, self._clock.now_ns())
        self._append(encode_record(event))
        self.flush()
        return f"{self._prefix}e{event.n}"

    def after_durable(self, callback: Callable[[], None]) -> None:
        """Call back when all appended so far is as durable as the mode promises."""
        if self.mode == "journaled":
            callback()
            return
        with self._lock:
            self._callbacks.append(callback)
        self._wake.set()

    # -- the flusher

    def flush(self) -> None:
        """Make all appended so far survive power loss, then call back who waits for it.

        Raises:
            LedgerHaltedError: The disk did not take it. Nobody is called back, ever: a second
                ``fdatasync`` may succeed although the pages are lost.
        """
        with self._flushing:
            if self._failed:
                raise LedgerHaltedError(self._failed)
            with self._lock:
                callbacks, self._callbacks, self._dirty = self._callbacks, [], False
                now_ns = self._clock.now_ns()
            try:
                self._journal.sync()
            except OSError as error:
                self._halt(f"journal {self._journal.path.name}: fdatasync failed: {error}")
                raise LedgerHaltedError(self._failed) from error
            self._board.mark_flushed(now_ns)
        for callback in callbacks:
            callback()

    def _halt(self, reason: str) -> None:
        self._failed = self._full = reason

    def tend(self) -> None:
        """Rotate when due, look at the backlog, reserve numbers ahead."""
        with self._flushing:
            if self._journal.has_records and self._is_rotation_due():
                self.rotate()
            if self._journal.room < self._reserve_bytes + AHEAD // 2:
                with self._lock:
                    self._journal.secure()
            if self._board.wants_extension:
                self._board.extend()
        waiting, limit = backlog_bytes(self._folder / "journal"), self.limits.backlog_max_bytes
        text = f"{waiting:,} journal bytes wait, ledger.backlog_max_bytes is {limit:,}"
        self._fill(text if waiting > limit else "", _BACKLOG_HINT)

    def _is_rotation_due(self) -> bool:
        age_ns = self._clock.monotonic_ns() - self._rotated_ns
        too_large = self._journal.size >= self.limits.rotate_bytes
        return too_large or age_ns >= self.limits.rotate_s * 1e9

    def rotate(self) -> None:
        """Go on in a new segment; the old one is synced and let go, so that it can be collected."""
        with self._flushing:
            self._rotated_ns = self._clock.monotonic_ns()
            following = self._journal.prepare()
            with self._lock:
                previous = self._journal.swap(following)
            try:
                os.ftruncate(previous.fd, previous.size)  # gives back what it had ahead
                os.fdatasync(previous.fd)
            except OSError as error:
                self._halt(f"journal {previous.path.name}: fdatasync failed: {error}")
            os.close(previous.fd)

    def _run(self) -> None:
        tended_ns = 0
        while not self._stop.is_set():
            if self._wake.wait(_TEND_S):
                self._wake.clear()
                if self.mode == "journaled":
                    self._stop.wait(self.limits.flush_s)  # gather what one sync can cover
                self._quietly(self.flush)
            now_ns = self._clock.monotonic_ns()
            if now_ns - tended_ns >= _TEND_S * 1e9:  # it takes the calls' thread some 100 us
                tended_ns = now_ns
                self._quietly(self.tend)

    def _quietly(self, step: Callable[[], None]) -> None:
        """A flusher that dies would stop everything; what went wrong shows at the next call."""
        try:
            step()
        except LedgerHaltedError as error:
            self._halt(error.message)
        except PellucidError as error:
            self._fill(f"journal: {error.message}", error.hint)
        except OSError as error:
            self._fill(f"journal: {error}", "see what the disk says")

    def close(self, *, final: bool = True) -> None:
        """End the epoch: all flushed; with ``final`` and nothing open, an ``epoch`` event says so.

        Numbers still open are left on the board: the sequencer closes them as unresolved.
        """
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if final and not self._failed and not self._board.in_flight:
            epoch, worker = self.source.split("/")[1:]
            self.event("epoch", closed_epoch(int(epoch), int(worker), last=self.last))
        if not self._failed:
            self.flush()
        self._journal.close()
        self._board.close()

    def abandon(self) -> None:
        """Let go of files and locks without a word, as kill -9 does; the sequencer recovers."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._journal.abandon()
        self._board.close()


def open_board(folder: Path, source: str, *, limits: RecorderLimits, clock: Clock) -> Board:
    """Make a worker's board in the ledger's folder."""
    epoch, worker = source.split("/")[1:]
    for name in ("board", "journal"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / "board" / f"{epoch}-{worker}.board"
    return Board(path, source, slots=limits.in_flight_max, now_ns=clock.now_ns())


class DoorRecorder:
    """How a command's events become entries (``ports.EventRecorder``): a journal of its own.

    The journal is made with the first event, so that reading commands leave no trace.
    """

    def __init__(self, folder: Path, node: str, *, clock: Clock) -> None:
        self.source = f"{node}/door-{secrets.token_hex(8)}"
        self._folder, self._clock = folder / "journal", clock
        self._journal: JournalWriter | None = None
        self._events = itertools.count(1)
        self._lock = threading.Lock()

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        """Append an event and wait for the disk; returns its key.

        Raises:
            FormatError: Outside the canonical profile or too large for an entry; not recorded.
            UnavailableError, LedgerHaltedError: The journal cannot be written; not recorded.
            OSError: It is in the journal, and the disk did not confirm it.
        """
        with self._lock:
            event = make_event(next(self._events), kind, data, personal, self._clock.now_ns())
            if self._journal is None:
                self._journal = open_journal(self._folder, self.source)
            self._journal.append(encode_record(event))
            self._journal.sync()
        return f"{self.source}/e{event.n}"

    def close(self) -> None:
        """Let go of the journal, so that it can be collected once integrated; each event is synced."""
        with self._lock:
            if self._journal is not None:
                self._journal.abandon()
                self._journal = None

    def __enter__(self) -> DoorRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NothingRecorder:
    """``unsafe_record_nothing``: numbers and nothing else, for measurements only.

    A ``gap`` event says so at start; events are still recorded. Calls leave no trace.
    """

    mode = "unsafe_record_nothing"

    def __init__(self, inner: JournalRecorder) -> None:
        self.inner, self.source = inner, inner.source
        self._numbers = itertools.count(1)
        epoch, worker = inner.source.split("/")[1:]
        inner.event("gap", {"epoch": int(epoch), "reason": self.mode, "worker": int(worker)})

    def reserve(self, accepted_ns: int, context: int = 0) -> int:
        return next(self._numbers)

    def call_key(self, n: int) -> str:
        return self.inner.call_key(n)

    def add_context(self, facts: dict[str, Any]) -> int:
        return self.inner.add_context(facts)

    def drop_context(self, context: int) -> None:
        self.inner.drop_context(context)

    def close_call(self, call: Call) -> None:
        """Forget the call."""

    def close_batch(self, batch: Batch) -> None:
        """Forget the batch."""

    def after_durable(self, callback: Callable[[], None]) -> None:
        callback()

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        return self.inner.event(kind, data, personal)

    def close(self, *, final: bool = True) -> None:
        self.inner.close(final=final)
