"""The serving process of the demo: started, waited for, stopped."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

from walk.stage import BrokenError, Stage

READY_S = 60.0
STOP_S = 30.0


class Server:
    """``pellucid serve`` as a process of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.port = stage, 0
        self.log = stage.folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it on a free port and wait until it says that it is ready; seconds that took."""
        self.stage.show("pellucid", "serve", "--port", "0")
        began = time.monotonic()
        reader, writer = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.stage.command("serve", "--port", "0", "--ready-fd", str(writer)),
                env=self.stage.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
            )
        os.close(writer)
        self.port = self._read_port(reader)
        return time.monotonic() - began

    def _read_port(self, reader: int) -> int:
        with os.fdopen(reader) as lines:
            line = lines.readline() if select.select([lines], [], [], READY_S)[0] else ""
        if not line:
            said = self.log.read_text(errors="replace")[-2000:]
            raise BrokenError(f"pellucid serve: expected it to become ready, got\n{said}")
        port: int = json.loads(line)["port"]
        return port

    def stop(self) -> None:
        """Ask it to finish what it began; it must end by itself, and cleanly."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokenError(f"pellucid serve: expected it to stop within {STOP_S:.0f} s") from None
        if code not in (0, -signal.SIGTERM):
            said = self.log.read_text(errors="replace")[-2000:]
            raise BrokenError(f"pellucid serve: expected exit 0 when asked to stop, got {code}\n{said}")

    def end(self) -> None:
        """Whatever happened before, leave no process behind."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.process = None


def configure(site: Path, models: list[str], batch_delay_us: int) -> None:
    """Write models and patience into the site's configuration, as a person would."""
    file = site / "pellucid.toml"
    text = file.read_text()
    listed = ", ".join(f'"{model}"' for model in models)
    text = re.sub(r"(?m)^models = .*$", f"models = [{listed}]\nbatch_delay_us = {batch_delay_us}", text)
    file.write_text(text)
