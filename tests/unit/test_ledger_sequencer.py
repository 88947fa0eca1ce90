from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest

from pellucid.core.checkpoint import verify_checkpoint
from pellucid.core.entry import encode_outputs, is_opening, output_digest, parse_entry
from pellucid.core.merkle.proof import verify_consistency, verify_inclusion
from pellucid.core.record import Context, Event, Row, encode_record
from pellucid.core.tensor import Tensor
from pellucid.errors import LedgerFullError, LedgerHaltedError, NotFoundError, UnavailableError
from pellucid.ledger.complete import complete
from pellucid.ledger.forming import entry_count
from pellucid.ledger.journal import SegmentReader, list_segments, write_segment
from pellucid.ledger.recorder import DoorRecorder, RecorderLimits
from pellucid.ledger.sequencer import POLL_S
from pellucid.ports import Query
from pellucid.testing.clock import FakeClock
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call


@pytest.fixture
def ledger(tmp_path):
    ledger = LedgerFolder(tmp_path / "ledger")
    yield ledger
    ledger.close()


def by_type(ledger, kind):
    return [entry for entry in map(parse_entry, ledger.entries()) if entry.type == kind]


def kept(datatype, shape, data):
    """Outputs of one row as a spoiled record may hold them."""
    return encode_outputs([Tensor("y", datatype, shape, data)])


def made(n, context, value):
    """A call of one row that kept these outputs."""
    return msgspec.structs.replace(make_call(n, context=context), rows=(Row(b"i" * 32, value=value),))


def serve(ledger, count=5, batch=3):
    """An epoch with single calls and a batch, ended properly."""
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    numbers = [recorder.reserve(1, context) for _ in range(count + batch)]
    for n in numbers[:count]:
        recorder.close_call(make_call(n, context=context))
    recorder.close_batch(make_batch(1, numbers[count:], context=context))
    recorder.close()
    return count + batch


def test_an_epoch_becomes_entries_that_prove_and_open(ledger):
    calls = serve(ledger)
    assert ledger.integrate() == calls + 3  # and the batch, the begin and the end of the epoch
    head = ledger.reader.head()
    assert head == verify_checkpoint(ledger.reader.checkpoint(), ledger.vkey)
    for index in range(head.size):
        proof = ledger.reader.inclusion_proof(index, head.size)
        verify_inclusion(ledger.reader.leaf_hash(index), index, head.size, proof, head.root)
    for entry in by_type(ledger, "call"):
        openings = {(o.kind, o.row): o for o in ledger.reader.openings(entry.id)}
        output = openings["output", 0]
        digest = output_digest(output.digest, output.label, output.confidence)
        assert is_opening(entry.data["rows"][0]["output"], output.key, digest)
    assert ledger.fsck().is_clean
    assert complete(ledger.entries()).is_complete
    assert not list_segments(ledger.root / "journal")
    assert not os.listdir(ledger.root / "board")


def test_nothing_waiting_is_nothing_done(ledger):
    assert ledger.integrate() == 0
    with pytest.raises(NotFoundError):
        ledger.reader.checkpoint()
    assert ledger.reader.size() == 0
    assert ledger.fsck().is_clean


def test_steps_grow_one_log_and_old_checkpoints_stay_consistent(ledger):
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    sequencer = ledger.sequencer(entries_max=50)
    heads = []
    for size in (1, 3, 254, 1, 1, 300, 2):
        for _ in range(size):
            recorder.close_call(make_call(recorder.reserve(1), context=context))
        sequencer.drain()
        heads.append(ledger.reader.head())
    for old in heads:
        for new in heads:
            if old.size <= new.size:
                proof = ledger.reader.consistency_proof(old.size, new.size)
                verify_consistency(old.size, new.size, old.root, new.root, proof)
    assert ledger.fsck().is_clean
    recorder.close()
    sequencer.close()


def test_partial_tiles_go_once_the_full_one_exists(ledger):
    recorder = ledger.recorder()
    sequencer = ledger.sequencer()
    for _ in range(30):
        for _ in range(10):
            recorder.close_call(make_call(recorder.reserve(1), context=0))
        sequencer.step()
    partial = [path for path in ledger.store.paths("tile") if ".p/" in path]
    assert not [path for path in partial if "/000.p/" in path and not path.startswith("tile/1/")]
    assert [path for path in partial if path.startswith("tile/0/001.p/")]
    recorder.abandon()
    sequencer.close()


