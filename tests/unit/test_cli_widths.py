"""What somebody copies from a screen stands on one line, also on 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.app.ledger import record_event
from pellucid.app.site import Site, create_site
from pellucid.cli.main import main
from pellucid.cli.output import console, pairs
from pellucid.core.digest import sha256

DIGEST = sha256(b"a package")
SECRET = f"hmac-{DIGEST}"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.raises(SystemExit):
        main(arguments)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return create_site(tmp_path / "site", node="n1")


@pytest.fixture
def keys(site: Site) -> list[str]:
    built = {"name": "credit", "version": "1.0.0", "outcome": "built", "package": DIGEST}
    return [record_event(site, "build", built) for _ in range(3)]


@pytest.mark.parametrize("columns", [80, 120])
def test_keys_of_entries_are_never_broken(
    columns: int, site: Site, keys: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = printed(capsys, "ledger", "show", "--site", str(site.root))
    assert [next(key for key in keys if key in line) for line in lines if "/door-" in line] == keys[::-1]
    assert max(map(len, lines)) <= columns
    assert sum("credit:1.0.0" in line and "built" in line for line in lines) == len(keys)
    assert any("outcome" in line for line in lines) == (columns == 120)  # a table, where it fits


def test_an_entry_of_a_node_with_a_long_name_has_its_key_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    site = create_site(tmp_path / "long", node="n" * 63)
    key = record_event(site, "build", {"name": "credit", "version": "1.0.0", "outcome": "built"})
    assert any(line.endswith(key) for line in printed(capsys, "ledger", "show", "--site", str(site.root)))


@pytest.mark.parametrize("columns", [80, 120])
def test_digests_beside_names_are_never_broken(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    told = "words, which may be broken where one ends and another begins: " * 3
    rows = [("name", "credit"), ("personal.address", SECRET), ("package", DIGEST), ("none", None)]
    console().print(pairs("Entry 1", [*rows, ("said", told)]))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Entry 1"
    assert max(map(len, lines)) <= columns
    assert [line.split()[-1] for line in lines if "sha256:" in line] == [SECRET, DIGEST]
    apart = [f"{name:<19}{value}" for name, value in (("name", "credit"), ("none", "-"))]
    assert [line for line in lines if line in apart] == apart  # one column of values, whatever stands between
    assert ("  " + SECRET in lines) == (columns == 80)
