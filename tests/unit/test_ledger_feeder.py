"""Sinks on threads of their own: one that hangs, fails, or is killed holds up nobody and loses nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pellucid.core.entry import Formed, parse_entry
from pellucid.core.subject import Summary
from pellucid.core.times import format_time
from pellucid.ledger import feeder as module
from pellucid.ledger.complete import complete
from pellucid.ledger.feeder import HANDED_MAX, HUNG_S, Feeder
from pellucid.ledger.recorder import DoorRecorder, RecorderLimits
from pellucid.ledger.vault import Vault
from pellucid.testing.clock import FakeClock
from pellucid.testing.ledger import FACTS, LedgerFolder, make_call
from pellucid.testing.plane import Reply, echo_model, exchange, make_plane

WAIT_S = 30.0
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
).encode()


class Target:
    """A sink whose target answers when the test lets it; its position is what it was given."""

    def __init__(self) -> None:
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()
        self.seen: list[Formed] = []
        self.forgotten: list[str] = []
        self.chunks: list[int] = []
        self.error: Exception | None = None
        self.changed = threading.Condition()

    def position(self) -> int:
        return len(self.seen)

    def apply(self, start: int, formed: Any) -> None:
        self.asked.set()
        assert self.answers.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        assert start == len(self.seen), "in order, none twice"
        with self.changed:
            self.seen += formed
            self.chunks.append(len(formed))
            self.changed.notify_all()

    def forget(self, key: str) -> None:
        with self.changed:
            self.forgotten.append(key)
            self.changed.notify_all()

    def close(self) -> None:
        """Held by nobody."""

    def until(self, size: int) -> list[str]:
        """Keys that came, once there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= size, WAIT_S)
            return [each.key for each in self.seen]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerFolder]:
    ledger = LedgerFolder(tmp_path / "ledger", durable=False)
    yield ledger
    ledger.close()


@pytest.fixture
def target() -> Target:
    return Target()


def make_feeder(ledger: LedgerFolder, target: Target, clock: FakeClock | None = None) -> Feeder:
    vault = partial(Vault, ledger.root / "vault.db")
    feeder = Feeder(
        "far", lambda: target, ledger.store, vault, clock or FakeClock(), pause_s=(0.001, 0.01), looks=(2, 20)
    )
    feeder.start()
    return feeder


def record(ledger: LedgerFolder, count: int = 10, **changes: Any) -> None:
    recorder = ledger.recorder()
    context = recorder.add_context(FACTS)
    for _ in range(count):
        recorder.close_call(make_call(recorder.reserve(1), context=context, **changes))
    recorder.close()


def keys(ledger: LedgerFolder) -> list[str]:
    return [parse_entry(raw).id for raw in ledger.entries()]


def test_a_sink_that_hangs_stops_neither_integration_nor_checkpoints_and_catches_up(
    ledger: LedgerFolder, target: Target
) -> None:
    clock = FakeClock()
    feeder = make_feeder(ledger, target, clock)
    sequencer = ledger.sequencer(feeders=[feeder])
    target.answers.clear()
    record(ledger)
    sequencer.drain()
    assert target.asked.wait(WAIT_S)
    assert sequencer.failures() == {}  # it may take its time
    hung_since = clock.now_ns()
    clock.move(HUNG_S)
    told = {"far": f"hangs since {format_time(hung_since)}"}
    for _ in range(20):
        record(ledger)
        sequencer.drain()
        clock.move(180)
        assert sequencer.failures() == told
    assert ledger.reader.size() == 21 * 12  # an hour later, all of it is published
    assert ledger.index.position() == 21 * 12
    assert target.seen == []
    assert feeder._waiting <= HANDED_MAX
    target.answers.set()
    assert target.until(21 * 12) == keys(ledger)
    assert feeder.close()
    assert sequencer.failures() == {}
    sequencer.close()
    assert ledger.fsck().findings == ()
    assert complete(ledger.entries()).is_complete


