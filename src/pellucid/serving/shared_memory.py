"""System shared memory: tensors that lie in a region which a client of the same host has registered.

What is read is copied once, and the copy is what is checked, digested and run: the client can still
write to its region, but not to what is recorded. An output is copied out after its record is appended.
Regions are read and written as files, never mapped: a client that cuts its region short gets an error,
where a mapping would end the process. A region stays usable while a call holds it, whatever its client
unregisters or deletes meanwhile. Source: conformance list, OIP-100 to OIP-103.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pellucid.errors import FormatError, NotFoundError, PolicyDeniedError, TensorError, TooManyError
from pellucid.serving.members import kind_of

ROOT: Final = Path("/dev/shm")  # noqa: S108 where the system keeps objects of shm_open
REGIONS_MAX: Final = 256  # limit: each holds an open file
OFFSET_MAX: Final = 2**62
Spot = tuple[str, int, int]  # name of a region, offset, size
_KEY: Final = re.compile(r"/?(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,254}")


class Region:
    """A registered region; its file is open while somebody holds it."""

    __slots__ = ("_writing", "byte_size", "fd", "key", "name", "offset", "path")

    def __init__(self, name: str, key: str, offset: int, byte_size: int, path: Path) -> None:
        self.name, self.key, self.offset, self.byte_size, self.path = name, key, offset, byte_size, path
        self._writing = False
        self.fd = _open(path, os.O_RDONLY, key)
        _check_size(self.fd, key, offset + byte_size)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}

    def read(self, offset: int, size: int, subject: str) -> bytes:
        """A private copy of what lies in the region.

        Raises:
            TensorError: The client has cut the region short.
        """
        data = os.pread(self.fd, size, self.offset + offset)
        while len(data) < size:
            more = os.pread(self.fd, size - len(data), self.offset + offset + len(data))
            if not more:
                raise TensorError(
                    f"{subject}: expected {size:,} bytes in region {self.name!r:.80}, got {len(data):,}"
                )
            data += more
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Copy an output into the region.

        Raises:
            TensorError: The client has cut the region short, or does not let us write.
        """
        if not self._writing:
            self._make_writable()
        _check_size(self.fd, self.key, self.offset + offset + len(data))
        view, start = memoryview(data), self.offset + offset
        try:
            while view:
                written = os.pwrite(self.fd, view, start)
                view, start = view[written:], start + written
        except OSError as error:
            raise self._unwritable(error) from error

    def _make_writable(self) -> None:
        """Open the very same file again; inputs never need more than reading."""
        try:
            fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._unwritable(error) from error
        old, self.fd, self._writing = self.fd, fd, True
        os.close(old)

    def _unwritable(self, error: OSError) -> TensorError:
        return TensorError(
            f"region {self.name!r:.80}: expected one that can be written, got {error.strerror or error}"
        )


class Place(NamedTuple):
    """A tensor's part of a region."""

    region: Region
    offset: int
    byte_size: int


MEMBERS: Final = ("key", "offset", "byte_size")


class Sharing(Protocol):
    """Has every serving process register and unregister; on the event loop's thread."""

    async def register_region(self, name: str, members: Mapping[str, Any]) -> None:
        """All of them, or none; raises as ``Regions.register``."""
        ...

    async def unregister_region(self, name: str) -> None:
        """All of them; ``""``: every region."""
        ...


