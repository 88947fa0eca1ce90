"""fsck: reads every value of a ledger again and believes none of them.

It works on a site and on an auditor's copy of the served files alike. Entries must give the leaf
hashes, tiles the hashes of the level above, the edge the root, and the root is signed; every finding
names its place. Source: spec/ledger.md, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pellucid.core.checkpoint import Checkpoint, verify_checkpoint
from pellucid.core.entry import parse_entry
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.tile import (
    TILE_WIDTH,
    HashReader,
    TilePath,
    decode_bundle,
    decode_tile,
    encode_bundle,
    parse_path,
)
from pellucid.errors import FormatError, NotFoundError, PellucidError, VerificationError
from pellucid.ledger.publisher import CHECKPOINT, read_published
from pellucid.ledger.state import State
from pellucid.ports import Store

SETTLE_MAX: Final = 2000  # limit: looks at state and checkpoint, about 0.2 s


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where.

    Attributes:
        place: ``entry 17``, ``tile/0/000 hash 3``, ``checkpoint``, ``state.db`` ...
        reason: Expected and got.
    """

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FsckReport:
    """All findings, and how much was read.

    Attributes:
        entries: Entries whose bytes were read and hashed.
        tiles: Tiles and bundles read.
        size: Tree size of the checkpoint.
        calls: ``call`` entries.
    """

    findings: tuple[Finding, ...]
    size: int
    entries: int
    tiles: int
    calls: int

    @property
    def is_clean(self) -> bool:
        return not self.findings


def verify_fsck(report: FsckReport) -> FsckReport:
    """The report itself, if it is clean.

    Raises:
        VerificationError: Names every finding.
    """
    if report.findings:
        text = "; ".join(map(str, report.findings[:20]))
        raise VerificationError(f"ledger: {len(report.findings):,} findings: {text}")
    return report


def fsck(store: Store, state: State | None, vkey: str) -> FsckReport:
    """Read every value again.

    Args:
        store: Tiles, bundles and checkpoint.
        state: The sequencer's own memory; ``None`` for a copy that has none.
        vkey: The log's verifier key, from outside.
    """
    return _Fsck(store, state, vkey).run()


