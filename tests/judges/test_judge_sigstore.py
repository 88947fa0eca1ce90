"""Sigstore's stock verifier (Node) judges our DSSE bundles: it accepts ours, and none changed."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pellucid.core import dsse, statement
from pellucid.keys.file import FileKey

HERE = Path(__file__).resolve().parent
PAYLOAD = statement.make_statement(
    [("credit-v1", "sha256:" + "ab" * 32)], statement.QUALIFICATION, {"passed": True, "samples": 3}
)

pytestmark = pytest.mark.judge


@pytest.fixture(scope="module")
def node_folder() -> Path:
    """Folder whose ``node_modules`` hold the judge."""
    done = subprocess.run(
        [sys.executable, str(HERE / "make_venvs.py"), "node"], capture_output=True, text=True, check=False
    )
    if done.returncode == 3:
        pytest.skip(f"NOT RUN sigstore: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def judge(folder: Path, asked: Path, cases: list[dict[str, str]]) -> list[Any]:
    asked.write_text(json.dumps(cases))
    command = ["node", str(HERE / "node" / "verify.js"), str(asked)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == len(cases)
    return answers


def changed(bundle: str, path: tuple[Any, ...], text: str) -> str:
    value = json.loads(bundle)
    place = value["dsseEnvelope"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = text
    return json.dumps(value)


def one_byte_off(text: str, at: int) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[at] ^= 1
    return base64.b64encode(raw).decode()


def altered(bundle: str) -> list[str]:
    envelope = json.loads(bundle)["dsseEnvelope"]
    payload, signature = envelope["payload"], envelope["signatures"][0]["sig"]
    bad = [changed(bundle, ("payload",), one_byte_off(payload, at)) for at in (0, 40, -1)]
    bad += [changed(bundle, ("signatures", 0, "sig"), one_byte_off(signature, at)) for at in (10, 40, -1)]
    return [*bad, changed(bundle, ("payloadType",), "application/vnd.in-toto+jsom")]


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ed25519"])
def test_it_accepts_our_bundle_and_none_that_was_altered(node_folder, tmp_path, algorithm):
    key = FileKey.generate(tmp_path / "x.key", algorithm)
    other = FileKey.generate(tmp_path / "other.key", algorithm)
    bundle = dsse.sign_bundle(statement.PAYLOAD_TYPE, PAYLOAD, key).decode()
    twice = json.loads(bundle)
    twice["dsseEnvelope"]["signatures"] *= 2
    pem = key.public_pem().decode()
    cases = [{"bundle": text, "public_pem": pem} for text in (bundle, *altered(bundle), json.dumps(twice))]
    cases.append({"bundle": bundle, "public_pem": other.public_pem().decode()})
    accepted, *refused = judge(node_folder, tmp_path / "cases.json", cases)
    assert accepted is True
    assert [answer for answer in refused if answer is True] == []
