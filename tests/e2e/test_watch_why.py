"""What made a model slow, asked of a real site's ledger in one query."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pellucid.app.build import build, qualify
from pellucid.app.ledger import open_ledger, settle
from pellucid.app.sign import approve, sign_folder
from pellucid.app.site import Site, open_site
from pellucid.cli.main import cli
from pellucid.core import strict_yaml
from pellucid.core.entry import parse_entry
from pellucid.testing.server import serving
from pellucid.testing.site import configure, make_site

pytestmark = pytest.mark.e2e
CLIENTS, CALLS, EXECUTIONS = 6, 60, 20
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0.5] * 20}]}
).encode()


def load(port: int) -> list[str]:
    """Calls of several clients at once; their keys."""
    keys: list[str] = []

    def client() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            for _ in range(CALLS):
                connection.request("POST", "/v2/models/credit/infer", BODY)
                reply = connection.getresponse()
                reply.read()
                assert reply.status == 200
                keys.append(reply.headers["pellucid-call"])

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == CLIENTS * CALLS
    return keys


def next_version(site: Site) -> str:
    """Version 1.1.0 with larger buckets, approved; gives its path in the site."""
    recipe = site.root / "recipes" / "credit-1.0.0" / "recipe.yaml"
    wanted = strict_yaml.load(recipe.read_bytes(), subject="recipe")
    recipe.write_bytes(strict_yaml.dump(wanted | {"version": "1.1.0", "buckets": [1, 8, 32]}))
    signed = sign_folder(site, build(site, recipe).folder)
    qualify(site, signed.archive)
    approve(site, signed.archive, kind="release", role="sre", reason="larger batches for the campaign")
    return f"packages/{signed.archive.name}"


def ask(site: Site, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*arguments, "--site", str(site.root), "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    told: dict[str, Any] = json.loads(result.output)
    return told


def entries(site: Site, kind: str) -> list[Any]:
    settle(site)
    with closing(open_ledger(site)) as ledger:
        found = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    return [entry for entry in found if entry.type == kind]


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site that served one version, then one with larger buckets and a longer delay."""
    settings = {"baseline_skip": 2, "baseline_executions": EXECUTIONS}
    site = make_site(tmp_path_factory.mktemp("made") / "site", serving=settings)
    with serving(site.root) as server:
        load(server.port)
    later = {"models": [next_version(site)], "batch_delay_us": 30_000}
    with serving(configure(site, serving=later).root) as server:
        load(server.port)
    return site


def test_story_x4_an_alarm_in_the_night_is_one_query(slowed: Site):
    told = ask(slowed, "why", "credit")
    assert told["cause"].startswith("load of credit 1.1.0 with buckets up to 32 (before: 8)")
    assert "batch delay 0 -> 30000 us" in told["cause"]
    assert "queue p99 " in told["cause"]
    assert "approved by sre (release, " in told["cause"]
    assert told["stage"] == "queue"
    ended, newest, oldest = told["changes"]
    assert ended["what"].endswith(" ended")
    assert newest["after"]["p50"]["queue"] >= 20_000_000 > newest["before"]["p50"]["queue"]
    assert (
        newest["before"]["calls"] == newest["after"]["calls"] == oldest["after"]["calls"] == CLIENTS * CALLS
    )
    assert any(text.startswith("config sha256:") for text in newest["more"])
    assert "version 1.0.0 -> 1.1.0" in newest["more"]
    named = {entry.id: entry.type for kind in ("load", "epoch") for entry in entries(slowed, kind)}
    assert set(told["entries"]) <= set(named)
    assert "load" in {named[key] for key in told["entries"]}
    (read,) = [entry for entry in entries(slowed, "read") if entry.id == told["entry"]]
    assert read.data["what"] == "why"


def test_before_the_load_it_was_not_slow(slowed: Site):
    loads = [entry for entry in entries(slowed, "load") if entry.data["version"] == "1.1.0"]
    told = ask(slowed, "why", "credit", "--at", loads[0].time)
    assert len(told["changes"]) == 2  # at that very moment it is loaded, and nothing came after
    assert "1.1.0" not in told["cause"] or "too few" in told["cause"]


def test_a_person_reads_the_cause_in_the_first_line(slowed: Site):
    result = CliRunner().invoke(cli, ["why", "credit", "--site", str(slowed.root)], standalone_mode=False)
    first = result.output.splitlines()[0]
    assert first.startswith("load of credit 1.1.0")
    assert "queue p99" in first


def test_where_one_calls_time_went(slowed: Site):
    queued = [e for e in entries(slowed, "call") if e.data["version"] == "1.1.0"][-1]
    told = ask(slowed, "why", queued.id)
    assert told["part"] == "queue"
    assert told["call"] == queued.id


def test_a_name_that_nobody_served_is_said_so(slowed: Site):
    result = CliRunner().invoke(cli, ["why", "nobody", "--site", str(slowed.root)], standalone_mode=False)
    assert "expected calls or loads" in str(result.exception)


def test_first_executions_become_a_baseline_and_it_stays(slowed: Site):
    made = [entry for entry in entries(slowed, "stage") if entry.data["stage"] == "baseline"]
    old = [entry for entry in made if entry.data["version"] == "1.0.0"]
    assert old
    for entry in old:
        assert entry.data["executions"] == EXECUTIONS
        assert entry.data["how"] == "first_executions"
    marks = [entry.data["mark"] for entry in entries(slowed, "call") if "mark" in entry.data]
    assert all(mark["baseline"] in {entry.id for entry in made} for mark in marks)
    assert all(abs(mark["deviation_milli"]) >= 2_000 for mark in marks)
    shown = ask(slowed, "baseline", "show", "credit")["baselines"]
    assert {each["entry"] for each in shown} == {entry.id for entry in made}


def test_a_baseline_frozen_by_hand_is_in_force_from_the_next_start(slowed: Site, tmp_path: Path):
    shutil.copytree(slowed.root, tmp_path / "site")
    slowed = open_site(tmp_path / "site")
    frozen = ask(slowed, "baseline", "freeze", "credit", "--skip", "0")["baselines"]
    assert {each["version"] for each in frozen} == {"1.1.0"}
    by_bucket = {each["bucket"]: each["entry"] for each in frozen}
    before = len(entries(slowed, "stage"))
    with serving(slowed.root) as server:
        load(server.port)
    assert len(entries(slowed, "stage")) == before or set(by_bucket) != {1, 8}
    used = {
        (entry.data["bucket"], entry.data["mark"]["baseline"])
        for entry in entries(slowed, "call")[-CLIENTS * CALLS :]
        if "mark" in entry.data and entry.data["bucket"] in by_bucket
    }
    assert all(by_bucket[bucket] == key for bucket, key in used)