@dataclass(slots=True)
class _Fsck:
    """Each link of the chain by itself, so that a finding names the link that broke: entry to leaf
    hash, tile to the tile above, edge tiles to the root, root to the signature."""

    store: Store
    state: State | None
    vkey: str
    findings: list[Finding] = field(default_factory=list)
    tiles: int = 0
    calls: int = 0
    ids: set[str] = field(default_factory=set)

    def find(self, place: str, reason: str) -> None:
        self.findings.append(Finding(place, reason))

    def run(self) -> FsckReport:
        checkpoint = self._checkpoint()
        size = checkpoint.size if checkpoint is not None else self._claimed_size()
        read, roots = self._leaves(size)
        level = 1
        while size >> 8 * level:
            roots = self._level(level, size, roots)
            level += 1
        if checkpoint is not None:
            self._check_root(checkpoint)
        self._check_strays(size)
        return FsckReport(tuple(self.findings), size, read, self.tiles, self.calls)

    def _checkpoint(self) -> Checkpoint | None:
        raw = self._settled()
        if raw is None:
            return None
        try:
            return verify_checkpoint(raw, self.vkey)
        except PellucidError as error:
            self.find("checkpoint", error.message)
            return None

    def _settled(self) -> bytes | None:
        """The checkpoint, once it and the state agree: a running sequencer commits, then publishes."""
        head, raw = None, None
        for _ in range(SETTLE_MAX):
            head = self.state.head() if self.state is not None else None
            raw = self._published()
            if head is None or head.checkpoint == (raw or b""):
                return raw
        size = head.size if head is not None else 0
        self.find("state.db", f"expected the published checkpoint, got another at size {size:,}")
        return raw

    def _published(self) -> bytes | None:
        try:
            return self.store.get(CHECKPOINT)
        except NotFoundError:
            return None

    def _claimed_size(self) -> int:
        """Size that an unsigned checkpoint claims, so that the rest can be read all the same."""
        claimed = read_published(self.store)
        return claimed.size if claimed is not None else 0

    # -- entries and tiles

    def _leaves(self, size: int) -> tuple[int, list[bytes | None]]:
        """Read all entries and the tiles of their hashes.

        Returns:
            How many entries were read, and the roots of the full tiles as they are stored.
        """
        read, roots = 0, []
        for n, width in _tiles(size, 0):
            entries = self._bundle(n, width)
            read += len(entries)
            stored = self._tile(0, n, width)
            for offset, (raw, hashed) in enumerate(zip(entries, stored, strict=False)):
                if hash_leaf(raw) != hashed:
                    self._blame_entry(n, offset, width, raw, hashed)
            roots += [root_of(stored) if stored else None] if width == TILE_WIDTH else []
        return read, roots

    def _bundle(self, n: int, width: int) -> list[bytes]:
        path = TilePath("entries", 0, n, width)
        try:
            entries = decode_bundle(self._get(path), width)
        except (NotFoundError, FormatError) as error:
            last = n * TILE_WIDTH + width - 1
            self.find(str(path), f"entries {n * TILE_WIDTH:,} to {last:,}: {error.message}")
            return []
        for offset, raw in enumerate(entries):
            self._entry(n * TILE_WIDTH + offset, raw)
        return entries

    def _entry(self, index: int, raw: bytes) -> None:
        try:
            entry = parse_entry(raw)
        except FormatError as error:
            self.find(f"entry {index}", error.message)
            return
        if entry.id in self.ids:
            self.find(f"entry {index}", f"expected a new key, got {entry.id} again")
        self.ids.add(entry.id)
        self.calls += entry.type == "call"

    def _blame_entry(self, n: int, offset: int, width: int, raw: bytes, stored: bytes) -> None:
        index, tile = n * TILE_WIDTH + offset, TilePath("tile", 0, n, width)
        text = _differs(stored, hash_leaf(raw), "hash of this entry")
        self.find(f"entry {index}", f"{tile} hash {offset}: {text}")

    def _level(self, level: int, size: int, below: list[bytes | None]) -> list[bytes | None]:
        """Compare the tiles of a level with the roots of the tiles below them."""
        roots: list[bytes | None] = []
        for n, width in _tiles(size, level):
            stored, begin = self._tile(level, n, width), n * TILE_WIDTH
            for offset, (made, hashed) in enumerate(zip(below[begin:], stored, strict=False)):
                if made is not None and made != hashed:
                    what = f"root of tile {begin + offset} of level {level - 1}"
                    place = f"{TilePath('tile', level, n, width)} hash {offset}"
                    self.find(place, _differs(made, hashed, what))
            roots += [root_of(stored) if stored else None] if width == TILE_WIDTH else []
        return roots

    def _tile(self, level: int, n: int, width: int) -> list[bytes]:
        path = TilePath("tile", level, n, width)
        try:
            return decode_tile(self._get(path), width)
        except (NotFoundError, FormatError) as error:
            self.find(str(path), error.message)
            return []

    def _get(self, path: TilePath) -> bytes:
        self.tiles += 1
        try:
            return self.store.get(str(path))
        except NotFoundError:
            if path.width == TILE_WIDTH:
                raise
        return self.store.get(str(TilePath(path.kind, path.level, path.n)))

    def _check_root(self, checkpoint: Checkpoint) -> None:
        try:
            root = HashReader(self.store.get, checkpoint.size).root()
        except (NotFoundError, FormatError):
            return  # the tile that is missing is a finding already
        if root != checkpoint.root:
            self.find("checkpoint", _differs(checkpoint.root, root, "root of the tiles"))

    # -- what else lies there

    def _check_strays(self, size: int) -> None:
        """Partial tiles of older checkpoints must be beginnings of what is there now."""
        for text in self.store.paths("tile"):
            try:
                path = parse_path(text)
            except FormatError:
                self.find(text, "expected only tiles and bundles here, got something else")
                continue
            leaves = (path.n * TILE_WIDTH + path.width) << 8 * path.level
            if leaves > size:
                self._check_beyond(text, leaves)
            elif path.width < TILE_WIDTH:
                self._check_partial(path, size)

    def _check_beyond(self, text: str, leaves: int) -> None:
        """Tiles of a plan in progress, or of a head committed since, are fine."""
        if self.state is None or self.state.plan() is not None:
            return
        if leaves > self.state.head().size:
            self.find(text, "expected nothing beyond the checkpoint, got a tile and no plan for it")

    def _check_partial(self, path: TilePath, size: int) -> None:
        width = min(TILE_WIDTH, (size >> 8 * path.level) - path.n * TILE_WIDTH)
        try:
            data, grown = self.store.get(str(path)), self.store.get(str(replace(path, width=width)))
        except NotFoundError:
            return  # collected while we looked, or missing: then it is a finding already
        whole = 32 * path.width == len(data) if path.kind == "tile" else _is_bundle(data, path.width)
        if not whole or not grown.startswith(data):
            self.find(str(path), "expected the beginning of the tile that grew from it, got something else")


def _is_bundle(data: bytes, width: int) -> bool:
    try:
        return encode_bundle(decode_bundle(data, width)) == data
    except FormatError:
        return False


def _tiles(size: int, level: int) -> Iterator[tuple[int, int]]:
    """Number and width of every tile of a level."""
    hashes = size >> 8 * level
    for n in range(-(-hashes // TILE_WIDTH)):
        yield n, min(TILE_WIDTH, hashes - n * TILE_WIDTH)


def _differs(expected: bytes, got: bytes, what: str) -> str:
    return f"expected {expected.hex()[:16]}... as {what}, got {got.hex()[:16]}..."
