"""A database that is none, or cannot be opened, is said so in words with what to do, and nothing is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.app import build as app
from pellucid.app.ledger import settle
from pellucid.app.site import Site, create_site, open_site
from pellucid.cli.main import main
from pellucid.errors import DiskFullError, LedgerHaltedError, ParseError, PellucidError, UnavailableError
from pellucid.indexes.sqlite import SqliteIndex
from pellucid.ledger.state import State, database_error, open_database
from pellucid.ledger.vault import Vault
from pellucid.testing.builds import write_recipe


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def folder(path: Path) -> None:
    path.mkdir()


DAMAGE = [garbage, folder]
OPENED: list[tuple[Callable[[Path], Any], type[PellucidError]]] = [
    (lambda path: State(path, "x.example/log"), LedgerHaltedError),
    (Vault, LedgerHaltedError),
    (lambda path: open_database(path, read_only=True), LedgerHaltedError),
    (SqliteIndex, UnavailableError),
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("opened", "error"), OPENED)
def test_what_is_no_database_is_refused_by_name(
    opened: Callable[[Path], Any], error: type[PellucidError], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    damage(tmp_path / "some.db")
    with pytest.raises(error, match=r"some\.db: expected a database") as caught:
        opened(tmp_path / "some.db")
    assert caught.value.hint


def test_one_that_is_locked_is_asked_again_later(tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "some.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("CREATE TABLE t (x)")
    with pytest.MonkeyPatch.context() as patch:
        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *args, **named: connect(*args, **{**named, "timeout": 0.01}))
        with pytest.raises(UnavailableError, match="locked"):
            open_database(tmp_path / "some.db")
    holder.close()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    site = create_site(root / "site", node="test1")
    app.build(site, write_recipe(root / "recipe", "credit_like"))
    return root


@pytest.fixture
def site(built: Path, tmp_path: Path) -> Site:
    shutil.copytree(built / "site", tmp_path / "site")
    return open_site(tmp_path / "site")


def spoil(site: Site, name: str, damage: Callable[[Path], None] = garbage) -> Path:
    path = site.ledger_folder / name
    for each in site.ledger_folder.glob(f"{name}*"):
        each.unlink()
    damage(path)
    return path


@pytest.mark.parametrize(("name", "code"), [("state.db", 70), ("index.db", 75)])
def test_a_command_says_it_in_words(
    site: Site, name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(site, name)
    with pytest.raises(SystemExit) as ended:
        main(["ledger", "status", "--site", str(site.root)])
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert name in said
    assert "hint: " in said
    assert "Traceback" not in said


def test_a_database_that_fails_later_is_said_in_words(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(SqliteIndex, "position", fails)
    with pytest.raises(SystemExit) as ended:
        main(["ledger", "status", "--site", str(site.root)])
    assert ended.value.code == 70
    assert "expected its databases to work, got: disk I/O error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "error", "hint"),
    [
        (sqlite3.SQLITE_BUSY, UnavailableError, "another program holds it"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, UnavailableError, "another program holds it"),
        (sqlite3.SQLITE_FULL, DiskFullError, "make room"),
        (sqlite3.SQLITE_CORRUPT, LedgerHaltedError, "damaged"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, LedgerHaltedError, "neither full nor failing"),  # a full one, too
    ],
)
def test_what_to_do_is_said_by_what_happened(code: int, error: type[PellucidError], hint: str) -> None:
    failed = sqlite3.OperationalError("in its words")
    failed.sqlite_errorcode = code
    made = database_error(failed, "x.db: expected a database")
    assert type(made) is error
    assert made.message == "x.db: expected a database, got: in its words"
    assert hint in made.hint


@pytest.mark.parametrize(("name", "why"), [("state.db", "is refused"), ("vault.db", "erased keys back")])
def test_nobody_is_told_to_put_a_copy_back(name: str, why: str, tmp_path: Path) -> None:
    garbage(tmp_path / name)
    with pytest.raises(LedgerHaltedError) as caught:
        open_database(tmp_path / name)
    assert why in caught.value.hint


def test_a_command_whose_database_is_held_says_that_it_may_come_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect = sqlite3.connect
    holder = connect(site.ledger_folder / "state.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **named: connect(*args, **{**named, "timeout": 0.01})
    )
    with pytest.raises(SystemExit) as ended:
        main(["answer", "no-such-call", "--site", str(site.root)])
    holder.close()
    assert ended.value.code == 75
    assert "database is locked" in capsys.readouterr().err


def test_an_index_that_was_moved_away_is_made_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(site, "index.db").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["ledger", "index", "--site", str(site.root)])
    assert ended.value.code == 0
    assert "1 entries indexed" in capsys.readouterr().out
    assert SqliteIndex(site.ledger_folder / "index.db").position() == 1


def test_a_build_that_fails_says_why_before_what_is_wrong_with_the_ledger(site: Site, tmp_path: Path) -> None:
    path = spoil(site, "index.db")
    recipe = write_recipe(tmp_path / "recipe", b"no graph", version="1.0.1")
    with pytest.raises(ParseError) as caught:
        app.build(site, recipe)
    assert "index.db: expected a database" in caught.value.hint
    assert "the whole log: " in caught.value.hint
    path.unlink()
    settle(site)
    assert SqliteIndex(path).position() == 2  # the entry was in the journal


def pages(path: Path) -> None:
    """A database that opens, and whose tables are spoiled."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE head (id)")
    db.close()
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 4096)


def test_a_build_that_fails_says_why_before_what_fails_in_the_ledger_later(
    site: Site, tmp_path: Path
) -> None:
    spoil(site, "state.db", pages)
    with pytest.raises(ParseError) as caught:
        app.build(site, write_recipe(tmp_path / "recipe", b"no graph", version="1.0.1"))
    assert "expected its databases to work" in caught.value.hint
    assert "the build is recorded as " in caught.value.hint


def test_what_the_system_refuses_the_ledger_comes_behind_the_build(site: Site, tmp_path: Path) -> None:
    (site.ledger_folder / "lock").unlink()
    (site.ledger_folder / "lock").mkdir()
    with pytest.raises(ParseError) as caught:
        app.build(site, write_recipe(tmp_path / "failed", b"no graph", version="1.0.1"))
    assert "lock to be usable, got: Is a directory" in caught.value.hint
    assert "the build is recorded as " in caught.value.hint
    with pytest.raises(UnavailableError, match="lock to be usable") as refused:
        app.build(site, write_recipe(tmp_path / "made", "credit_like", version="1.0.2"))
    assert "the build is recorded as " in refused.value.hint
    assert [path for path in site.packages_folder.iterdir() if "1.0.2" in path.name]


def test_a_build_that_fails_and_cannot_be_recorded_says_both(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halted(*_: Any) -> str:
        raise LedgerHaltedError("journal: expected room, got none")

    monkeypatch.setattr("pellucid.app.ledger.append_event", halted)
    with pytest.raises(ParseError) as caught:
        app.build(site, write_recipe(tmp_path / "recipe", b"no graph", version="1.0.1"))
    assert "it could NOT be recorded: journal: expected room, got none" in caught.value.hint


def test_a_build_that_works_and_is_recorded_says_so(site: Site, tmp_path: Path) -> None:
    spoil(site, "index.db")
    with pytest.raises(UnavailableError) as caught:
        app.build(site, write_recipe(tmp_path / "recipe", "credit_like", version="1.0.1"))
    assert "the build is recorded as " in caught.value.hint
    assert [path for path in site.packages_folder.iterdir() if "1.0.1" in path.name]
