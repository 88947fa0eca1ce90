"""Engines change under load: no call fails, every entry names who answered, what goes finishes first."""

from __future__ import annotations

import collections
import http.client
import json
import shutil
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.app.site import Site, open_site
from pellucid.core.entry import Entry, parse_entry
from pellucid.ledger.complete import complete
from pellucid.servers.grpc.messages import SERVICE, message_class
from pellucid.testing.models import credit_like
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import add_package, configure, make_site

pytestmark = pytest.mark.e2e

CLIENTS = 5
VALUES = [0.25 * (i % 7) - 0.5 for i in range(20)]
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": VALUES}]}
).encode()
Made = tuple[Path, Path]


def other_credit() -> bytes:
    """The credit toy trained on: the same names, other weights, so other answers."""
    model = onnx.load_model_from_string(credit_like())
    for weight in model.graph.initializer:
        moved = numpy_helper.to_array(weight) + np.float32(0.125)
        weight.CopyFrom(numpy_helper.from_array(moved, weight.name))
    return model.SerializeToString()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A site with version 1.0.0, and the archive of 1.1.0 that is not in its folder yet."""
    root = tmp_path_factory.mktemp("made")
    site = make_site(root / "site", serving={"models": ["credit"], "model_control": "explicit"})
    archive = add_package(site, model=other_credit, version="1.1.0")
    for path in site.packages_folder.glob("*1.1.0*"):
        if path.is_dir():
            shutil.rmtree(path)
    return site.root, archive.rename(root / archive.name)


@pytest.fixture
def site(made: Made, tmp_path: Path) -> Site:
    shutil.copytree(made[0], tmp_path / "site")
    return open_site(tmp_path / "site")


def post(connection: http.client.HTTPConnection, path: str, body: bytes = b"") -> tuple[int, Any, Any]:
    connection.request("POST", path, body)
    reply = connection.getresponse()
    raw = reply.read()
    return reply.status, reply.headers, json.loads(raw) if raw else None


def ask(server: ServerProcess, path: str, body: bytes = b"") -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        status, _, told = post(connection, path, body)
    return status, told


class Crowd:
    """Clients that call without a pause, and keep who was said to answer, and what."""

    def __init__(self, server: ServerProcess) -> None:
        self.answers: dict[str, tuple[str, tuple[float, ...]]] = {}
        self.failed: list[str] = []
        self._server, self._stop = server, threading.Event()
        self._some = threading.Semaphore(0)
        runs = [self._http] * (CLIENTS - 1) + [self._grpc]
        self._threads = [threading.Thread(target=run) for run in runs]
        for thread in self._threads:
            thread.start()

    def wait_for(self, replies: int) -> None:
        for _ in range(replies):
            assert self._some.acquire(timeout=30), "the server does not answer"

    def _note(self, key: str, version: str, scores: tuple[float, ...]) -> None:
        self.answers[key] = version, scores
        self._some.release()

    def _http(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)) as connection:
            while not self._stop.is_set():
                status, headers, told = post(connection, "/v2/models/credit/infer", BODY)
                if status != 200:
                    self.failed.append(f"{status} {told}")
                    return
                self._note(headers["pellucid-call"], told["model_version"], tuple(told["outputs"][0]["data"]))

    def _grpc(self) -> None:
        given = {"name": "features", "datatype": "FP32", "shape": [1, 20]}
        message = message_class("ModelInferRequest")(
            model_name="credit", inputs=[given], raw_input_contents=[struct.pack("<20f", *VALUES)]
        )
        reply = message_class("ModelInferResponse")
        with grpc.insecure_channel(f"127.0.0.1:{self._server.ready['beside']['grpc']}") as channel:
            infer = channel.unary_unary(
                f"/{SERVICE}/ModelInfer", type(message).SerializeToString, reply.FromString
            ).with_call
            while not self._stop.is_set():
                try:
                    answer, told = infer(message, timeout=30)
                except grpc.RpcError as error:
                    self.failed.append(str(error))
                    return
                scores = struct.unpack("<2f", answer.raw_output_contents[0])
                self._note(dict(told.trailing_metadata())["pellucid-call"], answer.model_version, scores)

    def be_refused(self) -> None:
        """Wait until each of them was: it goes on until then."""
        for thread in self._threads:
            thread.join(30)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def crowd(server: ServerProcess) -> Iterator[Crowd]:
    clients = Crowd(server)
    try:
        yield clients
    finally:
        clients.end()


def judged(site: Site) -> list[Entry]:
    """The ledger holds and is complete; all entries of it."""
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    assert check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin).findings == ()
    assert complete(entries).findings == ()
    return entries


def test_engines_are_swapped_under_load_and_no_call_fails(site: Site, made: Made):
    with serving(site.root) as server, crowd(server) as clients:
        clients.wait_for(50)
        assert ask(server, "/v2/repository/models/credit/load") == (200, None)  # the same once more
        clients.wait_for(50)
        shutil.copy(made[1], site.packages_folder / made[1].name)
        assert ask(server, "/v2/repository/models/credit/load") == (200, None)  # the newer one
        clients.wait_for(50)
        for _ in range(3):
            assert ask(server, "/v2/repository/models/credit/load") == (200, None)
            clients.wait_for(20)
        index = ask(server, "/v2/repository/index")[1]
        clients.end()
        assert clients.failed == []
        state = {m["version"]: m["state"] for m in index}
        assert state == {"1.0.0": "UNAVAILABLE", "1.1.0": "READY"}
    entries = judged(site)
    assert [e.type for e in entries if e.type in ("load", "unload")] == [
        "load", "load", "load", "unload", "load", "load", "load",
    ]  # fmt: skip
    (gone,) = (e for e in entries if e.type == "unload")
    assert (gone.data["version"], gone.data["reason"]) == ("1.0.0", "replaced")
    engines = {e.data["version"]: e.data["engine"] for e in entries if e.type == "load"}
    assert len(set(engines.values())) == 2
    calls = {e.id: e for e in entries if e.type == "call"}
    assert set(calls) == set(clients.answers)
    said = collections.defaultdict(set)
    for key, (version, scores) in clients.answers.items():
        assert (calls[key].data["version"], calls[key].data["engine"]) == (version, engines[version])
        said[version].add(tuple(np.float32(score) for score in scores))
    # one input, so one answer of each engine, in whatever bucket: who answered can be told by what came
    assert sorted(len(answers) for answers in said.values()) == [1, 1]
    assert said["1.0.0"] != said["1.1.0"]


def test_loads_at_once_open_the_engine_once(site: Site):
    with serving(site.root) as server:
        with ThreadPoolExecutor(8) as many:
            told = list(many.map(lambda _: ask(server, "/v2/repository/models/credit/load"), range(8)))
        assert told == [(200, None)] * 8
        assert ask(server, "/v2/repository/models/credit/load") == (200, None)  # later is again
    assert [e.type for e in judged(site)].count("load") == 3


def test_an_unload_under_load_answers_what_was_taken_and_refuses_the_rest(site: Site):
    with serving(site.root) as server, crowd(server) as clients:
        clients.wait_for(50)
        assert ask(server, "/v2/repository/models/credit/unload") == (200, None)
        clients.be_refused()
        assert all("no available versions" in failed for failed in clients.failed)
        assert len(clients.failed) == CLIENTS
    entries = judged(site)
    outcomes = collections.Counter(e.data["outcome"] for e in entries if e.type == "call")
    assert outcomes == {"answered": len(clients.answers), "refused": CLIENTS}
    unload = next(i for i, e in enumerate(entries) if e.type == "unload")
    refused = [i for i, e in enumerate(entries) if e.type == "call" and e.data["outcome"] == "refused"]
    assert unload < min(refused)


def test_an_engine_that_does_not_fit_is_refused_before_it_is_opened(site: Site, made: Made):
    (fits,) = site.packages_folder.glob("*1.0.0*.tar.gz")
    site = configure(site, serving={"models": [f"packages/{fits.name}"], "memory_max_bytes": 2**20})
    with pytest.raises(ChildProcessError, match="ended with 4"):
        ServerProcess(site.root).start()
    site = configure(site, serving={"memory_max_bytes": 2**40})
    with serving(site.root) as server:
        assert ask(server, "/v2/models/credit/infer", BODY)[0] == 200
    entries = judged(site)
    (refused,) = (e for e in entries if e.type == "load.refused")
    (finding,) = (f for f in refused.data["findings"] if not f["passed"])
    assert finding["rule"] == "serving.memory_max_bytes"
    assert "for this engine" in finding["got"]
    (load,) = (e for e in entries if e.type == "load")
    assert [f["passed"] for f in load.data["findings"] if f["rule"] == finding["rule"]] == [True]
