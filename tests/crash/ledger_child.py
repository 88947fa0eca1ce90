"""A process to be killed: ``writer FOLDER MODE SEED`` or ``sequencer FOLDER``.

A writer says on standard output what it acknowledged, one line a call: key, output digest, label,
confidence. It says so only when the recorder lets a reply go.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import threading
from functools import partial
from pathlib import Path

from pellucid.app.clock import SystemClock
from pellucid.core.record import Batch, Call, Row
from pellucid.indexes.sqlite import SqliteIndex
from pellucid.ledger.epoch import next_epoch
from pellucid.ledger.recorder import JournalRecorder, RecorderLimits, open_board
from pellucid.ledger.sequencer import Sequencer
from pellucid.ledger.state import State
from pellucid.ledger.vault import Vault
from pellucid.stores.file import FileStore
from pellucid.testing.ledger import FACTS, MemoryKey

LIMITS = RecorderLimits(flush_s=0.005, rotate_s=0.05, in_flight_max=64)
PACE_S = 0.002  # a load that leaves the other processes of a small machine alive


def write(folder: Path, mode: str, seed: int) -> None:
    clock, chance, pace = SystemClock(), random.Random(seed), threading.Event()
    with next_epoch(folder) as epoch:
        board = open_board(folder, f"node1/{epoch}/0", limits=LIMITS, clock=clock)
    recorder = JournalRecorder(folder, f"node1/{epoch}/0", clock=clock, mode=mode, limits=LIMITS, board=board)
    recorder.event("epoch", {"epoch": epoch, "phase": "open", "worker": 0, "workers": 1})
    context, batches = recorder.add_context(FACTS), 0
    lingering = [recorder.reserve(clock.now_ns(), context) for _ in range(3)]  # open when we die
    while True:
        count = chance.choice([1, 1, 2, 5, 8])
        calls = [call(recorder.reserve(clock.now_ns(), context), context, slot) for slot in range(count)]
        if count == 1:
            recorder.close_call(calls[0])
        else:
            batches += 1
            recorder.close_batch(Batch(batches, context, 8, clock.now_ns(), 5, tuple(calls)))
        if chance.random() < 0.2 and lingering:
            late = call(lingering.pop(), context, 0)
            recorder.close_call(late)
            calls.append(late)
        recorder.after_durable(partial(acknowledge, recorder, calls))
        if chance.random() < 0.01:
            recorder.event("alert", {"kind": "test"})
        pace.wait(PACE_S)


def call(n: int, context: int, slot: int) -> Call:
    rows = (Row(secrets.token_bytes(32), secrets.token_bytes(32), "good", "0.75"),)
    return Call(
        n=n, context=context, outcome="answered", error=None, accepted_ns=10**18, closed_ns=10**18 + 9,
        stages=(1, 1, 1, 3), slot=slot, bucket=8, rows=rows, shapes=((1, 4),), nbytes=(16, 4),
        seed=secrets.token_bytes(32), personal={"caller": f"caller {n}", "subject": f"person {n % 5}"},
    )  # fmt: skip


def acknowledge(recorder: JournalRecorder, calls: list[Call]) -> None:
    lines = [f"{recorder.call_key(c.n)} {c.rows[0].output.hex()} good 0.75\n" for c in calls]
    os.write(1, "".join(lines).encode())  # one write: whole lines, even when killed


def sequence(folder: Path) -> None:
    sequencer = Sequencer(
        folder=folder, node="node1", origin="node1/test", store=FileStore(folder),
        state=State(folder / "state.db", "node1/test"), vault=Vault(folder / "vault.db"),
        signer=MemoryKey(), clock=SystemClock(), interval_s=0.0, entries_max=300,
        followers={"index": SqliteIndex(folder / "index.db")},
    )  # fmt: skip
    sequencer.run(threading.Event())


if __name__ == "__main__":
    if sys.argv[1] == "writer":
        write(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        sequence(Path(sys.argv[2]))
