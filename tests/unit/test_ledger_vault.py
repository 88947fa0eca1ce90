from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys

import msgspec
import pytest

from pellucid.core.entry import is_opening, output_digest, parse_entry, text_digest
from pellucid.core.record import Row
from pellucid.ledger.recorder import DoorRecorder
from pellucid.ports import Query
from pellucid.testing.clock import FakeClock
from pellucid.testing.ledger import FACTS, LedgerFolder, make_call

CALLS = {1: "anna", 2: "bert", 3: "anna", 4: None}
SECRET = "203.0.113.77"


@pytest.fixture
def ledger(tmp_path):
    ledger = LedgerFolder(tmp_path / "ledger")
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    for n, subject in CALLS.items():
        personal = {"address": SECRET, "trace_id": f"trace-{n}"} | ({"subject": subject} if subject else {})
        recorder.close_call(make_call(recorder.reserve(1), context=context, rows=3, personal=personal))
        assert n == recorder.last
    recorder.close()
    ledger.integrate()
    yield ledger
    ledger.close()


def key(n):
    return f"node1/1/0/{n}"


def entry(ledger, n):
    return parse_entry(ledger.reader.get(key(n)))


def opens(ledger, n):
    """Every opening the vault gives opens the commitment in the leaf; which ones it gives."""
    data, found = entry(ledger, n).data, set()
    for o in ledger.reader.openings(key(n)):
        if o.kind == "output":
            digest = output_digest(o.digest, o.label, o.confidence)
            assert is_opening(data["rows"][o.row]["output"], o.key, digest)
        elif o.row == -1:
            assert is_opening(data["personal"][o.kind], o.key, text_digest(o.value.decode()))
        else:
            assert len(o.key) == 32
        found.add((o.kind, o.row))
    return found


def everything(n):
    texts = {("address", -1), ("trace_id", -1)} | ({("subject", -1)} if CALLS[n] else set())
    return texts | {(kind, row) for kind in ("input", "output") for row in range(3)}


def erase(ledger, data, personal=None):
    with DoorRecorder(ledger.root, "node1", clock=FakeClock()) as door:
        made = door.event("erasure", {"rule": "test", "reason": "asked", **data}, personal)
    ledger.integrate()
    return made


def bytes_on_disk(ledger):
    return b"".join(path.read_bytes() for path in ledger.root.rglob("*") if path.is_file())


def test_everything_opens_before(ledger):
    for n in CALLS:
        assert opens(ledger, n) == everything(n)
        assert ledger.vault.state(key(n)) == "held"


@pytest.mark.parametrize("n", [1, 4], ids=["with a subject", "without"])
def test_one_row_goes_and_the_others_still_open(ledger, n):
    old = {o for o in ledger.reader.openings(key(n)) if o.row == 1}
    by = erase(ledger, {"call": key(n), "rows": [1]})
    assert opens(ledger, n) == {at for at in everything(n) if at[1] != 1}
    assert ledger.vault.state(key(n), 1) == "erased"
    assert ledger.vault.state(key(n), 0) == "held"
    assert ledger.vault.erasure_of(key(n), 1) == by
    assert ledger.vault.erasures(key(n)) == [(1, by)]
    for other in set(CALLS) - {n}:
        assert opens(ledger, other) == everything(other)
    disk = bytes_on_disk(ledger)
    for opening in old:
        assert opening.key not in disk  # neither kept nor left over
        assert opening.digest is None or opening.digest not in disk


def test_a_shredded_row_of_a_subject_cannot_be_derived_again(ledger):
    """Its key came from the subject's: that one must be gone as well, though the subject goes on."""
    before = ledger.vault.subject_key("anna")
    erase(ledger, {"call": key(1), "rows": [0]})
    assert ledger.vault.subject_key("anna") != before
    assert before not in bytes_on_disk(ledger)
    assert opens(ledger, 3) == everything(3)  # what the subject keeps still opens


def test_a_whole_call_goes(ledger):
    erase(ledger, {"call": key(2)})
    assert ledger.reader.openings(key(2)) == ()
    assert ledger.vault.state(key(2)) == "erased"
    assert ledger.vault.state(key(2), 0) == "erased"
    assert ledger.fsck().is_clean


def test_a_subject_goes_with_all_its_calls_and_nobody_else(ledger):
    subject_key = ledger.vault.subject_key("anna")
    by = erase(ledger, {"rows": []}, {"subject": "anna"})
    for n in (1, 3):
        assert ledger.vault.state(key(n)) == "erased"
        assert ledger.vault.erasure_of(key(n)) == by
    for n in (2, 4):
        assert opens(ledger, n) == everything(n)
    disk = bytes_on_disk(ledger)
    assert subject_key not in disk
    assert b"anna" not in disk
    assert ledger.fsck().is_clean
    assert ledger.reader.find(Query(subject="anna")) == []


def test_the_values_themselves_are_gone_from_every_file(ledger):
    assert SECRET.encode() in bytes_on_disk(ledger)
    for n in CALLS:
        erase(ledger, {"call": key(n)})
    assert SECRET.encode() not in bytes_on_disk(ledger)


