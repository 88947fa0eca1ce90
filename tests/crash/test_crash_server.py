"""kill -9 of the server and of its sequencer, each 20 times, under load over HTTP and gRPC.

The moments are random. After each kill the server is started again over what is left. At the end every
reply that a client holds has exactly one call entry, whose commitments open to what was sent and what
came back; every number is closed exactly once; the ledger is whole.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import struct
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.app.site import Site, open_site
from pellucid.core.entry import decode_outputs, is_opening, output_digest, parse_entry
from pellucid.core.tensor import Tensor, row_digest
from pellucid.ledger.complete import complete
from pellucid.servers.grpc.messages import SERVICE, message_class
from pellucid.testing.server import ServerProcess
from pellucid.testing.site import configure, make_site

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("PELLUCID_CRASH_KILLS", "20"))
CLIENTS = 6
Held = tuple[list[float], list[float]]


class Load:
    """Clients that call until told to stop, and remember every whole reply."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.port, self.held, self.broken = server.port, dict[str, Held](), 0
        self.over_grpc = 0
        self._grpc = f"127.0.0.1:{server.ready['beside']['grpc']}"
        self._stop, self._some = threading.Event(), threading.Semaphore(0)
        self._threads = [
            threading.Thread(
                target=self._run_grpc if i % 3 == 2 else self._run, args=(random.Random(f"{seed}/{i}"),)
            )
            for i in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, replies: int) -> None:
        """Return once that many replies more came in: the moment is the load's, not the clock's."""
        for _ in range(replies):
            assert self._some.acquire(timeout=30), "the server does not answer"

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, generator: random.Random) -> None:
        while not self._stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                while not self._stop.is_set():
                    self._call(connection, generator)
            except (OSError, http.client.HTTPException):
                self.broken += 1
                if self._stop.wait(0.001):
                    return
            finally:
                connection.close()

    def _run_grpc(self, generator: random.Random) -> None:
        request, reply = message_class("ModelInferRequest"), message_class("ModelInferResponse")
        given = {"name": "features", "datatype": "FP32", "shape": [1, 20]}
        with grpc.insecure_channel(self._grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary(
                f"/{SERVICE}/ModelInfer", request.SerializeToString, reply.FromString
            ).with_call
            while not self._stop.is_set():
                values = draw(generator)
                raw = struct.pack("<20f", *values)
                message = request(model_name="credit", inputs=[given], raw_input_contents=[raw])
                try:
                    answer, told = infer(message, timeout=30)
                except grpc.RpcError:
                    self.broken += 1
                    if self._stop.wait(0.001):
                        return
                    continue
                scores = list(struct.unpack("<2f", answer.raw_output_contents[0]))
                self.over_grpc += 1
                self._hold(dict(told.trailing_metadata())["pellucid-call"], values, scores)

    def _hold(self, key: str, values: list[float], scores: list[float]) -> None:
        assert key not in self.held, f"two replies carry {key}"
        self.held[key] = values, scores
        self._some.release()

    def _call(self, connection: http.client.HTTPConnection, generator: random.Random) -> None:
        values = draw(generator)
        item = {"name": "features", "shape": [1, 20], "datatype": "FP32", "data": values}
        connection.request("POST", "/v2/models/credit/infer", json.dumps({"inputs": [item]}))
        reply = connection.getresponse()
        raw = reply.read()
        if reply.status == 200:
            self._hold(reply.headers["pellucid-call"], values, json.loads(raw)["outputs"][0]["data"])


def draw(generator: random.Random) -> list[float]:
    """Features that FP32 holds exactly."""
    return [struct.unpack("<f", struct.pack("<f", generator.gauss(0, 1)))[0] for _ in range(20)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("made") / "site")


@pytest.mark.parametrize("mode", ["journaled", "durable"])
def test_kill_9_under_load(made: Site, tmp_path: Path, mode: str):
    shutil.copytree(made.root, tmp_path / "site")
    site = configure(
        open_site(tmp_path / "site"), ledger={"record": mode, "rotate_s": 0.5, "sinks": ["file:all.jsonl"]}
    )
    seed = random.randrange(2**32)
    print("seed", seed)
    dice, held, over_grpc = random.Random(seed), dict[str, Held](), 0
    for number in range((KILLS + 1) // 2):  # the two modes share the kills
        server = ServerProcess(site.root).start()
        load = Load(server, seed + number)
        try:
            load.wait_for(dice.randrange(1, 40))
            # the sequencer dies before its server (which starts it again) or after it
            first = dice.random() < 0.5
            if first:
                kill_sequencer(server)
                load.wait_for(dice.randrange(0, 40))
            server.kill()
            if not first:
                kill_sequencer(server)
        finally:
            load.end()
        assert not held.keys() & load.held.keys()
        held |= load.held
        over_grpc += load.over_grpc
    server = ServerProcess(site.root).start()
    assert server.stop() == 0
    assert over_grpc
    assert_all_there(site, held)
    assert_all_sent(site)


def assert_all_sent(site: Site) -> None:
    """Whoever was killed when: the sink's file has each entry once, in order."""
    with contextlib.closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    lines = [json.loads(line)["index"] for line in (site.root / "all.jsonl").read_text().splitlines()]
    assert lines == [index for index, entry in enumerate(entries) if entry.type != "batch"]


def kill_sequencer(server: ServerProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.ready["sequencer"], signal.SIGKILL)


def assert_all_there(site: Site, held: dict[str, Held]) -> None:
    settle(site)
    report = check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin)
    assert report.findings == ()
    with contextlib.closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
        result = complete([entry.raw for entry in entries])
        assert result.findings == ()
        calls = [entry for entry in entries if entry.type == "call"]
        assert max(Counter(entry.id for entry in calls).values()) == 1
        by_key = {entry.id: entry for entry in calls}
        for key, (values, scores) in held.items():
            assert_opens(by_key[key], ledger.reader.openings(key), values, scores)
    outcomes = Counter(entry.data["outcome"] for entry in calls)
    assert set(outcomes) <= {"answered", "unresolved"}
    assert outcomes["answered"] >= len(held) > 0
    print(f"{len(held)} replies held, entries: {dict(outcomes)}, of a tree of {report.size}")


def row(name: str, values: list[float]) -> bytes:
    return row_digest([Tensor(name, "FP32", (1, len(values)), struct.pack(f"<{len(values)}f", *values))])


def assert_opens(entry: Any, openings: Any, values: list[float], scores: list[float]) -> None:
    opened = {opening.kind: opening for opening in openings}
    (committed,) = entry.data["rows"]
    assert entry.data["outcome"] == "answered"
    assert is_opening(committed["input"], opened["input"].key, row("features", values))
    kept = opened["output"]
    assert decode_outputs(kept.value)[0].data == struct.pack("<2f", *scores)
    digest = output_digest(row("probabilities", scores), kept.label, kept.confidence)
    assert is_opening(committed["output"], kept.key, digest)
