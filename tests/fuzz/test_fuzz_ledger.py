"""Journals, boards and vault rows from a damaged disk: errors of the tree, or alerts, nothing else."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.core.record import Context, Event, decode_record, encode_record
from pellucid.errors import PellucidError
from pellucid.ledger.board import Board, parse_board
from pellucid.ledger.complete import complete
from pellucid.ledger.journal import SegmentReader, decode_frames, decode_head, encode_frame, encode_head
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call

RECORDS = [
    encode_record(record)
    for record in (
        Context(0, {}),
        Context(1, FACTS),
        Event(1, "epoch", 5, {"epoch": 1, "phase": "open", "worker": 0, "workers": 1}),
        make_call(1),
        make_batch(1, [2, 3]),
        Event(2, "alert", 6, {"kind": "x"}, b"s" * 32, {"caller": "anna"}),
    )
]
SEGMENT = encode_head("node1/1/0", 1) + b"".join(map(encode_frame, RECORDS))

KINDS = ["flip", "cut", "insert", "double"]


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch):
    """Nothing here is about the disk's own delays."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "double"]), st.integers(0, 10**6), st.binary(max_size=8)
    ),
    min_size=1,
    max_size=6,
)


def mutate(data: bytes, steps) -> bytes:
    changed = bytearray(data)
    for kind, at, extra in steps:
        at %= len(changed) + 1
        if kind == "flip" and at < len(changed):
            changed[at] ^= 1 + at % 255
        elif kind == "cut":
            del changed[at : at + len(extra)]
        elif kind == "insert":
            changed[at:at] = extra
        elif kind == "double":
            changed[at:at] = changed[at : at + 64]
    return bytes(changed)


@given(st.one_of(st.binary(max_size=300), mutations.map(lambda steps: mutate(SEGMENT, steps))))
def test_segments(data):
    with contextlib.suppress(PellucidError):
        decode_head(data)
    for _, payload in decode_frames(data)[0]:
        with contextlib.suppress(PellucidError):
            decode_record(payload)


@given(mutations)
def test_records_inside_good_frames(steps):
    for payload in RECORDS:
        with contextlib.suppress(PellucidError):
            decode_record(mutate(payload, steps))


@given(st.one_of(st.binary(max_size=9000), mutations))
def test_boards(tmp_path_factory, what):
    if isinstance(what, list):
        path = tmp_path_factory.mktemp("b") / "1-0.board"
        Board(path, "node1/1/0", slots=8, now_ns=1).close()
        what = mutate(path.read_bytes(), what)
    with contextlib.suppress(PellucidError):
        parse_board(what)


@given(mutations)
def test_a_damaged_segment_on_disk(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("s") / "node1+1+0-00000001.journal"
    path.write_bytes(mutate(SEGMENT, steps))
    try:
        reader = SegmentReader(path)
    except PellucidError:
        return
    position = reader.head.stop
    while frames := reader.frames(position):
        assert frames[-1][0] > position
        position = frames[-1][0]
    reader.close()


@settings(max_examples=settings().max_examples // 2)  # each makes a whole ledger
@given(st.lists(mutations, min_size=1, max_size=3))
def test_the_sequencer_outlives_any_damage(tmp_path_factory, damages):
    """Whatever a record turned into: the log goes on, and all of it can be checked afterwards."""
    ledger = LedgerFolder(tmp_path_factory.mktemp("l") / "ledger", durable=False)
    recorder = ledger.recorder()
    for steps in damages:
        recorder._journal.append(mutate(RECORDS[len(steps) % len(RECORDS)], steps))
    recorder.close_call(make_call(recorder.reserve(1), context=0))
    recorder.abandon()
    ledger.integrate()
    assert ledger.fsck().findings == ()
    complete(ledger.entries())
    assert any(b'"id":"node1/1/0/1"' in raw for raw in ledger.entries())
    ledger.close()
