"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any


def machine(folder: Path) -> dict[str, Any]:
    """Processor, kernel, libraries, file system of ``folder``, load before the first round."""
    return {
        "processor": _processor(),
        "logical_processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {
            name: metadata.version(name)
            for name in ("onnxruntime", "numpy", "uvicorn", "uvloop", "httptools", "msgspec")
        },
        "file_system": _file_system(folder),
        "fdatasync_ms": _fdatasync_ms(folder),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "commit": _commit(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _file_system(folder: Path) -> str:
    """Type of the mount that holds a folder."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        if str(folder.resolve()).startswith(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _fdatasync_ms(folder: Path) -> float:
    """Median time of one small fdatasync: what ``durable`` waits for."""
    import statistics
    import time

    times = []
    with (folder / "sync-probe").open("wb") as file:
        for _ in range(31):
            file.write(b"x" * 300)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    (folder / "sync-probe").unlink()
    return round(statistics.median(times), 3)


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def wrk() -> str | None:
    """Path of wrk when the machine has it; it is never installed by us."""
    return shutil.which("wrk")
