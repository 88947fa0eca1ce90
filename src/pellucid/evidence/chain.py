"""What stands behind one call, gathered from the ledger: its batch, load, package, replays, erasures.

Everything is found through ``ports.EntryReader`` and judged by digests, so that a wrong row in the hot
index can at most hide an entry, never put a false one in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.entry import Entry, Opening, is_opening, output_digest, parse_entry, rows_leaf
from pellucid.core.merkle.hashing import hash_leaf, root_of
from pellucid.core.times import parse_time
from pellucid.errors import NotFoundError, VerificationError
from pellucid.ports import EntryReader, Query

BATCH_DISTANCE_MAX: Final = 4096  # limit: a batch entry stands right before its calls
ROWS_BYTES_MAX: Final = 256 * 2**20  # limit: commitments of one call
FOUND_MAX: Final = 10_000  # limit: entries of one kind that are looked through
PACKAGE_TYPES: Final = ("build", "package", "qualification", "approval")


@dataclass(frozen=True, slots=True)
class Leaf:
    """An entry and where it stands."""

    index: int
    entry: Entry

    @property
    def digest(self) -> str:
        return sha256(self.entry.raw)


@dataclass(frozen=True, slots=True)
class Chain:
    """One call and what stands behind it.

    Attributes:
        call: The call's entry.
        batch: The batch it shared, or ``None`` when it ran alone or never ran.
        load: The admission of the engine that answered, or ``None`` when none is found.
        package: Entries about the package, oldest first.
        replays, erasures: Entries about this call, oldest first.
        openings: What the vault still holds of it.
    """

    call: Leaf
    batch: Leaf | None
    load: Leaf | None
    package: tuple[Leaf, ...]
    replays: tuple[Leaf, ...]
    erasures: tuple[Leaf, ...]
    openings: tuple[Opening, ...]

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Every entry, in the order of the log."""
        single = [leaf for leaf in (self.call, self.batch, self.load) if leaf is not None]
        every = {leaf.index: leaf for leaf in (*single, *self.package, *self.replays, *self.erasures)}
        return tuple(every[index] for index in sorted(every))


def find_call(reader: EntryReader, key: str) -> Leaf:
    """The entry of a call.

    Raises:
        NotFoundError: No call of that key is in the published ledger.
    """
    for found in reader.find(Query(key=key, type="call", limit=2)):
        leaf = read_leaf(reader, found.index)
        if leaf.entry.type == "call" and leaf.entry.id == key:
            return leaf
    raise NotFoundError(
        f"call {key!r:.120}: expected an entry in the ledger, got none",
        hint="the call key is in the header 'pellucid-call'; search with: pellucid ledger show",
    )


def read_leaf(reader: EntryReader, index: int) -> Leaf:
    """Entry of an index."""
    return Leaf(index, parse_entry(reader.entry(index)))


def gather(reader: EntryReader, key: str, erased_by: str | None = None) -> Chain:
    """Everything that stands behind a call.

    Args:
        reader: The published ledger.
        key: The call's key.
        erased_by: Key of the erasure entry under which the vault erased it, where it knows one: the
            erasure of a subject does not name the subject's calls.

    Raises:
        NotFoundError: No call of that key.
    """
    call = find_call(reader, key)
    data = call.entry.data
    package = data.get("package")
    return Chain(
        call=call,
        batch=_batch(reader, call),
        load=find_load(reader, call),
        package=tuple(_about_package(reader, package)) if package else (),
        replays=_about_call(reader, "replay", key),
        erasures=_erasures(reader, key, erased_by),
        openings=reader.openings(key),
    )


def verify_answers(chain: Chain) -> Chain:
    """The chain itself, if what the vault says was answered is what the entry committed to.

    Raises:
        VerificationError: A row's answer, label or confidence is another.
    """
    data = chain.call.entry.data
    rows = data["rows"] if "rows" in data else _rows_below(chain)
    for opening in chain.openings:
        if opening.kind != "output":
            continue
        digest = output_digest(opening.digest or b"", opening.label, opening.confidence)
        if not is_opening(str(rows[opening.row]["output"]), opening.key, digest):
            raise VerificationError(
                f"call {chain.call.entry.id} row {opening.row}: expected the answer that was recorded, "
                "got another from the vault",
                hint="the vault was changed, or belongs to another ledger",
            )
    return chain


def _rows_below(chain: Chain) -> list[dict[str, str | None]]:
    kept = next((o.value for o in chain.openings if o.kind == "rows" and o.value is not None), b"[]")
    rows: list[dict[str, str | None]] = canonical.decode(kept, size_max=ROWS_BYTES_MAX)
    tree = chain.call.entry.data["rows_tree"]
    if chain.openings and root_of([hash_leaf(rows_leaf(row)) for row in rows]).hex() != tree["root"]:
        raise VerificationError(f"call {chain.call.entry.id}: expected the rows of its root, got others")
    return rows


def _batch(reader: EntryReader, call: Leaf) -> Leaf | None:
    digest = call.entry.data.get("batch")
    if digest is None:
        return None
    # the sequencer writes a batch right before its calls: walk back instead of asking an index
    for index in range(call.index - 1, max(-1, call.index - BATCH_DISTANCE_MAX), -1):
        raw = reader.entry(index)
        if sha256(raw) == digest:
            return Leaf(index, parse_entry(raw))
    raise NotFoundError(f"call {call.entry.id}: expected its batch entry before it, got none")


def find_load(reader: EntryReader, call: Leaf) -> Leaf | None:
    """The last admission, before the call, of the engine that answered it."""
    data = call.entry.data
    if data.get("package") is None:
        return None
    query = Query(
        type="load", package=data["package"], until_ns=parse_time(data["accepted"]), limit=FOUND_MAX
    )
    wanted = [data.get(name) for name in ("model", "version", "package", "engine")]
    for leaf in _leaves(reader, query):
        got = [leaf.entry.data.get(name) for name in ("model", "version", "package", "engine")]
        if leaf.index < call.index and leaf.entry.type == "load" and got == wanted:
            return leaf
    return None


def _about_package(reader: EntryReader, package: str) -> Iterator[Leaf]:
    for kind in PACKAGE_TYPES:
        query = Query(type=kind, package=package, limit=FOUND_MAX, newest_first=False)
        for leaf in _leaves(reader, query):
            if leaf.entry.type == kind and leaf.entry.data.get("package") == package:
                yield leaf


def _erasures(reader: EntryReader, key: str, erased_by: str | None) -> tuple[Leaf, ...]:
    found = {leaf.index: leaf for leaf in _about_call(reader, "erasure", key)}
    if erased_by is not None:
        query = Query(key=erased_by, type="erasure", limit=1)
        found |= {leaf.index: leaf for leaf in _leaves(reader, query) if leaf.entry.id == erased_by}
    return tuple(found[index] for index in sorted(found))


def _about_call(reader: EntryReader, kind: str, key: str) -> tuple[Leaf, ...]:
    query = Query(type=kind, limit=FOUND_MAX, newest_first=False)
    return tuple(
        leaf
        for leaf in _leaves(reader, query)
        if leaf.entry.type == kind and leaf.entry.data.get("call") == key
    )


def _leaves(reader: EntryReader, query: Query) -> Iterator[Leaf]:
    for found in reader.find(query):
        yield read_leaf(reader, found.index)
