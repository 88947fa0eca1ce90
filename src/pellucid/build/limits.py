"""Limits that a child sets itself before it looks at what it was given."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # malloc.h of the GNU C library
_PAD: Final = 2**24
_NEVER: Final = -1
_HEAP: Final = 2**31
_LARGE_PAGE: Final = 2**21
_MADV_HUGEPAGE: Final = 14  # mman.h of Linux
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_OVERCOMMIT, _STRICT = Path("/proc/sys/vm/overcommit_memory"), "2"
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
    """Let freed memory be taken again instead of going back to the system, page by page, and coming anew;
    and let what comes from there come in large pages, where the system gives them to who asks.

    A graph's weights are copied from one library's memory to another's several times; bringing in and
    clearing the pages each time took a sixth of the processor that a graph of 46 MB costs, and more than
    half of the time that a builder took for an engine of 340 MB (measured). Not for a builder that orders
    by address: it would give other bytes. Another C library goes on as it was.
    """
    library = gnu_library()
    if library is None:
        return
    for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _PAD)):
        library.mallopt(option, value)
    size = _heap()
    block = library.malloc(size) if size else None  # addresses only: a page comes when it is written to
    if block:
        begin = -(-block // _LARGE_PAGE) * _LARGE_PAGE
        library.madvise(begin, (block + size - begin) // _LARGE_PAGE * _LARGE_PAGE, _MADV_HUGEPAGE)
        library.free(block)


def _heap() -> int:
    """Addresses to take ahead: a share of what there is and may be; 0 where addresses count as memory."""
    with suppress(OSError):
        if _OVERCOMMIT.read_text().strip() == _STRICT:
            return 0
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    allowed = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min(_HEAP, *(each // 4 for each in [os.sysconf("SC_PHYS_PAGES") * _PAGE, *allowed]))


def gnu_library() -> ctypes.CDLL | None:
    """The GNU C library, ready to be asked for memory; ``None`` where another is."""
    library = ctypes.CDLL(None)
    if getattr(library, "mallopt", None) is None:
        return None
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
