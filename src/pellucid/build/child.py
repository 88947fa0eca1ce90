"""A fresh, minimal process: fixed environment, no network, no address randomisation, limits, an end.

It ends with its answer, at its time limit, at a request (``cancel``), or with its parent.

What the machine does not allow (a container may forbid network namespaces or ``personality``) is
left out and reported, never assumed. The command line is always the same bytes: builders that order
by address give other engines when the heap starts elsewhere.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from pellucid.build import cancel, places
from pellucid.build.frame import read_frame, write_frame
from pellucid.errors import FormatError

# the tools alone decide what is found on PATH; nothing of the caller's environment goes along
ENVIRONMENT: Final = {
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TZ": "UTC",
    "ORT_DISABLE_TELEMETRY": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
STDERR_MAX: Final = 16 * 2**20  # limit: what is kept of a child's own stderr
_PROBE_S: Final = 10


class Measures(msgspec.Struct, frozen=True):
    """What this machine allows for a child.

    Attributes:
        prefix: Programs put before the interpreter.
        report: Name of a measure -> ``True``, or why it could not be taken.
    """

    prefix: tuple[str, ...]
    report: Mapping[str, bool | str]


class Ended(msgspec.Struct, frozen=True):
    """How a child ended.

    Attributes:
        code: Exit status; negative for a signal.
        cancelled: Somebody asked for its end before it came.
        frames: Messages it sent, in order.
        left_behind: Files it left in its home and temporary folders.
        is_garbled: It sent what is no message, and was ended for that, if it still ran.
    """

    code: int
    timed_out: bool
    frames: list[Any]
    stderr: bytes
    left_behind: list[str]
    cancelled: bool = False
    is_garbled: bool = False

    def __repr__(self) -> str:
        return f"Ended({self.reason!r})"

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself, said no failure, and was understood."""
        return self.code == 0 and not self.is_garbled

    @property
    def reason(self) -> str:
        """In words: ``exit 1``, ``signal SIGSEGV``, ``no answer in time``, ``cancelled``."""
        if self.cancelled:
            return "cancelled"
        if self.is_garbled:
            return "a message that nobody understands"
        if self.timed_out:
            return "no answer in time"
        if self.code >= 0:
            return f"exit {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"


_NO_NETWORK: Final = (("unshare", "-n"), ("unshare", "-r", "-n"))
_FIXED: Final = (("setarch", "-R"),)
# last: a change of identity or of namespace on the way would undo it
_MORTAL: Final = (("setpriv", "--pdeathsig", "KILL", "--"),)
_MEASURES: Final = (
    ("no_network", _NO_NETWORK, "unshare of the network is not allowed or not installed here"),
    ("fixed_addresses", _FIXED, "setarch -R is not allowed or not installed here"),
    ("ends_with_parent", _MORTAL, "setpriv is not allowed or not installed here"),
)


@cache
def measures() -> Measures:
    """Probe once what can be taken away from a child on this machine."""
    parts = [_resolved(commands[0]) for _, commands, _ in _MEASURES]
    everything = [word for part in parts for word in part]
    if all(parts) and _works(everything):  # one process instead of three
        return Measures(tuple(everything), {name: True for name, _, _ in _MEASURES})
    found: list[str] = []
    report: dict[str, bool | str] = {}
    for name, commands, reason in _MEASURES:
        works = _first_that_works(commands)
        report[name] = True if works else reason
        found += works
    return Measures(tuple(found), report)


def _resolved(command: Sequence[str]) -> list[str]:
    """A command with the whole path of its program; empty where there is none."""
    program = shutil.which(command[0], path=ENVIRONMENT["PATH"])
    return [program, *command[1:]] if program else []


def _first_that_works(commands: Sequence[Sequence[str]]) -> list[str]:
    resolved = (_resolved(command) for command in commands)
    return next((whole for whole in resolved if whole and _works(whole)), [])


