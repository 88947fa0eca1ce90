"""Which versions were admitted: a view of the ledger, never a state of its own.

The index only finds candidates; what counts is read from the entries themselves, so that a damaged
index can hide nothing by changing a value. Source: spec/policy.md, section 'history'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pellucid.core.entry import Entry, parse_entry
from pellucid.core.policy import History
from pellucid.core.version import parse_version
from pellucid.errors import FormatError, LimitError
from pellucid.ports import EntryReader, Query

LOADS_MAX: Final = 100_000  # limit: one search in memory; a model is loaded a few times a day


def history_of(reader: EntryReader, name: str) -> History:
    """Highest version of a model admitted so far, and the package digests of each version."""
    packages: dict[str, set[str]] = {}
    for entry in admissions(reader, name):
        packages.setdefault(entry.data["version"], set()).add(entry.data["package"])
    highest = max(packages, key=parse_version, default=None)
    return History(highest, {version: frozenset(digests) for version, digests in packages.items()})


def admissions(reader: EntryReader, name: str) -> Iterator[Entry]:
    """``load`` entries of a model, newest first.

    Raises:
        LimitError: More than fit one search: nobody judges by half of a history.
    """
    found = reader.find(Query(type="load", model=name, limit=LOADS_MAX + 1))
    if len(found) > LOADS_MAX:
        raise LimitError(f"history of {name!r:.80}: expected at most {LOADS_MAX:,} loads, got more")
    for row in found:
        entry = parse_entry(reader.entry(row.index))
        if _is_admission(entry, name):
            yield entry


def _is_admission(entry: Entry, name: str) -> bool:
    data = entry.data
    if entry.type != "load" or data.get("model") != name or not isinstance(data.get("package"), str):
        return False
    try:
        parse_version(data.get("version"))
    except FormatError:
        return False
    return True
