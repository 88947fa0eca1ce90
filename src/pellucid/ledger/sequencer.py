"""The sequencer: one process, its own key, one step after another.

Order of writes in a step, and why a crash between any two is harmless:

1. journal synced, then the **plan** (which bytes of which segments become the entries from which
   index on) in state.db: from here on the order is fixed, and a restart finishes exactly it;
2. **vault**: salts, values and new subjects' keys, upserted: the same again on a restart;
3. **tiles and bundles**, created exclusively, compared if present: the same again;
4. signature, then **commit** in state.db (size, root, checkpoint, positions, call numbers, end of the
   plan) by compare-and-swap: the entries exist from here on. Never two roots for one size, never a
   smaller size;
5. **checkpoint** by rename: a restart shows the committed one if the world sees an older one;
6. **followers** (the index; sinks are told, and fed on threads of their own) and erasures: each
   remembers its position and is fed again;
7. superseded partial tiles, then integrated segments are **deleted**: a restart does it again.

After any failure the next step begins by reopening: state, plan, tiles. A root that the tiles do
not give stops the ledger (``LedgerHaltedError``). Source: spec/ledger.md, section 5.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from pellucid.errors import LedgerHaltedError, UnavailableError
from pellucid.ledger.board import sync_folder
from pellucid.ledger.feeder import Feeder
from pellucid.ledger.follower import Eraser, Followers
from pellucid.ledger.forming import Former, is_worker
from pellucid.ledger.intake import Gathered, Intake
from pellucid.ledger.journal import parse_segment_name
from pellucid.ledger.publisher import Publisher, has_tiles_beyond, read_entries, read_published
from pellucid.ledger.recovery import Recovery, remove_drafts
from pellucid.ledger.state import Head, Plan, State
from pellucid.ledger.vault import Vault
from pellucid.ports import Clock, Follower, Signer, Store

POLL_S: Final = 0.05  # how long a record waits at most before someone looks
ENTRIES_MAX: Final = 4096  # limit of a step: about 5 MiB of entries in memory


class Stop(Protocol):
    """Something that can be asked to stop (``threading.Event``)."""

    def is_set(self) -> bool: ...


class Lock:
    """``ledger/lock``: one sequencer a ledger. Ends with the process that holds it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise UnavailableError(
                "ledger: expected no other sequencer, got one that holds the lock",
                hint="it integrates what is recorded; there is nothing to do",
            ) from None

    def release(self) -> None:
        os.close(self._fd)


class _Opened(msgspec.Struct):
    """What a step works with; thrown away and made again after any failure."""

    publisher: Publisher
    intake: Intake
    recovery: Recovery
    followers: Followers
    eraser: Eraser


