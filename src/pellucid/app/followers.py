"""How far the ledger is, and who follows it how far behind; read beside a running sequencer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from pellucid.app.ledger import is_sequencing, ledger_sizes, open_index, open_store
from pellucid.app.sinks import position_file, read_failing, sink_uris
from pellucid.app.site import Site
from pellucid.core.entry import parse_trusted
from pellucid.core.times import parse_time
from pellucid.errors import NotFoundError
from pellucid.ledger.journal import backlog_bytes
from pellucid.ledger.publisher import read_entries
from pellucid.sinks import read_position


@dataclass(frozen=True, slots=True)
class FollowerState:
    """One that follows: the index, or a sink.

    Attributes:
        position: Entries that it has.
        behind: Entries that it has not got yet.
        since_ns: Time of the first of these; ``None`` when there is none.
        failing: Why it gets nothing, as the running sequencer says it; empty while it does.
    """

    name: str
    position: int
    behind: int
    since_ns: int | None
    failing: str


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The ledger's progress."""

    integrated: int
    published: int
    backlog_bytes: int
    is_sequencing: bool
    followers: tuple[FollowerState, ...]


def ledger_state(site: Site) -> LedgerState:
    """What is integrated, published and followed now. No sink is opened for it.

    Raises:
        NotFoundError: Nothing was recorded yet.
    """
    if not (site.ledger_folder / "state.db").exists():
        raise NotFoundError(f"ledger: expected one in {site.ledger_folder}, got none yet")
    integrated, published = ledger_sizes(site)
    backlog, sequencing = backlog_bytes(site.ledger_folder / "journal"), is_sequencing(site)
    failing = read_failing(site) if sequencing else {}  # nobody says so now
    return LedgerState(
        integrated, published, backlog, sequencing, tuple(_followers(site, integrated, failing))
    )


def _followers(site: Site, size: int, failing: Mapping[str, str]) -> list[FollowerState]:
    return [
        FollowerState(
            name, position, max(0, size - position), _since(site, position, size), failing.get(name, "")
        )
        for name, position in _positions(site).items()
    ]


def _positions(site: Site) -> dict[str, int]:
    """Entries that the index and each sink have, as far as a file says so."""
    with closing(open_index(site)) as index:
        found = {"index": index.position()}
    marks = {name: position_file(uri) for name, uri in sink_uris(site).items()}
    return found | {name: read_position(mark) for name, mark in marks.items() if mark is not None}


def _since(site: Site, position: int, size: int) -> int | None:
    if position >= size:
        return None
    (raw,) = read_entries(open_store(site.ledger_folder), size, position, position + 1)
    return parse_time(parse_trusted(raw).time)
