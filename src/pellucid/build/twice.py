"""The same work in two processes, forked once the libraries are loaded: nothing they load is loaded twice.

Only for a process of one thread that has opened no engine and no device yet, so that each of the two
begins as a fresh process would: without addresses drawn at random even those are the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import msgspec

from pellucid.build.frame import read_frame, write_frame
from pellucid.build.guarded import guarded, unguarded
from pellucid.errors import BuilderCrashedError, FormatError

_PR_SET_PDEATHSIG: Final = 1


def twice(work: Callable[[], dict[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
    """What ``work`` gives in the one process and in the other.

    Args:
        at_once: Both at the same time; not where they would share one GPU's memory.

    Raises:
        PellucidError: What ``work`` raised.
        BuilderCrashedError: A process died.
    """
    if not at_once:
        return [fork(work).end() for _ in range(2)]
    started = [fork(work) for _ in range(2)]
    return [one.end() for one in started]


class Forked(msgspec.Struct, frozen=True):
    """A process that works on something."""

    pid: int
    answers: BinaryIO

    def end(self) -> dict[str, Any]:
        """What it gave; raises as ``twice``."""
        with self.answers:
            try:
                answer = read_frame(self.answers)
            except FormatError:
                answer = None  # cut short: its exit status says how it ended
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code or not isinstance(answer, dict):
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
            raise BuilderCrashedError(f"engine process: expected an answer, got {how}")
        return unguarded(answer)


def fork(work: Callable[[], dict[str, Any]]) -> Forked:
    """Begin the work in a process of its own, which dies with this one."""
    reading, writing = os.pipe()
    mine = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Forked(pid, os.fdopen(reading, "rb"))
    try:
        _end_with(mine)
        with os.fdopen(writing, "wb") as answers:
            write_frame(answers, guarded(work))
        os._exit(0)
    finally:
        os._exit(1)  # never back into the stack of the process it was forked from


def _end_with(parent: int) -> None:
    """Die with the parent: a fork does not inherit that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
