"""From entries to tiles and checkpoints, as C2SP tlog-tiles lays them out.

Tiles and bundles are created exclusively and compared if present, so writing them twice is
harmless and writing others is impossible. The checkpoint is replaced last, after the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.core.checkpoint import Checkpoint, parse_checkpoint, sign_checkpoint
from pellucid.core.merkle.hashing import hash_leaf
from pellucid.core.merkle.tile import (
    TILE_WIDTH,
    HashReader,
    decode_bundle,
    encode_bundle,
    entries_path,
    grow_tiles,
    parse_path,
    tiles_between,
)
from pellucid.errors import FormatError, LedgerHaltedError, NotFoundError
from pellucid.ledger.state import Head
from pellucid.ports import Signer, Store

CHECKPOINT: str = "checkpoint"


class Publisher:
    """Grows one log's tiles from a committed head on.

    Args:
        store: Where tiles and the checkpoint go.
        signer: The log's key, Ed25519.
        origin: The log's name.
        head: The committed head; its root is recomputed from the edge tiles.

    Raises:
        LedgerHaltedError: The tiles do not give the committed root.
    """

    def __init__(self, store: Store, signer: Signer, origin: str, head: Head) -> None:
        self._store, self._signer, self._origin = store, signer, origin
        self.head = head
        try:
            reader = HashReader(store.get, head.size)
            root = reader.root()
            self._frontier = reader.frontier()
            self._tail = read_tail(store, head.size)
        except (NotFoundError, FormatError) as error:
            raise LedgerHaltedError(
                f"tiles at size {head.size:,}: expected them whole, got: {error}",
                hint="run pellucid ledger fsck; a missing tile can be put back from any mirror",
            ) from error
        if root != head.root:
            raise LedgerHaltedError(
                f"tiles at size {head.size:,}: expected root {head.root.hex()[:16]}..., "
                f"got {root.hex()[:16]}...",
                hint="a tile was changed, or state.db was put back: run pellucid ledger fsck",
            )

    def grow(self, entries: Sequence[bytes]) -> Head:
        """Write tiles and bundles for more entries and sign what they give; commits nothing.

        Returns:
            The next head. It counts only once ``State.commit`` took it.
        """
        old, new = self.head.size, self.head.size + len(entries)
        hashes = [hash_leaf(entry) for entry in entries]
        objects = self._bundles(old, entries)
        objects |= grow_tiles(old, hashes, HashReader(self._store.get, old).node)
        self._store.create_many(objects)
        self._frontier.extend(hashes)
        root = self._frontier.root()
        note = sign_checkpoint(Checkpoint(self._origin, new, root), self._signer)
        return Head(new, root, note)

    def _bundles(self, old: int, entries: Sequence[bytes]) -> dict[str, bytes]:
        begin = old - old % TILE_WIDTH
        lying = [*self._tail, *entries]
        self._tail = lying[(old + len(entries)) // TILE_WIDTH * TILE_WIDTH - begin :]
        bundles = {}
        for path in tiles_between(old, old + len(entries)):
            if path.kind == "entries":
                start = path.n * TILE_WIDTH - begin
                bundles[str(path)] = encode_bundle(lying[start : start + path.width])
        return bundles

    def publish(self, head: Head) -> None:
        """Show a committed head to the world, then collect what it made superfluous."""
        previous, self.head = self.head, head
        self._store.replace(CHECKPOINT, head.checkpoint)
        self.collect(previous.size, head.size)

    def republish(self) -> None:
        """Show the committed head if the world sees an older one (killed before ``publish``)."""
        if self.head.size == 0:
            return
        try:
            shown = self._store.get(CHECKPOINT)
        except NotFoundError:
            shown = b""
        if shown != self.head.checkpoint:
            self._store.replace(CHECKPOINT, self.head.checkpoint)

    def collect(self, old: int, new: int) -> None:
        """Delete partial tiles whose full tile exists now.

        Others stay: each belongs to a published checkpoint that someone may still hold.
        """
        for path in tiles_between(old, new):
            if path.width == TILE_WIDTH and (path.n * TILE_WIDTH << 8 * path.level) < old:
                for partial in list(self._store.paths(f"{path}.p")):
                    self._store.delete(partial)


def read_tail(store: Store, size: int) -> list[bytes]:
    """Entries of the bundle that is not full at this size."""
    n, width = divmod(size, TILE_WIDTH)
    return read_bundle(store, n, width) if width else []


def read_bundle(store: Store, n: int, width: int) -> list[bytes]:
    """Entries of a bundle; of the full one where the partial one is collected.

    Raises:
        NotFoundError: There is none.
        FormatError: It is not one.
    """
    try:
        return decode_bundle(store.get(entries_path(n, width)), width)
    except NotFoundError:
        if width == TILE_WIDTH:
            raise
    return decode_bundle(store.get(entries_path(n)), width)


def read_entries(store: Store, size: int, start: int, stop: int) -> list[bytes]:
    """Leaves ``start`` to ``stop`` of a ledger that has ``size`` or more."""
    found: list[bytes] = []
    for n in range(start // TILE_WIDTH, -(-stop // TILE_WIDTH)):
        found += read_bundle(store, n, min(TILE_WIDTH, size - n * TILE_WIDTH))
    begin = start - start % TILE_WIDTH
    return found[start - begin : stop - begin]


def read_published(store: Store) -> Checkpoint | None:
    """What the published checkpoint says, its signature unchecked; ``None`` when it says nothing."""
    try:
        text = store.get(CHECKPOINT).partition(b"\n\n")[0] + b"\n"
        return parse_checkpoint(text.decode())
    except (NotFoundError, FormatError, UnicodeDecodeError):
        return None


def has_tiles_beyond(store: Store, size: int) -> bool:
    """True if the bundle at the edge of a tree of this size has grown further, or the next exists."""
    n, width = divmod(size, TILE_WIDTH)
    around = [*store.paths(f"{entries_path(n)}.p"), *_existing(store, entries_path(n))]
    return any(parse_path(path).width > width for path in around)


def _existing(store: Store, path: str) -> list[str]:
    try:
        store.get(path)
    except NotFoundError:
        return []
    return [path]
