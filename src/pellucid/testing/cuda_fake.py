"""A stand-in for NVIDIA's driver library: memory in this process, every handle watched, errors on request."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

CONTEXT, STREAM = 0xC0DE, 0x57E0
OUT_OF_MEMORY = 2


class DriverFake:
    """What ``ctypes.CDLL("libcuda.so.1")`` would give.

    Attributes:
        architecture: Major and minor of the one GPU; ``count``: how many there are.
        fails: Function -> status it gives.
        memory: Address -> what lies there.
        retained: How often the context is held; streams: open ones.
    """

    def __init__(self, architecture: tuple[int, int] = (8, 9), count: int = 1) -> None:
        self.architecture, self.count = architecture, count
        self.fails: dict[str, int] = {}
        self.memory: dict[int, bytearray] = {}
        self.retained = self.streams = 0
        self._next = 0x1000
        for name in dir(type(self)):
            if name.startswith("do_"):
                setattr(self, f"cu{name[3:]}", self._watched(f"cu{name[3:]}", getattr(self, name)))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name in self.fails:
                return self.fails[name]
            return function(*arguments) or 0

        return call

    def do_Init(self, flags: int) -> None:  # noqa: N802
        assert flags == 0

    def do_DriverGetVersion(self, out: Any) -> None:  # noqa: N802
        out._obj.value = 13000

    def do_DeviceGetCount(self, out: Any) -> None:  # noqa: N802
        out._obj.value = self.count

    def do_DeviceGet(self, out: Any, ordinal: int) -> None:  # noqa: N802
        out._obj.value = ordinal

    def do_DeviceGetName(self, buffer: Any, size: int, device: Any) -> None:  # noqa: N802
        buffer.value = b"NVIDIA Stand-in"

    def do_DeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> None:  # noqa: N802
        out._obj.value = self.architecture[attribute - 75]

    def do_GetErrorName(self, status: int, out: Any) -> int:  # noqa: N802
        if status != OUT_OF_MEMORY:
            return 1
        out._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY"
        return 0

    def do_DevicePrimaryCtxRetain(self, out: Any, device: Any) -> None:  # noqa: N802
        out._obj.value, self.retained = CONTEXT, self.retained + 1

    def do_DevicePrimaryCtxRelease_v2(self, device: Any) -> None:  # noqa: N802
        self.retained -= 1

    def do_CtxSetCurrent(self, context: Any) -> None:  # noqa: N802
        assert context.value == CONTEXT

    def do_StreamCreate(self, out: Any, flags: int) -> None:  # noqa: N802
        out._obj.value, self.streams = STREAM, self.streams + 1

    def do_StreamSynchronize(self, stream: int) -> None:  # noqa: N802
        assert stream == STREAM

    def do_StreamDestroy_v2(self, stream: int) -> None:  # noqa: N802
        assert stream == STREAM
        self.streams -= 1

    def do_MemAlloc_v2(self, out: Any, size: int) -> None:  # noqa: N802
        out._obj.value = self._next
        self.memory[self._next] = bytearray(b"\xaa" * size)
        self._next += size + 0x1000

    def do_MemFree_v2(self, address: int) -> None:  # noqa: N802
        del self.memory[address]

    def do_MemcpyHtoDAsync_v2(self, address: int, data: bytes, size: int, stream: int) -> None:  # noqa: N802
        assert stream == STREAM
        assert size <= len(self.memory[address])
        self.memory[address][:size] = data[:size]

    def do_MemcpyDtoHAsync_v2(self, buffer: Any, address: int, size: int, stream: int) -> None:  # noqa: N802
        assert stream == STREAM
        ctypes.memmove(buffer, bytes(self.memory[address][:size]), size)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """What a kernel that only copies would do."""
        assert stream == STREAM
        self.memory[to][:size] = self.memory[source][:size]