def test_a_number_closed_twice_is_an_alert_and_never_a_second_call(ledger):
    recorder = ledger.recorder()
    numbers = [recorder.reserve(1) for _ in range(3)]
    recorder.close_call(make_call(numbers[0], context=0))
    for payload in (make_call(1, context=0), make_batch(1, [1, 2, 3], context=0), make_call(3, context=0)):
        recorder._journal.append(encode_record(payload))
    sequencer = ledger.sequencer(entries_max=1)
    sequencer.drain()
    recorder._journal.append(encode_record(make_call(2, context=0)))  # and across a commit
    sequencer.drain()
    assert [entry.id for entry in by_type(ledger, "call")] == [f"node1/1/0/{n}" for n in (1, 2, 3)]
    alerts = by_type(ledger, "alert")
    assert [a.data["call"] for a in alerts] == [f"node1/1/0/{n}" for n in (1, 1, 3, 2)]
    assert {a.data["kind"] for a in alerts} == {"closed_twice"}
    assert ledger.fsck().is_clean
    recorder.abandon()
    sequencer.close()


def test_event_and_batch_numbers_used_twice_are_alerts(ledger):
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    recorder.event("alert", {"kind": "first"})
    numbers = [recorder.reserve(1) for _ in range(4)]
    recorder.close_batch(make_batch(1, numbers[:2], context=context))
    recorder._journal.append(encode_record(Event(2, "alert", 1, {"kind": "again"})))
    recorder.close_batch(make_batch(1, numbers[2:], context=context))
    recorder.abandon()
    ledger.integrate()
    kinds = [a.data["kind"] for a in by_type(ledger, "alert")]
    assert kinds == ["first", "event_twice", "batch_twice"]
    assert [e.data["outcome"] for e in by_type(ledger, "call")] == ["answered"] * 4
    assert ledger.fsck().is_clean
    assert complete(ledger.entries()).is_complete


@pytest.mark.parametrize(
    "payload",
    [
        b"\x93\xa1x\x01",
        b"not a record",
        encode_record(make_call(1, context=77)),
        encode_record(make_batch(1, [1, 2], context=77)),
        encode_record(make_call(1, context=0, nbytes=(2**60, 1))),
        encode_record(make_call(1, context=0, shapes=((1, -1),))),
        encode_record(make_call(1, context=0, accepted_ns=-5)),
        encode_record(make_call(-1, context=0)),
        encode_record(make_call(0, context=0)),
        encode_record(Context(1, {"model": 1.5})),
        encode_record(Event(2, "alert", 1, {"x": 1.5})),
        encode_record(Event(2, "no such type" * 10_000, 1, {})),
        encode_record(make_call(1, context=0, mark={"permille": 1.5})),
        encode_record(made(1, 0, kept("FP32", (-1,), b"1234"))),
    ],
)
def test_a_record_that_gives_no_entry_is_an_alert_and_stops_nobody(ledger, payload):
    recorder = ledger.recorder()
    recorder.reserve(1), recorder.reserve(1), recorder.reserve(1)
    recorder._journal.append(payload)
    recorder.close_call(make_call(3, context=0))
    recorder.abandon()
    ledger.integrate()
    assert {a.data["kind"] for a in by_type(ledger, "alert")} == {"record"}
    assert sorted(e.id for e in by_type(ledger, "call")) == [f"node1/1/0/{n}" for n in (1, 2, 3)]
    assert complete(ledger.entries()).is_complete
    assert ledger.fsck().is_clean


@pytest.mark.parametrize(
    "value", [b"\x90", kept("FP32", (1, 2), b"12345"), kept("BYTES", (1, 2), b"\xff" * 8), b"spoiled"]
)
@pytest.mark.parametrize("kind", ["argmax", "threshold"])
def test_kept_outputs_that_do_not_fit_the_decision_stop_nobody(ledger, value, kind):
    decision = {"kind": kind, "output": "y", "labels": ["a", "b"], "column": 0, "threshold": "0.5"}
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS | {"decision": decision})
    n = recorder.reserve(1)
    recorder.close_call(made(n, context, value))
    recorder.close_call(make_call(recorder.reserve(1), context=context))
    recorder.abandon()
    ledger.integrate()
    assert {a.data["kind"] for a in by_type(ledger, "alert")} == {"record"}
    assert [e.data["outcome"] for e in by_type(ledger, "call")] == ["unresolved", "answered"]
    assert complete(ledger.entries()).is_complete


