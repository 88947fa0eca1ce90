"""Limits that a child sets itself before it looks at what it was given."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
