"""kill -9 of the writer and of the sequencer, 20 times each at random moments, under load.

Afterwards: every acknowledged number has exactly one ``call`` entry with the same output commitment
(opened with its opening), every number given out is closed exactly once, fsck is clean, and no two
checkpoints that anyone saw conflict.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pellucid.core.checkpoint import Checkpoint, verify_checkpoint
from pellucid.core.entry import is_opening, output_digest, parse_entry
from pellucid.core.merkle.proof import verify_consistency
from pellucid.ledger.complete import complete
from pellucid.testing.ledger import LedgerFolder

pytestmark = pytest.mark.crash
KILLS = 20
CHILD = Path(__file__).with_name("ledger_child.py")
LIMIT_S = 60  # how long a child may take to show life


class Writer:
    """A writing child; a thread keeps what it acknowledges."""

    def __init__(self, folder: Path, mode: str, seed: int) -> None:
        self.acknowledged: list[bytes] = []
        self._news = threading.Condition()
        command = [sys.executable, str(CHILD), "writer", str(folder), mode, str(seed)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                if line.endswith(b"\n"):
                    self.acknowledged.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        """Until it acknowledged so many calls."""
        with self._news:
            enough = lambda: len(self.acknowledged) >= count or self.process.poll() is not None  # noqa: E731
            assert self._news.wait_for(enough, LIMIT_S)
        assert self.process.poll() is None, "the writer ended by itself"

    def kill(self) -> list[bytes]:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.acknowledged


def start_sequencer(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CHILD), "sequencer", str(folder)])


def look(folder: Path, ledger: LedgerFolder, seen: list[Checkpoint]) -> None:
    """Remember the checkpoint that is published now."""
    try:
        raw = (folder / "checkpoint").read_bytes()
    except FileNotFoundError:
        return
    seen.append(verify_checkpoint(raw, ledger.vkey))


def judge(ledger: LedgerFolder, acknowledged: list[bytes], seen: list[Checkpoint]) -> None:
    entries = [parse_entry(raw) for raw in ledger.entries()]
    calls = {entry.id: entry for entry in entries if entry.type == "call"}
    assert len(calls) == sum(entry.type == "call" for entry in entries)
    for line in acknowledged:
        key, digest, label, confidence = line.decode().split()
        entry = calls[key]
        assert entry.data["outcome"] == "answered"
        (output,) = [o for o in ledger.vault.openings(key) if o.kind == "output"]
        said = output_digest(bytes.fromhex(digest), label, confidence)
        assert is_opening(entry.data["rows"][0]["output"], output.key, said), key
    result = complete(entries)
    assert result.findings == ()
    assert all(part.last is not None and not part.open for part in result.parts)
    assert not [entry for entry in entries if entry.type == "alert" and entry.data["kind"] != "test"]
    assert ledger.fsck().findings == ()
    assert ledger.index.position() == len(entries)
    judge_checkpoints(ledger, seen)


def judge_checkpoints(ledger: LedgerFolder, seen: list[Checkpoint]) -> None:
    final = ledger.reader.head()
    heads = sorted({(head.size, head.root) for head in [*seen, final]})
    assert len({size for size, _ in heads}) == len(heads), "two roots for one size"
    for (old_size, old_root), (new_size, new_root) in itertools.pairwise(heads):
        proof = ledger.reader.consistency_proof(old_size, new_size)
        verify_consistency(old_size, new_size, old_root, new_root, proof)
    sizes = [head.size for head in seen]
    assert sizes == sorted(sizes), "a checkpoint became smaller"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ledger").mkdir()
    return tmp_path / "ledger"


def test_kill_the_writer(folder):
    chance = random.Random(os.urandom(8))
    acknowledged: list[bytes] = []
    ledger, seen = LedgerFolder(folder), []
    sequencer = start_sequencer(folder)
    try:
        for turn in range(KILLS):
            writer = Writer(folder, "durable" if turn % 2 else "journaled", turn)
            try:
                writer.wait_for(chance.randrange(1, 150))
            finally:
                acknowledged += writer.kill()
            look(folder, ledger, seen)
        assert sequencer.poll() is None, "the sequencer ended by itself"
    finally:
        sequencer.kill()
        sequencer.wait()
    ledger.integrate()
    assert len(acknowledged) > KILLS
    judge(ledger, acknowledged, seen)
    epochs = [e.data for e in map(parse_entry, ledger.entries()) if e.type == "epoch"]
    assert sum(data["phase"] == "closed" and data["recovered"] for data in epochs) == KILLS
    ledger.close()


def test_kill_the_sequencer(folder):
    chance = random.Random(os.urandom(8))
    ledger, seen = LedgerFolder(folder), []
    writer = Writer(folder, "journaled", 0)
    try:
        writer.wait_for(1)
        for _ in range(KILLS):
            sequencer = start_sequencer(folder)
            try:
                writer.wait_for(len(writer.acknowledged) + chance.randrange(1, 900))
                look(folder, ledger, seen)
            finally:
                assert sequencer.poll() is None, "the sequencer ended by itself"
                sequencer.kill()
                sequencer.wait()
            look(folder, ledger, seen)
    finally:
        acknowledged = writer.kill()
    ledger.integrate()
    assert seen, "no checkpoint was ever published under load"
    judge(ledger, acknowledged, seen)
    ledger.close()
