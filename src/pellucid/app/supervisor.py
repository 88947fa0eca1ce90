"""Keeps one child process running: started, started again when it dies, ended by closing its stdin.

The child is the sequencer. It holds the log's signing key, so the serving process never does; when
the serving process dies, the pipe closes, and the child finishes what is in the journal and ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

BACKOFF_S: Final = (0.05, 5.0)  # first and longest pause before a restart
HEALTHY_S: Final = 10.0  # a child that ran this long starts the pauses anew


class Supervisor:
    """Runs ``command`` until ``stop``.

    Args:
        command: Program and arguments.
        report: Told when the child starts (its process id) or ends (its exit status).
    """

    def __init__(self, command: Sequence[str], report: Callable[[str, int], None]) -> None:
        self._command, self._report = list(command), report
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="supervisor", daemon=True)
        self.restarts = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the child that runs now."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def stop(self, timeout_s: float) -> bool:
        """Close the child's stdin and wait; True if it ended by itself."""
        with self._lock:
            self._stopping.set()
            self._close_pipe()
        child = self._child
        finished = True
        if child is not None:
            try:
                child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                finished = False
                child.kill()
                child.wait()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return finished

    def _close_pipe(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def _keep(self) -> None:
        pause = BACKOFF_S[0]
        while True:
            with self._lock:
                if self._stopping.is_set():
                    return
                child = self._child = self._spawn()
            self._report("started", child.pid)
            ran_s = _watch(child)
            if self._stopping.is_set():
                return
            with self._lock:
                self._close_pipe()
            self._report("ended", child.returncode)
            self.restarts += 1
            pause = BACKOFF_S[0] if ran_s > HEALTHY_S else min(pause * 2, BACKOFF_S[1])
            self._stopping.wait(pause)

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)


def _watch(child: subprocess.Popen[bytes]) -> float:
    """Seconds the child ran."""
    started = time.monotonic()
    child.wait()
    return time.monotonic() - started
