from __future__ import annotations

import errno
import os
import threading

import pytest

from pellucid.core.record import Batch, Call, Context, Event, decode_record
from pellucid.errors import DiskFullError, FormatError, LedgerFullError, LedgerHaltedError, UsageError
from pellucid.ledger import journal
from pellucid.ledger.board import lock_dead, parse_board
from pellucid.ledger.complete import complete
from pellucid.ledger.journal import SegmentReader, list_segments
from pellucid.ledger.recorder import (
    CLOSE_BYTES,
    DoorRecorder,
    JournalRecorder,
    NothingRecorder,
    RecorderLimits,
)
from pellucid.testing.clock import FakeClock
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call

LIMIT_S = 10  # how long a real thread may take before a test gives up


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**changes):
        settings = {"clock": FakeClock(), "start_flusher": False, **changes}
        made.append(JournalRecorder(tmp_path, "node1/1/0", **settings))
        return made[-1]

    yield build
    for recorder in made:
        recorder.abandon()


def records(folder):
    found = []
    for name in list_segments(folder / "journal"):
        reader = SegmentReader(folder / "journal" / name)
        found += [decode_record(payload) for _, payload in reader.frames(reader.head.stop)]
        reader.close()
    return found


def test_records_come_back_in_order(make, tmp_path):
    recorder = make(facts={"config": "sha256:cc"})
    context = recorder.add_context(FACTS)
    numbers = [recorder.reserve(5, context) for _ in range(4)]
    one = make_call(numbers[0])
    recorder.close_call(one)
    recorder.close_batch(make_batch(1, numbers[1:]))
    key = recorder.event("load", {"model": "credit"}, {"caller": "anna"})
    first, second, call, batch, event = records(tmp_path)
    assert (first, second) == (Context(0, {"config": "sha256:cc"}), Context(1, FACTS))
    assert call == one
    assert isinstance(batch, Batch)
    assert [c.n for c in batch.calls] == numbers[1:]
    assert isinstance(event, Event)
    assert key == f"node1/1/0/e{event.n}"
    assert len(event.seed) == 32
    assert recorder.call_key(7) == "node1/1/0/7"
    assert recorder.in_flight == 0


def test_a_number_is_closed_once(make):
    recorder = make()
    n = recorder.reserve(1)
    recorder.close_call(make_call(n))
    for again in (n, n + 1):
        with pytest.raises(UsageError, match="open number"):
            recorder.close_call(make_call(again))


def test_a_call_that_could_not_be_appended_stays_open_on_the_board(make, tmp_path, monkeypatch):
    recorder = make()
    n = recorder.reserve(1)

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(DiskFullError):
        recorder.close_call(make_call(n))
    monkeypatch.undo()
    assert n in parse_board((tmp_path / "board" / "1-0.board").read_bytes()).open
    recorder.close_call(make_call(n))  # the disk has room again: nothing was lost


def test_journaled_calls_back_at_once_and_durable_after_the_sync(make, monkeypatch):
    journaled, called = make(), []
    journaled.after_durable(lambda: called.append("journaled"))
    assert called == ["journaled"]


def test_durable_calls_back_after_a_sync_that_covers_the_record(tmp_path, monkeypatch):
    recorder = JournalRecorder(tmp_path, "node1/1/0", clock=FakeClock(), mode="durable", start_flusher=False)
    order = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (real(fd), order.append("sync")))
    recorder.close_call(make_call(recorder.reserve(1)))
    recorder.after_durable(lambda: order.append("reply"))
    assert order == []
    recorder.flush()
    assert order == ["sync", "reply"]
    recorder.abandon()


def test_the_flusher_wakes_at_once_for_durable(tmp_path):
    limits = RecorderLimits(flush_s=3600.0)
    recorder = JournalRecorder(tmp_path, "n/1/0", clock=FakeClock(), mode="durable", limits=limits)
    done = threading.Event()
    recorder.close_call(make_call(recorder.reserve(1)))
    recorder.after_durable(done.set)
    assert done.wait(LIMIT_S)
    recorder.close()


def test_the_flusher_syncs_journaled_records_by_itself(tmp_path):
    clock = FakeClock()
    recorder = JournalRecorder(tmp_path, "n/1/0", clock=clock, limits=RecorderLimits(flush_s=0.001))
    synced = threading.Event()
    real = recorder._journal.sync
    recorder._journal.sync = lambda: (real(), synced.set())
    recorder.close_call(make_call(recorder.reserve(1)))
    assert synced.wait(LIMIT_S)
    recorder.close()