def _works(prefix: Sequence[str]) -> bool:
    try:
        probe = subprocess.run(
            [*prefix, "true"], env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PROBE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0


def command(entry: str) -> list[str]:
    """Argument vector of a child that runs ``entry``."""
    return [*measures().prefix, sys.executable, "-I", "-B", "-c", entry]


class Child(msgspec.Struct, frozen=True):
    """A started child that waits for what it is to do; ``finish`` or ``abandon`` it."""

    process: subprocess.Popen[bytes]
    scratch: Path
    stderr: BinaryIO
    frames: list[Any]
    garbled: threading.Event
    reader: threading.Thread

    def say(self, message: Any) -> None:
        """Send a message before the request."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended before it listened: its exit status says how
            write_frame(self.process.stdin, message)  # type: ignore[arg-type]

    def abandon(self) -> None:
        """End it: nobody will ask it anything."""
        _reap(self)
        self.stderr.close()

    def finish(self, request: Any, timeout_s: float, meanwhile: Callable[[], None] = lambda: None) -> Ended:
        """Send the request and take messages until the child ends; it never outlives the call.

        Args:
            meanwhile: Called once the request is sent.

        Raises:
            OSError: The system has no thread left for its time limit.
        """
        timer = threading.Timer(timeout_s, _kill, (self.process,))
        try:
            _begin(timer)
        except OSError:
            self.abandon()
            raise
        stop = cancel.current()
        try:
            with stop.told(lambda: _ask_to_end(self.process), lambda: _kill(self.process)):
                self.say(request)
                assert self.process.stdin is not None
                with suppress(BrokenPipeError):
                    self.process.stdin.close()
                meanwhile()
                # its end is seen but not taken, so that its group's number is still its own below
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            is_late = not timer.is_alive()
            code = _reap(self)
            timer.cancel()
            timer.join()
        with self.stderr:
            self.stderr.seek(0)
            said = places.hide_in_stderr(self.stderr.read(STDERR_MAX), self.scratch)
        left = sorted(
            str(p.relative_to(self.scratch))
            for name in ("home", "tmp")
            for p in (self.scratch / name).rglob("*")
        )
        is_cancelled = stop.requested
        is_garbled = self.garbled.is_set()
        timed_out = is_late and code == -signal.SIGKILL and not is_cancelled and not is_garbled
        return Ended(code, timed_out, self.frames, said, left, is_cancelled, is_garbled)


def start_child(entry: str, scratch: Path, on_frame: Callable[[Any], object] = lambda frame: None) -> Child:
    """Start a child that waits for its request.

    Args:
        entry: Python source, one line.
        scratch: Existing folder of its own; ``home`` and ``tmp`` are made below it.
        on_frame: Called with each message, on a thread of its own; a ``FormatError`` that it raises
            says that the message is none, and ends the child.

    Raises:
        OSError: The system has no process, thread or file left.
    """
    for name in ("home", "tmp"):
        (scratch / name).mkdir(mode=0o700)
    env = ENVIRONMENT | {"HOME": str(scratch / "home"), "TMPDIR": str(scratch / "tmp")}
    with ExitStack() as left:
        stderr = left.enter_context((scratch / "stderr").open("w+b"))
        process = subprocess.Popen(
            command(entry), env=env, cwd=scratch / "tmp", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, start_new_session=True,
        )  # fmt: skip
        left.enter_context(process)
        left.callback(_kill, process)
        frames: list[Any] = []
        garbled = threading.Event()
        reader = threading.Thread(target=_read_all, args=(process, frames, garbled, on_frame), daemon=True)
        _begin(reader)
        left.pop_all()
    return Child(process, scratch, stderr, frames, garbled, reader)


def _begin(thread: threading.Thread) -> None:
    """Start a thread; that the system has none left is said as it is of a process.

    Raises:
        OSError: It has none left.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread left") from error


def run_child(
    entry: str,
    request: Any,
    scratch: Path,
    *,
    timeout_s: float,
    on_frame: Callable[[Any], object] = lambda frame: None,
) -> Ended:
    """Start a child, send one request, take its messages until it ends; it never outlives the call.

    Args: as ``start_child``.
    """
    return start_child(entry, scratch, on_frame).finish(request, timeout_s)


def _reap(child: Child) -> int:
    """End it and whatever it started; gives its exit status."""
    _kill(child.process)
    code = child.process.wait()
    child.reader.join()
    for stream in (child.process.stdin, child.process.stdout):
        assert stream is not None
        with suppress(BrokenPipeError):
            stream.close()
    return code


def _read_all(
    process: subprocess.Popen[bytes],
    frames: list[Any],
    garbled: threading.Event,
    on_frame: Callable[[Any], object],
) -> None:
    assert process.stdout is not None
    try:
        while (frame := read_frame(process.stdout)) is not None:  # type: ignore[arg-type]
            frames.append(frame)
            on_frame(frame)
    except FormatError as error:
        if not isinstance(error.__cause__, EOFError):  # else it is dying, and how says more
            garbled.set()
        _kill(process)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not ``send_signal``: that takes the end which ``finish`` waits for
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
