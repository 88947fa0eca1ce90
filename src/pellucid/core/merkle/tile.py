"""C2SP tlog-tiles: where hashes and entries lie, and how to read a tree from them.

Tile ``n`` of level ``L`` holds up to 256 hashes, each the root of ``256**L`` leaves. A partial tile
is served under its width until the full one exists. Source: spec/merkle.md, section 4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pellucid.core.merkle.hashing import root_of
from pellucid.core.merkle.proof import Node, range_hash, subtrees
from pellucid.core.merkle.tree import Frontier
from pellucid.errors import FormatError, NotFoundError

TILE_WIDTH: Final = 256
LEVEL_MAX: Final = 6  # limit: 256**7 leaves are more than a checkpoint can count
ENTRY_MAX: Final = 65_535
_CACHE_MAX: Final = 256  # limit: tiles of 8 kB that a reader keeps
_PATH: Final = re.compile(
    r"tile/(?:(entries)|([0-6]))/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?"
)


@dataclass(frozen=True, slots=True, order=True)
class TilePath:
    """Address of a tile (``kind`` ``tile``) or an entry bundle (``entries``, level 0)."""

    kind: str
    level: int
    n: int
    width: int = TILE_WIDTH

    def __str__(self) -> str:
        folder = "entries" if self.kind == "entries" else str(self.level)
        partial = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{folder}/{_groups(self.n)}{partial}"


def _groups(n: int) -> str:
    text = f"{n:d}"
    text = text.zfill(-(-len(text) // 3) * 3)
    groups = [text[i : i + 3] for i in range(0, len(text), 3)]
    return "/".join(["x" + group for group in groups[:-1]] + groups[-1:])


def tile_path(level: int, n: int, width: int = TILE_WIDTH) -> str:
    """``tile/0/x001/x234/067`` or, narrower than 256, ``tile/0/x001/x234/067.p/12``."""
    return str(TilePath("tile", level, n, width))


def entries_path(n: int, width: int = TILE_WIDTH) -> str:
    """``tile/entries/...`` of the bundle whose leaves are those of level-0 tile ``n``."""
    return str(TilePath("entries", 0, n, width))


def parse_path(text: str) -> TilePath:
    """Read a path; only the one spelling of each is accepted.

    Raises:
        FormatError: Not the path of a tile or bundle.
    """
    match = _PATH.fullmatch(text)
    if match:
        n = int(match[3].replace("/", "").replace("x", ""))
        found = TilePath("entries" if match[1] else "tile", int(match[2] or 0), n, int(match[4] or 256))
        if str(found) == text and found.width <= TILE_WIDTH:
            return found
    raise FormatError(f"tile path: expected tile/LEVEL/N or tile/entries/N, got {text!r:.80}")


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Entry bundle: each entry behind its length, 2 bytes big-endian.

    Raises:
        FormatError: More than 256 entries, none, or one beyond 65,535 bytes.
    """
    if not 0 < len(entries) <= TILE_WIDTH:
        raise FormatError(f"entry bundle: expected 1 to {TILE_WIDTH} entries, got {len(entries):,}")
    for entry in entries:
        if len(entry) > ENTRY_MAX:
            raise FormatError(f"entry bundle: expected entries up to {ENTRY_MAX:,} bytes, got {len(entry):,}")
    return b"".join([struct.pack(">H", len(entry)) + entry for entry in entries])


def decode_bundle(data: bytes, width: int) -> list[bytes]:
    """The first ``width`` entries of a bundle that holds at least as many.

    Raises:
        FormatError: Fewer entries, or bytes that are none.
    """
    entries, position = [], 0
    while position < len(data):
        stop = position + 2 + int.from_bytes(data[position : position + 2])
        if position + 2 > len(data) or stop > len(data):
            raise FormatError("entry bundle: expected whole entries, got a truncated one")
        entries.append(data[position + 2 : stop])
        position = stop
    if not width <= len(entries) <= TILE_WIDTH:
        raise FormatError(f"entry bundle: expected {width} to {TILE_WIDTH} entries, got {len(entries):,}")
    return entries[:width]