class Sequencer(msgspec.Struct):
    """Integrates what recorders append.

    Args:
        folder: The ledger's folder (``journal``, ``board``, ``lock``).
        node: Node name of this log.
        origin: Name of the log.
        followers: Fed within the step: the index.
        feeders: Feed the sinks beside it; started and closed by the caller.
        interval_s: Least time between two steps of ``run`` while entries arrive: checkpoints are
            signed that often.
        boot_id: For tests; this boot's otherwise.
        report: Told by ``run`` whenever the followers that fail, or why, have changed.
    """

    folder: Path
    node: str
    origin: str
    store: Store
    state: State
    vault: Vault
    signer: Signer
    clock: Clock
    followers: Mapping[str, Follower] = msgspec.field(default_factory=dict)
    feeders: Sequence[Feeder] = ()
    interval_s: float = 0.25
    entries_max: int = ENTRIES_MAX
    boot_id: bytes = b""
    report: Callable[[Mapping[str, str]], None] | None = None
    _opened: _Opened | None = None
    _lock: Lock | None = None

    # -- opening

    def _open(self) -> _Opened:
        if self._opened is None:
            if self._lock is None:
                self._lock = Lock(self.folder / "lock")
            self._opened = self._furnish()
            self._resume(self._opened)
        return self._opened

    def _furnish(self) -> _Opened:
        for name in ("journal", "board"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        head = self.state.head()
        self._refuse_rollback(head)
        publisher = Publisher(self.store, self.signer, self.origin, head)
        intake = Intake(self.folder / "journal", self.state.positions())
        recovery = Recovery(
            self.folder, self.node, state=self.state, intake=intake, clock=self.clock, boot_id=self.boot_id
        )
        followers = Followers(self.followers, self.vault, self._entries, self.feeders)
        eraser = Eraser(self.vault, followers, self._entries)
        return _Opened(publisher, intake, recovery, followers, eraser)

    def _resume(self, opened: _Opened) -> None:
        """Do what was left undone when the last holder of the lock ended."""
        size = opened.publisher.head.size
        opened.publisher.republish()
        opened.publisher.collect(max(0, size - ENTRIES_MAX), size)
        opened.eraser.catch_up(size)
        plan = self.state.plan()
        if plan is not None:
            self._finish(opened, plan)
        stale = opened.intake.stale_positions()
        if stale:
            sync_folder(opened.intake.folder)
            self.state.forget_segments(stale, _doors(stale))
        remove_drafts(self.folder, self.clock.now_ns())
        opened.followers.catch_up(opened.publisher.head.size)
        opened.eraser.finish()

    def _refuse_rollback(self, head: Head) -> None:
        """A state behind what was published, or beside tiles it never planned, was put back."""
        shown = read_published(self.store)
        if shown is not None and shown.size > head.size:
            raise LedgerHaltedError(
                f"state.db: expected the published size {shown.size:,} or more, got {head.size:,}",
                hint="state.db was lost or put back; bring the newest one, or begin a new log",
            )
        if self.state.plan() is None and has_tiles_beyond(self.store, head.size):
            raise LedgerHaltedError(
                f"tiles: expected none beyond size {head.size:,}, got some that no plan names",
                hint="state.db was lost or put back; bring the newest one, or begin a new log",
            )

    def _entries(self, start: int, stop: int) -> list[bytes]:
        """Committed leaves ``start`` to ``stop``."""
        return read_entries(self.store, self.state.head().size, start, stop)

    # -- stepping

    def step(self) -> int:
        """Integrate what is there now; returns the number of new entries.

        Raises:
            UnavailableError: Another sequencer holds the lock, or a disk is full; try again.
            LedgerHaltedError: Something is not as it was committed.
        """
        done = False
        try:
            opened = self._open()
            count = self._integrate(opened)
            if opened.recovery.run():
                count += self._integrate(opened)
            opened.followers.catch_up(opened.publisher.head.size)
            if not count:
                opened.eraser.finish()
            self._tidy(opened)
            done = True
        finally:
            if not done:
                self._drop()
        return count

    def _integrate(self, opened: _Opened) -> int:
        gathered = opened.intake.gather(self.entries_max)
        if not gathered.entries:
            return 0
        plan = Plan(opened.publisher.head.size, tuple(gathered.ranges))
        self.state.save_plan(plan)
        return self._carry_out(opened, gathered)

    def _finish(self, opened: _Opened, plan: Plan) -> None:
        if plan.first != opened.publisher.head.size:
            raise LedgerHaltedError(
                f"state.db: expected a plan for index {opened.publisher.head.size:,}, got {plan.first:,}"
            )
        self._carry_out(opened, opened.intake.read(plan.ranges))

    def _carry_out(self, opened: _Opened, gathered: Gathered) -> int:
        old = opened.publisher.head
        former = Former(
            self.node,
            old.size,
            contexts=opened.intake.contexts,
            numbers=self.state.numbers,
            subject_keys=self.vault.subject_key,
        )
        for source, payload, place in gathered.records:
            former.add(source, payload, place)
        self.vault.put_many(former.formed)
        new = opened.publisher.grow([formed.entry for formed in former.formed])
        self.state.commit(old, new, gathered.stops(), former.numbers())
        opened.intake.advance(gathered.stops())
        opened.publisher.publish(new)
        opened.followers.feed(old.size, former.formed)
        opened.eraser.apply(old.size, former.formed)
        return len(former.formed)

    def _tidy(self, opened: _Opened) -> None:
        dropped = opened.intake.drop_finished(opened.recovery.waiting())
        if dropped:
            self.state.forget_segments(dropped, _doors(dropped))

    def failures(self) -> dict[str, str]:
        """Followers that could not be fed, and why."""
        return dict(self._opened.followers.failures) if self._opened else {}

    # -- running

    def drain(self) -> int:
        """Step until nothing is left to integrate; returns the number of new entries."""
        total = 0
        while count := self.step():
            total += count
        return total

    def run(self, stop: Stop) -> None:
        """Step until asked to stop; then integrate what is left.

        A full disk or a lock held by another is waited out; anything else ends the run.
        """
        told: dict[str, str] = {}
        while not stop.is_set():
            try:
                busy = self.step()
            except UnavailableError:
                busy = 0
            failing = self.failures()
            if self.report is not None and failing != told:
                self.report(failing)
                told = failing
            full = busy >= self.entries_max
            self.clock.wait(0.0 if full else self.interval_s if busy else POLL_S)
        try:
            self.drain()
        except UnavailableError:
            return  # whoever holds the lock does it, or the next start

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.intake.close()
        self._opened = None

    def close(self) -> None:
        """Let go of journals and lock; state, vault and store are the caller's."""
        self._drop()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _doors(segments: list[str]) -> list[str]:
    """Commands whose only segment is gone: nobody will use their name again."""
    named = [parse_segment_name(name) for name in segments]
    return [at[0] for at in named if at is not None and not is_worker(at[0])]
