"""``pellucid serve`` as a process of its own: started, waited for without sleeping, stopped or killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

READY_S: Final = 60.0
STOP_S: Final = 60.0


class ServerProcess:
    """One server over a site.

    Attributes:
        ready: The readiness line: host, port, pid, source, models, refused, sequencer.
    """

    def __init__(self, root: Path, *, log: Path | None = None, stdout: int | None = None) -> None:
        self.root, self._log, self._stdout = root, log, stdout
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> ServerProcess:
        """Start and wait for the readiness line; ``TimeoutError`` or ``ChildProcessError`` otherwise."""
        reading, writing = os.pipe()
        command = [
            sys.executable, "-m", "pellucid", "serve", "--site", str(self.root),
            "--port", "0", "--ready-fd", str(writing), "--json",
        ]  # fmt: skip
        with contextlib.ExitStack() as files:
            output = files.enter_context(self._log.open("ab")) if self._log else subprocess.DEVNULL
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output if self._stdout is None else self._stdout,
                stderr=output,
                pass_fds=(writing,),
                env=os.environ | {"ORT_DISABLE_TELEMETRY": "1"} | dict(environment or {}),
            )
        os.close(writing)
        with open(reading, "rb") as pipe:
            if not select.select([pipe], [], [], READY_S)[0]:
                self.kill()
                raise TimeoutError(f"pellucid serve: not ready after {READY_S:.0f} s")
            line = pipe.readline()
        if not line:
            code = self._process.wait(STOP_S)
            raise ChildProcessError(f"pellucid serve: ended with {code} before it was ready")
        self.ready = json.loads(line)
        return self

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def url(self) -> str:
        return f"{self.ready['scheme']}://{self.ready['host']}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> int:
        """Ask it to stop and wait; its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S)

    def kill(self) -> None:
        """kill -9 and wait; the sequencer child ends by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def serving(root: Path, *, log: Path | None = None, stdout: int | None = None) -> Iterator[ServerProcess]:
    """A server that is stopped at the end; it must have ended cleanly."""
    server, finished = ServerProcess(root, log=log, stdout=stdout).start(), False
    try:
        yield server
        finished = True
    finally:
        if not finished:
            server.kill()
    code = server.stop()
    if code != 0:
        raise ChildProcessError(f"pellucid serve: expected exit 0 when asked to stop, got {code}")
