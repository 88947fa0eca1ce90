"""The sinks of a site: which there are, their feeders, and what is told when one does not get on."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from pellucid import schemes
from pellucid.app.clock import SystemClock
from pellucid.app.site import Site
from pellucid.errors import PellucidError
from pellucid.ledger.feeder import Feeder
from pellucid.ledger.vault import Vault
from pellucid.ports import Store
from pellucid.sinks import parse_fields, parse_sink_uri, write_text

FAILING: Final = "failing.json"  # who does not get on, and why, while a sequencer runs


def _operators_log(site: Site) -> list[str]:
    """What the policy's audit section asks for, as far as this node has it.

    A destination that is not here, or a policy that cannot be read, is the guardian's finding; the
    ledger must go on, so that the refusal itself becomes an entry.
    """
    from pellucid.app.audit import operators_log  # needs all of the policy, which no build does

    try:
        wanted = operators_log(site)
    except PellucidError:
        return []
    return [uri for uri in wanted if uri.partition(":")[0] in schemes.SINKS]


def sink_uris(site: Site) -> dict[str, str]:
    """The operators' log, then the configuration's sinks; positions lie in the ledger's folder.

    A place that both name is the policy's: it selects the fields, and a line stands there once.
    """
    found: dict[str, str] = {}
    log = _operators_log(site)
    taken = {uri.partition("?")[0] for uri in log}
    others = [uri for uri in site.config.ledger.sinks if uri.partition("?")[0] not in taken]
    for number, uri in enumerate([*log, *others]):
        scheme, _, rest = uri.partition(":")
        if scheme == "file":
            uri = f"file:{site.path(rest)}"
        elif scheme == "stdout" and "position=" not in uri:
            position = site.ledger_folder / f"sink-{number}.position"
            uri = f"{uri}{'&' if '?' in uri else '?'}position={position}"
        found[uri.partition("?")[0] + f"#{number}"] = uri
    return found


def open_feeders(site: Site, store: Store) -> list[Feeder]:
    """A feeder for each sink, started; the sinks are opened by them.

    Raises:
        ConfigError: An unknown scheme, option or field.
    """
    uris = sink_uris(site)
    for uri in uris.values():
        schemes.load("sink", uri.partition(":")[0])
        parse_fields(parse_sink_uri(uri)[1].get("fields", ""))
    clock, open_vault = SystemClock(), partial(Vault, site.ledger_folder / "vault.db")
    feeders = [
        Feeder(name, partial(schemes.from_uri, "sink", uri), store, open_vault, clock)
        for name, uri in uris.items()
    ]
    for feeder in feeders:
        feeder.start()
    return feeders


def close_feeders(feeders: Sequence[Feeder]) -> None:
    """Let each bring what there is for as long as its sink gets on, all at the same time."""
    threads = [threading.Thread(target=feeder.close) for feeder in feeders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def end_beside_hung_sinks() -> None:
    """End the process at once if a sink's thread does not: it may hold what an orderly end waits for."""
    if any(thread.daemon and thread.name.startswith("sink ") for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(0)


@contextmanager
def telling_failures(site: Site) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Tells who does not get on: a line a change on standard error, and a file for who asks later."""
    path = site.ledger_folder / FAILING

    def tell(failing: Mapping[str, str]) -> None:
        line = json.dumps({"event": "followers", "failing": dict(failing)}, ensure_ascii=True)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
        with suppress(OSError):  # of a full disk too: it is said above, and ends no sequencer
            write_text(path, json.dumps(dict(failing)))

    path.unlink(missing_ok=True)
    try:
        yield tell
    finally:
        path.unlink(missing_ok=True)


def read_failing(site: Site) -> dict[str, str]:
    """Who the running sequencer says does not get on, and why."""
    try:
        found: dict[str, str] = json.loads((site.ledger_folder / FAILING).read_text())
    except FileNotFoundError:
        return {}
    return found


def position_file(uri: str) -> Path | None:
    """Where a sink remembers how far it is, if it does so in a file."""
    path, options = parse_sink_uri(uri)
    mark = options.get("position") or (f"{path}.position" if uri.startswith("file:") else "")
    return Path(mark) if mark else None
