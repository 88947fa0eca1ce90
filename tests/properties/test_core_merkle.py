"""Trees: the fast ways equal the definition; no altered proof verifies."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.merkle.hashing import EMPTY_ROOT, hash_children, hash_leaf, root_of
from pellucid.core.merkle.proof import (
    consistency_proof,
    inclusion_proof,
    verify_consistency,
    verify_inclusion,
)
from pellucid.core.merkle.tile import (
    HashReader,
    TilePath,
    decode_bundle,
    decode_tile,
    encode_bundle,
    entries_path,
    grow_tiles,
    parse_path,
    tile_path,
    tiles_between,
)
from pellucid.core.merkle.tree import Frontier
from pellucid.errors import FormatError, NotFoundError, ProofError

LEAVES = [hash_leaf(b"%d" % n) for n in range(1100)]
SIZES = st.integers(0, 40) | st.sampled_from([255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1100])


def definition(leaves: list[bytes]) -> bytes:
    """MTH exactly as RFC 6962, section 2.1 writes it."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + definition(leaves[:k]) + definition(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    """PATH exactly as RFC 6962, section 2.1.1 writes it."""
    if len(leaves) == 1:
        return []
    k = 1 << (len(leaves) - 1).bit_length() - 1
    if m < k:
        return [*path(m, leaves[:k]), definition(leaves[k:])]
    return [*path(m - k, leaves[k:]), definition(leaves[:k])]


def subproof(m: int, leaves: list[bytes], *, whole: bool) -> list[bytes]:
    """SUBPROOF exactly as RFC 6962, section 2.1.2 writes it."""
    if m == len(leaves):
        return [] if whole else [definition(leaves)]
    k = 1 << (len(leaves) - 1).bit_length() - 1
    if m <= k:
        return [*subproof(m, leaves[:k], whole=whole), definition(leaves[k:])]
    return [*subproof(m - k, leaves[k:], whole=False), definition(leaves[:k])]


def node(level: int, index: int) -> bytes:
    return root_of(LEAVES[index << level : (index + 1) << level])


class Tiles:
    """A folder of tiles in memory, grown in steps."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.size = 0

    def get(self, name: str) -> bytes:
        if name not in self.objects:
            raise NotFoundError(name)
        return self.objects[name]

    def grow(self, count: int) -> list[str]:
        new = self.size + count
        leaves = LEAVES[self.size : new]
        made = grow_tiles(self.size, leaves, HashReader(self.get, self.size).node)
        wanted = [str(p) for p in tiles_between(self.size, new) if p.kind == "tile"]
        assert list(made) == wanted
        assert not any(name in self.objects for name in made), "a tile is written once"
        self.objects |= made
        self.size = new
        return wanted


