"""A real site served by a real process: stock clients, a crowd, and the ledger behind every reply."""

from __future__ import annotations

import collections
import http.client
import json
import shutil
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from click.testing import CliRunner

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.app.site import Site, open_site
from pellucid.core.entry import decode_outputs, is_opening, output_digest, parse_entry
from pellucid.core.tensor import Tensor, row_digest
from pellucid.errors import NotFoundError
from pellucid.ledger.complete import complete
from pellucid.testing.models import dynamically_quantised
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import LABELS, configure, make_site

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site whose making takes seconds; tests take copies."""
    return make_site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture
def site(made: Site, tmp_path: Path) -> Site:
    shutil.copytree(made.root, tmp_path / "site")
    return open_site(tmp_path / "site")


def infer_body(values: Any, **more: Any) -> bytes:
    item = {"name": "features", "shape": [1, 20], "datatype": "FP32", "data": values}
    return json.dumps({"inputs": [item]} | more).encode()


def post(
    connection: http.client.HTTPConnection, body: bytes, model: str = "credit"
) -> tuple[int, dict[str, str], Any]:
    connection.request("POST", f"/v2/models/{model}/infer", body)
    reply = connection.getresponse()
    raw = reply.read()
    return reply.status, {name.lower(): value for name, value in reply.getheaders()}, json.loads(raw)


def entries_of(site: Site) -> list[Any]:
    with closing(open_ledger(site)) as ledger:
        return [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]


def assert_ledger_holds(site: Site) -> None:
    settle(site)
    report = check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin)
    assert report.findings == ()
    with closing(open_ledger(site)) as ledger:
        result = complete(ledger.reader.entries(0, ledger.reader.size()))
    assert result.findings == ()


@pytest.fixture(scope="module")
def server(made: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("served") / "site"
    shutil.copytree(made.root, root)
    with serving(root) as running:
        yield running
    assert_ledger_holds(open_site(root))


# -- stock client ---------------------------------------------------------------------------------


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as stock:
        yield stock


def test_tritonclient_health_and_metadata(client: Any):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("credit")
    assert client.is_model_ready("credit", "1.0.0")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("credit", "9")
    assert client.get_server_metadata()["name"] == "pellucid"
    metadata = client.get_model_metadata("credit")
    assert metadata["inputs"] == [{"name": "features", "datatype": "FP32", "shape": [-1, 20]}]
    assert metadata["properties"]["package"].startswith("sha256:")
    with pytest.raises(triton.InferenceServerException, match="unknown name"):
        client.get_model_metadata("nope")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_infers(client: Any, binary_in: bool, binary_out: bool, compression: str | None):
    rows = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20)
    given = triton.InferInput("features", [3, 20], "FP32")
    given.set_data_from_numpy(rows, binary_data=binary_in)
    wanted = triton.InferRequestedOutput("probabilities", binary_data=binary_out)
    reply = client.infer(
        "credit", [given], outputs=[wanted], request_id="mine", query_params={"a": 1},
        request_compression_algorithm=compression, response_compression_algorithm=compression,
    )  # fmt: skip
    answer = reply.get_response()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("mine", "credit", "1.0.0")
    assert answer["parameters"]["pellucid-call"].startswith("test1/")
    probabilities = reply.as_numpy("probabilities")
    assert probabilities.shape == (3, 2)
    assert np.allclose(probabilities.sum(axis=1), 1)
    if binary_in and binary_out:
        again = client.infer("credit", [given])
        assert again.as_numpy("probabilities").tobytes() == probabilities.tobytes()


def test_tritonclient_shows_what_was_expected(client: Any):
    given = triton.InferInput("features", [1, 19], "FP32")
    given.set_data_from_numpy(np.zeros((1, 19), np.float32))
    with pytest.raises(triton.InferenceServerException, match="axis 1: expected 20"):
        client.infer("credit", [given])
    given = triton.InferInput("features", [1, 20], "FP32")
    given.set_data_from_numpy(np.full((1, 20), np.nan, np.float32))
    with pytest.raises(triton.InferenceServerException, match="expected finite values"):
        client.infer("credit", [given])


# -- a crowd --------------------------------------------------------------------------------------


CLIENTS, CALLS = 16, 500


def crowd(server: ServerProcess, seed: int) -> list[tuple[list[float], str, list[float]]]:
    """Calls from many clients at once: input, call key, scores."""
    done: list[tuple[list[float], str, list[float]]] = []
    numbers = iter(range(CALLS))
    lock = threading.Lock()

    def one(generator: np.random.Generator) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            while True:
                with lock:
                    if next(numbers, None) is None:
                        return
                values = [float(v) for v in generator.standard_normal(20).astype(np.float32)]
                status, headers, answer = post(connection, infer_body(values))
                assert status == 200, answer
                done.append((values, headers["pellucid-call"], answer["outputs"][0]["data"]))

    threads = [threading.Thread(target=one, args=(np.random.default_rng([seed, i]),)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == CALLS
    return done


def row(name: str, values: list[float]) -> bytes:
    data = struct.pack(f"<{len(values)}f", *values)
    return row_digest([Tensor(name, "FP32", (1, len(values)), data)])


def test_500_calls_of_16_clients_share_batches_and_every_one_is_in_the_ledger(site: Site):
    # what the crowd shows is sharing, not speed: clients of this same process need a moment to meet
    site = configure(site, serving={"batch_delay_us": 2000})
    with serving(site.root) as server:
        done = crowd(server, 5)
    assert_ledger_holds(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
        calls = {entry.id: entry for entry in entries if entry.type == "call"}
        assert sorted(calls) == sorted(key for _, key, _ in done)
        for values, key, scores in done:
            assert_committed(calls[key], ledger.reader.openings(key), values, scores)
    sizes = [entry.data["calls"] for entry in entries if entry.type == "batch"]
    shared = sum(sizes)
    alone = len(done) - shared
    print("calls by calls in their batch:", dict(sorted(collections.Counter(sizes).items())), "alone:", alone)
    assert shared >= CALLS / 3
    named = collections.Counter(entry.data["batch"] for entry in calls.values())
    assert named.pop(None, 0) == alone
    assert sorted(named.values()) == sorted(sizes)
    for entry in calls.values():
        assert entry.data["bucket"] in (1, 4, 8)
        assert 0 <= entry.data["slot"] < entry.data["bucket"]


def assert_committed(entry: Any, openings: Any, values: list[float], scores: list[float]) -> None:
    """What the client sent and got is what the entry commits to."""
    opened = {opening.kind: opening for opening in openings}
    assert entry.data["outcome"] == "answered"
    assert is_opening(entry.data["rows"][0]["input"], opened["input"].key, row("features", values))
    kept = opened["output"]
    data = struct.pack("<2f", *scores)
    assert decode_outputs(kept.value)[0].data == data
    assert kept.label == LABELS[scores[1] >= 0.5]
    digest = output_digest(row("probabilities", scores), kept.label, kept.confidence)
    assert is_opening(entry.data["rows"][0]["output"], kept.key, digest)


def test_a_dynamically_quantised_model_never_shares_a_batch(tmp_path: Path):
    samples = {"x": np.random.default_rng(1).standard_normal((60, 16)).astype(np.float32)}
    gate = dict.fromkeys(("kl_mean_max", "flips_max", "slice_flips_max", "top1_drop_max", "bucket_flips_max"))
    site = make_site(
        tmp_path / "site", model=dynamically_quantised, name="quantised", meaning={}, samples=samples,
        recipe={"gate": gate}, serving={"batch_delay_us": 2000},
    )  # fmt: skip
    with pytest.raises(ChildProcessError, match="ended with 4"):
        ServerProcess(site.root).start()  # it computes in INT8, whatever its recipe says
    policy = site.root / "policy.yaml"
    policy.write_text(policy.read_text().replace("modes: [fp32]", "modes: [fp32, int8]"))
    with serving(site.root) as server:
        told: dict[float, set[str]] = collections.defaultdict(set)

        def one(value: float) -> None:
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
                for _ in range(10):
                    item = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [value, 0.25] * 8}
                    status, _, answer = post(connection, json.dumps({"inputs": [item]}).encode(), "quantised")
                    assert status == 200
                    told[value].add(json.dumps(answer["outputs"]))

        # neighbours whose values are far larger would change the scale, and so the bits
        threads = [threading.Thread(target=one, args=(0.5 * 10 ** (i % 4),)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    entries = entries_of(site)
    assert [len(answers) for answers in told.values()] == [1] * 4
    calls = [entry for entry in entries if entry.type == "call"]
    assert len(calls) == 80
    assert {entry.data["label_variance"] for entry in calls} == {"variant"}
    assert {entry.data["precision"] for entry in calls} == {"int8"}
    assert {entry.data["batch"] for entry in calls} == {None}
    assert not [entry for entry in entries if entry.type == "batch"]


# -- recording modes, start and stop --------------------------------------------------------------


def test_durable_mode_answers_and_records(site: Site):
    site = configure(site, ledger={"record": "durable"})
    with serving(site.root) as server:
        done = crowd(server, 6)
    keys = {entry.id for entry in entries_of(site) if entry.type == "call"}
    assert keys == {key for _, key, _ in done}
    assert_ledger_holds(site)


def test_recording_off_is_a_gap_that_the_ledger_shows(site: Site):
    site = configure(site, ledger={"record": "unsafe_record_nothing"})
    with (
        serving(site.root) as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
    ):
        assert post(connection, infer_body([0.0] * 20))[0] == 200
    entries = entries_of(site)
    assert [e.data["reason"] for e in entries if e.type == "gap"] == ["unsafe_record_nothing"]
    assert not [e for e in entries if e.type == "call"]


def test_epochs_follow_each_other_and_a_refused_package_stops_the_start(site: Site):
    for epoch in (1, 2):
        with serving(site.root) as server:
            assert server.ready["source"] == f"test1/{epoch}/0"
            assert server.ready["models"] == ["credit:1.0.0"]
    with pytest.raises(ChildProcessError, match="ended with 2"):  # before an epoch of it begins
        ServerProcess(configure(site, serving={"models": []}).root).start()
    (archive,) = (site.root / "packages").glob("*.tar.gz")
    site = configure(site, serving={"models": [f"packages/{archive.name}"]})
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(ChildProcessError, match="ended with"):
        ServerProcess(site.root).start()
    assert_ledger_holds(site)
    epochs = [(e.data["epoch"], e.data["phase"]) for e in entries_of(site) if e.type == "epoch"]
    assert sorted(epochs) == [(n, phase) for n in (1, 2, 3) for phase in ("closed", "open")]


def ask(server: ServerProcess, path: str, body: bytes = b"") -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", path, body)
        reply = connection.getresponse()
        raw = reply.read()
        return reply.status, json.loads(raw) if raw else None


def test_loading_and_unloading_are_entries_and_a_refused_load_leaves_what_was_served(site: Site):
    site = configure(site, serving={"model_control": "explicit", "grpc_port": -1})
    (archive,) = (site.root / "packages").glob("*.tar.gz")
    model = "/v2/repository/models/credit"
    with serving(site.root) as server:
        assert server.ready["beside"] == {}
        assert ask(server, "/v2/models/credit/infer", infer_body([0.1] * 20))[0] == 200
        assert ask(server, f"{model}/load") == (200, None)  # again, under the eyes of its callers
        assert ask(server, "/v2/models/credit/infer", infer_body([0.1] * 20))[0] == 200
        assert ask(server, f"{model}/unload") == (200, None)
        status, told = ask(server, "/v2/models/credit/infer", infer_body([0.1] * 20))
        assert (status, "no available versions" in told["error"]) == (404, True)
        assert ask(server, f"{model}/load") == (200, None)
        whole = archive.read_bytes()
        archive.write_bytes(whole[:-200])
        assert ask(server, f"{model}/load")[0] == 422
        archive.unlink()
        assert ask(server, f"{model}/load")[0] == 404
        archive.write_bytes(whole)
        assert ask(server, "/v2/repository/models/nope/load")[0] == 404
        assert ask(server, "/v2/models/credit/infer", infer_body([0.1] * 20))[0] == 200
        assert [m["state"] for m in ask(server, "/v2/repository/index")[1]] == ["READY"]
    assert_ledger_holds(site)
    entries = entries_of(site)
    kinds = [e.type for e in entries if e.type in ("load", "unload", "load.refused")]
    assert kinds == ["load", "load", "unload", "load", "load.refused"]
    (unload,) = (e for e in entries if e.type == "unload")
    assert (unload.data["model"], unload.data["version"]) == ("credit", "1.0.0")
    outcomes = [e.data["outcome"] for e in entries if e.type == "call"]
    assert outcomes == ["answered", "answered", "refused", "answered"]


def test_the_sequencer_is_started_again_when_it_dies(site: Site):
    import os
    import signal

    with (
        serving(site.root) as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
    ):
        os.kill(server.ready["sequencer"], signal.SIGKILL)
        _, headers, _ = post(connection, infer_body([0.0] * 20))
        key = headers["pellucid-call"]
        assert_appears(site, key)
    assert_ledger_holds(site)


def assert_appears(site: Site, key: str) -> None:
    """The running server's own sequencer integrates the entry; we only look."""
    from pellucid.app.clock import SystemClock

    clock = SystemClock()
    until = clock.monotonic_ns() + 20_000_000_000
    while clock.monotonic_ns() < until:
        with closing(open_ledger(site)) as ledger:
            try:
                ledger.reader.locate(key)
                return
            except NotFoundError:
                threading.Event().wait(0.02)
    pytest.fail(f"{key} did not appear")


def test_the_call_command(server: ServerProcess):
    from pellucid.cli.call import command

    run = CliRunner()
    values = json.dumps([0.1] * 20)
    result = run.invoke(command, ["credit", "--data", values, "--url", server.url, "--id", "a", "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.output)
    assert value["call"].startswith("test1/")
    assert len(value["outputs"][0]["data"]) == 2
    shown = run.invoke(command, ["credit:1.0.0", "--data", values, "--url", server.url])
    assert "pellucid answer test1/" in shown.output
    refused = run.invoke(command, ["credit", "--data", "[1]", "--url", server.url])
    assert "expected 20 elements" in str(refused.exception)
    gone = run.invoke(command, ["credit", "--data", "[1]", "--url", "http://127.0.0.1:9"])
    assert "is it running" in gone.exception.hint  # type: ignore[union-attr]