def test_a_dead_worker_is_closed_with_every_open_number(ledger):
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    numbers = [recorder.reserve(100 + i, context) for i in range(5)]
    recorder.close_call(make_call(numbers[1], context=context))
    sequencer = ledger.sequencer()
    sequencer.drain()
    assert len(by_type(ledger, "call")) == 1  # alive: its open numbers are in flight
    recorder.abandon()
    sequencer.drain()
    calls = {entry.id: entry.data for entry in by_type(ledger, "call")}
    assert len(calls) == 5
    lost = calls["node1/1/0/1"]
    assert (lost["outcome"], lost["model"]) == ("unresolved", "credit")
    end = by_type(ledger, "epoch")[-1].data
    assert (end["last"], end["recovered"], end["unresolved"]) == ([5], True, 4)
    assert not by_type(ledger, "gap")
    result = complete(ledger.entries())
    assert result.is_complete
    assert result.parts[0].unresolved == 4
    assert ledger.fsck().is_clean
    assert not os.listdir(ledger.root / "board")
    sequencer.close()


def test_a_worker_that_died_at_once_still_ends_its_epoch(ledger):
    recorder = ledger.recorder()
    recorder.abandon()
    ledger.integrate()
    assert [e.data["phase"] for e in by_type(ledger, "epoch")] == ["open", "closed"]


def test_a_torn_record_is_counted_and_its_call_unresolved(ledger):
    recorder = ledger.recorder()
    n = recorder.reserve(1)
    with open(recorder._journal.path, "ab") as file:
        file.write(b"\x50\0\0\0torn")
    recorder.abandon()
    ledger.integrate()
    (call,) = by_type(ledger, "call")
    assert (call.id, call.data["outcome"]) == (f"node1/1/0/{n}", "unresolved")
    assert by_type(ledger, "epoch")[-1].data["torn_bytes"] == 8


def test_another_boot_leaves_a_gap_that_is_bounded(ledger):
    recorder = ledger.recorder()
    for _ in range(3):
        recorder.close_call(make_call(recorder.reserve(1), context=0))
    recorder.flush()
    recorder.abandon()
    ledger.clock.move(60)
    ledger.integrate(boot_id=b"another boot----")
    (gap,) = by_type(ledger, "gap")
    assert gap.data["reason"] == "power_loss"
    assert (gap.data["first"], gap.data["at_most"]) == (4, 65_536 - 3)
    assert gap.data["after"] < gap.data["before"]
    result = complete(ledger.entries())
    assert result.is_complete
    assert [g["entry"] for g in result.gaps] == [gap.id]


def test_a_board_that_lags_behind_the_journal_is_corrected(ledger):
    recorder = ledger.recorder()
    for _ in range(3):
        recorder.close_call(make_call(recorder.reserve(1), context=0))
    recorder.abandon()
    board = ledger.root / "board" / "1-0.board"
    data = bytearray(board.read_bytes())
    at = data.index((4).to_bytes(8, "little") + (1 + 65_536).to_bytes(8, "little"))
    data[at : at + 8] = (1).to_bytes(8, "little")  # the page of before the power loss
    board.write_bytes(data)
    ledger.integrate(boot_id=b"another boot----")
    assert by_type(ledger, "epoch")[-1].data["last"] == [3]
    assert complete(ledger.entries()).is_complete


def test_a_damaged_board_and_a_damaged_segment_are_reported(ledger):
    recorder = ledger.recorder()
    recorder.close_call(make_call(recorder.reserve(1), context=0))
    recorder.abandon()
    board = ledger.root / "board" / "1-0.board"
    board.write_bytes(b"\xff" * board.stat().st_size)
    (ledger.root / "journal" / "x-00000001.journal").write_bytes(b"damage")
    ledger.integrate()
    (alert,) = by_type(ledger, "alert")
    assert (alert.data["kind"], alert.data["place"]) == ("segment", "x-00000001.journal")
    (gap,) = by_type(ledger, "gap")
    assert gap.data["at_most"] == 65_536
    assert complete(ledger.entries()).is_complete
    assert ledger.fsck().is_clean
    ledger.integrate()
    assert len(by_type(ledger, "alert")) == 1


