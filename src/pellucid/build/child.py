"""A fresh, minimal process: fixed environment, no network, no address randomisation, limits, an end.

It ends with its answer, at its time limit, at a request (``cancel``), or with its parent.

What the machine does not allow (a container may forbid network namespaces or ``personality``) is
left out and reported, never assumed. The command line is always the same bytes: builders that order
by address give other engines when the heap starts elsewhere.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from pellucid.build import cancel
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
GPU_DRIVER: Final = "/dev/nvidiactl"
_PROBE_S: Final = 10


@dataclass(frozen=True, slots=True)
class Measures:
    """What this machine allows for a child.

    Attributes:
        prefix: Programs put before the interpreter.
        report: Name of a measure -> ``True``, or why it could not be taken.
    """

    prefix: tuple[str, ...]
    report: Mapping[str, bool | str]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Attributes:
        code: Exit status; negative for a signal.
        cancelled: Somebody asked for its end before it came.
        frames: Messages it sent, in order.
        left_behind: Files it left in its home and temporary folders.
    """

    code: int
    timed_out: bool
    frames: list[Any]
    stderr: bytes = field(repr=False)
    left_behind: list[str]
    cancelled: bool = False

    @property
    def reason(self) -> str:
        """In words: ``exit 1``, ``signal SIGSEGV``, ``no answer in time``, ``cancelled``."""
        if self.cancelled:
            return "cancelled"
        if self.timed_out:
            return "no answer in time"
        if self.code >= 0:
            return f"exit {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"


@cache
def measures() -> Measures:
    """Probe once what can be taken away from a child on this machine."""
    prefix: list[str] = []
    report: dict[str, bool | str] = {}
    network = _first_that_works([["unshare", "-n"], ["unshare", "-r", "-n"]])
    report["no_network"] = True if network else "unshare of the network is not allowed or not installed here"
    prefix += network
    fixed = _first_that_works([["setarch", "-R"]])
    report["fixed_addresses"] = True if fixed else "setarch -R is not allowed or not installed here"
    prefix += fixed
    # last: a change of identity or of namespace on the way would undo it
    mortal = _first_that_works([["setpriv", "--pdeathsig", "KILL", "--"]])
    report["ends_with_parent"] = True if mortal else "setpriv is not allowed or not installed here"
    prefix += mortal
    return Measures(tuple(prefix), report)


def _first_that_works(commands: list[list[str]]) -> list[str]:
    for command in commands:
        program = shutil.which(command[0], path=ENVIRONMENT["PATH"])
        if program is None:
            continue
        whole = [program, *command[1:]]
        try:
            probe = subprocess.run(
                [*whole, "true"],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if probe.returncode == 0:
            return whole
    return []


def command(entry: str) -> list[str]:
    """Argument vector of a child that runs ``entry``."""
    return [*measures().prefix, sys.executable, "-I", "-B", "-c", entry]


def run_child(
    entry: str,
    request: Any,
    scratch: Path,
    *,
    timeout_s: float,
    on_frame: Callable[[Any], None] = lambda frame: None,
) -> Ended:
    """Start a child, send one request, take its messages until it ends; it never outlives the call.

    Args:
        entry: Python source, one line.
        scratch: Existing folder of its own; ``home`` and ``tmp`` are made below it.
    """
    for name in ("home", "tmp"):
        (scratch / name).mkdir(mode=0o700)
    env = ENVIRONMENT | {"HOME": str(scratch / "home"), "TMPDIR": str(scratch / "tmp")}
    with (scratch / "stderr").open("w+b") as stderr:
        process = subprocess.Popen(
            command(entry), env=env, cwd=scratch / "tmp", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, start_new_session=True,
        )  # fmt: skip
        frames: list[Any] = []
        reader = threading.Thread(target=_read_all, args=(process, frames, on_frame), daemon=True)
        reader.start()
        timer = threading.Timer(timeout_s, _kill, (process,))
        timer.start()
        stop = cancel.current()
        try:
            with stop.told(lambda: _ask_to_end(process), lambda: _kill(process)):
                _send(process, request)
                # its end is seen but not taken, so that its group's number is still its own below
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            is_late = not timer.is_alive()
            _kill(process)  # whatever it started, and itself when the caller was interrupted
            code = process.wait()
            timer.cancel()
            timer.join()
            reader.join()
            assert process.stdout is not None
            process.stdout.close()
        stderr.seek(0)
        said = stderr.read(STDERR_MAX)
    left = sorted(
        str(p.relative_to(scratch)) for name in ("home", "tmp") for p in (scratch / name).rglob("*")
    )
    is_cancelled = stop.requested
    timed_out = is_late and code == -signal.SIGKILL and not is_cancelled
    return Ended(code, timed_out, frames, said, left, is_cancelled)


def _send(process: subprocess.Popen[bytes], request: Any) -> None:
    assert process.stdin is not None
    try:
        write_frame(process.stdin, request)  # type: ignore[arg-type]
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended before it listened: its exit status says how


def _read_all(process: subprocess.Popen[bytes], frames: list[Any], on_frame: Callable[[Any], None]) -> None:
    assert process.stdout is not None
    try:
        while (frame := read_frame(process.stdout)) is not None:  # type: ignore[arg-type]
            frames.append(frame)
            on_frame(frame)
    except FormatError:
        _kill(process)  # a message cut short: the child is dying, or not ours


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def limit_self(limits: Mapping[str, int]) -> None:
    """In the child: no core files, and no more memory or file than the recipe allows.

    NVIDIA's driver reserves 13 GiB of addresses before it does anything (measured on an H200): where
    it is, memory is counted as it becomes writable.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = resource.RLIMIT_DATA if Path(GPU_DRIVER).exists() else resource.RLIMIT_AS
    for kind, value in (
        (memory, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(
            kind, (value, value) if hard == resource.RLIM_INFINITY else (min(value, hard),) * 2
        )
