"""What the process and its devices use, read from the kernel and NVIDIA's management library.

Cheap enough for ten times a second. What cannot be read is ``None``, with the reason beside it.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any, Final

from pellucid.app.nvml import Gpus

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
THREADS_MAX: Final = 32  # limit: threads that are asked how long they waited


def resident_bytes(pid: int | str = "self") -> int | None:
    """Resident memory of a process; ``None`` where the kernel does not say."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


def process_facts() -> dict[str, Any]:
    """This process, for metrics: memory, processor time, descriptors."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    try:
        descriptors = len(os.listdir(_PROC / "self/fd"))
    except OSError:
        descriptors = None
    spent = used.ru_utime + used.ru_stime
    return {"resident_bytes": resident_bytes(), "cpu_s": spent, "descriptors": descriptors}


def host_memory() -> tuple[int, int] | None:
    """Bytes of memory that the host has, and that are not available."""
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines[:8]}
        return found["MemTotal"], found["MemTotal"] - found["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None


class LoadProbe:
    """``ports.LoadProbe``: how busy the machine was since the reading before.

    The kernel counts processor time in hundredths of a second: shorter intervals say little.
    """

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = gpus or Gpus()
        self._host: tuple[int, int] = (0, 0)
        self._own = (time.process_time_ns(), time.monotonic_ns())
        self._waited = _waited_ns()
        self.read()

    def read(self) -> dict[str, Any]:
        """Shares in thousandths, memory in bytes; JSON of the canonical profile."""
        cpu_ns, now_ns = time.process_time_ns(), time.monotonic_ns()
        passed = max(1, now_ns - self._own[1])
        own = (cpu_ns - self._own[0]) * 1000 // passed
        self._own = (cpu_ns, now_ns)
        return {
            "host_cpu_permille": self._host_permille(), "process_cpu_permille": own,
            "cpu_wait_permille": self._wait_permille(passed), "resident_bytes": resident_bytes(),
            **self._gpus.load(),
        }  # fmt: skip

    def _wait_permille(self, passed: int) -> int | None:
        """Of the thread that waited longest for a processor."""
        before, self._waited = self._waited, _waited_ns()
        late = [waited - before[thread] for thread, waited in self._waited.items() if thread in before]
        return max(late) * 1000 // passed if late else None

    def _host_permille(self) -> int | None:
        found = host_ticks()
        if found is None:
            return None
        before, self._host = self._host, found
        passed = found[0] - before[0]
        return (found[1] - before[1]) * 1000 // passed if passed > 0 else None


def host_ticks() -> tuple[int, int] | None:
    """Processor time of the host so far, all and busy, in the kernel's ticks."""
    try:
        with open(_PROC / "stat", "rb") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4]


def _waited_ns() -> dict[str, int]:
    """How long each thread of this process was ready to run and had no processor, so far."""
    found: dict[str, int] = {}
    try:
        for thread in os.listdir(_PROC / "self/task")[:THREADS_MAX]:
            with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                found[thread] = int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        pass  # a thread that ended meanwhile, or a kernel that does not count
    return found
