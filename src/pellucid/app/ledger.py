"""Furnishes the ledger room of a site: who writes, who integrates, who reads."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pellucid import __version__, schemes
from pellucid.app.clock import SystemClock
from pellucid.app.sinks import close_feeders, end_beside_hung_sinks, open_feeders, telling_failures
from pellucid.app.site import Site, read_file
from pellucid.core.digest import sha256
from pellucid.core.entry import Entry, parse_entry
from pellucid.errors import LedgerHaltedError, NotFoundError, UnavailableError, UsageError
from pellucid.ledger.epoch import next_epoch
from pellucid.ledger.publisher import CHECKPOINT, read_published
from pellucid.ledger.reader import LedgerReader
from pellucid.ledger.recorder import (
    DoorRecorder,
    JournalRecorder,
    NothingRecorder,
    RecorderLimits,
    open_board,
)
from pellucid.ledger.sequencer import POLL_S, Sequencer
from pellucid.ledger.state import State, database_error, open_database
from pellucid.ledger.vault import Vault
from pellucid.ports import Index, Query, Store

if TYPE_CHECKING:
    from pellucid.ledger.fsck import FsckReport

WAIT_S: Final = 30.0  # limit: how long a command waits for a running sequencer
MOMENT_S: Final = 5.0  # limit: how long it waits for what that sequencer may never bring
NICE: Final = 10  # serving goes first


class Ledger(msgspec.Struct, frozen=True):
    """A site's ledger, open for reading. ``close`` it, or use ``contextlib.closing``."""

    reader: LedgerReader
    vault: Vault
    index: Index
    store: Store

    def close(self) -> None:
        self.vault.close()
        self.index.close()


def ledger_vkey(site: Site) -> str:
    """Verifier key of the site's log, from its trust folder."""
    return read_file(site.trust_folder / "log.vkey", "log.vkey").decode("ascii", "replace").strip()


def open_ledger(site: Site) -> Ledger:
    """Open the ledger for reading; nothing is integrated by it.

    Raises:
        NotFoundError: The site has no ledger folder.
    """
    folder = site.ledger_folder
    if not folder.is_dir():
        raise NotFoundError(f"ledger: expected a folder at {folder}, got none")
    store, vault, index = open_store(folder), Vault(folder / "vault.db"), open_index(site)
    return Ledger(LedgerReader(store, index, vault, ledger_vkey(site)), vault, index, store)


def open_store(folder: Path) -> Store:
    """Where a ledger's tiles and checkpoint lie."""
    store: Store = schemes.from_uri("store", f"file:{folder}")
    return store


def open_index(site: Site) -> Index:
    """The site's hot index."""
    scheme, _, rest = site.config.ledger.index.partition(":")
    uri = f"{scheme}:{site.ledger_folder / rest}" if scheme == "sqlite" else site.config.ledger.index
    index: Index = schemes.from_uri("index", uri)
    return index


def ledger_sizes(site: Site) -> tuple[int, int]:
    """Entries integrated, and published; read beside a running sequencer."""
    state = open_database(site.ledger_folder / "state.db", read_only=True)
    with closing(state) as db:
        (integrated,) = db.execute("SELECT size FROM head").fetchone()
    shown = read_published(open_store(site.ledger_folder))
    return integrated, shown.size if shown else 0


# -- writing --------------------------------------------------------------------------------------


def append_event(
    site: Site, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None
) -> str:
    """Record an event durably and return its key; whoever integrates next brings it into the tree.

    Raises: as ``ports.EventRecorder``.
    """
    with DoorRecorder(site.ledger_folder, site.config.site.node, clock=SystemClock()) as recorder:
        return recorder.event(kind, data, personal)


def record_event(
    site: Site, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None
) -> str:
    """Record an event durably and return its key; integrated at once if no sequencer runs."""
    key = append_event(site, kind, data, personal)
    integrate(site)
    return key


def _limits(site: Site) -> RecorderLimits:
    ledger = site.config.ledger
    return RecorderLimits(
        flush_s=ledger.flush_ms / 1000, in_flight_max=ledger.in_flight_max,
        backlog_max_bytes=ledger.backlog_max_bytes,
        rotate_s=ledger.rotate_s, rotate_bytes=ledger.rotate_bytes,
    )  # fmt: skip


