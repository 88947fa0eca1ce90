"""The serving process of the demo: started, waited for, stopped."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from walk.stage import BrokenError, Stage

READY_S = 60.0
STOP_S = 30.0


class Server:
    """``pellucid serve`` as a process of its own."""

    def __init__(self, stage: Stage, port: int) -> None:
        self.stage, self.port = stage, port
        self.log = stage.folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it is ready; seconds that took."""
        self.stage.show("pellucid", "serve")
        began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.stage.command("serve"),
                env=self.stage.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() - began > READY_S:
                said = self.log.read_text(errors="replace")[-2000:]
                raise BrokenError(f"pellucid serve: expected it to become ready, got\n{said}")
            time.sleep(0.02)
        return time.monotonic() - began

    def _ready(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def configure(site: Path, port: int, models: list[str], batch_delay_us: int) -> None:
    """Write port, models and patience into the site's configuration, as a person would."""
    file = site / "pellucid.toml"
    text = file.read_text()
    listed = ", ".join(f'"{model}"' for model in models)
    text = re.sub(r"(?m)^port = .*$", f"port = {port}", text)
    text = re.sub(r"(?m)^models = .*$", f"models = [{listed}]\nbatch_delay_us = {batch_delay_us}", text)
    file.write_text(text)
