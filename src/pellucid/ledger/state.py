"""The sequencer's own memory: the head, the plan in progress, positions in segments, call numbers.

SQLite with ``synchronous=FULL``. ``commit`` is the commit point of the whole ledger: size, root and
checkpoint are compared and swapped together with everything that was decided for them. This file
must never be rolled back; the witnesses of a rollback are the tiles and the auditors' checkpoints.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from pellucid.core.merkle.hashing import EMPTY_ROOT
from pellucid.errors import (
    ConfigError,
    DiskFullError,
    FormatError,
    LedgerHaltedError,
    PellucidError,
    UnavailableError,
)

T = TypeVar("T")
SCRATCH_MAX: Final = 512 * 2**20  # limit: larger ones are rewritten through an unlinked file of SQLite's
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS head (
  id INTEGER PRIMARY KEY CHECK (id = 1), origin TEXT NOT NULL,
  size INTEGER NOT NULL, root BLOB NOT NULL, checkpoint BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS plan (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS segments (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writers (source TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
"""
_HELD: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_OLDER: Final = {  # why nobody is told to put a copy back (spec/ledger.md, section 1)
    "state.db": "an older one is refused: bring the newest, or begin a new log",
    "vault.db": "an older one brings erased keys back; without one openings are lost, proofs are not",
}


class Head(msgspec.Struct, frozen=True):
    """What the ledger is, and the checkpoint that says so (empty before the first)."""

    size: int
    root: bytes
    checkpoint: bytes


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Bytes ``start`` to ``stop`` of a segment: whole frames."""

    segment: str
    start: int
    stop: int


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """Which records become the entries from ``first`` on, in order."""

    first: int
    ranges: tuple[Range, ...]


class _Numbers(msgspec.Struct, array_like=True):
    closed_below: int
    above: list[int]
    last_event: int
    last_batch: int
    closed_epoch: bool


@dataclass(frozen=True, slots=True)
class Numbers:
    """Call numbers of one writer: every number below ``closed_below`` is closed, and those above.

    Attributes:
        last_event: Highest event number seen.
        last_batch: Highest batch number seen.
        is_closed: True when the epoch's end is an entry.
    """

    closed_below: int = 1
    above: frozenset[int] = field(default_factory=frozenset)
    last_event: int = 0
    last_batch: int = 0
    is_closed: bool = False

    def is_number_closed(self, n: int) -> bool:
        return n < self.closed_below or n in self.above

    @property
    def highest(self) -> int:
        """Highest number closed; 0 when none was."""
        return max(self.above, default=self.closed_below - 1)

    def close(self, numbers: Iterable[int]) -> Numbers:
        """With these closed too."""
        above, below = set(self.above) | set(numbers), self.closed_below
        while below in above:
            above.discard(below)
            below += 1
        return replace(self, closed_below=below, above=frozenset(above))


class State:
    """The state of one log.

    Args:
        path: ``ledger/state.db``; made when absent.
        origin: The log's name.

    Raises:
        ConfigError: The file belongs to another log.
    """

    def __init__(self, path: Path | str, origin: str) -> None:
        self._db = open_database(path)
        self._db.executescript(_SCHEMA)
        self._db.execute("INSERT OR IGNORE INTO head VALUES (1, ?, 0, ?, x'')", (origin, EMPTY_ROOT))
        (found,) = self._db.execute("SELECT origin FROM head").fetchone()
        if found != origin:
            raise ConfigError(f"state.db: expected origin {origin!r}, got {found!r}")

    def head(self) -> Head:
        """The committed head."""
        row = self._db.execute("SELECT size, root, checkpoint FROM head").fetchone()
        return Head(*row)

    def plan(self) -> Plan | None:
        """The plan that is not committed yet, if any."""
        row = self._db.execute("SELECT body FROM plan").fetchone()
        return _decode(row[0], Plan) if row else None

    def save_plan(self, plan: Plan) -> None:
        """Decide the order, durably, before anything is written that depends on it."""
        with transaction(self._db) as db:
            db.execute("INSERT INTO plan VALUES (1, ?)", (msgspec.msgpack.encode(plan),))

    def commit(
        self, old: Head, new: Head, positions: Mapping[str, int], numbers: Mapping[str, Numbers]
    ) -> None:
        """Swap the head if it still is ``old``; with it positions and numbers, and the plan is done.

        Raises:
            LedgerHaltedError: Another head, or one that would shrink.
        """
        with transaction(self._db) as db:
            swapped = db.execute(
                "UPDATE head SET size=?, root=?, checkpoint=? WHERE size=? AND root=? AND size<?",
                (new.size, new.root, new.checkpoint, old.size, old.root, new.size),
            )
            if swapped.rowcount != 1:
                raise LedgerHaltedError(
                    f"state.db: expected the head at size {old.size:,}, got another",
                    hint="a second sequencer, or a file put back: restart and run pellucid ledger fsck",
                )
            db.execute("DELETE FROM plan")
            db.executemany("INSERT OR REPLACE INTO segments VALUES (?, ?)", positions.items())
            rows = [(source, _encode_numbers(each)) for source, each in numbers.items()]
            db.executemany("INSERT OR REPLACE INTO writers VALUES (?, ?)", rows)

    def positions(self) -> dict[str, int]:
        """Committed position in every segment that has one."""
        return dict(self._db.execute("SELECT name, position FROM segments").fetchall())

    def forget_segments(self, names: Iterable[str], sources: Iterable[str] = ()) -> None:
        """Drop positions of segments that are gone from the disk (never before).

        Args:
            sources: Writers that are gone for good with them: their numbers go too.
        """
        with transaction(self._db) as db:
            db.executemany("DELETE FROM segments WHERE name=?", [(name,) for name in names])
            db.executemany("DELETE FROM writers WHERE source=?", [(source,) for source in sources])

    def numbers(self, source: str) -> Numbers:
        """Call numbers of a writer."""
        row = self._db.execute("SELECT body FROM writers WHERE source=?", (source,)).fetchone()
        if row is None:
            return Numbers()
        found = _decode(row[0], _Numbers)
        return Numbers(
            closed_below=found.closed_below,
            above=frozenset(found.above),
            last_event=found.last_event,
            last_batch=found.last_batch,
            is_closed=found.closed_epoch,
        )

    def close(self) -> None:
        self._db.close()


def _encode_numbers(numbers: Numbers) -> bytes:
    above = sorted(numbers.above)
    return msgspec.msgpack.encode(
        _Numbers(numbers.closed_below, above, numbers.last_event, numbers.last_batch, numbers.is_closed)
    )


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise FormatError(f"state.db: expected {kind.__name__}, got {error}") from error


class transaction:  # noqa: N801 - reads as a statement
    """All of a ``with`` block or nothing; a full disk becomes ``DiskFullError``."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"SQLite: expected to begin, got {error}") from error
        return self._db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as failed:
                error = failed
            else:
                return
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise DiskFullError(f"SQLite: expected to commit, got {error}") from error


