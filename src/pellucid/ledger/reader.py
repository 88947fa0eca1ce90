"""Reads the published ledger: entries, proofs, openings. Believes the checkpoint's signature only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from pellucid.core.checkpoint import Checkpoint, verify_checkpoint
from pellucid.core.entry import Entry, Opening, parse_entry
from pellucid.core.merkle.hashing import hash_leaf
from pellucid.core.merkle.proof import consistency_proof, inclusion_proof
from pellucid.core.merkle.tile import TILE_WIDTH, HashReader
from pellucid.core.note import parse_vkey
from pellucid.core.subject import summarise
from pellucid.core.times import parse_time
from pellucid.errors import FormatError, NotFoundError, ProofError
from pellucid.ledger.publisher import CHECKPOINT, read_bundle
from pellucid.ledger.vault import Vault
from pellucid.ports import Found, Index, Query, Store

BUNDLES_MAX: Final = 64  # limit: bundles kept in memory, about 300 kB each


class LedgerReader:
    """The published ledger (``ports.EntryReader``).

    Args:
        store: Where tiles and the checkpoint lie.
        index: Hot index, or ``None``: searches then read every entry.
        vault: Openings, or ``None``: none are known.
        vkey: The log's verifier key.
    """

    def __init__(self, store: Store, index: Index | None, vault: Vault | None, vkey: str) -> None:
        self._store, self._index, self._vault, self._vkey = store, index, vault, vkey
        self._hashes: HashReader | None = None
        self._bundles: OrderedDict[int, list[bytes]] = OrderedDict()
        self._trusted: tuple[bytes, Checkpoint] | None = None

    @property
    def origin(self) -> str:
        """Name of the log."""
        return parse_vkey(self._vkey).name

    # -- the tree

    def checkpoint(self) -> bytes:
        """Latest published checkpoint, verbatim.

        Raises:
            NotFoundError: None is published yet.
        """
        try:
            return self._store.get(CHECKPOINT)
        except NotFoundError as error:
            raise NotFoundError(
                "checkpoint: expected a published one, got none", hint="nothing is recorded yet"
            ) from error

    def head(self) -> Checkpoint:
        """Latest published checkpoint, verified.

        Raises:
            NotFoundError: None is published yet.
            SignatureError: The log's key did not sign it.
        """
        raw = self.checkpoint()
        if self._trusted is None or self._trusted[0] != raw:
            self._trusted = (raw, verify_checkpoint(raw, self._vkey))
        return self._trusted[1]

    def size(self) -> int:
        """Entries in the published ledger; 0 when nothing is published."""
        try:
            return self.head().size
        except NotFoundError:
            return 0

    def entry(self, index: int) -> bytes:
        """Leaf number ``index``.

        Raises:
            NotFoundError: Beyond the published size.
        """
        size = self.size()
        if not 0 <= index < size:
            raise NotFoundError(f"entry {index:,}: expected below size {size:,}")
        return self._bundle(index // TILE_WIDTH, size)[index % TILE_WIDTH]

    def entries(self, start: int, stop: int) -> Iterator[bytes]:
        """Leaves ``start`` to ``stop``, in order."""
        size = self.size()
        stop = min(stop, size)
        for n in range(start // TILE_WIDTH, -(-stop // TILE_WIDTH)):
            base = n * TILE_WIDTH
            yield from self._bundle(n, size)[max(0, start - base) : stop - base]

    def _bundle(self, n: int, size: int) -> list[bytes]:
        width = min(TILE_WIDTH, size - n * TILE_WIDTH)
        found = self._bundles.get(n)
        if found is None or len(found) < width:
            found = self._bundles[n] = read_bundle(self._store, n, width)
            if len(self._bundles) > BUNDLES_MAX:
                self._bundles.popitem(last=False)
        return found

    def _node(self, size: int) -> HashReader:
        if self._hashes is None or self._hashes.size != size:
            self._hashes = HashReader(self._store.get, size)
        return self._hashes

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """Proof that leaf ``index`` is in the tree of ``size``, at most the published one."""
        return inclusion_proof(index, size, self._node(self.size()).node)

    def consistency_proof(self, old: int, new: int) -> list[bytes]:
        """Proof that the tree of ``old`` is a prefix of that of ``new``."""
        return consistency_proof(old, new, self._node(self.size()).node)

    def leaf_hash(self, index: int) -> bytes:
        """Hash of a leaf as its tile has it.

        Raises:
            ProofError: The entry's bytes do not match it.
        """
        hashed, stored = hash_leaf(self.entry(index)), self._node(self.size()).node(0, index)
        if hashed != stored:
            raise ProofError(f"entry {index:,}: expected the bytes its tile was made of, got others")
        return stored

    # -- search

    def find(self, query: Query) -> list[Found]:
        """Entries that match; without an index every published entry is read."""
        return self._scan(query) if self._index is None else self._index.find(query)

    def _scan(self, query: Query) -> list[Found]:
        size = self.size()
        found = [
            row
            for index, raw in enumerate(self.entries(0, size))
            if _is_match(row := self._found(index, raw), query, self._subject(row.key, query))
            and (not query.package or parse_entry(raw).data.get("package") == query.package)
        ]
        return (found[::-1] if query.newest_first else found)[: query.limit]

    def _found(self, index: int, raw: bytes) -> Found:
        entry = parse_entry(raw)
        return describe(index, entry, self.openings(entry.id) if entry.type == "call" else ())

    def _subject(self, key: str, query: Query) -> str:
        return (self._vault.subject_of(key) or "") if query.subject and self._vault else ""

    def locate(self, key: str) -> int:
        """Index of the entry with a key.

        Raises:
            NotFoundError: No published entry has it.
        """
        found = self.find(Query(key=key, limit=1))
        if not found:
            raise NotFoundError(f"entry {key!r:.120}: expected one in the ledger, got none")
        index = found[0].index
        if index >= self.size() or parse_entry(self.entry(index)).id != key:
            raise NotFoundError(
                f"entry {key!r:.120}: the index names another entry",
                hint="make the index again: pellucid ledger index",
            )
        return index

    def get(self, key: str) -> bytes:
        """Entry with a key.

        Raises:
            NotFoundError: No published entry has it.
        """
        return self.entry(self.locate(key))

    def openings(self, key: str) -> tuple[Opening, ...]:
        """What the vault still holds for an entry; ``()`` when erased or lost."""
        return self._vault.openings(key) if self._vault is not None else ()


def describe(index: int, entry: Entry, openings: Sequence[Opening]) -> Found:
    """A row as an index has it, from an entry and its openings."""
    label = next((o for o in openings if o.kind == "output" and o.label is not None), None)
    foreign = next((o.value for o in openings if o.kind == "trace_id" and o.value), b"")
    said = summarise(entry.type, _time(entry), entry.data)
    return Found(
        index=index, key=entry.id, type=entry.type, time_ns=said.time_ns, model=said.model,
        version=said.version, outcome=said.outcome, label=(label.label or "") if label else "",
        confidence=(label.confidence or "") if label else "",
        trace=said.trace or foreign.decode("utf-8", "replace"),
    )  # fmt: skip


def _time(entry: Entry) -> int:
    try:
        return parse_time(entry.time)
    except FormatError:
        return 0


def _is_match(row: Found, query: Query, subject: str) -> bool:
    wanted = ("key", "trace", "type", "model", "label", "outcome")
    equal = all(getattr(query, name) in ("", getattr(row, name)) for name in wanted)
    return equal and query.since_ns <= row.time_ns <= query.until_ns and query.subject in ("", subject)