def decode_tile(data: bytes, width: int) -> list[bytes]:
    """The first ``width`` hashes of a tile that holds at least as many.

    Raises:
        FormatError: Not a whole number of hashes, or fewer.
    """
    if len(data) % 32 or not 32 * width <= len(data) <= 32 * TILE_WIDTH:
        raise FormatError(
            f"tile: expected {width} to {TILE_WIDTH} hashes of 32 bytes, got {len(data):,} bytes"
        )
    return [data[i : i + 32] for i in range(0, 32 * width, 32)]


def tiles_between(old_size: int, new_size: int) -> list[TilePath]:
    """What must exist for ``new_size`` and did not for ``old_size``: bundles first, then upwards."""
    found = _between("entries", 0, old_size, new_size)
    level = 0
    while new_size >> 8 * level:
        found += _between("tile", level, old_size >> 8 * level, new_size >> 8 * level)
        level += 1
    return found


def _between(kind: str, level: int, old: int, new: int) -> list[TilePath]:
    found = [TilePath(kind, level, n) for n in range(old // TILE_WIDTH, new // TILE_WIDTH)]
    if new % TILE_WIDTH and new != old:
        found.append(TilePath(kind, level, new // TILE_WIDTH, new % TILE_WIDTH))
    return found


def grow_tiles(old_size: int, leaf_hashes: Sequence[bytes], node: Node) -> dict[str, bytes]:
    """Hash tiles, by path, that a tree needs when leaves are added to it.

    Args:
        old_size: Leaves so far.
        leaf_hashes: The new ones.
        node: Hashes of the old tree's complete subtrees (``HashReader(...).node``); asked only for
            those on its right edge that share a tile with new ones.
    """
    tiles: dict[str, bytes] = {}
    new_size, fresh = old_size + len(leaf_hashes), list(leaf_hashes)
    for level in range(LEVEL_MAX + 1):
        old, new = old_size >> 8 * level, new_size >> 8 * level
        if old == new:
            break
        begin = old - old % TILE_WIDTH
        hashes = [node(8 * level, index) for index in range(begin, old)] + fresh
        for path in _between("tile", level, old, new):
            start = path.n * TILE_WIDTH - begin
            tiles[str(path)] = b"".join(hashes[start : start + path.width])
        # a partial tile is never hashed upwards
        fresh = [
            root_of(hashes[i : i + TILE_WIDTH]) for i in range(0, len(hashes) - TILE_WIDTH + 1, TILE_WIDTH)
        ]
    return tiles


class HashReader:
    """Reads subtree hashes of a tree of one size from its tiles. Trusts them: compare the root.

    Args:
        get: Bytes of an object by path; ``NotFoundError`` when absent.
        size: Tree size.
    """

    def __init__(self, get: Callable[[str], bytes], size: int) -> None:
        self._get, self._size = get, size
        self._cache: dict[tuple[int, int], list[bytes]] = {}

    @property
    def size(self) -> int:
        return self._size

    def node(self, level: int, index: int) -> bytes:
        """Hash of the complete subtree of ``2**level`` leaves number ``index``.

        Raises:
            NotFoundError: Not complete at this size, or its tile is gone.
            FormatError: The tile is not as long as this size needs.
        """
        if level < 0 or index < 0 or (index + 1) << level > self._size:
            raise NotFoundError(f"subtree {index:,} of level {level}: expected below size {self._size:,}")
        tile_level, inner = divmod(level, 8)
        n, first = divmod(index << inner, TILE_WIDTH)
        return root_of(self._tile(tile_level, n)[first : first + (1 << inner)])

    def root(self) -> bytes:
        """Root hash of the tree."""
        return range_hash(0, self._size, self.node)

    def frontier(self) -> Frontier:
        """The tree's right edge, to go on appending."""
        return Frontier(self._size, [self.node(*at) for at in subtrees(0, self._size)])

    def _tile(self, level: int, n: int) -> list[bytes]:
        hashes = self._cache.get((level, n))
        if hashes is None:
            width = min(TILE_WIDTH, (self._size >> 8 * level) - n * TILE_WIDTH)
            hashes = decode_tile(self._read(level, n, width), width)
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            self._cache[level, n] = hashes
        return hashes

    def _read(self, level: int, n: int, width: int) -> bytes:
        try:
            return self._get(tile_path(level, n, width))
        except NotFoundError:
            if width == TILE_WIDTH:
                raise
        return self._get(tile_path(level, n))  # the partial is collected once the full tile exists
