"""``pellucid verify X.zip``: the reader's own folder of trust, as with ``verify.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.cli.main import main
from pellucid.testing.evidence import export_toy, make_case


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().out


def test_a_bundle_holds_and_a_changed_byte_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case = make_case()
    bundle, trust = tmp_path / "bundle.zip", case.write_trust(tmp_path / "trust")
    raw = export_toy(case)
    bundle.write_bytes(raw)
    code, said = run(capsys, "verify", str(bundle), "--trust", str(trust), "--json")
    assert code == 0
    assert any("inclusion proof" in line for line in json.loads(said)["holds"])
    assert run(capsys, "verify", str(bundle), "--trust", str(trust))[0] == 0
    at = raw.index(b'"outcome"')
    bundle.write_bytes(raw[:at] + b"X" + raw[at + 1 :])
    code, said = run(capsys, "verify", str(bundle), "--trust", str(trust), "--json")
    assert (code, json.loads(said)["code"]) == (3, "verification")
    code, said = run(capsys, "verify", str(tmp_path / "none.zip"), "--trust", str(trust), "--json")
    assert (code, json.loads(said)["code"]) == (2, "not_found")


def test_the_readers_checkpoint_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case = make_case()
    bundle = tmp_path / "bundle.zip"
    bundle.write_bytes(export_toy(case))
    case.log.event("read", {"what": "later"})
    trust = case.write_trust(tmp_path / "trust", seen=case.log.publish().checkpoint())
    code, said = run(capsys, "verify", str(bundle), "--trust", str(trust), "--json")
    assert code == 3
    assert "older than the checkpoint you saw" in json.loads(said)["error"]