def test_nothing_is_left_where_rows_were_moved_from_page_to_page(tmp_path):
    """SQLite overwrites what is deleted, but not the copies that a split of a page leaves behind."""
    ledger, chance = LedgerFolder(tmp_path, durable=False), random.Random(7)
    recorder = ledger.recorder()
    subjects = [f"subject-{n:03d}-{'x' * chance.choice([4, 60, 200])}" for n in range(60)]
    for n in range(1, 400):
        subject = chance.choice(subjects)
        kept = subject[:11].encode() * chance.choice([1, 20, 400])
        row = Row(bytes(32), bytes(32), f"label-of-{subject[:11]}", "0.5", kept)
        personal = {"subject": subject, "trace_id": f"trace-of-{subject[:11]}-{n}"}
        recorder.close_call(make_call(recorder.reserve(1), context=0, personal=personal, rows=1))
        call = make_call(recorder.reserve(1), context=0, personal=personal)
        recorder.close_call(msgspec.structs.replace(call, rows=(row,)))
        if not n % 25:
            recorder.rotate()
            ledger.integrate()
    recorder.close()
    ledger.integrate()
    gone = subjects[::2]
    assert gone[0][:11].encode() in bytes_on_disk(ledger)
    with DoorRecorder(ledger.root, "node1", clock=FakeClock()) as door:
        for subject in gone:
            door.event("erasure", {"rows": [], "rule": "test"}, {"subject": subject})
    ledger.integrate()
    disk = bytes_on_disk(ledger)
    assert [subject for subject in gone if subject[:11].encode() in disk] == []
    assert subjects[1][:11].encode() in disk
    ledger.close()


def test_the_index_forgets(ledger):
    assert ledger.index.find(Query(trace="trace-2"))
    erase(ledger, {"call": key(2)})
    assert ledger.index.find(Query(trace="trace-2")) == []
    (row,) = ledger.index.find(Query(key=key(2)))
    assert (row.label, row.confidence, row.trace) == ("", "", "")
    ledger.index.clear()
    ledger.integrate()
    assert ledger.index.find(Query(trace="trace-2")) == []


def test_proofs_hold_after_erasure(ledger):
    before = ledger.reader.head(), ledger.entries()
    erase(ledger, {"rows": []}, {"subject": "anna"})
    assert ledger.entries()[: before[0].size] == before[1]
    ledger.reader.leaf_hash(2)


def test_twice_is_once(ledger):
    first = erase(ledger, {"call": key(2)})
    erase(ledger, {"call": key(2)})
    assert ledger.vault.erasure_of(key(2)) == first


def test_a_call_erased_row_by_row_is_erased(ledger):
    recorder = ledger.recorder()
    recorder.close_call(make_call(recorder.reserve(1), context=0, rows=2, personal={}))
    recorder.close()
    ledger.integrate()
    call = "node1/2/0/1"
    erase(ledger, {"call": call, "rows": [0]})
    assert (ledger.vault.state(call), ledger.vault.state(call, 0)) == ("held", "erased")
    erase(ledger, {"call": call, "rows": [1]})
    assert ledger.vault.state(call) == "erased"
    assert ledger.vault.erasure_of(call, -1) is None


def test_missing_is_lost_and_never_erased(ledger):
    assert ledger.vault.state("node1/9/9/9") == "lost"
    ledger.vault._db.execute("DELETE FROM entries WHERE key=?", (key(2),))
    assert ledger.vault.state(key(2)) == "lost"
    ledger.vault._db.execute("DELETE FROM subjects")
    assert ledger.vault.state(key(1)) == "lost"
    assert ledger.reader.openings(key(1)) == ()


def test_a_reader_in_the_way_only_delays_the_emptying(ledger):
    kept = ledger.reader.openings(key(4))[0].key
    other = LedgerFolder(ledger.root)
    other.vault._db.execute("BEGIN")
    other.vault._db.execute("SELECT * FROM entries").fetchone()  # holds the old pages
    ledger.vault._db.execute("PRAGMA busy_timeout=1")
    erase(ledger, {"call": key(4)})
    assert ledger.vault.state(key(4)) == "erased"
    assert ledger.vault.wants_scrub
    other.vault._db.execute("COMMIT")
    other.close()
    ledger.integrate()
    assert not ledger.vault.wants_scrub
    assert kept not in bytes_on_disk(ledger)


def test_a_call_waiting_in_the_journal_survives_the_erasure_of_its_subject(ledger):
    """The subject comes back: a new key, and the old calls stay erased."""
    erase(ledger, {"rows": []}, {"subject": "anna"})
    recorder = ledger.recorder()
    recorder.close_call(make_call(recorder.reserve(1), context=0, personal={"subject": "anna"}))
    recorder.close()
    ledger.integrate()
    assert ledger.vault.state("node1/2/0/1") == "held"
    assert ledger.vault.state(key(1)) == "erased"


def test_an_erasure_entry_with_a_strange_body_stops_nobody(ledger):
    for data in (
        {"call": 7},
        {"call": key(2), "rows": "all of them"},
        {"call": key(4), "rows": [None, "x", True]},
    ):
        erase(ledger, data)
    assert ledger.fsck().is_clean
    assert ledger.vault.state(key(2)) == "erased"  # no rows named: the whole call


@pytest.mark.parametrize("kind", ["pellucid.ledger.vault:Vault", "pellucid.indexes.sqlite:SqliteIndex"])
def test_a_second_connection_of_a_process_takes_the_first_no_lock(tmp_path, kind):
    """Otherwise another process that ends thinks it is the last, and removes the log we write to."""
    module, _, name = kind.partition(":")
    path = tmp_path / "some.db"
    made = getattr(importlib.import_module(module), name)
    first = made(path)
    first._db.execute("CREATE TABLE t (n)")
    made(path).close()
    inode = os.stat(f"{path}-wal").st_ino
    code = f"from {module} import {name}; {name}({str(path)!r}).close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert os.stat(f"{path}-wal").st_ino == inode
    first.close()
