"""Fault table of the sequencer: each write lost, or kept but reported lost.

After every fault: the error names the write, the head is old or new and nothing between, a restart
finishes the work, fsck is clean, every number has one entry, and the next batch passes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pellucid.core.entry import is_opening, output_digest, parse_entry
from pellucid.ledger import recovery
from pellucid.ledger.complete import complete
from pellucid.ledger.recorder import DoorRecorder
from pellucid.testing.clock import FakeClock
from pellucid.testing.faults import FaultError, Faults
from pellucid.testing.ledger import FACTS, LedgerFolder, make_batch, make_call

STORE = ("create_many", "replace", "delete")
STATE = ("save_plan", "commit", "forget_segments")
VAULT = ("put_many", "erase", "erase_subject", "erased_to", "put_meta", "scrub")
INDEX = ("apply", "forget", "scrub")


@pytest.fixture(autouse=True)
def _no_power_loss(monkeypatch):
    """Faults are played above the disk: waiting for it would only cost time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def furnish(root: Path) -> LedgerFolder:
    """A log with a past, a dead worker, a new one with subjects, and two erasures to carry out."""
    ledger = LedgerFolder(root, durable=False)
    dead = ledger.recorder()
    for _ in range(250):
        dead.close_call(make_call(dead.reserve(1), context=0, personal={}))
    ledger.integrate()
    context = dead.add_context(FACTS)
    dead.close_batch(make_batch(1, [dead.reserve(1, context) for _ in range(3)]))
    dead.reserve(2, context)
    dead.abandon()
    alive = ledger.recorder()
    context = alive.add_context(FACTS)
    for subject in ("anna", "bert", "anna"):
        personal = {"subject": subject, "trace_id": f"trace-{subject}"}
        alive.close_call(make_call(alive.reserve(1), context=context, personal=personal))
    alive.close()
    with DoorRecorder(ledger.root, "node1", clock=FakeClock()) as door:
        why = {"reason": "asked", "rule": "test"}
        door.event("erasure", {"call": "node1/1/0/7", "rows": [0], **why})
        door.event("erasure", {"rows": [], **why}, {"subject": "anna"})
    return ledger


def run(ledger: LedgerFolder, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> FaultError | None:
    """Integrate with every write going through ``faults``; what it raised, if anything."""
    unlink, write_segment = Path.unlink, recovery.write_segment

    def faulty_unlink(self: Path, missing_ok: bool = False) -> None:
        if self.suffix in (".journal", ".board"):
            faults.write(f"unlink {self.suffix}", lambda: unlink(self, missing_ok=missing_ok))
        else:
            unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", faulty_unlink)
        patch.setattr(
            recovery, "write_segment", lambda *a: faults.write("write_segment", lambda: write_segment(*a))
        )
        sequencer = ledger.sequencer(
            store=faults.wrap(ledger.store, STORE),
            state=faults.wrap(ledger.state, STATE),
            vault=faults.wrap(ledger.vault, VAULT),
            followers={"index": faults.wrap(ledger.index, INDEX)},
        )
        try:
            sequencer.drain()
        except FaultError as error:
            return error
        finally:
            sequencer.close()
    return None


def count_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ledger, faults = furnish(tmp_path / "dry"), Faults()
    assert run(ledger, faults, monkeypatch) is None
    check(ledger)
    ledger.close()
    return faults.log


def check(ledger: LedgerFolder) -> None:
    """Everything that must hold once all is integrated."""
    entries = list(map(parse_entry, ledger.entries()))
    assert ledger.fsck().findings == ()
    result = complete(entries)
    assert result.findings == ()
    assert [(p.epoch, p.last, p.recovered, p.unresolved) for p in result.parts][:2] == [
        (1, 254, True, 1),
        (2, 3, False, 0),
    ]
    assert not [entry for entry in entries if entry.type == "alert"]
    assert ledger.vault.state("node1/1/0/7", 0) == "erased"
    assert ledger.vault.state("node1/2/0/1") == "erased"
    assert ledger.vault.state("node1/2/0/3") == "erased"
    (bert,) = [entry for entry in entries if entry.id == "node1/2/0/2"]
    output = next(o for o in ledger.vault.openings(bert.id) if o.kind == "output")
    digest = output_digest(output.digest, output.label, output.confidence)
    assert is_opening(bert.data["rows"][0]["output"], output.key, digest)
    assert ledger.index.position() == len(entries)


def test_the_table_is_not_empty(tmp_path, monkeypatch):
    names = set(count_writes(tmp_path, monkeypatch))
    expected = {
        "FileStore.create_many", "FileStore.replace", "FileStore.delete", "State.save_plan", "State.commit",
        "State.forget_segments", "Vault.put_many", "Vault.erase", "Vault.erase_subject", "Vault.erased_to",
        "Vault.put_meta", "Vault.scrub", "SqliteIndex.apply", "SqliteIndex.forget", "SqliteIndex.scrub",
        "unlink .journal", "unlink .board", "write_segment",
    }  # fmt: skip
    assert names == expected


@pytest.mark.parametrize("kept", [False, True], ids=["lost", "kept"])
def test_every_write_may_fail(tmp_path, monkeypatch, kept):
    log = count_writes(tmp_path, monkeypatch)
    for at, name in enumerate(log, 1):
        ledger, faults = furnish(tmp_path / f"{at}"), Faults(at, kept=kept)
        before = ledger.state.head().size
        error = run(ledger, faults, monkeypatch)
        assert faults.log[at - 1] == name
        assert_right_error(name, error)
        moved = at > log.index("State.commit") + (0 if kept else 1)
        assert (ledger.state.head().size > before) is moved  # the commit moves the head, nothing else
        # a restart: other objects over the same files
        again = LedgerFolder(ledger.root, clock=ledger.clock, durable=False, _epoch=2)
        again.integrate()
        check(again)
        # and the next batch passes
        recorder = again.recorder()
        recorder.close_call(make_call(recorder.reserve(1), context=0))
        recorder.close()
        assert again.integrate() == 3
        check(again)
        again.close()
        ledger.close()


def assert_right_error(name: str, error: FaultError | None) -> None:
    """Followers never stop the ledger; every other failed write is reported, by its name."""
    if name.startswith("SqliteIndex.") or name == "Vault.put_meta":
        assert error is None
    else:
        assert error is not None
        assert name in error.message


@pytest.mark.parametrize("kept", [False, True], ids=["lost", "kept"])
def test_the_same_sequencer_goes_on_after_a_fault(tmp_path, monkeypatch, kept):
    """No restart: the next step of the same object reopens and finishes."""
    ledger = furnish(tmp_path / "ledger")
    faults = Faults(kept=kept)
    sequencer = ledger.sequencer(
        store=faults.wrap(ledger.store, STORE),
        state=faults.wrap(ledger.state, STATE),
        vault=faults.wrap(ledger.vault, VAULT),
    )
    failed = 0
    while True:
        faults.at = faults.count + 2 + failed  # again and again, each time a little further
        try:
            if not sequencer.step():
                break
        except FaultError:
            failed += 1
        assert failed < 100
    assert failed >= 3
    sequencer.close()
    ledger.integrate()
    check(ledger)
    ledger.close()
