"""What the judges of the server share: one real site, served by a real process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pellucid.app.ledger import check_ledger, ledger_vkey, settle
from pellucid.app.site import Site, open_site
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import make_site

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def judge_python() -> Callable[[str], str]:
    """Python of a judge's own environment, or a skip that says what this machine lacks."""

    def find(name: str) -> str:
        done = subprocess.run(
            [sys.executable, str(HERE / "make_venvs.py"), name], capture_output=True, text=True, check=False
        )
        if done.returncode == 3:
            pytest.skip(f"NOT RUN {name}: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return find


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """``pellucid serve`` with HTTP and gRPC, everything switched on; its ledger must hold at the end."""
    root = tmp_path_factory.mktemp("judged") / "site"
    site: Site = make_site(
        root,
        serving={"model_control": "explicit", "shared_memory": True},
        ledger={"refusals_per_s": 10_000},
    )
    with serving(site.root) as server:
        yield server
    site = open_site(root)
    settle(site)
    assert check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin).findings == ()
