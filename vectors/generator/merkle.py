"""Trees, proofs, tiles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from generator.keys import Case

from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.proof import consistency_proof, inclusion_proof
from pellucid.core.merkle.tile import encode_bundle, entries_path, grow_tiles, tile_path, tiles_between

# the eight leaves of the Certificate Transparency reference tests
CT_LEAVES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip


def many(size: int) -> list[bytes]:
    """Leaf hashes of entries ``0``, ``1``, ... in decimal."""
    return [hash_leaf(b"%d" % number) for number in range(size)]


def merkle_cases() -> list[Case]:
    cases: list[Case] = []
    for size in range(9):
        leaves = CT_LEAVES[:size]
        cases.append(
            {"name": f"root_{size}", "operation": "root", "entries_hex": [e.hex() for e in leaves],
             "expected": root_of([hash_leaf(e) for e in leaves]).hex()}
        )  # fmt: skip
    for size in (255, 256, 257, 65537):
        case: Case = {"name": f"root_{size}", "operation": "root_of_decimals", "size": size}
        cases.append(case | {"expected": root_of(many(size)).hex()})
    for index, size in (
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 3),
        (6, 7),
        (255, 256),
        (256, 257),
        (0, 257),
        (999, 1000),
    ):
        cases += inclusion_cases(index, size)
    for old, new in (
        (1, 2),
        (2, 3),
        (3, 7),
        (4, 7),
        (6, 8),
        (255, 257),
        (256, 257),
        (7, 7),
        (0, 5),
        (1, 1000),
    ):
        cases += consistency_cases(old, new)
    cases += smaller_tree_cases()
    cases += path_cases() + bundle_cases() + growth_cases()
    return cases


def node_of(leaves: list[bytes]) -> Callable[[int, int], bytes]:
    return lambda level, index: root_of(leaves[index << level : (index + 1) << level])


def inclusion_cases(index: int, size: int) -> list[Case]:
    leaves = many(size)
    proof = inclusion_proof(index, size, node_of(leaves))
    good = {
        "operation": "inclusion", "index": index, "size": size, "leaf_hash": leaves[index].hex(),
        "proof": [item.hex() for item in proof], "root": root_of(leaves).hex(),
    }  # fmt: skip
    other = hash_leaf(b"another").hex()
    bad = {
        "leaf": {"leaf_hash": other},
        "root": {"root": other},
        "longer": {"proof": [*good["proof"], other]},
        "beyond": {"index": size},
        "negative": {"index": -1},
    }
    if proof:
        bad |= {"shorter": {"proof": good["proof"][:-1]}, "hash": {"proof": [other, *good["proof"][1:]]}}
        bad["index"] = {"index": index - 1 if index else index + 1}
    return variants(f"inclusion_{index}_of_{size}", good, bad)


def consistency_cases(old: int, new: int) -> list[Case]:
    leaves = many(new)
    proof = consistency_proof(old, new, node_of(leaves))
    good = {
        "operation": "consistency", "old_size": old, "new_size": new, "old_root": root_of(leaves[:old]).hex(),
        "new_root": root_of(leaves).hex(), "proof": [item.hex() for item in proof],
    }  # fmt: skip
    other = hash_leaf(b"another").hex()
    bad: dict[str, Case] = {
        "old_root": {"old_root": other},
        "longer": {"proof": [*good["proof"], other]},
        "backwards": {"old_size": new + 1},
    }
    if old:  # nothing is claimed about the new root when the old tree is empty
        bad["new_root"] = {"new_root": other}
    if proof:
        bad |= {"shorter": {"proof": good["proof"][:-1]}, "hash": {"proof": [other, *good["proof"][1:]]}}
    return variants(f"consistency_{old}_to_{new}", good, bad)


def smaller_tree_cases() -> list[Case]:
    """A proof that is right for a smaller tree must not vouch for a larger one."""
    leaves = many(8)
    two, four = root_of(leaves[:2]).hex(), root_of(leaves[:4]).hex()
    consistency = [item.hex() for item in consistency_proof(2, 4, node_of(leaves[:4]))]
    inclusion = [item.hex() for item in inclusion_proof(1, 4, node_of(leaves[:4]))]
    return [
        {"name": "consistency_of_smaller_tree_fail", "operation": "consistency", "old_size": 2, "new_size": 8,
         "old_root": two, "new_root": four, "proof": consistency},
        {"name": "inclusion_in_smaller_tree_fail", "operation": "inclusion", "index": 1, "size": 8,
         "leaf_hash": leaves[1].hex(), "proof": inclusion, "root": four},
    ]  # fmt: skip


def variants(name: str, good: Case, bad: dict[str, Case]) -> list[Case]:
    return [{"name": name, **good}] + [
        {"name": f"{name}_{what}_fail", **good, **change} for what, change in bad.items()
    ]


def path_cases() -> list[Case]:
    cases: list[Case] = []
    for kind, level, n, width in (
        ("tile", 0, 0, 256), ("tile", 0, 0, 1), ("tile", 1, 67, 255), ("tile", 2, 999, 256),
        ("tile", 0, 1000, 256), ("tile", 0, 1234067, 12),
        ("entries", 0, 1234067, 256), ("entries", 0, 5, 7),
    ):  # fmt: skip
        text = tile_path(level, n, width) if kind == "tile" else entries_path(n, width)
        cases.append({"name": f"path_{kind}_{level}_{n}_{width}", "operation": "path", "path": text,
                      "expected": {"kind": kind, "level": level, "n": n, "width": width}})  # fmt: skip
    wrong = {
        "leading_group": "tile/0/x000/001", "no_x": "tile/0/001/067", "short": "tile/0/1",
        "width_0": "tile/0/001.p/0", "width_256": "tile/0/001.p/256",
        "width_257": "tile/0/001.p/257", "width_padded": "tile/0/001.p/01",
        "dots": "tile/0/../001", "level": "tile/64/001", "absolute": "/tile/0/001", "newline": "tile/0/001\n",
        "data": "tile/data/001", "upper": "tile/0/X001/067",
    }  # fmt: skip
    return cases + [
        {"name": f"path_{what}_fail", "operation": "path", "path": text} for what, text in wrong.items()
    ]


def bundle_cases() -> list[Case]:
    entries = [b"a", b"", b"\x00" * 300]
    raw = encode_bundle(entries)
    good = {"operation": "bundle", "data_hex": raw.hex(), "width": 3}
    prefix = {"width": 2, "expected": [e.hex() for e in entries[:2]]}
    return [
        {"name": "bundle", **good, "expected": [e.hex() for e in entries]},
        {"name": "bundle_prefix", **good, **prefix},
        {"name": "bundle_cut_fail", **good, "data_hex": raw[:-1].hex()},
        {"name": "bundle_cut_length_fail", **good, "data_hex": (raw + b"\x00").hex()},
        {"name": "bundle_too_few_fail", **good, "width": 4},
    ]


def growth_cases() -> list[Case]:
    cases: list[Case] = []
    for old, new in ((0, 1), (1, 255), (255, 256), (256, 257), (250, 520), (65535, 65536), (65536, 65537)):
        leaves = many(new)
        tiles = grow_tiles(old, leaves[old:], node_of(leaves[:old]))
        paths = [str(path) for path in tiles_between(old, new)]
        hashes = {p: hashlib.sha256(tiles[p]).hexdigest() for p in paths if not p.startswith("tile/entries")}
        case: Case = {"name": f"growth_{old}_to_{new}", "operation": "growth", "old_size": old}
        cases.append(case | {"new_size": new, "expected": {"paths": paths, "sha256": hashes}})
    return cases