def open_database(path: Path | str, *, read_only: bool = False) -> sqlite3.Connection:
    """SQLite that loses nothing it committed: write-ahead log, ``synchronous=FULL``; ours alone to read.

    Raises:
        LedgerHaltedError: There is something else, or it cannot be opened.
        UnavailableError: Somebody holds it, or the disk is full.
    """
    if not read_only and str(path) != ":memory:":
        touch_private(path)  # its log and lock files follow its mode
    target = f"file:{path}?mode=ro" if read_only else str(path)
    try:
        db = sqlite3.connect(
            target, isolation_level=None, check_same_thread=False, timeout=10.0, uri=read_only
        )
        db.execute("PRAGMA secure_delete=ON")
        if not read_only:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
        db.execute("SELECT 1 FROM sqlite_schema")  # whether it is a database is seen when it is read
    except sqlite3.Error as error:
        name = Path(path).name
        raise database_error(error, f"{name}: expected a database of the ledger", name) from error
    return db


def database_error(error: sqlite3.Error, expected: str, name: str = "") -> PellucidError:
    """What SQLite refused, as an error of ours: held by somebody, no room, damaged, or out of order.

    Args:
        expected: Subject and what was expected of it.
        name: Of the file, where it is known which one it is.
    """
    said, code = f"{expected}, got: {error}", getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _HELD:
        return UnavailableError(said, hint="another program holds it: end that one, or try again later")
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(said, hint="make room, then do it again")
    if code in _DAMAGED:
        older = _OLDER.get(name) or "; ".join(f"{file}: {why}" for file, why in _OLDER.items())
        return LedgerHaltedError(said, hint=f"is it damaged, or something else's? {older}")
    return LedgerHaltedError(
        said,
        hint="is it ours to read and write, and the disk neither full nor failing? Then check with: "
        "pellucid ledger fsck",
    )


def touch_private(path: Path | str) -> None:
    """Make a file that is ours alone to read, unless it is there.

    One that is there is not opened: closing it again would take this process's other connections
    their locks (POSIX), and another process would clear away what they still write to.
    """
    if not os.path.exists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def rewrite(db: sqlite3.Connection) -> None:
    """Write a database anew, so that its pages hold nothing but what is in its tables."""
    ((pages,), (page_bytes,)) = (db.execute(f"PRAGMA {n}").fetchone() for n in ("page_count", "page_size"))
    db.execute(f"PRAGMA temp_store={'MEMORY' if pages * page_bytes <= SCRATCH_MAX else 'FILE'}")
    db.execute("VACUUM")
