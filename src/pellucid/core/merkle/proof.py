"""Inclusion and consistency proofs of RFC 6962, section 2.1; verified as in RFC 9162.

Makers ask for hashes of complete subtrees by ``node(level, index)``: the subtree of ``2**level``
leaves number ``index``. Verifiers return only when the proof holds, and every hash of it was used.
Source: spec/merkle.md, section 3.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from pellucid.core.merkle.hashing import EMPTY_ROOT, hash_children
from pellucid.core.merkle.tree import fold_peaks
from pellucid.errors import ProofError

Node = Callable[[int, int], bytes]


def subtrees(begin: int, end: int) -> list[tuple[int, int]]:
    """Level and index of the complete subtrees that make up leaves ``begin`` to ``end``.

    ``begin`` is a multiple of a power of two that is at least the length, as in every split of
    RFC 6962.
    """
    found, length = [], end - begin
    for level in reversed(range(length.bit_length())):
        if length >> level & 1:
            found.append((level, begin >> level))
            begin += 1 << level
    return found


def range_hash(begin: int, end: int, node: Node) -> bytes:
    """MTH(D[begin:end]) of one side of a split."""
    return fold_peaks([node(level, index) for level, index in subtrees(begin, end)])


def _split(begin: int, end: int) -> int:
    return begin + (1 << (end - begin - 1).bit_length() - 1)


def inclusion_proof(index: int, size: int, node: Node) -> list[bytes]:
    """Hashes that lead from leaf ``index`` to the root of the first ``size`` leaves.

    Raises:
        ProofError: The leaf is not in that tree.
    """
    if not 0 <= index < size:
        raise ProofError(f"inclusion proof: expected 0 <= index < size, got {index:,} of {size:,}")
    begin, end = 0, size
    proof = []
    while end - begin > 1:
        middle = _split(begin, end)
        if index < middle:
            proof.append(range_hash(middle, end, node))
            end = middle
        else:
            proof.append(range_hash(begin, middle, node))
            begin = middle
    return proof[::-1]


def consistency_proof(old: int, new: int, node: Node) -> list[bytes]:
    """Hashes that show the first ``old`` of ``new`` leaves unchanged; empty for 0 and for ``new``.

    Raises:
        ProofError: ``old`` is greater than ``new`` or negative.
    """
    if not 0 <= old <= new:
        raise ProofError(f"consistency proof: expected 0 <= old <= new, got {old:,} and {new:,}")
    if old in (0, new):
        return []
    begin, end = 0, new
    proof = []
    while end != old:
        middle = _split(begin, end)
        if old <= middle:
            proof.append(range_hash(middle, end, node))
            end = middle
        else:
            proof.append(range_hash(begin, middle, node))
            begin = middle
    if begin:  # a left edge from 0 is the old root itself, which the verifier has
        proof.append(range_hash(begin, end, node))
    return proof[::-1]


def verify_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Return only if the leaf stands at ``index`` in the tree of that size and root.

    Raises:
        ProofError: It does not.
    """
    if not 0 <= index < size:
        raise ProofError(f"inclusion proof: expected 0 <= index < size, got {index:,} of {size:,}")
    _check_hashes("inclusion proof", [leaf_hash, root, *proof])
    node, last, current = index, size - 1, leaf_hash
    for sibling in proof:
        if last == 0:
            raise ProofError(f"inclusion proof: expected fewer hashes for {index:,} of {size:,}")
        if node & 1 or node == last:
            current = hash_children(sibling, current)
            node, last = _skip_to_right(node, last)
        else:
            current = hash_children(current, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError(f"inclusion proof: expected more hashes for {index:,} of {size:,}")
    _check_root("inclusion proof", current, root)


def verify_consistency(
    old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Return only if the tree of ``new_size`` begins with the whole tree of ``old_size``.

    Raises:
        ProofError: It does not.
    """
    subject = "consistency proof"
    if not 0 <= old_size <= new_size:
        raise ProofError(f"{subject}: expected 0 <= old <= new, got {old_size:,} and {new_size:,}")
    _check_hashes(subject, [old_root, new_root, *proof])
    if old_size in (0, new_size):
        if proof:
            raise ProofError(f"{subject}: expected no hashes from {old_size:,} to {new_size:,}")
        _check_root(subject, new_root if old_size else EMPTY_ROOT, old_root)
        if new_size == 0:
            _check_root(subject, EMPTY_ROOT, new_root)
        return
    complete = old_size & (old_size - 1) == 0  # then the old root is itself the first hash
    hashes = [old_root, *proof] if complete else list(proof)
    if not hashes:
        raise ProofError(f"{subject}: expected hashes from {old_size:,} to {new_size:,}, got none")
    _climb(old_size, new_size, old_root, new_root, hashes)


def _climb(old_size: int, new_size: int, old_root: bytes, new_root: bytes, hashes: list[bytes]) -> None:
    subject = "consistency proof"
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            raise ProofError(f"{subject}: expected fewer hashes from {old_size:,} to {new_size:,}")
        if node & 1 or node == last:
            old, new = hash_children(sibling, old), hash_children(sibling, new)
            node, last = _skip_to_right(node, last)
        else:
            new = hash_children(new, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError(f"{subject}: expected more hashes from {old_size:,} to {new_size:,}")
    _check_root(subject, old, old_root)
    _check_root(subject, new, new_root)


def _skip_to_right(node: int, last: int) -> tuple[int, int]:
    # on the right edge a level without a sibling has no hash in the proof (RFC 9162, 2.1.3.2, 4.2)
    while node and not node & 1:
        node, last = node >> 1, last >> 1
    return node, last


def _check_hashes(subject: str, hashes: Sequence[bytes]) -> None:
    if any(len(item) != 32 for item in hashes):
        raise ProofError(f"{subject}: expected hashes of 32 bytes, got another length")


def _check_root(subject: str, got: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(got, expected):
        raise ProofError(
            f"{subject}: expected root {expected.hex()[:16]}..., got {got.hex()[:16]}...",
            hint="the entry, the proof or the checkpoint is not of this tree",
        )
