"""Power loss: any tail of the journal gone, any older page of the board left."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.entry import parse_entry
from pellucid.ledger.complete import complete
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call

NEXT = 568  # offset of ``next`` on the board, spec/ledger.md, section 4.1


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8), linger=st.integers(0, 3))
def test_what_survives_is_counted_and_what_may_be_lost_is_bounded(tmp_path_factory, data, sizes, linger):
    ledger = LedgerFolder(tmp_path_factory.mktemp("p") / "ledger", durable=False)
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    kept = recorder._journal.size
    for number, size in enumerate(sizes, 1):
        numbers = [recorder.reserve(1, context) for _ in range(size)]
        if size == 1:
            recorder.close_call(make_call(numbers[0], context=context))
        else:
            recorder.close_batch(make_batch(number, numbers, context=context))
    for _ in range(linger):
        recorder.reserve(1, context)
    given_out, journal, board = recorder.last, recorder._journal.path, recorder._board.path
    recorder.abandon()
    with open(journal, "r+b") as file:
        file.truncate(data.draw(st.integers(kept, journal.stat().st_size)))
    with open(board, "r+b") as file:
        file.seek(NEXT)
        file.write(struct.pack("<Q", data.draw(st.integers(1, given_out + 1))))
    ledger.integrate(boot_id=b"another boot----")
    result = complete(ledger.entries())
    assert result.findings == ()
    assert ledger.fsck().findings == ()
    (gap,) = result.gaps
    unknown = range(result.parts[0].last + 1, given_out + 1)
    assert len(unknown) <= gap["at_most"]
    assert not unknown or gap["first"] <= unknown[0]
    outcomes = [e.data["outcome"] for e in map(parse_entry, ledger.entries()) if e.type == "call"]
    assert set(outcomes) <= {"answered", "unresolved"}
    ledger.close()