def test_a_second_sequencer_is_refused_and_run_waits_for_the_first(ledger):
    serve(ledger)
    first, second = ledger.sequencer(), ledger.sequencer()
    first.step()
    with pytest.raises(UnavailableError, match="no other sequencer"):
        second.step()
    first.close()
    assert second.step() == 0
    second.close()


def test_run_steps_until_it_is_stopped_and_drains(ledger):
    class Stop:
        looks = 0

        def is_set(self):
            self.looks += 1
            return self.looks > 3

    serve(ledger)
    sequencer = ledger.sequencer(interval_s=0.5)
    told = []
    sequencer.report = told.append
    sequencer.run(Stop())
    assert told == []
    assert ledger.clock.waited_s == [0.5, POLL_S, POLL_S]
    assert ledger.reader.size() == 11
    sequencer.close()


def test_doors_are_integrated_and_collected(ledger):
    with DoorRecorder(ledger.root, "node1", clock=FakeClock()) as door:
        key = door.event("read", {"what": "entry"}, {"caller": "officer"})
        sequencer = ledger.sequencer()
        sequencer.drain()
        assert list_segments(ledger.root / "journal")  # still its owner's
    assert ledger.reader.find(Query(key=key))[0].type == "read"
    sequencer.step()
    assert not list_segments(ledger.root / "journal")
    sequencer.close()


def test_rotation_lets_go_of_integrated_segments_while_the_worker_lives(ledger):
    clock = ledger.clock
    recorder = ledger.recorder(limits=RecorderLimits(rotate_s=1))
    context = recorder.add_context(FACTS)
    sequencer = ledger.sequencer()
    for _ in range(5):
        recorder.close_call(make_call(recorder.reserve(1, context), context=context))
        clock.move(1)
        recorder.tend()
        sequencer.drain()
        sequencer.step()
    assert [seq for _, seq in list_segments(ledger.root / "journal").values()] == [6]
    assert len(by_type(ledger, "call")) == 5
    recorder.reserve(1, context)
    recorder.abandon()
    ledger_again = ledger.sequencer  # contexts must be known after a restart of the sequencer as well
    sequencer.close()
    ledger_again().drain()
    assert by_type(ledger, "call")[-1].data["model"] == "credit"
    assert complete(ledger.entries()).is_complete


def test_a_rotation_while_the_sequencer_reads_changes_no_order(ledger, monkeypatch):
    """The old segment is read to its end, then grows, then the writer goes on in the next one."""
    recorder = ledger.recorder()
    journal = recorder._journal
    following = journal.prepare()  # it has its name, and is not written to yet
    read, moves = SegmentReader.frames, iter([True])

    def frames(reader, *args, **kwargs):
        found = read(reader, *args, **kwargs)
        if not found and reader.head.seq == 1 and next(moves, False):
            recorder.close_batch(make_batch(1, [recorder.reserve(1), recorder.reserve(1)], context=0))
            recorder.event("read", {"what": "before"})
            os.close(journal.swap(following).fd)
            recorder.close_batch(make_batch(2, [recorder.reserve(1), recorder.reserve(1)], context=0))
            recorder.event("read", {"what": "after"})
        return found

    monkeypatch.setattr(SegmentReader, "frames", frames)
    ledger.integrate()
    recorder.close()
    ledger.integrate()
    types = [parse_entry(raw).type for raw in ledger.entries()]
    assert types == ["epoch", "batch", "call", "call", "read", "batch", "call", "call", "read", "epoch"]


def test_the_order_of_writers_survives_any_budget(ledger):
    doors = [DoorRecorder(ledger.root, "node1", clock=FakeClock()) for _ in range(3)]
    for _ in range(100):
        for door in doors:
            door.event("read", {"what": "x"})
    for door in doors:
        door.close()
    assert ledger.integrate(entries_max=7) == 300
    for door in doors:
        mine = [e.id for e in by_type(ledger, "read") if e.id.startswith(door.source)]
        assert mine == [f"{door.source}/e{n}" for n in range(1, 101)]


# -- what must not be believed ----------------------------------------------------------------------


