"""Objects as files below one folder; what the ledger serves as it stands.

``create``: written under a draft name, synced, linked to its name (which fails if it exists), the
folder synced. Killed before the link, only a draft is left, and the next attempt overwrites it.
One process writes at a time (the sequencer, under its lock); any number read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pellucid.errors import DiskFullError, LedgerHaltedError, NotFoundError
from pellucid.stores import check_path, is_name


class FileStore:
    """A folder of immutable files (``ports.Store``)."""

    EXAMPLE_URI: Final = "file:ledger"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()

    @classmethod
    def from_uri(cls, uri: str) -> FileStore:
        """Store of ``file:PATH``."""
        return cls(Path(uri.partition(":")[2]))

    def create(self, path: str, data: bytes) -> None:
        """Write an object once; durable on return.

        Raises:
            LedgerHaltedError: It exists with other bytes.
            DiskFullError: It could not be written; nothing has changed.
        """
        self.create_many({path: data})

    def create_many(self, objects: Mapping[str, bytes]) -> None:
        """``create`` each, with one sync a folder."""
        with self._lock:
            folders: set[Path] = set()
            for path, data in objects.items():
                folders |= self._create(self.root / check_path(path), path, data)
            for folder in sorted(folders, reverse=True):  # the deepest first: a name, then its folder's
                _sync_folder(folder)

    def _create(self, target: Path, path: str, data: bytes) -> set[Path]:
        folders = self._make_folders(target.parent) | {target.parent}
        draft = _draft(target, data)
        try:
            os.link(draft, target)
        except FileExistsError:
            if target.read_bytes() != data:
                raise LedgerHaltedError(
                    f"{path}: expected the bytes written before, got others",
                    hint="an object of the ledger never changes: run pellucid ledger fsck",
                ) from None
        finally:
            os.unlink(draft)
        return folders

    def _make_folders(self, folder: Path) -> set[Path]:
        """Make missing folders; returns those that hold a new name."""
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
        return {path.parent for path in missing}

    def replace(self, path: str, data: bytes) -> None:
        """Write an object over an older one, atomically; durable on return."""
        target = self.root / check_path(path)
        with self._lock:
            folders = self._make_folders(target.parent)
            os.replace(_draft(target, data), target)
            for folder in sorted(folders | {target.parent}, reverse=True):
                _sync_folder(folder)

    def get(self, path: str) -> bytes:
        """Bytes of an object.

        Raises:
            NotFoundError: There is none.
        """
        try:
            return (self.root / check_path(path)).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFoundError(f"{path}: expected an object, got none") from None

    def delete(self, path: str) -> None:
        """Remove an object; absent is fine. Its folder goes with the last one."""
        target = self.root / check_path(path)
        target.unlink(missing_ok=True)
        try:
            target.parent.rmdir()
        except OSError:
            return  # others still lie there

    def paths(self, prefix: str) -> Iterator[str]:
        """Paths of all objects below a folder, sorted; drafts are none."""
        start = self.root / check_path(prefix) if prefix else self.root
        found = []
        for folder, folders, names in os.walk(start):
            folders[:] = [name for name in folders if is_name(name)]
            relative = Path(folder).relative_to(self.root)
            found += [(relative / name).as_posix() for name in names if is_name(name)]
        return iter(sorted(found))


def _draft(target: Path, data: bytes) -> Path:
    draft = target.with_name(f".{target.name}.new")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DiskFullError(f"{target.name}: expected to write {len(data):,} bytes, got {error}") from error
    return draft


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
