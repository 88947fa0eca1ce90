"""A site is one folder; making one touches nothing that exists."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.app.site import create_site, open_site
from pellucid.cli.main import main
from pellucid.core.digest import sha256
from pellucid.errors import ConfigError, NotFoundError, PellucidError, UsageError


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
    code, text = run(capsys, "conifg", "--json")
    assert (code, json.loads(text)["code"]) == (2, "usage")
    code, text = run(capsys, "ledger", "show", "--limit", "0", "--json")
    assert (code, json.loads(text)["hint"].endswith("ledger show --help")) == (2, True)


def test_a_file_that_cannot_be_used_is_named_and_no_traceback(tmp_path: Path, capsys, monkeypatch):
    site = create_site(tmp_path / "site", node="n1")
    (tmp_path / "out").write_text("a file, where a folder should be")
    monkeypatch.setattr("pellucid.app.ledger.find_entry", lambda site, key: (tmp_path / "out" / "x").mkdir())
    code, text = run(capsys, "ledger", "get", "0", "--site", str(site.root), "--json")
    assert (code, json.loads(text)["code"]) == (2, "usage")
    assert str(tmp_path / "out" / "x") in json.loads(text)["error"]


def test_a_full_disk_says_try_again(tmp_path: Path, capsys, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/site")

    monkeypatch.setattr("pellucid.app.site.create_site", full)
    code, text = run(capsys, "init", str(tmp_path / "site"), "--json")
    assert (code, json.loads(text)["code"]) == (75, "disk_full")


@pytest.mark.parametrize("verb", ["build", "qualify", "serve"])
def test_the_base_install_names_what_is_missing(tmp_path: Path, verb: str):
    site = create_site(tmp_path / "site", node="n1")
    code = (
        "import sys\n"
        "for name in ('numpy', 'onnx', 'onnxruntime', 'uvicorn', 'uvloop', 'httptools'):\n"
        "    sys.modules[name] = None\n"
        "from pellucid.cli.main import main\n"
        f"main([{verb!r}, *{[] if verb == 'serve' else ['x']!r}, '--site', {str(site.root)!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pellucid {verb} needs the library" in done.stderr
    assert "hint: pip install 'pellucid[standard]'" in done.stderr


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (["n1/1/0/1", "--from", "2026-01-01T00:00:00Z"], "a call and --from"),
        (["--to", "2026-01-01T00:00:00Z"], "--to"),
        ([], "neither"),
    ],
)
def test_an_export_is_of_a_call_or_of_a_whole_period(tmp_path: Path, capsys, words: list[str], got: str):
    site = create_site(tmp_path / "site", node="n1")
    code, text = run(capsys, "export", *words, "--out", str(tmp_path / "b.zip"), "--site", str(site.root))
    assert (code, f"got {got}\n" in text) == (2, True)


def test_a_reader_who_leaves_is_no_error(tmp_path: Path):
    site = create_site(tmp_path / "site", node="n1")
    command = [sys.executable, "-m", "pellucid", "config", "show", "--site", str(site.root)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_name_that_no_log_may_have_leaves_nothing_behind(tmp_path: Path):
    for changes in ({"origin": "has space"}, {"node": "A B"}):
        with pytest.raises(PellucidError, match=r"origin|node"):
            create_site(tmp_path / "site", **changes)
    assert not (tmp_path / "site").exists()


def test_every_policy_and_configuration_that_served_is_kept_by_its_digest(tmp_path: Path):
    site = create_site(tmp_path / "site", node="n1")
    first = site.policy_bytes()
    site.keep_texts()
    (site.root / "policy.yaml").write_bytes(first + b"# stricter tomorrow\n")
    site.keep_texts()
    kept = {path.name: path.read_bytes() for path in (site.root / "policies").iterdir()}
    assert kept == {sha256(raw)[7:]: raw for raw in (first, site.policy_bytes())}
    assert [p.name for p in (site.root / "configs").iterdir()] == [site.config_digest[7:]]