def test_a_changed_edge_tile_halts(ledger):
    serve(ledger)
    ledger.integrate()
    path = ledger.root / "tile" / "0" / "000.p" / "11"
    path.write_bytes(bytes(32) + path.read_bytes()[32:])
    with pytest.raises(LedgerHaltedError, match="root"):
        ledger.sequencer().step()


def test_a_missing_edge_tile_halts(ledger):
    serve(ledger)
    ledger.integrate()
    (ledger.root / "tile" / "0" / "000.p" / "11").unlink()
    with pytest.raises(LedgerHaltedError, match="whole"):
        ledger.sequencer().step()


def test_a_lost_state_beside_a_published_log_halts(ledger, tmp_path):
    serve(ledger)
    ledger.integrate()
    other = LedgerFolder(tmp_path / "other")
    with pytest.raises(LedgerHaltedError, match="published size"):
        ledger.sequencer(state=other.state).step()
    other.close()


@pytest.mark.parametrize("hide_checkpoint", [False, True])
def test_an_older_state_cannot_fork_the_log(ledger, hide_checkpoint):
    """Put back from a backup: the next step would give other leaves the same indices."""
    serve(ledger)
    ledger.integrate()
    ledger.close()  # SQLite folds its log into the file
    backup = (ledger.root / "state.db").read_bytes()
    again = LedgerFolder(ledger.root, clock=ledger.clock, _epoch=1)
    serve(again)
    again.integrate()
    size = again.reader.size()
    again.close()
    (ledger.root / "state.db").write_bytes(backup)
    if hide_checkpoint:
        (ledger.root / "checkpoint").unlink()
    rolled = LedgerFolder(ledger.root, clock=ledger.clock, _epoch=2)
    assert rolled.state.head().size < size
    assert not rolled.fsck().is_clean
    serve(rolled, count=4)
    with pytest.raises(LedgerHaltedError, match=r"state\.db|tiles"):
        rolled.integrate()
    rolled.close()


def test_another_origin_is_refused(ledger):
    from pellucid.errors import ConfigError
    from pellucid.ledger.state import State

    with pytest.raises(ConfigError, match="node1/test"):
        State(ledger.root / "state.db", "someone/else")


def test_a_follower_that_fails_never_stops_the_ledger(tmp_path):
    class Moody:
        broken = True

        def __init__(self):
            self.seen = []

        def position(self):
            return len(self.seen)

        def apply(self, start, formed):
            if self.broken:
                raise ConnectionError("down")
            self.seen[start:] = [each.key for each in formed]

    moody = Moody()
    ledger = LedgerFolder(tmp_path / "ledger", followers={"moody": moody})
    serve(ledger)
    sequencer = ledger.sequencer()
    sequencer.drain()
    assert sequencer.failures() == {"moody": "ConnectionError: down"}
    assert ledger.reader.size() == 11
    moody.broken = False
    sequencer.step()
    assert sequencer.failures() == {}
    assert moody.seen == [parse_entry(raw).id for raw in ledger.entries()]
    serve(ledger)
    sequencer.drain()
    assert moody.seen == [parse_entry(raw).id for raw in ledger.entries()]
    sequencer.close()
    ledger.close()


def test_run_reports_who_fails_once_and_when_it_is_over(tmp_path):
    class Sick:
        def position(self):
            return 0

        def apply(self, start, formed):
            if looks < 4:
                raise ConnectionError("down")

    class Stop:
        def is_set(self):
            nonlocal looks
            looks += 1
            return looks > 6

    looks, told = 0, []
    ledger = LedgerFolder(tmp_path / "ledger", followers={"sick": Sick()}, durable=False)
    serve(ledger)
    sequencer = ledger.sequencer(report=told.append)
    sequencer.run(Stop())
    assert told == [{"sick": "ConnectionError: down"}, {}]
    sequencer.close()
    ledger.close()


def test_a_stopped_sequencer_fills_the_journal_and_a_running_one_empties_it(ledger):
    """Up to the limit a call does not notice; at the limit it is refused, never lost."""
    limits = RecorderLimits(backlog_max_bytes=50_000, rotate_bytes=10_000)
    recorder = ledger.recorder(limits=limits)
    context, accepted = recorder.add_context(FACTS), 0
    refused = None
    while refused is None:
        try:
            recorder.close_call(make_call(recorder.reserve(1, context), context=context))
        except LedgerFullError as error:
            refused = error
        else:
            accepted += 1
        recorder.tend()
    assert "backlog_max_bytes" in refused.message
    assert accepted > 50
    sequencer = ledger.sequencer()
    sequencer.drain()
    recorder.tend()
    recorder.close_call(make_call(recorder.reserve(1, context), context=context))
    recorder.close()
    sequencer.drain()
    sequencer.close()
    assert len(by_type(ledger, "call")) == accepted + 1
    assert complete(ledger.entries()).is_complete


