"""The few calls of NVIDIA's driver that an engine needs, each checked: device, memory, copies, stream.

Only ``libcuda.so.1`` is used, which comes with the driver; no CUDA toolkit is needed. TensorRT works
in a device's primary context, so this does too.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from pellucid.core.tensor import Buffer
from pellucid.errors import DeviceUnavailableError

DRIVER: Final = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NAME_MAX: Final = 200
_INT, _SIZE, _HANDLE, _ADDRESS = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
_OUT: Final = ctypes.c_void_p
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (_OUT,),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetName": (ctypes.c_char_p, _INT, _INT),
    "cuDeviceGetAttribute": (_OUT, _INT, _INT),
    "cuGetErrorName": (_INT, _OUT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _HANDLE, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_HANDLE, _ADDRESS, _SIZE, _HANDLE),
    "cuStreamCreate": (_OUT, ctypes.c_uint),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamDestroy_v2": (_HANDLE,),
}


class Cuda:
    """The driver of this machine, started."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise DeviceUnavailableError("the NVIDIA driver shows no GPU")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            DeviceUnavailableError: It did not succeed; names the driver's own error.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceUnavailableError(f"{name}: expected the driver to do it, got {self._words(status)}")

    def _words(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(status, ctypes.byref(text)) or not text.value:
            return f"status {status}"
        return text.value.decode("ascii", "replace")

    def describe(self) -> dict[str, Any]:
        """The first GPU: its name, its architecture, the driver's interface."""
        device, version = ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(_NAME_MAX)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDeviceGetName", name, _NAME_MAX, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), _MINOR, device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return {
            "kind": "gpu",
            "name": name.value.decode("utf-8", "replace"),
            "architecture": f"sm{major.value}{minor.value}",
            "isa": [],
            "driver_api": version.value,
        }

    def open(self) -> Gpu:
        """The first GPU, its primary context held until ``close``."""
        return Gpu(self)


class Gpu:
    """One GPU in use: memory by address, one stream. Call ``use`` first in each thread that comes."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._device = ctypes.c_int()
        cuda.call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._context = ctypes.c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.use()
        stream = ctypes.c_void_p()
        cuda.call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = int(stream.value or 0)
        self._held: dict[int, int] = {}

    def use(self) -> None:
        """Make the context the calling thread's own."""
        self._cuda.call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes on the GPU (at least one).

        Raises:
            DeviceUnavailableError: It has not that much left.
        """
        address = ctypes.c_uint64()
        self._cuda.call("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        self._held[address.value] = size
        return address.value

    def free(self, address: int) -> None:
        del self._held[address]
        self._cuda.call("cuMemFree_v2", address)

    def copy_in(self, address: int, data: Buffer) -> None:
        """Copy to the GPU, in the stream's order; returns when ``data`` may go."""
        if len(data):
            raw = bytes(data)
            self._cuda.call("cuMemcpyHtoDAsync_v2", address, raw, len(raw), self.stream)
            self.wait()

    def copy_out(self, address: int, size: int) -> bytes:
        """Copy from the GPU after all that the stream was given before."""
        if not size:
            return b""
        data = ctypes.create_string_buffer(size)
        self._cuda.call("cuMemcpyDtoHAsync_v2", data, address, size, self.stream)
        self.wait()
        return data.raw

    def wait(self) -> None:
        """Until the stream has done everything; also where a kernel's failure shows."""
        self._cuda.call("cuStreamSynchronize", self.stream)

    def close(self) -> None:
        """Give everything back; doing it twice is nothing."""
        if self._context.value is None:
            return
        self.use()
        for address in list(self._held):
            self.free(address)
        self._cuda.call("cuStreamDestroy_v2", self.stream)
        self._context = ctypes.c_void_p()
        self._cuda.call("cuDevicePrimaryCtxRelease_v2", self._device)


def load() -> Cuda:
    """The driver of this machine.

    Raises:
        DeviceUnavailableError: There is none, or it shows no GPU.
    """
    try:
        library = ctypes.CDLL(DRIVER)
    except OSError as error:
        raise DeviceUnavailableError(f"no NVIDIA driver here: {DRIVER} is not installed") from error
    try:
        return Cuda(library)
    except AttributeError as error:
        raise DeviceUnavailableError(f"{DRIVER}: expected NVIDIA's driver, got another library") from error