def test_what_a_hung_sink_does_not_take_is_read_again_from_the_ledger(
    ledger: LedgerFolder, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDED_MAX", 30)
    feeder = make_feeder(ledger, target)
    sequencer = ledger.sequencer(feeders=[feeder])
    target.answers.clear()
    for _ in range(10):
        record(ledger)
        sequencer.drain()
        assert target.asked.wait(WAIT_S)
        assert feeder._waiting <= 30
    target.answers.set()
    assert target.until(120) == keys(ledger)
    assert max(target.chunks) > 12  # more at once than was ever handed over
    assert [each.openings for each in target.seen] == [ledger.vault.openings(key) for key in keys(ledger)]
    assert feeder.close()
    sequencer.close()


def test_a_sink_that_hangs_does_not_hold_up_the_end_and_the_next_start_goes_on(
    ledger: LedgerFolder, target: Target
) -> None:
    feeder = make_feeder(ledger, target)
    sequencer = ledger.sequencer(feeders=[feeder])
    record(ledger)
    sequencer.drain()
    target.until(12)
    target.answers.clear()
    target.asked.clear()
    record(ledger)
    sequencer.drain()
    assert target.asked.wait(WAIT_S)
    began = time.monotonic()
    assert not feeder.close()
    assert time.monotonic() - began < WAIT_S / 2  # two looks of 50 ms; it would hang for half a minute
    sequencer.close()
    again = Target()
    again.seen = list(target.seen)  # where it was
    record(ledger)
    feeder = make_feeder(ledger, again)
    sequencer = ledger.sequencer(feeders=[feeder])
    sequencer.drain()
    assert feeder.close()  # not before everything is there
    assert [each.key for each in again.seen] == keys(ledger)
    sequencer.close()
    target.error = ConnectionError("the old thread goes")
    target.answers.set()


def test_a_sink_known_to_hang_is_not_waited_for_at_all(ledger: LedgerFolder, target: Target) -> None:
    clock = FakeClock()
    feeder = make_feeder(ledger, target, clock)
    feeder._looks = 10**9, 10**9
    target.answers.clear()
    feeder.offer(0, [Formed("k", "call", b"", None, (), Summary(0, "", "", "", "", ""))])
    assert target.asked.wait(WAIT_S)
    clock.move(HUNG_S)
    assert not feeder.close()
    target.answers.set()
    assert target.until(1) == ["k"]


def test_a_slow_sink_does_not_hold_up_the_end_for_long(
    ledger: LedgerFolder, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 1)
    sequencer = ledger.sequencer()
    record(ledger, 200)
    sequencer.drain()
    sequencer.close()
    slow, apply = threading.Event(), target.apply
    monkeypatch.setattr(target, "apply", lambda *given: (slow.wait(0.02), apply(*given)))
    feeder = make_feeder(ledger, target)
    feeder._looks = 10**9, 5
    feeder.grow(ledger.reader.size())
    assert not feeder.close()
    assert 0 < len(target.seen) < 202
    slow.set()
    assert target.until(202) == keys(ledger)


def test_a_sink_that_fails_is_named_and_tried_again(ledger: LedgerFolder, target: Target) -> None:
    feeder = make_feeder(ledger, target)
    sequencer = ledger.sequencer(feeders=[feeder])
    target.error = ConnectionError("down")
    record(ledger)
    sequencer.drain()
    wait_for(lambda: sequencer.failures() == {"far": "ConnectionError: down"})
    target.error = None
    assert target.until(12) == keys(ledger)
    wait_for(lambda: sequencer.failures() == {})
    assert feeder.close()
    sequencer.close()


def test_a_sink_that_cannot_be_opened_is_named_and_tried_again(ledger: LedgerFolder, target: Target) -> None:
    is_there = threading.Event()

    def open_sink() -> Target:
        if not is_there.is_set():
            raise PermissionError("no")
        return target

    opened: list[Vault] = []
    closed: list[Vault] = []

    class Counted(Vault):
        def close(self) -> None:
            closed.append(self)
            super().close()

    def open_vault() -> Vault:
        assert len(opened) == len(closed), "one at a time, however often it is tried"
        opened.append(Counted(ledger.root / "vault.db"))
        return opened[-1]

    feeder = Feeder("far", open_sink, ledger.store, open_vault, FakeClock(), pause_s=(0.001, 0.01))
    feeder.start()
    sequencer = ledger.sequencer(feeders=[feeder])
    record(ledger)
    sequencer.drain()
    wait_for(lambda: sequencer.failures() == {"far": "PermissionError: no"})
    wait_for(lambda: len(opened) > 3)
    is_there.set()
    assert target.until(12) == keys(ledger)
    assert feeder.close()
    assert opened == closed
    sequencer.close()


def wait_for(condition: Any) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        threading.Event().wait(0.001)


def test_what_is_erased_while_a_sink_hangs_is_not_sent_afterwards(
    ledger: LedgerFolder, target: Target
) -> None:
    feeder = make_feeder(ledger, target)
    sequencer = ledger.sequencer(feeders=[feeder])
    target.answers.clear()
    record(ledger, 1)
    sequencer.drain()
    assert target.asked.wait(WAIT_S)
    record(ledger, 1)  # node1/2/0/1: handed over, and not taken
    sequencer.drain()
    with DoorRecorder(ledger.root, "node1", clock=FakeClock()) as door:
        door.event("erasure", {"call": "node1/2/0/1", "rows": [], "rule": "x", "reason": "y"})
    sequencer.drain()
    target.answers.set()
    target.until(ledger.reader.size())
    assert feeder.close()
    (erased,) = [each for each in target.seen if each.key == "node1/2/0/1"]
    assert erased.openings == ()
    assert target.forgotten == ["node1/2/0/1"]
    feeder = make_feeder(ledger, target)
    sequencer.drain()
    assert feeder.close()
    assert target.forgotten == ["node1/2/0/1"]  # told once
    sequencer.close()


def test_story_x11_an_hour_without_a_ledger_writer_or_a_sink_is_not_noticed_and_at_the_limit_says_so(
    ledger: LedgerFolder, target: Target
) -> None:
    """The writer stands still for an hour of the clock, and its only sink hangs before and after."""
    clock = ledger.clock
    assert isinstance(clock, FakeClock)
    recorder = ledger.recorder(limits=RecorderLimits(backlog_max_bytes=100_000, rotate_bytes=20_000))
    plane = make_plane([echo_model()], recorder, None, clock)
    feeder = make_feeder(ledger, target, clock)
    sequencer = ledger.sequencer(feeders=[feeder])
    target.answers.clear()

    def call() -> Reply:
        clock.move(60)
        recorder.tend()
        (reply,) = exchange(plane, [("POST", "/v2/models/echo/infer", BODY)])
        return reply

    answered = [call()]
    sequencer.drain()
    assert target.asked.wait(WAIT_S)
    began = clock.now_ns()
    while clock.now_ns() - began < 3_600 * 10**9:
        answered.append(call())
    assert {reply.status for reply in answered} == {200}
    while (refused := call()).status == 200:
        answered.append(refused)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.json["hint"].startswith("is the sequencer running?")
    assert "ledger.backlog_max_bytes" in refused.json["error"]
    assert len(answered) > 60
    sequencer.drain()  # the writer is back, its sink is not
    after = [call() for _ in range(20)]
    assert {reply.status for reply in after} == {200}
    recorder.close()
    sequencer.drain()
    assert list(sequencer.failures()) == ["far"]
    keys_wanted = {reply.headers["pellucid-call"] for reply in [*answered, *after]}
    target.answers.set()
    came = target.until(ledger.reader.size())
    assert came == keys(ledger)
    assert keys_wanted <= set(came)
    assert feeder.close()
    sequencer.close()
    assert complete(ledger.entries()).is_complete
