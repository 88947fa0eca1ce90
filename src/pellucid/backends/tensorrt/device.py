"""Which library, which GPU if any: asked of NVIDIA's driver, never assumed."""

from __future__ import annotations

import platform
from typing import Any

from pellucid.backends.tensorrt import cuda
from pellucid.backends.tensorrt.library import Library
from pellucid.errors import DeviceUnavailableError


def environment(library: Library) -> dict[str, Any]:
    """Versions as loaded and the GPU; ``device`` is null with a reason where there is none."""
    gpu, reason = find_gpu()
    found: dict[str, Any] = {
        "backend": library.backend,
        library.module: library.version,
        "python": platform.python_version(),
        "device": gpu,
    }
    return found if gpu else found | {"null_reasons": [{"field": "device", "reason": reason}]}


def find_gpu() -> tuple[dict[str, Any] | None, str]:
    """First GPU that the driver shows, or ``None`` and why."""
    try:
        return cuda.load().describe(), ""
    except DeviceUnavailableError as error:
        return None, error.message


def require(target: str, subject: str, why: str) -> dict[str, Any]:
    """The GPU here, if it is of the architecture asked for.

    Raises:
        DeviceUnavailableError: It is not, or there is none; names both.
    """
    gpu, reason = find_gpu()
    if gpu is not None and gpu["architecture"] == target:
        return gpu
    found = f"{gpu['name']} ({gpu['architecture']})" if gpu else reason
    raise DeviceUnavailableError(
        f"{subject}: expected a GPU of {target}, {why}, got {found}",
        hint=f"use a machine with a GPU of {target}, or build for onnxruntime, target cpu",
    )
