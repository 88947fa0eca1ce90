"""Which entries a period needs, so that a stranger can count the calls in it.

A worker of an epoch gives out the numbers 1 to ``last``; only with its whole part of the log, from
its opening to its closing entry, can each number be accounted for. Source: spec/ledger.md, section 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pellucid.core.entry import Entry, parse_entry
from pellucid.errors import NotFoundError
from pellucid.evidence.chain import FOUND_MAX, Leaf, read_leaf
from pellucid.ports import EntryReader, Query

CALL_PARTS: Final = 4  # node/epoch/worker/n


def find_period(reader: EntryReader, since_ns: int, until_ns: int) -> tuple[int, int]:
    """First index of a period and the one after its last.

    Raises:
        NotFoundError: No entry lies in it.
    """
    ends = [
        reader.find(Query(since_ns=since_ns, until_ns=until_ns, limit=1, newest_first=newest))
        for newest in (False, True)
    ]
    if not ends[0] or not ends[1]:
        raise NotFoundError("period: expected entries in it, got none")
    return ends[0][0].index, ends[1][0].index + 1


def widen(reader: EntryReader, start: int, stop: int) -> tuple[int, int]:
    """The range, widened to the whole part of every worker that answered within it.

    A worker that still runs has no closing entry; its part is taken as far as the range goes.
    """
    wanted = {writer for raw in reader.entries(start, stop) if (writer := writer_of(parse_entry(raw)))}
    for leaf in _epochs(reader):
        if epoch_of(leaf.entry) in wanted:
            start, stop = min(start, leaf.index), max(stop, leaf.index + 1)
    return start, stop


def writer_of(entry: Entry) -> str:
    """``node/epoch/worker`` that answered a call, or ``""`` for other entries."""
    if entry.type != "call" or entry.id.count("/") != CALL_PARTS - 1:
        return ""
    return entry.id.rpartition("/")[0]


def epoch_of(entry: Entry) -> str:
    """``node/epoch/worker`` that an ``epoch`` entry is about."""
    return f"{entry.id.partition('/')[0]}/{entry.data.get('epoch')}/{entry.data.get('worker')}"


def _epochs(reader: EntryReader) -> Iterator[Leaf]:
    for found in reader.find(Query(type="epoch", limit=FOUND_MAX, newest_first=True)):
        leaf = read_leaf(reader, found.index)
        if leaf.entry.type == "epoch":
            yield leaf
