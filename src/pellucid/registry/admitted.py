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
from pellucid.errors import FormatError
from pellucid.ports import EntryReader, Query

PAGE: Final = 1000


def history_of(reader: EntryReader, name: str) -> History:
    """Highest version of a model admitted so far, and the package digests of each version."""
    packages: dict[str, set[str]] = {}
    for entry in admissions(reader, name):
        packages.setdefault(entry.data["version"], set()).add(entry.data["package"])
    highest = max(packages, key=parse_version, default=None)
    return History(highest, {version: frozenset(digests) for version, digests in packages.items()})


def admissions(reader: EntryReader, name: str) -> Iterator[Entry]:
    """``load`` entries of a model, newest first."""
    until, seen = 2**63 - 1, set[int]()
    while True:
        found = reader.find(Query(type="load", model=name, until_ns=until, limit=PAGE))
        fresh = [row for row in found if row.index not in seen]
        for row in fresh:
            seen.add(row.index)
            entry = parse_entry(reader.entry(row.index))
            if _is_admission(entry, name):
                yield entry
        if len(found) < PAGE or not fresh:
            return
        until = min(row.time_ns for row in found) + 1  # the same moment once more: seen ones are skipped


def _is_admission(entry: Entry, name: str) -> bool:
    data = entry.data
    if entry.type != "load" or data.get("model") != name or not isinstance(data.get("package"), str):
        return False
    try:
        parse_version(data.get("version"))
    except FormatError:
        return False
    return True