class Regions:
    """Regions by name, of one serving process. Lives on the event loop's thread.

    Args:
        root: Where objects are found.
        inputs_max_bytes: Inputs of one call that lie in regions, added up: as much as a body may have.
    """

    def __init__(self, root: Path = ROOT, inputs_max_bytes: int = 16 * 2**20) -> None:
        self._root, self.inputs_max_bytes = root, inputs_max_bytes
        self._regions: dict[str, Region] = {}

    def register(self, name: str, members: Mapping[str, Any]) -> Region:
        """Register ``key``, ``offset`` and ``byte_size`` under a name.

        Raises:
            FormatError: A member is missing or wrong, the name is taken, or the object is too small.
            NotFoundError: No such object.
            TooManyError: The limit is reached.
        """
        subject = f"shared memory region {name!r:.80}"
        key = members.get("key")
        if type(key) is not str or not _KEY.fullmatch(key):
            raise FormatError(f"{subject}, key: expected one name without a folder, got {key!r:.80}")
        offset = _count(members, "offset", subject, 0)
        size = _count(members, "byte_size", subject, 1)
        if name in self._regions:
            raise FormatError(f"{subject}: expected a new name, got one that is registered")
        if len(self._regions) >= REGIONS_MAX:
            raise TooManyError(f"shared memory: expected at most {REGIONS_MAX} regions, got one more")
        region = Region(name, key, offset, size, self._root / key.removeprefix("/"))
        self._regions[name] = region
        return region

    def unregister(self, name: str | None) -> list[Region]:
        """Forget a region, or all; what was not registered is fine. Gives those that were."""
        names = list(self._regions) if name is None else [name]
        return [self._regions.pop(each) for each in names if each in self._regions]

    def status(self, name: str | None) -> list[dict[str, Any]]:
        """All regions, or the named one.

        Raises:
            NotFoundError: Not registered.
        """
        if name is None:
            return [region.record() for region in self._regions.values()]
        return [self._find(name).record()]

    def _find(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise NotFoundError(f"shared memory region {name!r:.80}: expected a registered one, got none")
        return region

    def place(self, parameters: Mapping[str, Any], subject: str) -> Place:
        """The part of a region that a tensor's parameters name.

        Raises:
            FormatError: A parameter is missing, wrong, or leads outside the region.
            NotFoundError: Not registered.
        """
        name = parameters.get("shared_memory_region")
        if type(name) is not str:
            got = kind_of(name) if "shared_memory_region" in parameters else "none"
            raise FormatError(f"{subject}, shared_memory_region: expected a string, got {got}")
        size = _count(parameters, "shared_memory_byte_size", subject, 1)
        offset = _count({"shared_memory_offset": 0} | dict(parameters), "shared_memory_offset", subject, 0)
        region = self._find(name)
        if offset + size > region.byte_size:
            raise FormatError(
                f"{subject}: expected a place inside region {name!r:.80} of {region.byte_size:,} bytes, "
                f"got bytes {offset:,} to {offset + size:,}"
            )
        return Place(region, offset, size)

    def find_place(self, spot: Spot) -> Place | None:
        """As ``place`` for what it found before; ``None`` where that is no place any more."""
        name, offset, size = spot
        region = self._regions.get(name)
        if region is None or offset + size > region.byte_size:
            return None
        return Place(region, offset, size)


class NoRegions(Regions):
    """Shared memory that is switched off (``serving.shared_memory = false``)."""

    def register(self, name: str, members: Mapping[str, Any]) -> Region:
        raise _off()

    def place(self, parameters: Mapping[str, Any], subject: str) -> Place:
        raise _off()


def _off() -> PolicyDeniedError:
    return PolicyDeniedError(
        "shared memory: expected serving.shared_memory = true, got false",
        hint="it lets clients of this host name objects of /dev/shm; send the tensors with the call",
    )


def _count(members: Mapping[str, Any], name: str, subject: str, least: int) -> int:
    value = members.get(name)
    if type(value) is not int or not least <= value <= OFFSET_MAX:
        got = f"{value!r:.40}" if name in members else "none"
        raise FormatError(f"{subject}, {name}: expected an integer of {least} or more, got {got}")
    return value


def _open(path: Path, flags: int, key: str) -> int:
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFoundError(f"shared memory key {key!r:.80}: expected an object, got none") from None
    except OSError as error:
        raise FormatError(
            f"shared memory key {key!r:.80}: expected an object to read, got {error.strerror or error}"
        ) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"shared memory key {key!r:.80}: expected a plain object, got another kind")
    return fd


def _check_size(fd: int, key: str, needed: int) -> None:
    size = os.fstat(fd).st_size
    if needed > size:
        raise FormatError(
            f"shared memory key {key!r:.80}: expected an object of {needed:,} bytes or more, got {size:,}"
        )
