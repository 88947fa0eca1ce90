"""The same work in two forked processes: what they give, and how they fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pellucid.build.cancel import Stop
from pellucid.build.child import Ended, measures, run_child

SAYS = (
    "import os, signal, sys; from pellucid.build.frame import write_frame; "
    "from pellucid.build.guarded import guarded; from pellucid.build.twice import twice; "
    "from pellucid.errors import ParseError\n"
)


def asked(work: str, scratch: Path, *, at_once: bool = True) -> Ended:
    """A child that does ``work`` twice, and says what came of it."""
    scratch.mkdir()
    code = (
        f"{SAYS}{work}\n"
        f"write_frame(sys.stdout.buffer, guarded(lambda: {{'both': twice(work, at_once={at_once})}}))"
    )
    return run_child(code, None, scratch, timeout_s=60)


@pytest.mark.parametrize("at_once", [True, False])
def test_each_is_a_process_of_its_own(tmp_path: Path, at_once: bool) -> None:
    work = (
        "done = []\n"
        "def work(): done.append(1); return {'pid': os.getpid(), 'done': len(done), 'x': b'1' * 2**20}"
    )
    [answer] = asked(work, tmp_path / "a", at_once=at_once).frames
    first, second = answer["both"]
    assert first["pid"] != second["pid"]
    assert (first["done"], second["done"]) == (1, 1)
    assert first["x"] == second["x"] == b"1" * 2**20


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("raise ParseError('x: expected y, got z', hint='h')", "build_parse", "x: expected y, got z"),
        ("1 / 0", "build", "ZeroDivisionError"),
        ("raise MemoryError", "build", "inside limits.memory_bytes"),
        ("raise OSError(12, 'no room to map it')", "build", "inside limits.memory_bytes"),
        ("raise OSError(13, 'not yours')", "build", "PermissionError"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "builder_crashed", "signal SIGSEGV"),
        ("os._exit(7)", "builder_crashed", "exit 7"),
        ("sys.exit(3)", "builder_crashed", "exit 1"),
    ],
)
def test_how_one_fails_is_told(tmp_path: Path, work: str, code: str, said: str) -> None:
    ended = asked(f"def work(): {work}", tmp_path / "a")
    assert ended.code == 0
    [answer] = ended.frames
    assert answer["error"]["code"] == code
    assert re.search(said, answer["error"]["message"])


def test_a_request_to_end_ends_both(tmp_path: Path) -> None:
    pids: list[int] = []

    def on_frame(pid: int) -> None:
        pids.append(pid)
        if len(pids) == 2:
            for _ in range(2):
                stop.request()

    code = (
        f"{SAYS}import time\n"
        "def work(): write_frame(sys.stdout.buffer, os.getpid()); time.sleep(300)\n"
        "twice(work, at_once=True)"
    )
    with Stop() as stop:
        assert run_child(code, None, tmp_path, timeout_s=60, on_frame=on_frame).reason == "cancelled"
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


PARENT = """
import sys
import time
from pathlib import Path
from pellucid.build.child import run_child
run_child({code!r}, None, Path({scratch!r}), timeout_s=300, on_frame=lambda pid: print(pid, flush=True))
"""


def test_both_end_with_the_parent_of_all(tmp_path: Path) -> None:
    if measures().report["ends_with_parent"] is not True:
        pytest.skip(f"NOT RUN ends-with-parent: {measures().report['ends_with_parent']}")
    code = (
        f"{SAYS}import time\n"
        "def work(): write_frame(sys.stdout.buffer, os.getpid()); time.sleep(300)\n"
        "twice(work, at_once=True)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(code=code, scratch=str(tmp_path))],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(signal.SIGKILL)
    parent.wait(30)
    parent.stdout.close()
    assert all(is_gone(pid) for pid in pids)


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


BESIDE = (
    "import os, sys; from pellucid.build.frame import write_frame; from pellucid.build.beside import Beside; "
    "from pellucid.build.guarded import guarded; from pellucid.errors import ParseError\n"
)


def beside(code: str, scratch: Path) -> Ended:
    scratch.mkdir()
    return run_child(f"{BESIDE}{code}", None, scratch, timeout_s=60)


def test_one_beside_sees_nothing_of_what_its_parent_did_since(tmp_path: Path) -> None:
    code = (
        "done = []\n"
        "def work(asked): return {'pid': os.getpid(), 'asked': asked, 'done': list(done)}\n"
        "one = Beside(work)\n"
        "done.append(1)\n"
        "one.ask({'x': b'1' * 2**20})\n"
        "write_frame(sys.stdout.buffer, one.answer() | {'parent': os.getpid()})"
    )
    [answer] = beside(code, tmp_path / "a").frames
    assert answer["pid"] != answer["parent"]
    assert (answer["asked"], answer["done"]) == ({"x": b"1" * 2**20}, [])


def test_one_beside_that_nobody_asks_ends_and_one_that_fails_says_so(tmp_path: Path) -> None:
    code = (
        "def work(asked): raise ParseError('x: expected y, got z')\n"
        "Beside(work).leave()\n"
        "one = Beside(work)\n"
        "one.ask({})\n"
        "write_frame(sys.stdout.buffer, guarded(one.answer))"
    )
    ended = beside(code, tmp_path / "a")
    assert ended.code == 0
    assert ended.frames[0]["error"]["message"] == "x: expected y, got z"


def test_one_beside_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "one = Beside(lambda asked: {})\n"
        "write_frame(sys.stdout.buffer, {'pid': one._forked.pid}); sys.stdout.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = beside(code, tmp_path / "a")
    pid = ended.frames[0]["pid"]
    for _ in range(10_000):
        if not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return
    pytest.fail(f"{pid} is still there")
