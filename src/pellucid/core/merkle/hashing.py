"""RFC 6962, section 2.1: leaf, node and tree hashes over SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

EMPTY_ROOT: Final = hashlib.sha256(b"").digest()


def hash_leaf(entry: bytes) -> bytes:
    """Leaf hash of an entry's bytes."""
    return hashlib.sha256(b"\x00" + entry).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(leaf_hashes: Sequence[bytes]) -> bytes:
    """Root hash of a whole list of leaf hashes, straight from the definition (MTH)."""
    if not leaf_hashes:
        return EMPTY_ROOT
    level, sha256 = list(leaf_hashes), hashlib.sha256
    while len(level) > 1:
        # ``hash_children``, without a call for each of a log's nodes
        paired = [sha256(b"\x01" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        # an odd last node moves up unchanged: same tree as the recursive definition
        level = paired + level[len(level) & ~1 :]
    return level[0]
