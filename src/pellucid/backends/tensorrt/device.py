"""Which library, which GPU if any: asked of NVIDIA's driver, never assumed."""

from __future__ import annotations

import ctypes
import platform
from typing import Any, Final

import tensorrt_rtx as trt

_DRIVER: Final = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME_MAX: Final = 200


def environment() -> dict[str, Any]:
    """Versions as loaded and the GPU; ``device`` is null with a reason where there is none."""
    gpu, reason = find_gpu()
    found: dict[str, Any] = {
        "backend": "tensorrt-rtx",
        "tensorrt_rtx": trt.__version__,
        "python": platform.python_version(),
        "device": gpu,
    }
    return found if gpu else found | {"null_reasons": [{"field": "device", "reason": reason}]}


def find_gpu() -> tuple[dict[str, Any] | None, str]:
    """First GPU that the driver shows, or ``None`` and why."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None, f"no NVIDIA driver here: {_DRIVER} is not installed"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return None, f"the NVIDIA driver shows no GPU (status {status})"
    device, version = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_MAX)
    major, minor = ctypes.c_int(), ctypes.c_int()
    status = (
        driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, _NAME_MAX, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        or driver.cuDriverGetVersion(ctypes.byref(version))
    )
    if status:
        return None, f"the NVIDIA driver does not describe its GPU (status {status})"
    return {
        "kind": "gpu",
        "name": name.value.decode("utf-8", "replace"),
        "architecture": f"sm{major.value}{minor.value}",
        "isa": [],
        "driver_api": version.value,
    }, ""
