"""A site is one folder; making one touches nothing that exists."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pellucid.app.site import create_site, open_site
from pellucid.cli.main import main
from pellucid.core.digest import sha256
from pellucid.errors import ConfigError, NotFoundError, UsageError


def run(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def test_a_new_site_opens_and_every_key_is_trusted(tmp_path: Path):
    site = open_site(create_site(tmp_path / "site", node="n1", origin="bank.example/credit").root)
    trust = site.trust()
    assert trust.log_vkey.startswith("bank.example/credit+")
    for role in ("builder", "qualifier", "approver", "replayer", "exporter"):
        assert site.signer(role).public_pem() in trust.keys[role]
    for key in (site.root / "keys").iterdir():
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key.name


def test_a_folder_in_use_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UsageError, match="in use"):
        create_site(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_the_nearest_parent_with_a_site_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PELLUCID_SITE", raising=False)
    site = create_site(tmp_path / "site", node="n1")
    deep = site.root / "recipes" / "a"
    deep.mkdir()
    monkeypatch.chdir(deep)
    assert open_site(None).root == site.root
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=r"pellucid\.toml"):
        open_site(None)


def test_a_role_without_a_key_says_where_to_add_it(tmp_path: Path):
    site = create_site(tmp_path / "site", node="n1")
    (site.root / "pellucid.toml").write_text("")
    with pytest.raises(ConfigError) as caught:
        open_site(site.root).signer("builder")
    assert "pellucid.toml" in caught.value.hint


def test_init_config_and_errors_from_the_command_line(tmp_path: Path, capsys):
    site = tmp_path / "site"
    code, text = run(capsys, "init", str(site), "--node", "n1", "--json")
    assert code == 0
    assert json.loads(text)["node"] == "n1"
    code, text = run(capsys, "config", "show", "--site", str(site), "--json")
    assert code == 0
    assert json.loads(text)["ledger"]["record"] == "journaled"
    code, text = run(capsys, "config", "check", "--site", str(site))
    assert (code, "not in trust" in text) == (0, False)
    code, text = run(capsys, "init", str(site))
    assert code == 2
    assert "hint:" in text
    code, text = run(capsys, "config", "show", "--site", str(tmp_path / "none"), "--json")
    assert code == 2
    assert json.loads(text)["code"] == "not_found"
    code, text = run(capsys, "conifg")
    assert code == 2


def test_every_policy_and_configuration_that_served_is_kept_by_its_digest(tmp_path: Path):
    site = create_site(tmp_path / "site", node="n1")
    first = site.policy_bytes()
    site.keep_texts()
    (site.root / "policy.yaml").write_bytes(first + b"# stricter tomorrow\n")
    site.keep_texts()
    kept = {path.name: path.read_bytes() for path in (site.root / "policies").iterdir()}
    assert kept == {sha256(raw)[7:]: raw for raw in (first, site.policy_bytes())}
    assert [p.name for p in (site.root / "configs").iterdir()] == [site.config_digest[7:]]
