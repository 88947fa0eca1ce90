"""Memory that is there before it is asked for.

Pages that the system has to find and clear cost more than what is done with the bytes in them: opening an
engine of 340 MB took a process whose memory was there 0.2 s, and one that had to ask for it up to 1.8 s
(measured, on a virtual machine). Only for a process that keeps what it frees (``limits.keep_freed_memory``).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pellucid.build.limits import gnu_library

_MADV_POPULATE_WRITE: Final = 23  # mman.h of Linux, since 5.14
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK: Final = 2**25
_MOMENT_MS: Final = 10
_SHARE: Final = 0.3  # a builder holds weights three times, a session repacks them once
GROWN_MIN: Final = 2**26  # what takes less is there soon enough


def keep_up(pid: int, is_over: Callable[[int], bool]) -> int:
    """While another process grows, take as much as a session of its engine will, and free it, to be kept.

    Args:
        is_over: Whether the waiting is; it waits so many milliseconds for that.

    Returns:
        Bytes that were taken: none with another C library or an older system, fewer at a limit.
    """
    library = gnu_library()
    if library is None:
        return 0
    taken: list[int] = []
    before, goes_on = resident(pid), True
    while not is_over(_MOMENT_MS):
        grown = resident(pid) - before
        while goes_on and grown >= GROWN_MIN and len(taken) * _BLOCK < _SHARE * grown and not is_over(0):
            block = library.malloc(_BLOCK)
            goes_on = bool(block) and _bring_in(library, block)
            taken += [block] if block else []
    for block in taken:
        library.free(block)
    return len(taken) * _BLOCK


def _bring_in(library: ctypes.CDLL, block: int) -> bool:
    begin = block // _PAGE * _PAGE
    size = -(-(block + _BLOCK - begin) // _PAGE) * _PAGE
    return bool(library.madvise(begin, size, _MADV_POPULATE_WRITE) == 0)


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use; 0 of one that is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0
