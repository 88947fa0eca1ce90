"""From a path to a package's files in memory, each byte read once.

What is read here is what is verified and what is loaded: nothing is opened a second time, so a file
replaced after this moment has no effect. Folders are walked by descriptors (``openat``,
``O_NOFOLLOW``), never by joined paths, so that no link swapped in between can lead elsewhere.
Source: spec/package.md, section 3.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pellucid.core.archive import read_archive
from pellucid.core.package import (
    DEFAULT_LIMITS,
    DEPTH_MAX,
    MANIFEST,
    Limits,
    PackageFiles,
    verify_folder_name,
    verify_path,
    verify_paths,
)
from pellucid.errors import NotFoundError, PackageError

PIECE: Final = 2**30  # one system call reads less than 2 GiB
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device"),
)  # fmt: skip


def open_package(path: Path, limits: Limits = DEFAULT_LIMITS) -> PackageFiles:
    """Files of a package: an archive, or the folder it unpacks to.

    Raises:
        NotFoundError: Nothing is there.
        PackageError: The shape is not allowed; the message names path and rule.
    """
    if path.is_dir():
        return read_folder(path, limits)
    return read_archive(read_file(path, limits.archive_max), limits)


def read_file(path: Path, size_max: int) -> bytes:
    """Bytes of one regular file named by the user; links are followed, devices and pipes are not.

    Raises:
        NotFoundError: No file there.
        PackageError: Too large, or it changed size while it was read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(f"package: expected a file or folder at {path}, got {error.strerror}") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise PackageError(f"package {path}: expected a file or folder, got something else")
        return _read_all(descriptor, str(path), facts.st_size, size_max)
    finally:
        os.close(descriptor)


def read_folder(path: Path, limits: Limits = DEFAULT_LIMITS) -> PackageFiles:
    """Files of an unpacked package; of modes only set-id and execute bits are judged.

    Raises:
        NotFoundError: No folder there.
        PackageError: A link, a device, set-id or execute bits, an empty folder, twins, too much.
    """
    # the user's own path may go through links; what counts is the folder's real name
    real = path.resolve()
    verify_folder_name(real.name)
    files: dict[str, bytes] = {}
    try:
        descriptor = os.open(real, _FOLDER_FLAGS)
    except OSError as error:
        raise NotFoundError(f"package: expected a folder at {path}, got {error.strerror}") from error
    try:
        _verify_is_package(descriptor, path)
        _walk(descriptor, "", files, limits)
    finally:
        os.close(descriptor)
    verify_paths(files)
    return PackageFiles(real.name, files)


def _verify_is_package(folder: int, path: Path) -> None:
    """Said before anything is read: somebody's other folder may hold anything, and much of it."""
    try:
        os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise PackageError(
            f"package {path.name!r:.120}: expected {MANIFEST}, got a folder without it"
        ) from error


def _walk(folder: int, prefix: str, files: dict[str, bytes], limits: Limits) -> None:
    names = sorted(os.listdir(folder))
    if len(names) > limits.count_max:
        raise PackageError(f"package: expected at most {limits.count_max:,} files, got {len(names):,} names")
    if not names:
        raise PackageError(f"path {prefix[:-1]!r:.240}: expected files in every folder, got an empty folder")
    if prefix.count("/") >= DEPTH_MAX:
        raise PackageError(f"path {prefix[:-1]!r:.240}: expected at most {DEPTH_MAX} levels, got more")
    for name in names:
        path = verify_path(prefix + name)
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(before.st_mode):
            with _opened(name, folder, path, before, _FOLDER_FLAGS) as descriptor:
                _walk(descriptor, path + "/", files, limits)
        else:
            files[path] = _read_member(name, folder, path, before, files, limits)


def _read_member(
    name: str, folder: int, path: str, before: os.stat_result, files: dict[str, bytes], limits: Limits
) -> bytes:
    # looked at before it is opened: opening some devices has effects
    _verify_kind(path, before)
    if len(files) >= limits.count_max:
        raise PackageError(f"package: expected at most {limits.count_max:,} files, got more")
    left = min(limits.file_max, limits.total_max - sum(map(len, files.values())))
    with _opened(name, folder, path, before, _FILE_FLAGS) as descriptor:
        facts = os.fstat(descriptor)
        _verify_kind(path, facts)
        return _read_all(descriptor, path, facts.st_size, left)


@contextmanager
def _opened(name: str, folder: int, path: str, before: os.stat_result, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise PackageError(f"path {path!r:.240}: expected to open it, got {error.strerror}") from error
    try:
        facts = os.fstat(descriptor)
        if (facts.st_dev, facts.st_ino) != (before.st_dev, before.st_ino):
            raise PackageError(
                f"path {path!r:.240}: expected the file that was listed, got another in its place"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _verify_kind(path: str, facts: os.stat_result) -> None:
    for is_kind, words in _KINDS:
        if is_kind(facts.st_mode):
            raise PackageError(f"path {path!r:.240}: expected a plain file, got {words}")
    if not stat.S_ISREG(facts.st_mode):
        raise PackageError(f"path {path!r:.240}: expected a plain file, got something else")
    if facts.st_nlink != 1:
        raise PackageError(
            f"path {path!r:.240}: expected one name for the file, got a hard link ({facts.st_nlink} names)",
            hint="copy the file: through its other name it could change unseen",
        )
    if facts.st_mode & 0o6000:
        raise PackageError(
            f"path {path!r:.240}: expected no set-id bits, got mode {facts.st_mode & 0o7777:04o}"
        )
    if facts.st_mode & 0o111:
        raise PackageError(
            f"path {path!r:.240}: expected no execute bits, got mode {facts.st_mode & 0o7777:04o}",
            hint="a package holds data only: chmod a-x it",
        )


def _read_all(descriptor: int, path: str, size: int, size_max: int) -> bytes:
    if size > size_max:
        raise PackageError(f"path {path!r:.240}: expected at most {size_max:,} bytes, got {size:,}")
    parts: list[bytes] = []
    left = size
    while left and (part := os.read(descriptor, min(left, PIECE))):
        parts.append(part)
        left -= len(part)
    if left or os.read(descriptor, 1):
        raise PackageError(f"path {path!r:.240}: expected {size:,} bytes, got another size while it was read")
    return parts[0] if len(parts) == 1 else b"".join(parts)