def test_recovery_is_written_once_even_if_killed_before_the_board_goes(ledger, monkeypatch):
    recorder = ledger.recorder()
    recorder.reserve(1)
    recorder.abandon()
    ledger.integrate()
    size = ledger.reader.size()
    board = ledger.root / "board" / "1-0.board"
    assert not board.exists()
    # the same board again, as if its removal had not reached the disk
    from pellucid.ledger.board import Board

    Board(board, "node1/1/0", slots=4, now_ns=1).close()
    ledger.integrate()
    assert ledger.reader.size() == size
    assert not board.exists()


def test_a_segment_that_comes_back_after_a_power_loss_is_not_read_again(ledger, monkeypatch):
    """Its deletion was not durable, its position still is: nothing is integrated twice."""
    serve(ledger)
    (name,) = list_segments(ledger.root / "journal")
    data = (ledger.root / "journal" / name).read_bytes()
    sequencer = ledger.sequencer()
    monkeypatch.setattr(ledger.state, "forget_segments", lambda *_: (_ for _ in ()).throw(OSError("cut")))
    with pytest.raises(OSError, match="cut"):
        sequencer.drain()
    monkeypatch.undo()
    sequencer.close()
    size = ledger.reader.size()
    (ledger.root / "journal" / name).write_bytes(data)
    assert ledger.integrate() == 0
    assert ledger.reader.size() == size
    assert not by_type(ledger, "alert")


def test_many_threads_may_append_while_the_sequencer_runs(tmp_path):
    # the files' own time: to a clock ahead of it, a segment that is being made looks left behind
    ledger = LedgerFolder(tmp_path / "ledger", clock=FakeClock(time.time_ns()))
    doors = [DoorRecorder(ledger.root, "node1", clock=FakeClock()) for _ in range(3)]
    started = threading.Barrier(4)

    def write(door):
        started.wait(10)
        for _ in range(40):
            door.event("read", {"what": "x"})
        door.close()

    threads = [threading.Thread(target=write, args=(door,)) for door in doors]
    for thread in threads:
        thread.start()
    sequencer = ledger.sequencer()
    started.wait(10)
    while any(thread.is_alive() for thread in threads):
        sequencer.step()
    for thread in threads:
        thread.join()
    sequencer.drain()
    sequencer.close()
    assert len(by_type(ledger, "read")) == 120
    assert ledger.fsck().is_clean
    ledger.close()


def test_drafts_of_killed_writers_go_and_those_being_written_stay(ledger):
    import fcntl

    (ledger.root / "journal").mkdir()
    dead, alive = (ledger.root / "journal" / f".{name}-00000001.journal.77" for name in ("dead", "alive"))
    dead.write_bytes(b"half")
    with open(alive, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ledger.integrate()  # its clock is far ahead of the files
        assert (dead.exists(), alive.exists()) == (False, True)


def test_context_records_alone_do_not_make_a_plan(ledger):
    (ledger.root / "journal").mkdir()
    write_segment(ledger.root / "journal", "node1/1/0", 1, [encode_record(Context(0, {}))])
    assert ledger.integrate() == 0
    assert ledger.state.head().size == 0
    assert ledger.state.plan() is None


def test_the_plan_survives_its_wire_form(ledger):
    from pellucid.ledger.state import Plan, Range

    plan = Plan(3, (Range("a", 1, 2), Range("b", 5, 900)))
    ledger.state.save_plan(plan)
    assert ledger.state.plan() == plan
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan


def test_what_a_record_gives_is_counted_without_reading_all_of_it():
    event = Event(1, "read", 1, {})
    records = [Context(1, FACTS), make_call(1), event, make_batch(1, [1, 2, 3]), make_batch(2, [])]
    assert [entry_count(encode_record(record)) for record in records] == [0, 1, 1, 4, 1]
    assert entry_count(encode_record(records[3])[:-1]) == 1, "spoiled: an alert"
