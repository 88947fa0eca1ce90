"""Followers of the ledger, and the one that carries out erasures.

A follower that fails never stops the ledger: its position stays where it is, and it is fed again,
from the tiles and the vault, at the next step. What may hang, every sink, has a ``Feeder`` instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from pellucid.core.entry import Entry, Formed, parse_trusted
from pellucid.core.subject import summarise
from pellucid.core.times import parse_time
from pellucid.errors import PellucidError
from pellucid.ledger.vault import Vault
from pellucid.ports import Follower

CHUNK: Final = 1024  # entries fed at once when a follower is behind
ERASED_TO_EVERY: Final = 65_536  # how much is scanned again after a crash, at most
LATE_MAX: Final = 4096  # limit: subjects whose late calls are still looked for

Entries = Callable[[int, int], Sequence[bytes]]


def form_again(raw: bytes, vault: Vault) -> Formed:
    """What the sequencer formed, from the leaf and what the vault still holds."""
    entry = parse_trusted(raw)
    summary = summarise(entry.type, parse_time(entry.time), entry.data)
    return Formed(entry.id, entry.type, raw, vault.subject_of(entry.id), vault.openings(entry.id), summary)


class Feeds(Protocol):
    """Feeds somebody beside the sequencer's steps (``ledger.feeder.Feeder``)."""

    name: str

    def offer(self, start: int, formed: Sequence[Formed]) -> None: ...
    def grow(self, size: int) -> None: ...
    def revoke(self) -> None: ...
    def trouble(self) -> str | None: ...


def tell_erased(vault: Vault, mark: str, drop: Callable[[str], None]) -> None:
    """Name the entries that were erased since ``mark``, each once it is told remembered."""
    for seq, key in vault.forgotten_since(vault.get_meta(mark)):
        drop(key)
        vault.put_meta(mark, seq)


class Followers:
    """Feeds every follower, each from its own position.

    Args:
        followers: By name, for what is reported about them.
        entries: Reads leaves ``start`` to ``stop`` of the committed ledger.
        feeders: Told what there is; they feed on their own.
    """

    def __init__(
        self,
        followers: Mapping[str, Follower],
        vault: Vault,
        entries: Entries,
        feeders: Sequence[Feeds] = (),
    ) -> None:
        self._followers, self._vault, self._entries, self._feeders = followers, vault, entries, feeders
        self._failures: dict[str, str] = {}
        self._behind = set(followers)
        self._forgotten = -1  # what feeders were told of

    @property
    def failures(self) -> dict[str, str]:
        """Who could not be fed, and why."""
        troubles = {feeder.name: feeder.trouble() for feeder in self._feeders}
        return self._failures | {name: why for name, why in troubles.items() if why is not None}

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._followers)

    def feed(self, start: int, formed: Sequence[Formed]) -> None:
        """Hand on new entries; who is not at ``start`` waits for ``catch_up``."""
        for name, follower in self._followers.items():
            if name not in self._behind:
                self._guard(name, lambda follower=follower: follower.apply(start, formed))  # type: ignore[misc]
        for feeder in self._feeders:
            feeder.offer(start, formed)

    def catch_up(self, size: int) -> None:
        """Bring those who are behind up to ``size``, as far as they let us."""
        for name in sorted(self._behind):
            self._behind.discard(name)
            self._guard(name, lambda name=name: self._catch_up(self._followers[name], size))  # type: ignore[misc]
        for feeder in self._feeders:
            feeder.grow(size)

    def _catch_up(self, follower: Follower, size: int) -> None:
        position = follower.position()
        while position < size:
            stop = min(size, position + CHUNK)
            follower.apply(position, [form_again(raw, self._vault) for raw in self._entries(position, stop)])
            position = stop

    def forget_erased(self) -> None:
        """Tell each to drop what it has of erased entries, from where it was last told."""
        for name, follower in self._followers.items():
            drop, scrub = getattr(follower, "forget", None), getattr(follower, "scrub", None)
            if drop is not None:
                step = partial(self._tell, f"told:{name}", drop, scrub)
                self._guard(name, step, lags=False)
        forgotten = self._vault.forgotten_to
        if forgotten != self._forgotten:
            self._forgotten = forgotten
            for feeder in self._feeders:
                feeder.revoke()

    def _tell(self, mark: str, drop: Callable[[str], None], scrub: Callable[[], None] | None) -> None:
        if scrub is None:
            tell_erased(self._vault, mark, drop)
            return
        told = self._vault.forgotten_since(self._vault.get_meta(mark))
        for _, key in told:
            drop(key)
        if told:
            scrub()
            self._vault.put_meta(mark, told[-1][0])

    def _guard(self, name: str, step: Callable[[], None], *, lags: bool = True) -> bool:
        try:
            step()
        except Exception as error:  # a foreign target may raise anything
            self._failures[name] = f"{type(error).__name__}: {error}"
            if lags:
                self._behind.add(name)
            return False
        self._failures.pop(name, None)
        return True


