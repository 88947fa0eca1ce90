"""The hot index in one SQLite file: what the officer searches.

It holds personal values (foreign trace ids, labels, subjects) read from the vault's openings, so it
is erasable too; everything in it can be rebuilt from the ledger and the vault.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pellucid.core.entry import Formed
from pellucid.errors import FormatError, UnavailableError
from pellucid.ports import Found, Query

_SCRATCH_MAX: Final = 512 * 2**20  # limit: larger ones are rewritten through an unlinked file of SQLite's
# measured: with SQLite's 2 MB, each random trace id of a large log reads and writes a page of its own
_CACHE_KIB: Final = 16_384
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS rows (
  idx INTEGER PRIMARY KEY, key TEXT NOT NULL, type TEXT NOT NULL, time_ns INTEGER NOT NULL,
  model TEXT NOT NULL, version TEXT NOT NULL, package TEXT NOT NULL, outcome TEXT NOT NULL,
  label TEXT NOT NULL, confidence TEXT NOT NULL, trace TEXT NOT NULL, foreign_trace TEXT NOT NULL,
  subject TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS rows_key ON rows (key);
CREATE INDEX IF NOT EXISTS rows_trace ON rows (trace) WHERE trace <> '';
CREATE INDEX IF NOT EXISTS rows_foreign_trace ON rows (foreign_trace) WHERE foreign_trace <> '';
CREATE INDEX IF NOT EXISTS rows_subject ON rows (subject) WHERE subject <> '';
CREATE INDEX IF NOT EXISTS rows_type_time ON rows (type, time_ns);
CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), next INTEGER NOT NULL);
INSERT OR IGNORE INTO position VALUES (1, 0);
"""
_COLUMNS: Final = (
    "idx, key, type, time_ns, model, version, outcome, label, confidence, trace || foreign_trace"
)
_EQUAL: Final = ("key", "type", "model", "outcome", "subject", "package")


class SqliteIndex:
    """An index in a file (``ports.Index``). One process applies, any number find.

    Args:
        path: The file; made when absent, rebuilt when lost.

    Raises:
        UnavailableError: There is something else, or it cannot be opened.
    """

    EXAMPLE_URI: Final = "sqlite:index.db"

    def __init__(self, path: Path | str) -> None:
        self._has_leftovers = True  # nobody remembers what the last process left
        try:
            if str(path) != ":memory:":
                _touch_private(path)
            self._db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=10.0)
            # NORMAL: a power loss may take back the last rows together with the position, never tear them
            cache = f"cache_size={-_CACHE_KIB}"
            for pragma in ("secure_delete=ON", "journal_mode=WAL", "synchronous=NORMAL", cache):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.executescript(_SCHEMA)
        except (sqlite3.DatabaseError, OSError) as error:
            raise UnavailableError(
                f"index {Path(path).name}: expected a database that can be opened, got: {error}",
                hint="if another program holds it, try again later; if it is damaged, move it away and make "
                "it again: pellucid ledger index",
            ) from error

    @classmethod
    def from_uri(cls, uri: str) -> SqliteIndex:
        """Index of ``sqlite:PATH``."""
        return cls(uri.partition(":")[2])

    def position(self) -> int:
        """The next index to apply."""
        (position,) = self._db.execute("SELECT next FROM position").fetchone()
        return int(position)

    def apply(self, start: int, formed: Sequence[Formed]) -> None:
        """Add rows for entries from ``start`` on; the same again changes nothing.

        Raises:
            FormatError: Entries in between are missing.
        """
        if start > self.position():
            raise FormatError(f"index: expected entry {self.position():,} next, got {start:,}")
        rows = [_row(start + offset, each) for offset, each in enumerate(formed)]
        marks = ", ".join("?" * 13)
        with self._db:  # all or nothing
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(f"INSERT OR REPLACE INTO rows VALUES ({marks})", rows)  # noqa: S608
            self._db.execute("UPDATE position SET next = max(next, ?)", (start + len(rows),))

    def find(self, query: Query) -> list[Found]:
        """Rows that match every field given, newest first by default."""
        values: list[Any]
        where, values = ["time_ns BETWEEN ? AND ?"], [query.since_ns, query.until_ns]
        for name in _EQUAL:
            if value := getattr(query, name):
                where.append(f"{name} = ?")
                values.append(value)
        for name, value in (("trace", query.trace), ("label", query.label)):
            if value:
                where.append("? IN (trace, foreign_trace)" if name == "trace" else "label = ?")
                values.append(value)
        order = "DESC" if query.newest_first else "ASC"
        # only fixed column names reach the text; values are bound
        text = f"SELECT {_COLUMNS} FROM rows WHERE {' AND '.join(where)} ORDER BY idx {order} LIMIT ?"  # noqa: S608
        return [Found(*row) for row in self._db.execute(text, [*values, query.limit]).fetchall()]

    def forget(self, key: str) -> None:
        """Drop every personal value of an entry."""
        changed = self._db.execute(
            "UPDATE rows SET label='', confidence='', foreign_trace='', subject='' WHERE key=? "
            "AND label || confidence || foreign_trace || subject <> ''",
            (key,),
        )
        self._has_leftovers |= changed.rowcount > 0

    def scrub(self) -> None:
        """Write the file anew (pages keep copies of rows that SQLite moved), empty the write-ahead log.

        Raises:
            UnavailableError: Another process still reads old pages; try again.
        """
        try:
            if self._has_leftovers:
                self._rewrite()
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"index: expected to write it anew, got {error}") from error
        if busy:
            raise UnavailableError("index: expected to empty the write-ahead log, got a reader in it")

    def _rewrite(self) -> None:
        (pages,), (size,) = (self._db.execute(f"PRAGMA {n}").fetchone() for n in ("page_count", "page_size"))
        self._db.execute(f"PRAGMA temp_store={'MEMORY' if pages * size <= _SCRATCH_MAX else 'FILE'}")
        self._db.execute("VACUUM")
        self._has_leftovers = False

    def clear(self) -> None:
        """Drop everything; feed it again from entry 0."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM rows")
            self._db.execute("UPDATE position SET next = 0")

    def close(self) -> None:
        self._db.close()


def _touch_private(path: Path | str) -> None:
    """Personal values: ours alone to read. A file that is there is not opened: closing it would take
    other connections of this process their locks."""
    if not os.path.exists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _row(index: int, formed: Formed) -> tuple[Any, ...]:
    said = formed.summary
    label: str | None = None
    confidence = foreign_trace = ""
    for opening in formed.openings:
        if label is None and opening.label is not None:  # of the first row that has one
            label, confidence = opening.label, opening.confidence or ""
        elif opening.kind == "trace_id" and opening.value is not None:
            foreign_trace = opening.value.decode("utf-8", "replace")
    return (
        index, formed.key, formed.type, said.time_ns, said.model, said.version, said.package, said.outcome,
        label or "", confidence, said.trace, foreign_trace, formed.subject or "",
    )  # fmt: skip
