"""fsck: reads every value of a ledger again and believes none of them.

It works on a site and on an auditor's copy of the served files alike. From the entries it makes the
leaf hashes, from those every tile of every level and the root, and compares each with what lies
there; every finding names its place. Source: spec/ledger.md, section 8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pellucid.core.checkpoint import Checkpoint, verify_checkpoint
from pellucid.core.entry import parse_entry
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.merkle.tile import TILE_WIDTH, TilePath, decode_bundle, decode_tile, parse_path
from pellucid.core.merkle.tree import Frontier
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
    store: Store
    state: State | None
    vkey: str
    findings: list[Finding] = field(default_factory=list)
    tiles: int = 0
    calls: int = 0
    ids: set[str] = field(default_factory=set)
    expected: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)  # tile -> its hashes, so far
    frontier: Frontier = field(default_factory=Frontier)

    def find(self, place: str, reason: str) -> None:
        self.findings.append(Finding(place, reason))

    def run(self) -> FsckReport:
        checkpoint = self._checkpoint()
        size = checkpoint.size if checkpoint is not None else self._claimed_size()
        read = sum(self._bundle(n, width) for n, width in _bundles(size))
        for level, n in sorted(self.expected):
            self._check_tile(level, n, size)
        if checkpoint is not None and read == size and self.frontier.root() != checkpoint.root:
            self.find("checkpoint", _differs(checkpoint.root, self.frontier.root(), "root of the entries"))
        self._check_strays(size)
        return FsckReport(tuple(self.findings), size, read, self.tiles, self.calls)

    # -- heads

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

    # -- entries

    def _bundle(self, n: int, width: int) -> int:
        """Read one bundle and hash what it holds; returns how many entries that was."""
        path = TilePath("entries", 0, n, width)
        try:
            entries = decode_bundle(self._get(path), width)
        except (NotFoundError, FormatError) as error:
            last = n * TILE_WIDTH + width - 1
            self.find(str(path), f"entries {n * TILE_WIDTH:,} to {last:,}: {error.message}")
            entries = []
        for offset, raw in enumerate(entries):
            self._entry(n * TILE_WIDTH + offset, raw)
        if entries:
            hashes = [hash_leaf(raw) for raw in entries]
            self.frontier.extend(hashes)
            self._expect(0, n, hashes)
        return len(entries)

    def _get(self, path: TilePath) -> bytes:
        self.tiles += 1
        try:
            return self.store.get(str(path))
        except NotFoundError:
            if path.width == TILE_WIDTH:
                raise
        return self.store.get(str(TilePath(path.kind, path.level, path.n)))

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

    def _expect(self, level: int, n: int, hashes: list[bytes]) -> None:
        """Remember what tile ``n`` of a level must hold, and what follows from it above."""
        self.expected[level, n] = hashes
        if len(hashes) == TILE_WIDTH:
            above = self.expected.setdefault((level + 1, n // TILE_WIDTH), [])
            if len(above) == n % TILE_WIDTH:  # nothing below is missing
                above.append(root_of(hashes))
                if len(above) == TILE_WIDTH:
                    self._expect(level + 1, n // TILE_WIDTH, above)

    # -- tiles

    def _check_tile(self, level: int, n: int, size: int) -> None:
        expected = self.expected[level, n]
        width = min(TILE_WIDTH, (size >> 8 * level) - n * TILE_WIDTH)
        path = TilePath("tile", level, n, width)
        try:
            stored = decode_tile(self._get(path), width)
        except (NotFoundError, FormatError) as error:
            self.find(str(path), error.message)
            return
        for offset, (left, right) in enumerate(zip(expected, stored, strict=False)):
            if left != right:
                self._blame(level, n, offset, path, left, right)

    def _blame(self, level: int, n: int, offset: int, path: TilePath, made: bytes, stored: bytes) -> None:
        """At the leaves: was the entry changed, or its tile?"""
        index = n * TILE_WIDTH + offset
        if level == 0:
            text = "leaf hash of the entry's bytes: the entry or its tile was changed"
            self.find(f"entry {index}", f"{path} hash {offset}: " + _differs(stored, made, text))
        else:
            text = f"root of tile/{level - 1} number {index}"
            self.find(f"{path} hash {offset}", _differs(stored, made, text))

    def _check_strays(self, size: int) -> None:
        """Partial tiles of older checkpoints must be beginnings of what is there now."""
        full: dict[tuple[str, int, int], list[TilePath]] = defaultdict(list)
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
                full[path.kind, path.level, path.n].append(path)
        for paths in full.values():
            for path in paths:
                self._check_partial(path)

    def _check_beyond(self, text: str, leaves: int) -> None:
        """Tiles of a plan in progress, or of a head committed since, are fine."""
        if self.state is None or self.state.plan() is not None:
            return
        if leaves > self.state.head().size:
            self.find(text, "expected nothing beyond the checkpoint, got a tile and no plan for it")

    def _check_partial(self, path: TilePath) -> None:
        try:
            data = self.store.get(str(path))
            if path.kind == "tile":
                expected = self.expected.get((path.level, path.n), [])[: path.width]
                same = decode_tile(data, path.width) == expected or len(expected) < path.width
            else:
                hashes = [hash_leaf(raw) for raw in decode_bundle(data, path.width)]
                same = hashes == self.expected.get((0, path.n), hashes)[: path.width]
        except PellucidError as error:
            self.find(str(path), error.message)
            return
        if not same:
            self.find(str(path), "expected the beginning of the tile that grew from it, got something else")


def _bundles(size: int) -> Iterator[tuple[int, int]]:
    for n in range(-(-size // TILE_WIDTH)):
        yield n, min(TILE_WIDTH, size - n * TILE_WIDTH)


def _differs(expected: bytes, got: bytes, what: str) -> str:
    return f"expected {expected.hex()[:16]}... as {what}, got {got.hex()[:16]}..."