class Eraser:
    """Carries out ``erasure`` entries once they are committed.

    Runs between steps, when no plan is open: a key shredded while its call was being formed would
    be formed otherwise the second time. Done twice, an erasure changes nothing.

    A call accepted before its subject was erased may be integrated later: it was in flight, or lay
    in a backlog. It is erased as it arrives, for as long as this process remembers the subject
    (the name itself is erased, so no restart can).
    """

    def __init__(self, vault: Vault, followers: Followers, entries: Entries) -> None:
        self._vault, self._followers, self._entries = vault, followers, entries
        self._recent: OrderedDict[str, tuple[int, str]] = OrderedDict()  # subject -> when, by which entry

    def catch_up(self, size: int) -> None:
        """After a restart: carry out what was committed and not noted as done."""
        position = self._vault.erased_to
        while position < size:
            stop = min(size, position + CHUNK)
            erasures = [raw for raw in self._entries(position, stop) if b'"type":"erasure"' in raw]
            self._apply([form_again(raw, self._vault) for raw in erasures])
            position = stop
        self._vault.erased_to = size

    def apply(self, start: int, formed: Sequence[Formed]) -> None:
        """Carry out the erasures among new entries; then finish what could not be finished before."""
        erasures = [each for each in formed if each.type == "erasure"]
        self._apply(erasures)
        self._erase_late(formed)
        stop = start + len(formed)
        if erasures or stop - self._vault.erased_to >= ERASED_TO_EVERY:
            self._vault.erased_to = stop
        self.finish()

    def finish(self) -> None:
        """Tell followers, and leave nothing in the files, as far as that was not possible before."""
        self._followers.forget_erased()
        if self._vault.wants_scrub:
            self._vault.scrub()

    def _apply(self, erasures: Sequence[Formed]) -> None:
        for formed in erasures:
            self._erase(formed)

    def _erase_late(self, formed: Sequence[Formed]) -> None:
        for each in formed:
            erased = self._recent.get(each.subject) if each.subject is not None else None
            if erased is None or each.type != "call":
                continue
            moment_ns, by = erased
            if parse_time(parse_trusted(each.entry).data["accepted"]) <= moment_ns:
                self._vault.erase(each.key, by=by)

    def _remember(self, subject: str, entry: Entry) -> None:
        self._recent[subject] = (parse_time(entry.time), entry.id)
        self._recent.move_to_end(subject)
        if len(self._recent) > LATE_MAX:
            self._recent.popitem(last=False)

    def _erase(self, formed: Formed) -> None:
        try:
            entry = parse_trusted(formed.entry)
            data = entry.data
        except PellucidError:
            return  # not ours to judge here: fsck reports an entry that does not parse
        if formed.subject is not None:
            self._vault.erase_subject(formed.subject, by=formed.key)
            self._remember(formed.subject, entry)
        call, rows = data.get("call"), data.get("rows")
        if not isinstance(call, str):
            return
        for row in rows if isinstance(rows, list) and rows else [None]:
            if row is None or type(row) is int:
                self._vault.erase(call, row, by=formed.key)