def test_a_failed_sync_halts_and_never_calls_back(make, monkeypatch):
    recorder, called = make(mode="durable"), []
    recorder.close_call(make_call(recorder.reserve(1)))
    recorder.after_durable(lambda: called.append(1))

    def fail(_):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(LedgerHaltedError):
        recorder.flush()
    monkeypatch.undo()
    for attempt in (recorder.flush, lambda: recorder.reserve(1), lambda: recorder.event("alert", {})):
        with pytest.raises(LedgerHaltedError):
            attempt()
    assert called == []


def test_rotation_by_time_and_by_size(make, tmp_path):
    clock = FakeClock()
    recorder = make(clock=clock, limits=RecorderLimits(rotate_s=10, rotate_bytes=10_000))
    recorder.add_context(FACTS)
    recorder.tend()
    assert len(list_segments(tmp_path / "journal")) == 1
    clock.move(10)
    recorder.tend()
    assert len(list_segments(tmp_path / "journal")) == 2
    clock.move(10)
    recorder.tend()  # nothing but contexts: nothing to let go of
    assert len(list_segments(tmp_path / "journal")) == 2
    while recorder._journal.size < 10_000:
        recorder.close_call(make_call(recorder.reserve(1)))
    recorder.tend()
    assert len(list_segments(tmp_path / "journal")) == 3
    contexts = [record.id for record in records(tmp_path) if isinstance(record, Context)]
    assert contexts == [0, 1, 0, 1, 0, 1]


def test_a_rotation_that_finds_the_disk_full_loses_nothing_and_is_tried_again(make, tmp_path, monkeypatch):
    recorder = make()
    recorder.close_call(make_call(recorder.reserve(1)))
    real, short = os.write, []

    def write(fd, data):
        if len(short) == 1:  # the head fits, the contexts do not
            short.append(1)
            return real(fd, data[:3])
        short.append(1)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DiskFullError):
        recorder.rotate()
    monkeypatch.undo()
    recorder.close_call(make_call(recorder.reserve(1)))
    recorder.rotate()
    recorder.close_call(make_call(recorder.reserve(1)))
    assert [r.n for r in records(tmp_path) if isinstance(r, Call)] == [1, 2, 3]


def test_a_rotation_without_a_free_descriptor_halts_nothing_and_leaves_nothing_locked(
    make, tmp_path, monkeypatch
):
    """The new segment has its name when its folder cannot be opened any more."""
    recorder = make()
    recorder.close_call(make_call(recorder.reserve(1)))
    real = os.open

    def scarce(path, flags, *args):
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, "too many open files")
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", scarce)
    recorder._quietly(recorder.rotate)
    monkeypatch.undo()
    (fd,) = [lock_dead(path) for path in (tmp_path / "journal").iterdir() if "-00000002." in path.name]
    assert fd is not None
    os.close(fd)
    recorder.tend()
    recorder.rotate()
    recorder.close_call(make_call(recorder.reserve(1)))
    assert [r.n for r in records(tmp_path) if isinstance(r, Call)] == [1, 2]


def test_at_the_backlog_limit_reserve_says_so_and_goes_on_afterwards(make, tmp_path):
    recorder = make(limits=RecorderLimits(backlog_max_bytes=5000))
    waiting = recorder.reserve(1)
    (tmp_path / "journal" / "other-00000001.journal").write_bytes(bytes(6000))
    recorder.tend()
    with pytest.raises(LedgerFullError, match="backlog_max_bytes is 5,000") as caught:
        recorder.reserve(1)
    assert "sequencer" in caught.value.hint
    recorder.close_call(make_call(waiting))  # what is accepted is closed all the same
    (tmp_path / "journal" / "other-00000001.journal").unlink()
    recorder.tend()
    assert recorder.reserve(1) == 2


def test_close_ends_the_epoch_only_when_nothing_is_open(make, tmp_path):
    recorder = make()
    recorder.reserve(1)
    recorder.close()
    assert not [record for record in records(tmp_path) if isinstance(record, Event)]
    recorder.abandon = lambda: None


def test_close_says_the_last_number(make, tmp_path):
    recorder = make()
    recorder.close_call(make_call(recorder.reserve(1)))
    recorder.close()
    recorder.abandon = lambda: None
    (event,) = [record for record in records(tmp_path) if isinstance(record, Event)]
    assert event.kind == "epoch"
    assert event.data == {
        "epoch": 1, "worker": 0, "phase": "closed", "last": [1], "recovered": False, "unresolved": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "data", "personal"),
    [
        ("alert", {"x": 1.5}, None),
        ("alert", {"x": "y" * 60_000}, None),
        ("call", {}, None),
        ("no such type", {}, None),
        ("alert", {}, {"shoe_size": "43"}),
        ("alert", {}, {"caller": "x" * 5000}),
        ("alert", {}, {"caller": "\ud800"}),
    ],
)
def test_events_that_could_give_no_entry_are_refused_at_the_door(make, tmp_path, kind, data, personal):
    recorder = make()
    door = DoorRecorder(tmp_path, "node1", clock=FakeClock())
    for target in (recorder, door):
        with pytest.raises(FormatError):
            target.event(kind, data, personal)
    door.close()


