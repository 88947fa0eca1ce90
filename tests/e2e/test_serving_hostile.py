"""Hostile clients at a real server, in small numbers; ``bench/hostile.py`` plays the same with ten thousand.

A good client on a connection of its own is answered all the while, memory stays within bounds, and every
number that was given out is closed.
"""

from __future__ import annotations

import collections
from contextlib import closing
from pathlib import Path

import pytest

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.core.entry import parse_entry
from pellucid.ledger.complete import complete
from pellucid.testing.hostile import Attack
from pellucid.testing.server import serving
from pellucid.testing.site import make_site

pytestmark = pytest.mark.e2e
GROWTH_MAX = 96 * 2**20  # of resident memory; what the crowds may hold, and not for ever


def test_hostile_clients_do_not_take_the_server_from_a_good_one(tmp_path: Path):
    # fewer places on the board than slow bodies: they must not take all of them
    site = make_site(tmp_path / "site", ledger={"in_flight_max": 100}, serving={"body_max_bytes": 2**20})
    with serving(site.root, log=tmp_path / "log") as server:
        attack = Attack(server.port, server.ready["beside"]["grpc"], server.pid, idle=1_000)
        seen = attack.run()
    print({phase: f"{took:.1f} s" for phase, took in seen.phases.items()})
    print(seen.canary)
    assert seen.opened == 1_000
    assert set(seen.canary) >= set(seen.phases)
    assert seen.troubles == []
    sizes = [resident for _, _, resident in seen.curve]
    print(f"RSS {sizes[0]:,} at first, {max(sizes):,} at most, {sizes[-1]:,} at the end")
    assert max(sizes) - sizes[0] < GROWTH_MAX
    assert "Traceback" not in (tmp_path / "log").read_text()
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    assert complete(entries).findings == ()
    assert check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin).findings == ()
    outcomes = collections.Counter(e.data["outcome"] for e in entries if e.type == "call")
    print(outcomes)
    assert outcomes["unresolved"] == 0
    assert outcomes["refused"] > 0
    assert outcomes["answered"] >= sum(told["calls"] - told["failed"] for told in seen.canary.values())
