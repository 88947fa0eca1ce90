"""What made a model slow, asked of a real site's ledger in one query."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pellucid.app.baseline import tell_frozen
from pellucid.app.ledger import open_ledger, record_event, settle, wait_integrated
from pellucid.app.sign import approve
from pellucid.app.site import Site, open_site
from pellucid.cli.main import cli
from pellucid.core.entry import parse_entry
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import add_package, configure, make_site

pytestmark = pytest.mark.e2e
CLIENTS, CALLS, EXECUTIONS = 6, 300, 20
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0.5] * 20}]}
).encode()


class Crowd:
    """Clients that call all the while; the keys of what they were answered."""

    def __init__(self, port: int) -> None:
        self.keys: list[str] = []
        self.failed: list[int] = []
        self._port, self._stop = port, threading.Event()
        self._some = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._call) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, replies: int) -> None:
        """Until there were so many replies from now on: a load may have taken as long as all of them."""
        while self._some.acquire(blocking=False):
            pass
        for _ in range(replies):
            assert self._some.acquire(timeout=30), "the server does not answer"

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _call(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            while not self._stop.is_set():
                connection.request("POST", "/v2/models/credit/infer", BODY)
                reply = connection.getresponse()
                reply.read()
                if reply.status != 200:
                    self.failed.append(reply.status)
                self.keys.append(reply.headers["pellucid-call"])
                self._some.release()


@contextmanager
def crowd(server: ServerProcess) -> Iterator[Crowd]:
    clients = Crowd(server.port)
    try:
        yield clients
    finally:
        clients.end()
    assert clients.failed == []


def next_version(site: Site, away: Path) -> Path:
    """Version 1.1.0 with larger buckets and a longer delay, approved; its archive lies elsewhere yet."""
    recipe = {"buckets": [1, 8, 32], "batch_delay_us": 30_000}
    archive = add_package(site, version="1.1.0", recipe=recipe)
    approve(site, archive, kind="release", role="sre", reason="larger batches for the campaign")
    for path in site.packages_folder.glob("*1.1.0*"):
        if path.is_dir():
            shutil.rmtree(path)
    return archive.rename(away / archive.name)


def swap(server: ServerProcess) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("POST", "/v2/repository/models/credit/load")
        assert connection.getresponse().status == 200


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
    """A site whose engine was swapped under load for one with larger buckets and a longer delay."""
    root = tmp_path_factory.mktemp("made")
    settings = {
        "models": ["credit"], "model_control": "explicit",
        "baseline_skip": 2, "baseline_executions": EXECUTIONS,
    }  # fmt: skip
    site = make_site(root / "site", serving=settings)
    archive = next_version(site, root)
    with serving(site.root) as server, crowd(server) as clients:
        clients.wait_for(CALLS)
        shutil.copy(archive, site.packages_folder / archive.name)
        swap(server)
        clients.wait_for(CALLS)
    return site


def test_story_x4_an_alarm_in_the_night_is_one_query(slowed: Site):
    told = ask(slowed, "why", "credit")
    assert told["cause"].startswith("load of credit 1.1.0 with buckets up to 32 (before: 8)")
    assert "batch delay 0 -> 30000 us" in told["cause"]
    assert re.search(r"queue p(99|50) [\d.]+ ms -> ", told["cause"])
    assert "approved by sre (release, " in told["cause"]
    assert told["stage"] == "queue"
    ended, newest, oldest = told["changes"]
    assert ended["what"].endswith(" ended")
    assert newest["after"]["p50"]["queue"] >= 20_000_000 > newest["before"]["p50"]["queue"]
    assert min(newest["before"]["calls"], newest["after"]["calls"]) >= CALLS // 2
    assert oldest["after"] == newest["before"]
    assert "version 1.0.0 -> 1.1.0" in newest["more"]
    named = {entry.id: entry.type for kind in ("load", "unload") for entry in entries(slowed, kind)}
    assert sorted(named[key] for key in told["entries"]) == ["load", "unload"]
    (read,) = [entry for entry in entries(slowed, "read") if entry.id == told["entry"]]
    assert read.data["what"] == "why"


def test_a_restart_with_other_settings_is_one_change(slowed: Site, tmp_path: Path):
    shutil.copytree(slowed.root, tmp_path / "site")
    site = configure(open_site(tmp_path / "site"), serving={"queue_max": 500})
    with serving(site.root) as server, crowd(server) as clients:
        clients.wait_for(CALLS)
    _, started, before, *_ = ask(site, "why", "credit")["changes"]
    assert started["what"].startswith("load of credit 1.1.0 again")
    assert "queue limit 1024 -> 500 calls" in started["what"]
    assert any(text.startswith("config sha256:") for text in started["more"])
    assert before["what"].startswith("load of credit 1.1.0 with buckets up to 32")


def test_before_the_load_it_was_not_slow(slowed: Site):
    loads = [entry for entry in entries(slowed, "load") if entry.data["version"] == "1.1.0"]
    told = ask(slowed, "why", "credit", "--at", loads[0].time)
    assert len(told["changes"]) == 2  # at that very moment it is loaded, and nothing came after
    assert "1.1.0" not in told["cause"] or "too few" in told["cause"]


def test_a_person_reads_the_cause_in_the_first_line(slowed: Site):
    result = CliRunner().invoke(cli, ["why", "credit", "--site", str(slowed.root)], standalone_mode=False)
    first = result.output.splitlines()[0]
    assert first.startswith("load of credit 1.1.0")
    assert re.search(r"queue p(99|50) ", first)


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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_baseline_frozen_by_hand_is_in_force_in_every_worker_that_runs(
    slowed: Site, tmp_path: Path, workers: int
):
    shutil.copytree(slowed.root, tmp_path / "site")
    site = configure(open_site(tmp_path / "site"), serving={"workers": workers})
    with serving(site.root) as server, ExitStack() as stack:
        some = [
            stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)))
            for _ in range(2)
        ]
        for _ in range(20):
            keys = [one_call(connection) for connection in some]
        assert len({key.rpartition("/")[0] for key in keys}) == workers
        frozen = ask(site, "baseline", "freeze", "credit", "--skip", "0")["baselines"]
        (entry,) = [each["entry"] for each in frozen if each["bucket"] == 1]
        shown = find(site, entry)
        assert shown["stage"] == "baseline"
        # the same, but so that no execution is usual
        never = shown | {"mean_ns": 1, "median_ns": 1, "std_ns": 1, "how": "command"}
        made = record_event(site, "stage", never)
        wait_integrated(site, made)
        tell_frozen(site)
        for connection in some:
            for _ in range(1_000):
                marked = find(site, one_call(connection)).get("mark", {}).get("baseline")
                if marked == made:
                    break
            assert marked == made
        assert server.ready["pid"] == server.pid


def one_call(connection: http.client.HTTPConnection) -> str:
    connection.request("POST", "/v2/models/credit/infer", BODY)
    reply = connection.getresponse()
    reply.read()
    assert reply.status == 200
    return reply.headers["pellucid-call"]


def find(site: Site, key: str) -> dict[str, Any]:
    """Data of an entry, once it is integrated."""
    index = wait_integrated(site, key)
    with closing(open_ledger(site)) as ledger:
        return parse_entry(ledger.reader.entry(index)).data


def test_a_baseline_frozen_by_hand_is_in_force_from_the_next_start(slowed: Site, tmp_path: Path):
    shutil.copytree(slowed.root, tmp_path / "site")
    slowed = open_site(tmp_path / "site")
    frozen = ask(slowed, "baseline", "freeze", "credit", "--skip", "0")["baselines"]
    assert {each["version"] for each in frozen} == {"1.1.0"}
    by_bucket = {each["bucket"]: each["entry"] for each in frozen}
    before = len(entries(slowed, "stage"))
    with serving(slowed.root) as server, crowd(server) as clients:
        clients.wait_for(CALLS)
    assert len(entries(slowed, "stage")) == before or set(by_bucket) != {1, 8}
    used = {
        (entry.data["bucket"], entry.data["mark"]["baseline"])
        for entry in entries(slowed, "call")[-CALLS:]
        if "mark" in entry.data and entry.data["bucket"] in by_bucket
    }
    assert all(by_bucket[bucket] == key for bucket, key in used)
