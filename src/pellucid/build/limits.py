"""Limits that a child sets itself before it looks at what it was given."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # malloc.h of the GNU C library
_PAD: Final = 2**24
GPU_DRIVER: Final = "/dev/nvidiactl"


def limit_self(limits: Mapping[str, int]) -> None:
    """No core files, and no more memory or file than the recipe allows.

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


def keep_freed_memory() -> None:
    """Let freed memory be taken again instead of going back to the system, page by page, and coming anew.

    A graph's weights are copied from one library's memory to another's several times; bringing in and
    clearing the pages each time took a sixth of the processor that a graph of 46 MB costs (measured). Not
    for a builder that orders by address: it would give other bytes. Another C library goes on as it was.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, _PAD)):
            mallopt(option, value)