def start_recorder(
    site: Site, worker: int = 0, *, workers: int = 1, epoch: int | None = None
) -> JournalRecorder | NothingRecorder:
    """Begin a worker's part of an epoch: board, journal, ``epoch`` entry.

    Args:
        worker: Its number, from 0.
        workers: How many the epoch has.
        epoch: The epoch that another worker of this start began; ``None`` begins the next.
    """
    folder, clock, limits = site.ledger_folder, SystemClock(), _limits(site)
    facts = {"config": site.config_digest, "policy": sha256(site.policy_bytes())}
    with contextlib.ExitStack() as stack:
        epoch = stack.enter_context(next_epoch(folder)) if epoch is None else epoch
        source = f"{site.config.site.node}/{epoch}/{worker}"
        board = open_board(folder, source, limits=limits, clock=clock)
    mode = site.config.ledger.record
    recorder = JournalRecorder(
        folder, source, clock=clock, mode="journaled" if mode == NothingRecorder.mode else mode,
        limits=limits, facts=facts, board=board,
    )  # fmt: skip
    opened = {"epoch": epoch, "phase": "open", "record": mode, "version": __version__, "worker": worker}
    recorder.event("epoch", opened | facts | {"workers": workers})
    return NothingRecorder(recorder) if mode == NothingRecorder.mode else recorder


# -- integrating ----------------------------------------------------------------------------------


@contextmanager
def open_sequencer(site: Site, *, sinks: bool = True) -> Iterator[Sequencer]:
    """The site's sequencer, with the index, and the sinks on their threads."""
    folder, origin = site.ledger_folder, site.config.ledger.origin
    folder.mkdir(parents=True, exist_ok=True)
    store = open_store(folder)
    state, vault, index = State(folder / "state.db", origin), Vault(folder / "vault.db"), open_index(site)
    feeders = open_feeders(site, store) if sinks else []
    sequencer = Sequencer(
        folder=folder, node=site.config.site.node, origin=origin, store=store, state=state,
        vault=vault, signer=site.signer("log"), clock=SystemClock(), followers={"index": index},
        feeders=feeders, interval_s=site.config.ledger.checkpoint_ms / 1000,
    )  # fmt: skip
    try:
        yield sequencer
    finally:
        sequencer.close()
        state.close()
        vault.close()
        index.close()
        close_feeders(feeders)


def integrate(site: Site) -> int:
    """Integrate what is recorded; 0 at once where a sequencer runs and does it.

    Sinks are left to the running sequencer: a command's standard output is its own.
    """
    try:
        with open_sequencer(site, sinks=False) as sequencer:
            try:
                return sequencer.drain()
            except UnavailableError:
                if is_sequencing(site):
                    return 0
                raise
    except sqlite3.Error as error:  # a caller may have more to tell than that its database fails
        raise database_error(error, "ledger: expected its databases to work") from error


def is_sequencing(site: Site) -> bool:
    """True while some process holds the sequencer's lock."""
    from pellucid.ledger.sequencer import Lock

    try:
        Lock(site.ledger_folder / "lock").release()
    except UnavailableError:
        return True
    return False


def settle(site: Site) -> int:
    """``integrate`` if there is a journal at all: a copy of a ledger is read without the log's key."""
    journal = site.ledger_folder / "journal"
    return integrate(site) if any(journal.glob("*.journal")) else 0


def wait_integrated(site: Site, key: str, *, timeout_s: float = WAIT_S) -> int:
    """Index of an entry once it is integrated: by us, or by the sequencer that runs.

    Raises:
        NotFoundError: It was not within the time, or nothing is left that could bring it.
    """
    clock = SystemClock()
    limit_ns = clock.monotonic_ns() + int(timeout_s * 1e9)
    while True:
        settle(site)
        with closing(open_ledger(site)) as ledger:
            try:
                return ledger.reader.locate(key)
            except NotFoundError:
                if not is_sequencing(site) or clock.monotonic_ns() > limit_ns:
                    raise
        clock.wait(POLL_S)


def find_entry(site: Site, name: str) -> tuple[int, str]:
    """Index and key of an entry by either of them.

    Raises:
        NotFoundError: No such entry.
    """
    if not name.isascii() or not name.isdecimal():
        return wait_integrated(site, name, timeout_s=MOMENT_S), name
    settle(site)
    with closing(open_ledger(site)) as ledger:
        return int(name), parse_entry(ledger.reader.entry(int(name))).id


def sequencer_command(site: Site) -> list[str]:
    """Command line of the sequencer's own process; it ends when its standard input closes."""
    return [sys.executable, "-m", "pellucid", "ledger", "sequence", "--site", str(site.root)]


def run_sequencer(site: Site, *, stop_when_parent_closes_stdin: bool = True) -> None:
    """Integrate until asked to stop (SIGTERM, SIGINT, or the parent is gone), then what is left."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if stop_when_parent_closes_stdin:
        threading.Thread(target=_wait_for_parent, args=(stop,), daemon=True).start()
    os.nice(NICE)
    with open_sequencer(site) as sequencer, telling_failures(site) as sequencer.report:
        sequencer.run(stop)
    end_beside_hung_sinks()


def _wait_for_parent(stop: threading.Event) -> None:
    while os.read(0, 4096):
        continue
    stop.set()


# -- erasing --------------------------------------------------------------------------------------


class Erased(msgspec.Struct, frozen=True):
    """Key of the erasure's entry, and of how many calls something was erased under it."""

    entry: str
    calls: int


