"""A real site and a real engine: replayed, answered, exported, erased; and each of it is an entry."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pellucid.app.ledger import erase, open_ledger, settle
from pellucid.app.site import Site
from pellucid.cli.main import cli
from pellucid.core.bundle import read_container
from pellucid.core.entry import parse_entry
from pellucid.errors import ErasedError, NotFoundError, PellucidError, ReplayMismatchError
from pellucid.evidence.export import verifier
from pellucid.testing.server import serving
from pellucid.testing.site import make_site

pytestmark = pytest.mark.e2e

CLIENTS = 6
ALWAYS = ("--from", "2020-01-01T00:00:00Z", "--to", "2100-01-01T00:00:00Z")


def request_of(rows: np.ndarray) -> dict[str, Any]:
    item = {"name": "features", "shape": list(rows.shape), "datatype": "FP32"}
    return {"inputs": [item | {"data": rows.ravel().tolist()}]}


@dataclass(frozen=True)
class Day:
    """A site after a day of serving: calls by key, with what was sent."""

    site: Site
    sent: dict[str, np.ndarray]
    refused: str
    subject: str

    def original(self, key: str) -> bytes:
        return json.dumps(request_of(self.sent[key])).encode()


def post(port: int, body: bytes) -> http.client.HTTPResponse:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/v2/models/credit/infer", body)
        reply = connection.getresponse()
        reply.read()
        return reply


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    site = make_site(tmp_path_factory.mktemp("day") / "site", serving={"batch_delay_us": 5000})
    sent: dict[str, np.ndarray] = {}

    def client(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(4):
            rows = draw.standard_normal((1 + seed % 3, 20)).astype(np.float32)
            body = json.dumps(request_of(rows)).encode()
            sent[str(post(server.port, body).headers["pellucid-call"])] = rows

    with serving(site.root) as server:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        refused = str(post(server.port, b"{}").headers["pellucid-call"])
        ada = np.random.default_rng(99).standard_normal((1, 20)).astype(np.float32)
        body = request_of(ada) | {"parameters": {"subject": "ada"}}
        subject = str(post(server.port, json.dumps(body).encode()).headers["pellucid-call"])
        sent[subject] = ada
    settle(site)
    assert len(sent) == CLIENTS * 4 + 1
    return Day(site, sent, refused, subject)


def pellucid(day: Day, *words: str, code: int = 0) -> Any:
    """One command of the product, as a person gives it."""
    error, result = None, 0
    try:
        result = cli.main([*words, "--site", str(day.site.root)], standalone_mode=False) or 0
    except PellucidError as raised:
        error, result = raised, raised.exit_code
    assert result == code, error
    return error


def last_entry(day: Day) -> Any:
    with closing(open_ledger(day.site)) as ledger:
        return parse_entry(ledger.reader.entry(ledger.reader.size() - 1))


def stranger(tmp_path: Path, day: Day, bundle: Path, seen: bytes | None = None) -> tuple[int, str]:
    """Somebody with Python, the bundle and the keys, and nothing else."""
    folder = tmp_path / "stranger"
    folder.mkdir(exist_ok=True)
    (folder / "verify.py").write_bytes(verifier())
    trust = folder / "trust"
    trust.mkdir(exist_ok=True)
    for path in day.site.trust_folder.iterdir():
        (trust / path.name).write_bytes(path.read_bytes())
    if seen is not None:
        (trust / "seen.checkpoint").write_bytes(seen)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "verify.py", str(bundle), "--trust", "trust"],
        cwd=folder, env={"PATH": os.defpath}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def shared_call(day: Day) -> str:
    """A call that shared its batch, of two rows."""
    with closing(open_ledger(day.site)) as ledger:
        for raw in ledger.reader.entries(0, ledger.reader.size()):
            entry = parse_entry(raw)
            if entry.type == "call" and entry.data["batch"] and entry.data["row_count"] == 2:
                return entry.id
    raise AssertionError("no two calls met in a batch")


def test_story_of_one_decision(day: Day, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replayed bit for bit, answered, exported with the replay, and checked by a stranger."""
    key = shared_call(day)
    original = tmp_path / "input.json"
    original.write_bytes(day.original(key))

    pellucid(day, "replay", key, "--input", str(original), "--json")
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["verdict"], replayed["changes"], replayed["cause"]) == ("bit-exact", [], "")
    assert [row["verdict"] for row in replayed["rows"]] == ["bit-exact"] * 2
    assert "bit-exact" in Path(replayed["page"]).read_text()
    assert last_entry(day).id == replayed["entry_key"]
    assert last_entry(day).data["report"] == "sha256:" + Path(replayed["report"]).name.partition(".")[0]

    pellucid(day, "answer", key, "--json")
    answered = json.loads(capsys.readouterr().out)
    four = answered["four"]
    assert four["image"] == {"digest": None, "reason": four["image"]["reason"]}
    assert four["image"]["reason"]
    assert four["precision"]["value"] == "FP32"
    assert four["calibration"]["reason"].startswith("FP32: none needed")
    assert four["signature"]["check"].startswith("holds")
    story = " ".join(s["text"] for s in answered["story"])
    assert "It shared a bucket of" in story
    assert "Replayed: bit-exact." in story
    assert (last_entry(day).type, last_entry(day).data["what"]) == ("read", "answer")

    bundle = tmp_path / "bundle.zip"
    words = ["export", key, "--out", str(bundle), "--input", str(original), "--reason", "complaint"]
    pellucid(day, *words, "--json")
    exported = json.loads(capsys.readouterr().out)
    assert (last_entry(day).type, last_entry(day).data["bundle"]) == ("export", exported["digest"])
    code, said = stranger(tmp_path, day, bundle)
    assert code == 0, said
    for expected in (
        "replayed on", "signed by the replayer: bit-exact", "the input given is the input",
        "signed by the qualifier", "the policy the call ran under", "the batch holds",
    ):  # fmt: skip
        assert expected in said
    members = read_container(bundle.read_bytes())
    assert not any(name.endswith((".onnx", ".tar.gz")) for name in members)

    seen = members["log/checkpoint"]
    later = tmp_path / "later.zip"
    saved = tmp_path / "seen.checkpoint"
    saved.write_bytes(seen)
    pellucid(day, "export", key, "--out", str(later), "--seen", str(saved), "--json")
    assert stranger(tmp_path, day, later, seen)[0] == 0
    newest = read_container(later.read_bytes())["log/checkpoint"]
    code, said = stranger(tmp_path, day, bundle, newest)
    assert code == 3
    assert "older than the checkpoint you saw" in said