def test_the_known_roots_of_certificate_transparency():
    entries = [
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    ]
    leaves = [hash_leaf(bytes.fromhex(entry)) for entry in entries]
    assert root_of([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert root_of(leaves[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert root_of(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@given(SIZES)
def test_root_and_frontier_equal_the_definition(size):
    frontier = Frontier()
    frontier.extend(LEAVES[:size])
    assert frontier.root() == root_of(LEAVES[:size]) == definition(LEAVES[:size])
    again = Frontier(size, frontier.peaks)
    again.append(LEAVES[0])
    assert again.root() == definition([*LEAVES[:size], LEAVES[0]])


@pytest.mark.parametrize(("size", "peaks"), [(-1, ()), (1, ()), (3, (b"x" * 32,)), (1, (b"x",))])
def test_a_frontier_has_one_peak_for_each_bit(size, peaks):
    with pytest.raises(FormatError):
        Frontier(size, peaks)


@given(SIZES.filter(bool), st.data())
def test_inclusion_proofs_equal_the_definition_and_hold(size, data):
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(index, size, node)
    assert proof == path(index, LEAVES[:size])
    verify_inclusion(LEAVES[index], index, size, proof, root_of(LEAVES[:size]))


@given(SIZES, st.data())
def test_consistency_proofs_equal_the_definition_and_hold(new, data):
    old = data.draw(st.integers(0, new))
    proof = consistency_proof(old, new, node)
    assert proof == (subproof(old, LEAVES[:new], whole=True) if old else [])
    verify_consistency(old, new, root_of(LEAVES[:old]), root_of(LEAVES[:new]), proof)


def test_all_small_proofs_hold():
    for new in range(1, 20):
        for old in range(new + 1):
            proof = consistency_proof(old, new, node)
            verify_consistency(old, new, root_of(LEAVES[:old]), root_of(LEAVES[:new]), proof)
        for index in range(new):
            verify_inclusion(
                LEAVES[index], index, new, inclusion_proof(index, new, node), root_of(LEAVES[:new])
            )


def altered(proof: list[bytes], data: st.DataObject) -> list[bytes]:
    """The proof with one hash changed, dropped, doubled or moved."""
    ways = ["more"] + ["bit", "drop", "double"] * bool(proof) + ["swap"] * (len(proof) > 1)
    way = data.draw(st.sampled_from(ways))
    at = data.draw(st.integers(0, max(0, len(proof) - 1 - (way == "swap"))))
    changed = list(proof)
    if way == "more":
        changed.insert(at, data.draw(st.binary(min_size=32, max_size=32)))
    elif way == "bit":
        bit = data.draw(st.integers(0, 255))
        changed[at] = (int.from_bytes(changed[at]) ^ 1 << bit).to_bytes(32)
    elif way == "drop":
        del changed[at]
    elif way == "double":
        changed.insert(at, changed[at])
    else:
        changed[at], changed[at + 1] = changed[at + 1], changed[at]
    return changed


@given(SIZES.filter(bool), st.data())
def test_no_altered_inclusion_proof_verifies(size, data):
    index = data.draw(st.integers(0, size - 1))
    root, proof = root_of(LEAVES[:size]), inclusion_proof(index, size, node)
    with pytest.raises(ProofError):
        verify_inclusion(LEAVES[index], index, size, altered(proof, data), root)
    with pytest.raises(ProofError):
        verify_inclusion(hash_leaf(b"another"), index, size, proof, root)
    with pytest.raises(ProofError):
        verify_inclusion(LEAVES[index], index, size, proof, hash_leaf(root))
    other = data.draw(st.integers(-1, size + 1).filter(lambda n: n != index))
    with pytest.raises(ProofError):
        verify_inclusion(LEAVES[index], other, size, proof, root)


@given(SIZES.filter(bool), st.data())
def test_no_altered_consistency_proof_verifies(new, data):
    old = data.draw(st.integers(1, new))
    old_root, new_root = root_of(LEAVES[:old]), root_of(LEAVES[:new])
    proof = consistency_proof(old, new, node)
    with pytest.raises(ProofError):
        verify_consistency(old, new, old_root, new_root, altered(proof, data))
    with pytest.raises(ProofError):
        verify_consistency(old, new, hash_leaf(old_root), new_root, proof)
    with pytest.raises(ProofError):
        verify_consistency(old, new, old_root, hash_leaf(new_root), proof)
    with pytest.raises(ProofError):
        verify_consistency(new + 1, new, old_root, new_root, proof)


def test_an_inner_node_is_no_leaf():
    root = hash_children(LEAVES[0], LEAVES[1])
    assert hash_leaf(LEAVES[0] + LEAVES[1]) != root
    with pytest.raises(ProofError):
        verify_inclusion(root, 0, 2, [], root)


def test_the_empty_tree():
    verify_consistency(0, 0, EMPTY_ROOT, EMPTY_ROOT, [])
    verify_consistency(0, 5, EMPTY_ROOT, root_of(LEAVES[:5]), [])
    with pytest.raises(ProofError):
        verify_consistency(0, 5, LEAVES[0], root_of(LEAVES[:5]), [])
    with pytest.raises(ProofError):
        verify_consistency(0, 0, EMPTY_ROOT, LEAVES[0], [])
    with pytest.raises(ProofError):
        inclusion_proof(0, 0, node)
    with pytest.raises(ProofError):
        consistency_proof(2, 1, node)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=5).filter(lambda steps: sum(steps) <= 1100))
def test_tiles_grown_in_any_steps_give_the_same_tree(steps):
    tiles, frontier = Tiles(), Frontier()
    for step in steps:
        frontier.extend(LEAVES[tiles.size : tiles.size + step])
        tiles.grow(step)
        reader = HashReader(tiles.get, tiles.size)
        assert reader.root() == root_of(LEAVES[: tiles.size])
        assert reader.frontier().peaks == frontier.peaks
    last = tiles.size - 1
    assert inclusion_proof(last, tiles.size, reader.node) == inclusion_proof(last, tiles.size, node)
    assert consistency_proof(steps[0], tiles.size, reader.node) == consistency_proof(
        steps[0], tiles.size, node
    )
    with pytest.raises(NotFoundError):
        reader.node(0, tiles.size)


def test_an_old_size_is_read_from_full_tiles_once_its_partials_are_gone():
    tiles = Tiles()
    tiles.grow(250)
    tiles.grow(300)
    for name in [name for name in tiles.objects if ".p/" in name and "250" in name]:
        del tiles.objects[name]
    reader = HashReader(tiles.get, 250)
    assert reader.root() == root_of(LEAVES[:250])
    with pytest.raises(NotFoundError):
        reader.node(0, 250)


def test_a_tile_of_another_length_is_refused():
    tiles = Tiles()
    tiles.grow(5)
    tiles.objects["tile/0/000.p/5"] = tiles.objects["tile/0/000.p/5"][:-1]
    with pytest.raises(FormatError):
        HashReader(tiles.get, 5).root()


@given(st.sampled_from(["tile", "entries"]), st.integers(0, 6), st.integers(0, 10**9), st.integers(1, 256))
def test_paths_go_both_ways(kind, level, n, width):
    made = TilePath(kind, level if kind == "tile" else 0, n, width)
    assert parse_path(str(made)) == made


def test_paths_as_the_specification_writes_them():
    assert tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert tile_path(1, 0, 5) == "tile/1/000.p/5"
    assert entries_path(1000) == "tile/entries/x001/000"


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=256), st.data())
def test_bundles_go_both_ways_and_prefixes_too(entries, data):
    raw = encode_bundle(entries)
    width = data.draw(st.integers(1, len(entries)))
    assert decode_bundle(raw, width) == entries[:width]
    with pytest.raises(FormatError):
        decode_bundle(raw, len(entries) + 1)
    with pytest.raises(FormatError):
        decode_bundle(raw[:-1], len(entries))


def test_bundles_have_limits():
    assert decode_bundle(encode_bundle([bytes(65_535)]), 1) == [bytes(65_535)]
    for entries in ([], [b""] * 257, [bytes(65_536)]):
        with pytest.raises(FormatError):
            encode_bundle(entries)
    with pytest.raises(FormatError):
        decode_bundle(b"\x00\x00" * 257, 256)
    with pytest.raises(FormatError):
        decode_tile(bytes(32 * 257), 256)