def erase(
    site: Site, *, call: str = "", rows: list[int] | None = None, subject: str = "", rule: str, reason: str
) -> Erased:
    """Erase what opens a call, some of its rows, or all calls of a subject.

    The ``erasure`` entry is recorded first; the sequencer carries it out right after its commit.
    Copies in a live writer's journal go with the segment, ``ledger.rotate_s`` later at most.

    Raises:
        NotFoundError: No such call, or none of the subject: a name mistyped must not look erased.
        UsageError: Neither a call nor a subject, or both.
    """
    if bool(call) == bool(subject) or (rows and not call):
        raise UsageError("erase: expected a call (with rows, or whole) or a subject, got another choice")
    if call:
        with closing(open_ledger(site)) as ledger:
            _verify_rows(parse_entry(ledger.reader.get(call)), rows or [])
    else:
        _wait_subject(site, subject)
    with closing(open_ledger(site)) as ledger:
        before = max((seq for seq, _ in ledger.vault.forgotten_since(0)), default=0)
    data: dict[str, Any] = {"reason": reason, "rows": rows or [], "rule": rule}
    key = record_event(
        site, "erasure", data | ({"call": call} if call else {}), {"subject": subject} if subject else None
    )
    wait_integrated(site, key)
    _wait_erased(site, key, call)
    with closing(open_ledger(site)) as ledger:
        vault = ledger.vault
        told = {each for _, each in vault.forgotten_since(before)} - {key}  # it named the subject too
        return Erased(key, sum(any(by == key for _, by in vault.erasures(each)) for each in told))


def _wait_subject(site: Site, subject: str) -> None:
    clock = SystemClock()
    limit_ns = clock.monotonic_ns() + int(MOMENT_S * 1e9)
    while True:
        settle(site)
        with closing(open_ledger(site)) as ledger:
            if ledger.reader.find(Query(type="call", subject=subject, limit=1)):
                return
        if not is_sequencing(site) or clock.monotonic_ns() > limit_ns:
            raise NotFoundError(
                f"subject {subject!r:.120}: expected calls of it in the vault, got none",
                hint="nothing was erased; names are compared exactly, and the erased are not found again",
            )
        clock.wait(POLL_S)


def _verify_rows(entry: Entry, rows: list[int]) -> None:
    count = entry.data.get("row_count")
    if entry.type != "call" or not isinstance(count, int):
        raise UsageError(f"entry {entry.id}: expected a call, got {entry.type}")
    beyond = [row for row in rows if not 0 <= row < count]
    if beyond:
        raise UsageError(f"call {entry.id}: expected rows 0 to {count - 1}, got {beyond}")


def _wait_erased(site: Site, key: str, call: str) -> None:
    """The sequencer that committed the entry carries it out next; usually it has."""
    clock = SystemClock()
    limit_ns = clock.monotonic_ns() + int(WAIT_S * 1e9)
    with closing(open_ledger(site)) as ledger:
        index = ledger.reader.locate(key)
        while ledger.vault.erased_to <= index:
            if clock.monotonic_ns() > limit_ns:
                raise UnavailableError(f"erasure {key}: expected it carried out within {WAIT_S:g} s")
            clock.wait(POLL_S)
        if call and not ledger.vault.erasures(call):
            raise LedgerHaltedError(f"erasure {key}: expected {call} erased, got it still held")


# -- checking -------------------------------------------------------------------------------------


def check_ledger(folder: Path, vkey: str, origin: str | None) -> FsckReport:
    """Read every value of a ledger again; a copy without ``state.db`` is checked without it.

    Args:
        folder: The ledger, or a copy of its served files.
        vkey: The log's verifier key.
        origin: The log's name, to check ``state.db`` too; ``None`` for a copy.

    Raises:
        NotFoundError: A copy without a checkpoint: nothing says what should be there.
    """
    from pellucid.ledger.fsck import fsck

    if origin is None and not (folder / CHECKPOINT).is_file():
        raise NotFoundError(
            f"ledger: expected a checkpoint in {folder}, got none",
            hint="a log's folder holds checkpoint and tile/; without its checkpoint nothing can be checked",
        )
    if origin is None or not (folder / "state.db").exists():
        return fsck(open_store(folder), None, vkey)
    with closing(State(folder / "state.db", origin)) as state:
        return fsck(open_store(folder), state, vkey)


def rebuild_index(site: Site) -> int:
    """Throw the hot index away and feed it again; returns the number of entries.

    Raises:
        UnavailableError: A sequencer runs; it feeds the index.
    """
    with open_sequencer(site, sinks=False) as sequencer:
        sequencer.drain()  # takes the lock
        index: Any = sequencer.followers["index"]
        index.clear()
        sequencer.close()
        sequencer.drain()  # opens again, and feeds who is behind
        count: int = index.position()
        return count
