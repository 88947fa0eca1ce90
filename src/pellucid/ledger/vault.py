"""The vault: what opens the commitments in the ledger, until it is erased.

One row an entry: its openings. Where a call names a subject, its keys derive from the subject's
key, so that shredding that one key shreds all. Deleted bytes are overwritten (``secure_delete``).
That is not enough: where SQLite moves rows from page to page, copies stay behind in the unused part
of a page. So the file is written anew after erasures, and the write-ahead log is emptied. A missing
opening is ``lost``, never
``erased``, unless an erasure entry said so. Backups of this file bring shredded keys back: keep
none, or encrypt each under a key that ends with it. Source: spec/ledger.md, section 6.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pellucid.core.entry import Formed, Opening, subject_commitment_key
from pellucid.errors import FormatError
from pellucid.ledger.state import open_database, rewrite, transaction

ALL: Final = -2  # in the table of erasures: every row of the entry (-1 is what belongs to no row)
_IN_LOG, _IN_PAGES = 1, 2  # where erased bytes may still lie; the second includes the first
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
  key TEXT PRIMARY KEY, subject TEXT, openings BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_subject ON entries (subject) WHERE subject IS NOT NULL;
CREATE TABLE IF NOT EXISTS subjects (subject TEXT PRIMARY KEY, key BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS erased (
  key TEXT NOT NULL, row INTEGER NOT NULL, by TEXT NOT NULL, PRIMARY KEY (key, row)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forgotten (seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(tuple[Opening, ...])


class Vault:
    """Openings by entry key. The sequencer writes; any process may read.

    Args:
        path: ``ledger/vault.db``; made when absent.
    """

    def __init__(self, path: Path | str) -> None:
        self._db = open_database(path)
        self._db.executescript(_SCHEMA)
        self._new_subjects: dict[str, bytes] = {}

    # -- writing

    def subject_key(self, subject: str) -> bytes:
        """The subject's key, made on first use; on the disk with the next ``put_many``."""
        key = self._new_subjects.get(subject) or self._stored_subject_key(subject)
        if key is None:
            key = self._new_subjects[subject] = secrets.token_bytes(32)
        return key

    def _stored_subject_key(self, subject: str) -> bytes | None:
        row = self._db.execute("SELECT key FROM subjects WHERE subject=?", (subject,)).fetchone()
        return bytes(row[0]) if row else None

    def put_many(self, formed: Sequence[Formed]) -> None:
        """Keep what opens these entries; durable on return. Again with the same entries is fine."""
        rows = [(f.key, f.subject, _encode(f.openings)) for f in formed if f.openings]
        if not rows and not self._new_subjects:
            return
        with transaction(self._db) as db:
            db.executemany("INSERT OR IGNORE INTO subjects VALUES (?, ?)", self._new_subjects.items())
            db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)
        self._new_subjects.clear()

    # -- reading

    def openings(self, key: str) -> tuple[Opening, ...]:
        """What opens an entry, derived keys filled in; ``()`` when erased or lost."""
        row = self._db.execute("SELECT subject, openings FROM entries WHERE key=?", (key,)).fetchone()
        return () if row is None else self._filled(key, row[0], _openings(row[1]))

    def _filled(self, key: str, subject: str | None, found: tuple[Opening, ...]) -> tuple[Opening, ...]:
        if subject is None or all(opening.key for opening in found):
            return found
        subject_key = self._stored_subject_key(subject)
        if subject_key is None:
            return tuple(opening for opening in found if opening.key)
        return tuple(o if o.key else _fill(o, subject_key, key) for o in found)

    def subject_of(self, key: str) -> str | None:
        """Subject of an entry, while the vault knows it."""
        row = self._db.execute("SELECT subject FROM entries WHERE key=?", (key,)).fetchone()
        return row[0] if row else None

    def state(self, key: str, row: int | None = None) -> str:
        """``held``, ``erased`` or ``lost``: of one row, or of the entry as a whole."""
        found = self.openings(key)
        if any(row is None or opening.row == row for opening in found):
            return "held"
        return "erased" if self.erasure_of(key, row) else "lost"

    def erasure_of(self, key: str, row: int | None = None) -> str | None:
        """Key of the erasure entry under which one row was erased, or (without row) anything of it."""
        for erased, by in self.erasures(key):
            if row is None or erased in (ALL, row):
                return by
        return None

    def erasures(self, key: str) -> list[tuple[int, str]]:
        """Rows of an entry that were erased (``ALL``: every one), each with the erasure entry's key."""
        return self._db.execute("SELECT row, by FROM erased WHERE key=? ORDER BY row", (key,)).fetchall()

    # -- erasing

    def erase(self, key: str, row: int | None = None, *, by: str) -> None:
        """Shred what opens an entry, or one of its rows. Nothing is left from which to derive it.

        Args:
            key: Entry key of the call.
            row: One row (its inputs and outputs), or ``None`` for the whole entry.
            by: Key of the erasure entry that says so.
        """
        with transaction(self._db) as db:
            subject = self.subject_of(key)
            if subject is not None:
                self._renew_subject_key(db, subject)
            kept = () if row is None else tuple(o for o in self.openings(key) if o.row != row)
            if kept:
                db.execute("UPDATE entries SET openings=? WHERE key=?", (_encode(kept), key))
            else:
                db.execute("DELETE FROM entries WHERE key=?", (key,))
            _mark_erased(db, key, ALL if row is None else row, by)
            self.put_meta("leftovers", _IN_PAGES)

    def _renew_subject_key(self, db: sqlite3.Connection, subject: str) -> None:
        """Write out what derives from a subject's key, then forget that key: what is erased next
        can no longer be derived, and what the subject keeps still opens."""
        query = "SELECT key, openings FROM entries WHERE subject=?"
        for key, body in db.execute(query, (subject,)).fetchall():
            filled = _encode(self._filled(key, subject, _openings(body)))
            db.execute("UPDATE entries SET openings=? WHERE key=?", (filled, key))
        fresh = (secrets.token_bytes(32), subject)
        db.execute("UPDATE subjects SET key=? WHERE subject=?", fresh)

    def erase_subject(self, subject: str, *, by: str) -> list[str]:
        """Shred a subject's key and all that opens its calls.

        Returns:
            The entry keys concerned.
        """
        with transaction(self._db) as db:
            found = db.execute("SELECT key FROM entries WHERE subject=?", (subject,)).fetchall()
            keys = [key for (key,) in found]
            db.execute("DELETE FROM entries WHERE subject=?", (subject,))
            db.execute("DELETE FROM subjects WHERE subject=?", (subject,))
            for key in keys:
                _mark_erased(db, key, ALL, by)
            self.put_meta("leftovers", _IN_PAGES)
        self._new_subjects.pop(subject, None)
        return keys

    def scrub(self) -> bool:
        """Leave nothing of what was erased in the file or in its write-ahead log; costs as much as
        writing the file anew. False while that is not possible (a full disk, a reader): try again."""
        try:
            if self.get_meta("leftovers") == _IN_PAGES:
                rewrite(self._db)
                self.put_meta("leftovers", _IN_LOG)
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        if not busy:
            self.put_meta("leftovers", 0)
        return not busy

    @property
    def wants_scrub(self) -> bool:
        """True if erased bytes may still lie in the file or in its write-ahead log."""
        return bool(self.get_meta("leftovers"))

    def forgotten_since(self, seq: int) -> list[tuple[int, str]]:
        """Erased entries that a follower was not told about yet, each with its number."""
        return self._db.execute(
            "SELECT seq, key FROM forgotten WHERE seq > ? ORDER BY seq", (seq,)
        ).fetchall()

    @property
    def forgotten_to(self) -> int:
        """Number of the newest of these; 0 when nothing was erased."""
        (seq,) = self._db.execute("SELECT max(seq) FROM forgotten").fetchone()
        return seq or 0

    # -- small numbers

    def get_meta(self, name: str) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return row[0] if row else 0

    def put_meta(self, name: str, value: int) -> None:
        if self.get_meta(name) != value:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    @property
    def erased_to(self) -> int:
        """Entries below this index have had their erasures carried out."""
        return self.get_meta("erased_to")

    @erased_to.setter
    def erased_to(self, index: int) -> None:
        self.put_meta("erased_to", index)

    def close(self) -> None:
        self._db.close()


def _mark_erased(db: sqlite3.Connection, key: str, row: int, by: str) -> None:
    db.execute("INSERT OR IGNORE INTO erased VALUES (?, ?, ?)", (key, row, by))
    # again, behind the others: a second row of the same entry is news for followers
    db.execute("INSERT OR REPLACE INTO forgotten (key) VALUES (?)", (key,))


def _fill(opening: Opening, subject_key: bytes, key: str) -> Opening:
    derived = subject_commitment_key(subject_key, key, opening.kind, opening.row)
    return msgspec.structs.replace(opening, key=derived)


def _openings(body: bytes) -> tuple[Opening, ...]:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise FormatError(f"vault: expected openings, got {error}") from error