def test_contexts_that_could_give_no_entry_are_refused(make):
    recorder = make()
    for facts in ({"x": 1.5}, {"x": "y" * 20_000}):
        with pytest.raises(FormatError):
            recorder.add_context(facts)


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(UsageError, match="journaled, durable"):
        JournalRecorder(tmp_path, "n/1/0", clock=FakeClock(), mode="sometimes")


def test_a_door_makes_no_file_until_it_records(tmp_path):
    with DoorRecorder(tmp_path, "node1", clock=FakeClock()) as door:
        assert not (tmp_path / "journal").exists()
        keys = [door.event("read", {"what": "x"}), door.event("read", {"what": "y"})]
    assert keys == [f"{door.source}/e1", f"{door.source}/e2"]
    assert [record.kind for record in records(tmp_path)] == ["read", "read"]


def test_doors_never_share_a_name(tmp_path):
    sources = {DoorRecorder(tmp_path, "node1", clock=FakeClock()).source for _ in range(50)}
    assert len(sources) == 50


def test_recording_nothing_says_so_and_gives_numbers(make, tmp_path):
    recorder = NothingRecorder(make())
    context = recorder.add_context(FACTS)
    assert [recorder.reserve(1), recorder.reserve(1)] == [1, 2]
    recorder.close_call(make_call(1, context=context))
    recorder.close_batch(make_batch(1, [2]))
    called = []
    recorder.after_durable(lambda: called.append(1))
    assert called == [1]
    found = records(tmp_path)
    assert [r.data["reason"] for r in found if isinstance(r, Event)] == ["unsafe_record_nothing"]
    assert not [r for r in found if isinstance(r, Call | Batch)]


def test_what_is_open_can_be_closed_on_a_full_disk_and_nothing_new_begins(make, tmp_path, monkeypatch):
    """The disk is full behind what the journal has taken ahead: as on a real one, in test_story_outage."""
    recorder = make(limits=RecorderLimits(in_flight_max=64))
    context = recorder.add_context(FACTS)
    held = recorder._journal.room
    assert held >= 64 * CLOSE_BYTES
    path = recorder._journal.path
    assert path.stat().st_size < 4_096  # readers see no end that is not there
    assert path.stat().st_blocks * 512 >= held

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(journal, "keep_ahead", full)
    opened = [recorder.reserve(1, context) for _ in range(64)]
    while recorder._journal.room >= 64 * CLOSE_BYTES:  # what is in flight goes on, and uses it up
        n = opened.pop()
        recorder.close_call(make_call(n, context=context))
        try:
            opened.append(recorder.reserve(1, context))
        except LedgerFullError:
            break
    with pytest.raises(LedgerFullError, match="expected to append") as refused:
        recorder.reserve(1, context)
    assert "disk space" in refused.value.hint
    recorder._quietly(recorder.tend)
    with pytest.raises(LedgerFullError):
        recorder.reserve(1, context)
    assert len(opened) >= 63
    for n in opened:
        recorder.close_call(make_call(n, context=context))
    assert recorder.in_flight == 0
    assert recorder._journal.room >= 0
    monkeypatch.undo()
    recorder._quietly(recorder.tend)
    recorder.close_call(make_call(recorder.reserve(1, context), context=context))


def test_an_hour_without_a_sequencer_is_not_noticed_and_everything_arrives(tmp_path):
    clock = FakeClock()
    ledger = LedgerFolder(tmp_path / "ledger", clock=clock, durable=False)
    recorder = ledger.recorder(limits=RecorderLimits(rotate_s=60))
    context, calls = recorder.add_context(FACTS), 0
    for _ in range(3600):
        for _ in range(3):
            recorder.close_call(make_call(recorder.reserve(clock.now_ns(), context), context=context))
            calls += 1
        clock.move(1)
        recorder.tend()
    assert len(list_segments(ledger.root / "journal")) >= 59
    recorder.close()
    assert ledger.integrate() == calls + 2  # and the begin and the end of the epoch
    assert complete(ledger.entries()).findings == ()
    assert not list_segments(ledger.root / "journal")
    ledger.close()
