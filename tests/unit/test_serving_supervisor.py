"""The sequencer's keeper: started again when it dies, ended by its closed standard input."""

from __future__ import annotations

import os
import signal
import sys
import threading

from pellucid.app.supervisor import Supervisor
from pellucid.serving.entropy import Entropy

WAITS = "import sys; sys.stdin.buffer.read()"
STUBBORN = "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Event().wait()"


class Reports:
    """What the supervisor said, and a way to wait for it."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []
        self._changed = threading.Condition()

    def __call__(self, what: str, number: int) -> None:
        with self._changed:
            self.said.append((what, number))
            self._changed.notify_all()

    def wait(self, what: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: [w for w, _ in self.said].count(what) >= count, 30)


def test_a_dead_child_is_started_again_and_a_live_one_ends_when_its_pipe_closes():
    reports = Reports()
    supervisor = Supervisor([sys.executable, "-S", "-c", WAITS], reports)
    supervisor.start()
    reports.wait("started", 1)
    first = supervisor.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    reports.wait("started", 2)
    assert supervisor.pid not in (None, first)
    assert supervisor.restarts == 1
    assert ("ended", -signal.SIGKILL) in reports.said
    assert supervisor.stop(30)
    assert supervisor.pid is None
    assert [what for what, _ in reports.said] == ["started", "ended", "started"]


def test_a_child_that_does_not_end_is_killed():
    reports = Reports()
    supervisor = Supervisor([sys.executable, "-S", "-c", STUBBORN], reports)
    supervisor.start()
    reports.wait("started", 1)
    assert not supervisor.stop(0.05)
    assert supervisor.pid is None


def test_a_child_that_fails_at_once_is_tried_again_with_growing_pauses():
    reports = Reports()
    supervisor = Supervisor([sys.executable, "-S", "-c", "raise SystemExit(3)"], reports)
    supervisor.start()
    reports.wait("ended", 3)
    assert {number for what, number in reports.said if what == "ended"} == {3}
    assert supervisor.stop(30)


def test_random_bytes_are_given_out_once():
    entropy = Entropy()
    taken = [entropy.take(size) for size in (1, 32, 16, 4096, 5000, 32) * 40]
    assert [len(piece) for piece in taken] == [1, 32, 16, 4096, 5000, 32] * 40
    long = [piece for piece in taken if len(piece) >= 16]
    assert len(set(long)) == len(long)
