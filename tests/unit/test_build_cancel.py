"""Requests to end a build: the child is asked, then killed; nothing outlives a request or its parent."""

from __future__ import annotations

import contextvars
import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pellucid.app.build import isolated
from pellucid.build.cancel import Stop, current
from pellucid.build.child import Ended, measures, run_child, start_child
from pellucid.build.frame import read_frame
from pellucid.build.log import LogWriter
from pellucid.build.task import Task
from pellucid.errors import BuildCancelledError
from pellucid.ports import Step
from pellucid.testing.models import credit_like

SAYS = "from pellucid.build.frame import write_frame; import os, sys, time; "
LISTENS = (
    SAYS + "from pellucid.build.cancel import Heard; heard = Heard(); "
    "write_frame(sys.stdout.buffer, os.getpid())\n"
    "while not heard.to_stop: time.sleep(0.01)\n"
    "write_frame(sys.stdout.buffer, 'heard')"
)
DEAF = (
    SAYS + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "write_frame(sys.stdout.buffer, os.getpid()); time.sleep(300)"
)


def run(entry: str, scratch: Path, stop: Stop, requests: int = 1) -> Ended:
    """A child that is asked to end as soon as it speaks."""

    def on_frame(frame: object) -> None:
        if frame != "heard":
            for _ in range(requests):
                stop.request()

    with stop:
        return run_child(entry, None, scratch, timeout_s=60, on_frame=on_frame)


def is_gone(pid: int) -> bool:
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if "Z (zombie)" in status:
            return True
        os.sched_yield()
    return False


def test_a_child_that_listens_ends_in_its_own_words(tmp_path: Path) -> None:
    ended = run(LISTENS, tmp_path, Stop())
    assert (ended.code, ended.cancelled, ended.reason) == (0, True, "cancelled")
    assert ended.frames[1] == "heard"
    assert is_gone(ended.frames[0])


@pytest.mark.parametrize(("grace_s", "requests"), [(0.2, 1), (600.0, 2)])
def test_one_that_does_not_is_killed(tmp_path: Path, grace_s: float, requests: int) -> None:
    """After the grace, or at once when asked twice."""
    start = time.monotonic()
    ended = run(DEAF, tmp_path, Stop(grace_s), requests)
    assert (ended.code, ended.reason, ended.timed_out) == (-signal.SIGKILL, "cancelled", False)
    assert time.monotonic() - start < 30


def test_a_child_that_comes_after_the_request_does_not_begin(tmp_path: Path) -> None:
    with Stop() as stop:
        stop.request()
        assert run_child(DEAF, None, tmp_path, timeout_s=60).reason == "cancelled"
        with pytest.raises(BuildCancelledError):
            isolated().infer("onnxruntime", credit_like(), {}, [])
        with pytest.raises(BuildCancelledError, match="request to stop"):
            stop.verify()
    current().verify()  # outside, nobody asked for anything


def test_a_request_after_the_childs_end_takes_nobodys_end_away(tmp_path: Path) -> None:
    child = start_child("pass", tmp_path)
    with Stop() as stop:

        def meanwhile() -> None:
            os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, unseen
            stop.request()

        ended = child.finish({}, 60, meanwhile)
    assert (ended.code, ended.reason) == (0, "cancelled")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_requests_and_only_while_it_lasts(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop() as stop:
        ended = run_child(
            LISTENS, None, tmp_path, timeout_s=60,
            on_frame=lambda frame: frame == "heard" or os.kill(os.getpid(), number),
        )  # fmt: skip
        assert stop.requested
    assert ended.frames[1] == "heard"
    assert signal.getsignal(number) is before


def test_other_threads_leave_the_signals_alone() -> None:
    seen = []

    def work() -> None:
        with Stop():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


_PARENT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pellucid.build.child import run_child
run_child({entry!r}, None, Path({scratch!r}), timeout_s=300,
          on_frame=lambda pid: print(pid, flush=True))
"""


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    if measures().report["ends_with_parent"] is not True:
        pytest.skip(f"NOT RUN ends-with-parent: {measures().report['ends_with_parent']}")
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(entry=DEAF, scratch=str(tmp_path))],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait(30)
    parent.stdout.close()
    assert is_gone(pid)


def test_a_request_reaches_every_child_that_works_at_the_time(tmp_path: Path) -> None:
    """Golden cases run in two processes at once."""
    spoke = threading.Barrier(2)

    def on_frame(frame: object) -> None:
        if frame != "heard" and spoke.wait(60) == 0:
            stop.request()

    def child(name: str) -> Ended:
        scratch = tmp_path / name
        scratch.mkdir()
        return run_child(LISTENS, None, scratch, timeout_s=60, on_frame=on_frame)

    with Stop() as stop, ThreadPoolExecutor(1) as pool:
        other = pool.submit(contextvars.copy_context().run, child, "other")
        for ended in (child("mine"), other.result()):
            assert (ended.code, ended.reason, ended.frames[1]) == (0, "cancelled", "heard")
            assert is_gone(ended.frames[0])


class Asked:
    """A request to stop that a test makes."""

    to_stop = False


def test_steps_are_told_now_and_then_and_a_request_to_stop_is_heard_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, asked = io.BytesIO(), Asked()
    now = iter(range(10**9, 10**10, 10**7))  # a step each 10 ms
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))
    with LogWriter(tmp_path / "log") as log:
        task = Task({}, lambda name: None, tmp_path, log, frames, heard=asked)  # type: ignore[arg-type, return-value]
        assert all(task.step(Step("tactics", n, 9)) for n in range(1, 10))
        asked.to_stop = True
        assert not task.step(Step("tactics", 10, 10))
    frames.seek(0)
    told = list(iter(lambda: read_frame(frames), None))
    assert [message["step"][1] for message in told] == [1, 3, 5, 7, 9]
