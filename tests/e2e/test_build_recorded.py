"""A build whose entry stands keeps its package, whatever fails after it; no package stands without one."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest

from pellucid.app.build import build
from pellucid.app.ledger import open_ledger, settle
from pellucid.app.site import Site, create_site
from pellucid.core.entry import parse_entry
from pellucid.core.model_signing import file_digests, root_digest
from pellucid.errors import DiskFullError, LedgerHaltedError, PellucidError, UnavailableError
from pellucid.ledger.journal import JournalWriter
from pellucid.testing.builds import write_recipe

pytestmark = pytest.mark.e2e


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return create_site(tmp_path / "site", node="n1")


def packages(site: Site) -> list[Path]:
    return [path for path in site.packages_folder.iterdir() if path.name != "failed"]


def assert_stands(site: Site) -> None:
    """The one package, and the one entry, which names it."""
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    (folder,) = packages(site)
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    package = root_digest(file_digests(files))
    assert [(e.data["outcome"], e.data["package"]) for e in entries if e.type == "build"] == [
        ("built", package)
    ]


def test_a_package_outlives_a_ledger_that_does_not_take_its_entry_in(site: Site) -> None:
    key = site.root / "keys" / "log.key"
    key.rename(aside := site.root / "aside")
    with pytest.raises(PellucidError) as error:
        build(site, write_recipe(site.path("recipes") / "toy", "credit_like"))
    assert "the build is recorded as n1/door-" in error.value.hint
    aside.rename(key)
    assert_stands(site)


def test_so_it_does_an_index_that_does_not_open(site: Site) -> None:
    (site.ledger_folder / "index.db").mkdir(parents=True)
    with pytest.raises(UnavailableError, match=r"index\.db: expected a database"):
        build(site, write_recipe(site.path("recipes") / "toy", "credit_like"))
    (site.ledger_folder / "index.db").rmdir()
    assert_stands(site)


def test_a_package_outlives_a_disk_that_does_not_confirm_its_entry(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsure(journal: JournalWriter) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(JournalWriter, "sync", unsure)
        with pytest.raises(OSError, match="Input/output error"):
            build(site, write_recipe(site.path("recipes") / "toy", "credit_like"))
    assert_stands(site)


def test_no_package_stands_whose_entry_was_not_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(journal: JournalWriter, payload: bytes) -> None:
        raise DiskFullError("journal: expected to append, got no space")

    monkeypatch.setattr(JournalWriter, "append", full)
    with pytest.raises(DiskFullError):
        build(site, write_recipe(site.path("recipes") / "toy", "credit_like"))
    assert packages(site) == []


def test_no_package_stands_where_no_journal_can_be_made(site: Site) -> None:
    site.ledger_folder.mkdir(exist_ok=True)
    (site.ledger_folder / "journal").write_bytes(b"in the way")
    with pytest.raises((LedgerHaltedError, UnavailableError), match="journal: expected to append"):
        build(site, write_recipe(site.path("recipes") / "toy", "credit_like"))
    assert packages(site) == []
