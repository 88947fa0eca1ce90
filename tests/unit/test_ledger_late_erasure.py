"""A call accepted before its subject was erased is erased, however late it arrives."""

from __future__ import annotations

from pathlib import Path

from pellucid.ledger.recorder import DoorRecorder
from pellucid.testing.ledger import FACTS, LedgerFolder, make_call

WHO = {"subject": "applicant 7"}


def test_a_call_in_flight_during_the_erasure_is_erased_when_it_comes(tmp_path: Path):
    ledger = LedgerFolder(tmp_path / "ledger", durable=False)
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    now = ledger.clock.now_ns()
    for _ in range(3):
        recorder.reserve(now)
    recorder.close_call(make_call(1, context=context, accepted_ns=now, personal=WHO))
    sequencer = ledger.sequencer()
    sequencer.drain()
    with DoorRecorder(ledger.root, ledger.node, clock=ledger.clock) as door:
        by = door.event("erasure", {"rule": "test", "reason": "", "rows": []}, WHO)
    sequencer.drain()
    recorder.close_call(make_call(2, context=context, accepted_ns=now, personal=WHO))
    later = ledger.clock.now_ns() + 10**12
    recorder.close_call(make_call(3, context=context, accepted_ns=later, personal=WHO))
    sequencer.drain()
    sequencer.close()
    recorder.close()
    states = [ledger.vault.state(f"{recorder.source}/{n}") for n in (1, 2, 3)]
    assert states == ["erased", "erased", "held"]
    assert ledger.vault.erasure_of(f"{recorder.source}/2") == by
    assert ledger.reader.openings(f"{recorder.source}/3")
    ledger.close()