def test_a_person_reads_the_same(day: Day, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = shared_call(day)
    original = tmp_path / "input.json"
    original.write_bytes(day.original(key))
    pellucid(day, "replay", key, "--input", str(original))
    assert "bit-exact" in capsys.readouterr().out
    pellucid(day, "answer", key)
    said = capsys.readouterr().out
    assert "image digest" in said
    assert "What happened" in said
    pellucid(day, "export", key, "--out", str(tmp_path / "b.zip"))
    assert "python3 -I verify.py" in capsys.readouterr().out


def test_one_row_of_a_call_from_bare_values(day: Day, tmp_path: Path) -> None:
    key = shared_call(day)
    values = tmp_path / "row.csv"
    values.write_text(",".join(repr(float(v)) for v in day.sent[key][1]))
    pellucid(day, "replay", key, "--input", str(values), "--row", "1")
    pellucid(day, "replay", key, "--input", str(values), "--row", "0", code=6)


def test_another_input_is_refused_and_the_attempt_is_an_entry(day: Day, tmp_path: Path) -> None:
    key = shared_call(day)
    values = tmp_path / "wrong.json"
    rows = day.sent[key].copy()
    rows[0, 3] += 1
    values.write_text(json.dumps(rows.ravel().tolist()))
    error = pellucid(day, "replay", key, "--input", str(values), code=6)
    assert isinstance(error, ReplayMismatchError)
    assert "got another in row 0" in error.message
    assert last_entry(day).data == {"what": "replay", "call": key, "outcome": "replay_mismatch"}


def test_a_refused_call_is_evidence_too(day: Day, tmp_path: Path) -> None:
    bundle = tmp_path / "refused.zip"
    pellucid(day, "export", day.refused, "--out", str(bundle))
    code, said = stranger(tmp_path, day, bundle)
    assert code == 0, said


def test_a_call_nobody_made_is_not_found(day: Day, tmp_path: Path) -> None:
    for words in (["answer", "test1/9/9/9"], ["export", "test1/9/9/9", "--out", str(tmp_path / "x.zip")]):
        assert isinstance(pellucid(day, *words, code=2), NotFoundError)
    assert not (tmp_path / "x.zip").exists()


def test_nothing_existing_is_overwritten(day: Day, tmp_path: Path) -> None:
    bundle = tmp_path / "b.zip"
    bundle.write_bytes(b"mine")
    pellucid(day, "export", next(iter(day.sent)), "--out", str(bundle), code=2)
    assert bundle.read_bytes() == b"mine"


def test_a_period_is_whole_and_counted(day: Day, tmp_path: Path) -> None:
    bundle = tmp_path / "period.zip"
    pellucid(day, "export", *ALWAYS, "--out", str(bundle))
    code, said = stranger(tmp_path, day, bundle)
    assert code == 0, said
    count = len(day.sent) + 1
    assert f"calls 1 to {count}, {count} recorded, each closed exactly once" in said


def test_usage(day: Day) -> None:
    for words in (["export"], ["export", "k", *ALWAYS], ["export", *ALWAYS[:2]]):
        pellucid(day, *words, code=2)
    assert CliRunner().invoke(cli, ["replay", "--help"]).exit_code == 0


def test_erasure_leaves_proofs_and_says_so(day: Day, tmp_path: Path) -> None:
    key = next(k for k in day.sent if len(day.sent[k]) == 3)
    original = tmp_path / "input.json"
    original.write_bytes(day.original(key))
    erase(day.site, call=key, rows=[1], rule="GDPR 17(1)(b)", reason="asked")
    pellucid(day, "replay", key, "--input", str(original), "--row", "0")
    error = pellucid(day, "replay", key, "--input", str(original), code=6)
    assert isinstance(error, ErasedError)
    assert "row 1: erased on 20" in error.message
    assert "GDPR 17(1)(b)" in error.message
    erase(day.site, call=key, rule="GDPR 17(1)(b)", reason="asked")
    assert isinstance(pellucid(day, "replay", key, "--input", str(original), code=6), ErasedError)
    bundle = tmp_path / "erased.zip"
    pellucid(day, "export", key, "--out", str(bundle))
    code, said = stranger(tmp_path, day, bundle)
    assert code == 0, said
    assert "were erased on" in said


def test_erasing_a_person_erases_their_calls(day: Day, tmp_path: Path) -> None:
    original = tmp_path / "input.json"
    original.write_bytes(day.original(day.subject))
    pellucid(day, "replay", day.subject, "--input", str(original))
    erase(day.site, subject="ada", rule="GDPR 17(1)(b)", reason="asked")
    error = pellucid(day, "replay", day.subject, "--input", str(original), code=6)
    assert isinstance(error, ErasedError)
    bundle = tmp_path / "erased.zip"
    pellucid(day, "export", day.subject, "--out", str(bundle))
    assert not [name for name in read_container(bundle.read_bytes()) if name.startswith("openings/")]
    code, said = stranger(tmp_path, day, bundle)
    assert code == 0, said
    assert "all values of a subject were erased" in said
    assert "ada" not in said
