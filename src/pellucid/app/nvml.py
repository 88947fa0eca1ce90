"""Facts of NVIDIA GPUs, from the driver's own management library where there is one (NVML).

Loaded by name at run time: nothing of NVIDIA's is needed to install or to run without a GPU.
Source: NVML API reference, ``nvmlDeviceGetUtilizationRates`` and ``nvmlDeviceGetMemoryInfo``.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"
_UUID_MAX: Final = 96
_NONE: Final = "no NVIDIA driver on this machine"


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs of this machine; none where the driver is missing.

    Attributes:
        reason: Why there is none, or ``""``.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self._handles: list[tuple[str, ctypes.c_void_p]] = []
        self.reason = _NONE
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError:
            return
        code = self._nvml.nvmlInit_v2()
        self.reason = "" if code == 0 else f"NVML: expected to start, got status {code}"
        if not self.reason:
            self._handles = self._find()
            self.reason = "" if self._handles else "the driver shows no GPU"

    def _find(self) -> list[tuple[str, ctypes.c_void_p]]:
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found = []
        for index in range(count.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_MAX)
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._nvml.nvmlDeviceGetUUID(handle, uuid, _UUID_MAX)
                found.append((uuid.value.decode("ascii", "replace"), handle))
        return found

    def read(self) -> list[dict[str, Any]]:
        """One object a GPU: uuid, share of time in which kernels ran, memory; ``None``: not told."""
        return [self._read(uuid, handle) for uuid, handle in self._handles]

    def _read(self, uuid: str, handle: ctypes.c_void_p) -> dict[str, Any]:
        rates, memory = _Rates(), _Memory()
        # a MIG slice has no utilisation of its own: the driver says so by a status
        told = self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0
        held = self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        return {
            "uuid": uuid, "permille": rates.gpu * 10 if told else None,
            "memory_used_bytes": memory.used if held else None,
            "memory_total_bytes": memory.total if held else None,
        }  # fmt: skip

    def load(self) -> dict[str, Any]:
        """What a call's entry says: the GPUs, or ``None`` and why."""
        if not self._handles:
            return {"gpus": None, "gpus_reason": self.reason}
        return {"gpus": self.read()}
