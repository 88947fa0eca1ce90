"""The memory ceiling: what an engine will need, by its package's own facts, against what is left.

The ceiling is for the resident memory of one serving process, as the kernel counts it. What a package
needs is what its builder measured: the engine's bytes, its weights once more (libraries keep them
apart from the file), and what the library took beside them. Memory of a device is not counted here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.core.finding import Finding

if TYPE_CHECKING:
    from pellucid.core.trust import TrustedPackage

RULE: Final = "serving.memory_max_bytes"
_HOST: Final = (
    "weights_bytes", "arena_reserved_bytes", "arena_extended_bytes", "host_persistent_bytes",
)  # fmt: skip


def resident_bytes() -> int:
    """Resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def needed_bytes(package: TrustedPackage) -> int:
    """What the engine will take of this process's memory, by its package's facts."""
    memory = package.facts.get("memory")
    said = memory if isinstance(memory, dict) else {}
    known = [value for key in _HOST if type(value := said.get(key)) is int and value > 0]
    return len(package.engine) + sum(known)


def make_ceiling(
    limit: int, resident: Callable[[], int] = resident_bytes
) -> Callable[[TrustedPackage], Finding] | None:
    """The guardian's question before it opens an engine; ``None`` where there is no limit.

    Args:
        limit: ``serving.memory_max_bytes``; 0 is none.
    """
    if not limit:
        return None

    def judge(package: TrustedPackage) -> Finding:
        used, need = resident(), needed_bytes(package)
        got = f"{used:,} resident and {need:,} for this engine"
        return Finding(RULE, used + need <= limit, f"at most {limit:,} bytes", got)

    return judge
