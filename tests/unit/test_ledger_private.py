"""What holds keys or personal values is readable by its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pellucid.app.ledger import open_ledger, record_event, settle
from pellucid.app.site import create_site


@pytest.mark.parametrize("name", ["vault.db", "index.db", "state.db"])
def test_databases_are_private_whatever_the_umask_says(tmp_path: Path, name: str):
    import os

    before = os.umask(0)
    try:
        site = create_site(tmp_path / "site", node="n1")
        record_event(site, "read", {"what": "test"}, {"subject": "somebody"})
        settle(site)
        open_ledger(site).close()
    finally:
        os.umask(before)
    files = list(site.ledger_folder.glob(f"{name}*"))
    assert files
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
