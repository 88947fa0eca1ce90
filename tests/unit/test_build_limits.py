"""What a child of a build sets itself: freed memory stays with it, where no builder orders by address."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

GIVEN_BACK = """
import ctypes, resource
from pellucid.build.limits import keep_freed_memory

C = ctypes.CDLL(None)
C.malloc.restype, C.malloc.argtypes, C.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
SIZE = 2**26

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        block = C.malloc(SIZE)
        ctypes.memset(block, 1, SIZE)
        C.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

{keep}
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="NOT RUN glibc: another C library")
def test_memory_that_was_freed_is_taken_again_without_bringing_in_its_pages() -> None:
    def pages(keep: str) -> int:
        code = GIVEN_BACK.format(keep=keep)
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        return int(done.stdout)

    # four times 64 MiB: 65,536 small pages, or 128 where the system gives large ones
    assert pages("") > 100 > 10 * pages("keep_freed_memory()")
