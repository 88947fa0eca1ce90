"""Graphs and engines of one build, each in one file: processes and the package share it, nobody copies it.

They go from child to child by the name of their file, and into the package by a link. Data sets do not:
whatever may speak of a person stays in memory and in pipes.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from pellucid.core.digest import Data

_NO_LINK: Final = {  # another file system, one without links or that forbids them to us; or it was removed
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.ENOENT,
}  # fmt: skip


class Early(msgspec.Struct, frozen=True):
    """The digest of a file whose writer may still live, and what the file looked like before it was read."""

    digest: str
    looks: tuple[int, ...]

    def holds(self, path: Path) -> bool:
        """Whether that very file lies there now and was not written to since."""
        return _looks(path.lstat()) == self.looks


def early(path: Path) -> Early:
    """Digest of a file that another process has given and might still change: read, and never mapped,
    since who reads what was mapped and then cut off dies of it.

    Raises:
        OSError: It cannot be read, or is no plain file.
    """
    descriptor = _opened(path)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        looks = _looks(os.fstat(descriptor))
        return Early(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}", looks)


def _looks(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _opened(path: Path) -> int:
    """Descriptor of a plain file; opening anything else neither waits nor follows."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a plain file", str(path))
    return descriptor


class Shelf:
    """Knows which bytes lie in which file. What it gave stays readable when its files are gone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Data, Path]] = {}  # data is held, so that its id stays its own
        self._folders = ExitStack()
        self._own: Path | None = None

    def adopt(self, folder: tempfile.TemporaryDirectory[str]) -> None:
        """Remove a folder, whose files were or will be taken, with the shelf."""
        self._folders.enter_context(folder)

    def take(self, path: Path) -> Data:
        """Bytes of a file that nobody writes to any more, read as they are needed."""
        descriptor = _opened(path)
        try:
            size = os.fstat(descriptor).st_size
            data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)) if size else b""
        finally:
            os.close(descriptor)
        self._known[id(data)] = (data, path)
        return data

    def put(self, data: Data) -> Path:
        """The file that holds these bytes, written if there is none yet."""
        known = self._known.get(id(data))
        if known is not None:
            return known[1]
        if self._own is None:
            self._own = Path(
                self._folders.enter_context(tempfile.TemporaryDirectory(prefix="pellucid-shelf-"))
            )
        path = self._own / f"{len(self._known)}"
        path.write_bytes(data)
        self._known[id(data)] = (data, path)
        return path

    def write(self, path: Path, data: Data) -> None:
        """Make a file of these bytes: a link where one of them lies on the same file system already.

        A file that has a second name is not given a third one: that would outlive the build.
        """
        known = self._known.get(id(data))
        if known is not None:
            try:
                if known[1].lstat().st_nlink == 1:
                    os.link(known[1], path)
                    return
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
        path.write_bytes(data)

    def close(self) -> None:
        """Remove what no package holds; bytes that were taken stay readable."""
        self._folders.close()
