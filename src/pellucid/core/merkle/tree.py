"""Compact range of a growing tree: the roots of its complete subtrees, largest first.

Enough to append and to know the root; never the leaves. Source: spec/merkle.md, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pellucid.core.merkle.hashing import EMPTY_ROOT, hash_children
from pellucid.errors import FormatError


class Frontier:
    """The right edge of a tree.

    Args:
        size: Number of leaves so far.
        peaks: Roots of the complete subtrees that make up the tree, largest (leftmost) first: one
            for each bit set in ``size``.
    """

    __slots__ = ("_peaks", "_size")

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        if size < 0 or size.bit_count() != len(peaks) or any(len(peak) != 32 for peak in peaks):
            raise FormatError(f"frontier: expected {max(size, 0).bit_count()} hashes for size {size}")
        self._size = size
        self._peaks = list(peaks)

    @property
    def size(self) -> int:
        return self._size

    @property
    def peaks(self) -> tuple[bytes, ...]:
        return tuple(self._peaks)

    def append(self, leaf_hash: bytes) -> None:
        """Add one leaf."""
        carry, rest = leaf_hash, self._size
        while rest & 1:  # two subtrees of one size become one of the next
            carry = hash_children(self._peaks.pop(), carry)
            rest >>= 1
        self._peaks.append(carry)
        self._size += 1

    def extend(self, leaf_hashes: Iterable[bytes]) -> None:
        """Add leaves in order."""
        for leaf_hash in leaf_hashes:
            self.append(leaf_hash)

    def root(self) -> bytes:
        """Root hash of the tree as it is now."""
        return fold_peaks(self._peaks)


def fold_peaks(peaks: Sequence[bytes]) -> bytes:
    """Root over complete subtrees, largest first: the smallest two join first."""
    if not peaks:
        return EMPTY_ROOT
    root = peaks[-1]
    for peak in reversed(peaks[:-1]):
        root = hash_children(peak, root)
    return root
