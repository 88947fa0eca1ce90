"""Server processes: started in a session of their own, measured by the kernel's books, stopped whole.

Only what was started here is ever touched: every process is known by its number and its start tick.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_LIMIT_S = 120.0
STOP_LIMIT_S = 15.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Process = tuple[int, int]  # number, start tick


def start_tick(pid: int) -> int | None:
    """The kernel's start tick of a process, or None when it is gone (or a zombie)."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] != "Z":
            return int(fields[19])
    return None


def tree(pid: int) -> list[Process]:
    """The process and its living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        head = queue.pop(0)
        tick = start_tick(head)
        if tick is not None:
            found.append((head, tick))
        queue += children.get(head, [])
    return found


def _signal(processes: Sequence[Process], number: int) -> None:
    for pid, tick in processes:
        if start_tick(pid) == tick:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _await_end(processes: Sequence[Process], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while any(start_tick(p) == t for p, t in processes) and time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(processes[0][0], os.WNOHANG)
        time.sleep(0.02)


def end(pid: int, limit_s: float = STOP_LIMIT_S) -> None:
    """SIGTERM to the head, then to whom it left behind, then SIGKILL: nothing stays."""
    processes = tree(pid)
    if not processes:
        return
    _signal(processes[:1], signal.SIGTERM)
    _await_end(processes[:1], limit_s)
    processes += [found for found in tree(pid) if found not in processes]
    _signal(processes[1:], signal.SIGTERM)
    _await_end(processes, 1.0)
    _signal(processes, signal.SIGKILL)
    _await_end(processes, 5.0)


@dataclass(slots=True)
class Server:
    """One server to be measured.

    Attributes:
        home: Folder of its log and its pid file.
        stop_limit_s: How long an orderly stop may take before it is cut short.
    """

    name: str
    command: list[str]
    home: Path
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: str | None = None
    stop_limit_s: float = STOP_LIMIT_S

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def _pid_file(self) -> Path:
        return self.home / "pid"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def running(self) -> int | None:
        """The pid when it was started earlier and still lives."""
        with contextlib.suppress(OSError, ValueError):
            pid, tick = map(int, self._pid_file.read_text().split())
            if start_tick(pid) == tick:
                return pid
        return None

    def start(self, answers: Callable[[], bool]) -> float:
        """Start it; returns the seconds until ``answers`` first said yes.

        Raises:
            ChildProcessError: It runs already, its port is taken, or it ended before it answered.
            TimeoutError: It did not answer in time.
        """
        self._is_free()
        self.home.mkdir(parents=True, exist_ok=True)
        command = ["taskset", "-c", self.cpus, *self.command] if self.cpus else self.command
        # A proxy named in the environment must never see loopback traffic.
        inherited = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        settings = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"} | dict(self.environment)
        began = time.monotonic()
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                env=inherited | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid_file.write_text(f"{process.pid} {start_tick(process.pid)}\n")
        try:
            while time.monotonic() - began < START_LIMIT_S:
                if process.poll() is not None:
                    raise ChildProcessError(f"{self.name}: ended with {process.returncode}, see {self.log}")
                with contextlib.suppress(OSError):
                    if answers():
                        return time.monotonic() - began
                time.sleep(0.05)
            raise TimeoutError(f"{self.name}: no answer within {START_LIMIT_S:.0f} s, see {self.log}")
        except BaseException:
            self.stop()
            raise

    def _is_free(self) -> None:
        if self.running():
            raise ChildProcessError(f"{self.name}: runs already, pid {self.running()}")
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                raise ChildProcessError(f"{self.name}: port {self.port} is taken")

    def stop(self) -> None:
        """End it and all its children; nothing happens when it does not run."""
        pid = self.running()
        if pid is not None:
            end(pid, self.stop_limit_s)
        self._pid_file.unlink(missing_ok=True)

    def cpu_s(self) -> float:
        """Processor time that all its living processes have used so far."""
        spent = 0
        for pid, _ in tree(self.running() or 0):
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                spent += int(fields[11]) + int(fields[12])
        return spent / TICKS_PER_S

    def memory(self) -> dict[str, float]:
        """Processes, resident MB and unshared MB of all of them."""
        processes = tree(self.running() or 0)
        resident = unshared = 0
        for pid, _ in processes:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.M))
                resident += int(fields["Rss"])
                unshared += int(fields["Private_Clean"]) + int(fields["Private_Dirty"])
        return {"processes": len(processes), "resident_mb": resident / 1e3, "unshared_mb": unshared / 1e3}

    def listens(self) -> list[tuple[str, int]]:
        """Listening TCP addresses of all its processes, as the kernel shows them."""
        pid = self.running() or 0
        inodes = set()
        for member, _ in tree(pid):
            for link in Path(f"/proc/{member}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    found.add(_address(fields[1]))
        return sorted(found)


def _address(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    raw = bytes.fromhex(address)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, words), int(port, 16)
