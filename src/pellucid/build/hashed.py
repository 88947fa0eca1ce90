"""Digests of the bytes that a build holds: engines are large, and many documents name each of them."""

from __future__ import annotations

from pellucid.core.digest import Data, sha256


class Hashed:
    """SHA-256 as text, computed once for each object.

    What is hashed does not change, and is held, so that no other object takes its place.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Data, str]] = {}

    def __call__(self, data: Data) -> str:
        known = self._known.get(id(data))
        if known is None:
            known = self._known[id(data)] = (data, sha256(data))
        return known[1]

    def know(self, data: Data, digest: str) -> None:
        """Take over a digest that was computed of these very bytes."""
        self._known[id(data)] = (data, digest)
