"""What a child of a build sets itself: freed memory stays with it, where no builder orders by address."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.build import limits

gnu = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="NOT RUN glibc: another C library")

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


@gnu
def test_memory_that_was_freed_is_taken_again_without_bringing_in_its_pages() -> None:
    def pages(keep: str) -> int:
        code = GIVEN_BACK.format(keep=keep)
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        return int(done.stdout)

    # four times 64 MiB: 65,536 small pages, or 128 where the system gives large ones
    assert pages("") > 100 > 10 * pages("keep_freed_memory()")


LARGE = """
from pathlib import Path
from pellucid.build.limits import gnu_library, keep_freed_memory

keep_freed_memory()
block, flags = gnu_library().malloc(2**26) + 2**22, ""
for line in Path("/proc/self/smaps").read_text().splitlines():
    first, _, rest = line.partition(" ")
    if not first.endswith(":"):
        begin, end = (int(each, 16) for each in first.split("-"))
    elif first == "VmFlags:" and begin <= block < end:
        flags = rest
print("hg" in flags.split())
"""
PAGES = Path("/sys/kernel/mm/transparent_hugepage")


@gnu
def test_large_pages_are_asked_for_where_the_system_knows_them() -> None:
    """Whether it has any to give depends on what else it does."""
    done = subprocess.run([sys.executable, "-c", LARGE], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(PAGES.is_dir())


ROOM = """
import resource, sys
from pellucid.build import room
from pellucid.build.limits import gnu_library, keep_freed_memory
from pellucid.build.room import GROWN_MIN, keep_up, resident
import ctypes, os

M = 2**20
keep_freed_memory()
mine = resident(os.getpid())
seen = iter([100 * M, 100 * M + GROWN_MIN - 1] + [1000 * M] * 9)
room.resident = lambda pid: next(seen)
{limit}
asked = iter({over})
taken = keep_up(1, lambda wait_ms: wait_ms > 0 and next(asked))
held = resident(os.getpid()) - mine
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = gnu_library().malloc(taken or 1)
ctypes.memset(block, 1, taken)
print(taken // M, held // M, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def room(*over: bool, limit: str = "") -> tuple[int, int, int]:
    """MiB that were taken and kept, and pages that had to come when so much was used."""
    code = ROOM.format(over=list(over), limit=limit)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    taken, held, pages = map(int, done.stdout.split())
    return taken, held, pages


@gnu
def test_a_process_that_waits_takes_a_share_of_what_another_grew_by() -> None:
    taken, held, pages = room(False, False, False, True)
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    if release < (5, 14):  # such a system cannot be asked to bring pages in: one try says so
        assert taken == 32
    else:
        assert 0.3 * 900 <= taken <= 0.3 * 900 + 32
        assert held >= taken
        assert pages < 100
    assert room(False, True)[0] == 0  # grew too little to be worth it
    assert room(True)[0] == 0


@gnu
def test_at_a_limit_it_goes_on_with_what_it_has() -> None:
    limit = (
        "size = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "gnu_library().malloc(2**31 - 2**26); resource.setrlimit(resource.RLIMIT_AS, (size + 2**25,) * 2)"
    )
    taken, _, _ = room(False, False, False, False, True, limit=limit)
    assert 0 < taken <= 96


def test_addresses_are_taken_ahead_as_far_as_limits_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = tmp_path / "overcommit_memory"
    rules.write_text("0\n")
    monkeypatch.setattr(limits, "_OVERCOMMIT", rules)
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (2**28 if kind == resource.RLIMIT_DATA else -1, -1)
    )
    assert limits._heap() == 2**26
    rules.write_text("2\n")  # there every address counts as memory
    assert limits._heap() == 0
    monkeypatch.setattr(limits, "_OVERCOMMIT", tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (-1, -1))
    assert 0 < limits._heap() <= 2**31
