"""Objects in a dictionary: for tests and for reading an evidence bundle."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Final

from pellucid.errors import LedgerHaltedError, NotFoundError
from pellucid.stores import check_path


class MemoryStore:
    """A dictionary of immutable objects (``ports.Store``); gone with the process."""

    EXAMPLE_URI: Final = "memory:"

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self.objects: dict[str, bytes] = dict(objects or {})
        self._lock = threading.Lock()

    @classmethod
    def from_uri(cls, uri: str) -> MemoryStore:
        """Empty store of ``memory:``."""
        return cls()

    def create(self, path: str, data: bytes) -> None:
        """Put an object once.

        Raises:
            LedgerHaltedError: It exists with other bytes.
        """
        with self._lock:
            if self.objects.setdefault(check_path(path), data) != data:
                raise LedgerHaltedError(f"{path}: expected the bytes written before, got others")

    def create_many(self, objects: Mapping[str, bytes]) -> None:
        """``create`` each."""
        for path, data in objects.items():
            self.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        """Put an object over an older one."""
        with self._lock:
            self.objects[check_path(path)] = data

    def get(self, path: str) -> bytes:
        """Bytes of an object.

        Raises:
            NotFoundError: There is none.
        """
        try:
            return self.objects[check_path(path)]
        except KeyError:
            raise NotFoundError(f"{path}: expected an object, got none") from None

    def delete(self, path: str) -> None:
        """Remove an object; absent is fine."""
        with self._lock:
            self.objects.pop(check_path(path), None)

    def paths(self, prefix: str) -> Iterator[str]:
        """Paths of all objects below a folder, sorted."""
        start = check_path(prefix) + "/" if prefix else ""
        with self._lock:
            return iter(sorted(path for path in self.objects if path.startswith(start)))
