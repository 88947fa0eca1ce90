"""Several workers behind one port and one ledger: shared out, outlived, ended together."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import select
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pellucid.app.ledger import check_ledger, ledger_vkey, open_ledger, settle
from pellucid.app.site import Site, open_site
from pellucid.core.entry import parse_entry
from pellucid.ledger.complete import complete
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import configure, make_site

pytestmark = pytest.mark.e2e
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0.5] * 20}]}
).encode()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture
def site(made: Site, tmp_path: Path) -> Site:
    shutil.copytree(made.root, tmp_path / "site")
    return configure(open_site(tmp_path / "site"), serving={"workers": 2})


def call(connection: http.client.HTTPConnection) -> str:
    """One call on that connection; gives its key."""
    connection.request("POST", "/v2/models/credit/infer", BODY)
    reply = connection.getresponse()
    reply.read()
    assert reply.status == 200
    return reply.headers["pellucid-call"]


@contextmanager
def connections(server: ServerProcess, count: int) -> Iterator[list[http.client.HTTPConnection]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)))
            for _ in range(count)
        ]


def sources(keys: list[str]) -> set[str]:
    return {key.rpartition("/")[0] for key in keys}


def ended(pid: int, within_s: float = 30) -> bool:
    """True once that process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def judged(site: Site, keys: list[str]) -> list[Any]:
    """The whole ledger holds, and every reply has its one entry."""
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    report = check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin)
    assert report.findings == ()
    assert complete(entries).findings == ()
    answered = [e.id for e in entries if e.type == "call" and e.data["outcome"] == "answered"]
    assert len(set(answered)) == len(answered)
    assert set(keys) <= set(answered)
    return entries


def test_connections_are_shared_out_and_every_worker_has_an_epoch_of_its_own(site: Site) -> None:
    with serving(site.root) as server:
        assert len(set(server.ready["workers"])) == 2
        with connections(server, 6) as some:
            keys = [call(connection) for connection in some for _ in range(3)]
    by_source = [sum(key.startswith(source + "/") for key in keys) for source in sources(keys)]
    assert by_source == [9, 9]
    entries = judged(site, keys)
    opened = [e.data for e in entries if e.type == "epoch" and e.data["phase"] == "open"]
    closed = [e.data for e in entries if e.type == "epoch" and e.data["phase"] == "closed"]
    assert len({e["epoch"] for e in opened}) == len(opened)
    assert sorted(e["epoch"] for e in closed) == sorted(e["epoch"] for e in opened)


def test_a_worker_that_is_killed_takes_nobody_with_it_and_another_begins(site: Site) -> None:
    with serving(site.root) as server, connections(server, 2) as first:
        keys = [call(connection) for connection in first]
        victim, other = server.ready["workers"]
        os.kill(victim, signal.SIGKILL)
        assert ended(victim)
        kept = []
        for connection in first:  # one of the two ends with its worker, the other never notices
            try:
                kept.append(call(connection))
            except (OSError, http.client.HTTPException):
                continue
        assert len(kept) == 1
        after: list[str] = []
        for _ in range(50_000):  # as many as it takes until the new worker is given some
            with connections(server, 1) as (fresh,):
                after.append(call(fresh))
            if len(sources(keys + kept + after)) == 3:
                break
        assert len(sources(keys + kept + after)) == 3
        assert not ended(other, 0)
    entries = judged(site, keys + kept + after)
    recovered = [e for e in entries if e.type == "epoch" and e.data.get("recovered")]
    assert len(recovered) == 1


def test_workers_end_with_their_parent_and_lose_nothing(site: Site) -> None:
    server = ServerProcess(site.root).start()
    with connections(server, 4) as some:
        keys = [call(connection) for connection in some]
        server.kill()
    assert all(ended(pid) for pid in [*server.ready["workers"], server.ready["sequencer"]])
    judged(site, keys)


def test_workers_share_the_port_of_grpc(site: Site) -> None:
    import grpc

    from pellucid.servers.grpc.messages import SERVICE, message_class

    given = {"name": "features", "datatype": "FP32", "shape": [1, 20]}
    message = message_class("ModelInferRequest")(
        model_name="credit", inputs=[given], raw_input_contents=[bytes(80)]
    ).SerializeToString()
    keys: list[str] = []
    with serving(site.root) as server:
        address = f"127.0.0.1:{server.ready['beside']['grpc']}"
        for _ in range(2):  # each goes to the next worker in turn
            with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                infer = channel.unary_unary(f"/{SERVICE}/ModelInfer").with_call
                _, told = infer(message, timeout=30)
                keys.append(dict(told.trailing_metadata())["pellucid-call"])
        assert len(sources(keys)) == 2
    judged(site, keys)


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[int, Any]:
    connection.request("GET" if path.endswith("stats") else "POST", path)
    reply = connection.getresponse()
    raw = reply.read()
    return reply.status, json.loads(raw) if raw else None


def states(some: list[http.client.HTTPConnection]) -> list[list[str]]:
    """What each connection's worker says that it serves."""
    found = []
    for connection in some:
        status, index = ask(connection, "/v2/repository/index")
        assert status == 200
        found.append(sorted(f"{model['name']} {model['state']}" for model in index))
    return found


def children(server: ServerProcess) -> set[int]:
    text = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return {int(word) for word in text.split()}


LOAD, UNLOAD = "/v2/repository/models/credit/load", "/v2/repository/models/credit/unload"
READY, GONE = [["credit READY"]] * 2, [["credit UNAVAILABLE"]] * 2


def test_what_one_worker_is_asked_to_change_all_workers_do(site: Site) -> None:
    site = configure(site, serving={"model_control": "explicit"})
    with serving(site.root) as server, connections(server, 2) as some:
        one, other = some
        keys = [call(connection) for connection in some for _ in range(5)]
        assert len(sources(keys)) == 2
        for connection in some:  # whoever is asked, the counters are everybody's
            status, told = ask(connection, "/v2/models/credit/stats")
            assert (status, told["model_stats"][0]["inference_count"]) == (200, 10)
            assert told["model_stats"][0]["batch_stats"][0]["compute_infer"]["count"] == 10
        assert ask(one, UNLOAD) == (200, None)
        assert states(some) == GONE
        assert ask(other, UNLOAD) == (200, None)  # nothing left to do
        assert ask(other, LOAD) == (200, None)
        assert states(some) == READY
        assert ask(one, "/v2/repository/models/nope/load")[0] == 404
        package = next(site.packages_folder.glob("*.tar.gz"))
        whole = package.read_bytes()
        package.write_bytes(whole[:-40])
        assert ask(one, LOAD)[0] == 422  # refused where it was asked for, and nobody else heard of it
        package.write_bytes(whole)
        assert states(some) == READY
        keys += [call(connection) for connection in some]
    entries = judged(site, keys)
    kinds = [e.type for e in entries if e.type in ("load", "unload", "load.refused")]
    assert sorted(kinds) == ["load"] * 4 + ["load.refused"] + ["unload"] * 2


def test_changes_reach_workers_over_grpc_and_those_that_begin_later(site: Site) -> None:
    import grpc

    from pellucid.servers.grpc.messages import SERVICE, message_class

    site = configure(site, serving={"model_control": "explicit"})
    with serving(site.root) as server, connections(server, 2) as some:
        address = f"127.0.0.1:{server.ready['beside']['grpc']}"
        with grpc.insecure_channel(address) as channel:
            unload = channel.unary_unary(f"/{SERVICE}/RepositoryModelUnload")
            unload(message_class("RepositoryModelUnloadRequest")(model_name="credit").SerializeToString())
        assert states(some) == GONE
        victim, _ = server.ready["workers"]
        os.kill(victim, signal.SIGKILL)
        assert ended(victim)
        known = {*server.ready["workers"], server.ready["sequencer"]}
        with connections(server, 1) as (fresh,):
            while not children(server) - known:
                assert ask(fresh, "/v2/repository/index")[0] == 200
            # a change waits until the worker that begins is ready
            assert ask(fresh, "/v2/repository/models/nope/load")[0] == 404
        with connections(server, 2) as later:
            assert states(later) == GONE
            assert ask(later[0], LOAD) == (200, None)
            assert states(later) == READY
            keys = [call(connection) for connection in later]
            assert len(sources(keys)) == 2
    judged(site, keys)


@contextmanager
def shared(data: bytes) -> Iterator[Path]:
    """An object of the system's shared memory."""
    path = Path("/dev/shm") / f"pellucid-test-{secrets.token_hex(8)}"
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def post(connection: http.client.HTTPConnection, path: str, value: Any = None) -> tuple[int, Any]:
    connection.request("POST", path, json.dumps(value) if value is not None else None)
    reply = connection.getresponse()
    raw = reply.read()
    return reply.status, json.loads(raw) if raw else None


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, Any]:
    connection.request("GET", path)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


SHM = "/v2/systemsharedmemory"
INPUT = {"name": "features", "shape": [1, 20], "datatype": "FP32"}


def call_with(connection: http.client.HTTPConnection, region: str) -> int:
    place = {"shared_memory_region": region, "shared_memory_byte_size": 80}
    body = {"inputs": [INPUT | {"parameters": place}]}
    return post(connection, "/v2/models/credit/infer", body)[0]


def region_events(entries: list[Any]) -> list[str]:
    changes = [e.data.get("change", "") for e in entries if e.type == "config"]
    return [change for change in changes if change.startswith("shared_memory_")]


def test_memory_that_one_worker_is_told_of_all_workers_know(site: Site) -> None:
    site = configure(site, serving={"shared_memory": True})
    with (
        shared(struct.pack("<20f", *[0.5] * 20)) as path,
        serving(site.root) as server,
        connections(server, 2) as some,
    ):
        one, other = some
        assert len(sources([call(connection) for connection in some])) == 2
        said = {"key": f"/{path.name}", "offset": 0, "byte_size": 80}
        assert post(one, f"{SHM}/region/in/register", said) == (200, None)
        wanted = [{"name": "in"} | said]
        assert [get(connection, f"{SHM}/status") for connection in some] == [(200, wanted)] * 2
        assert [call_with(connection, "in") for connection in some] == [200, 200]
        assert post(other, f"{SHM}/region/in/register", said)[0] == 400  # it is taken, everywhere
        assert post(other, f"{SHM}/region/more/register", said | {"byte_size": 81})[0] == 400
        assert [get(connection, f"{SHM}/status") for connection in some] == [(200, wanted)] * 2
        assert post(other, f"{SHM}/region/more/register", said | {"byte_size": 40}) == (200, None)
        assert post(other, f"{SHM}/region/in/unregister") == (200, None)
        assert [call_with(connection, "in") for connection in some] == [404, 404]
        assert [len(get(connection, f"{SHM}/status")[1]) for connection in some] == [1, 1]
        assert post(one, f"{SHM}/unregister") == (200, None)
        assert [get(connection, f"{SHM}/status") for connection in some] == [(200, [])] * 2
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    added, gone = "shared_memory_registered", "shared_memory_unregistered"
    assert sorted(region_events(entries)) == [added, added, gone, gone]  # once each, not once a worker


def test_memory_reaches_workers_over_grpc_and_those_that_begin_later(site: Site) -> None:
    import grpc

    from pellucid.servers.grpc.messages import SERVICE, message_class

    def rpc(channel: Any, called: str, **members: Any) -> Any:
        asked = channel.unary_unary(
            f"/{SERVICE}/{called}", message_class(f"{called}Request").SerializeToString,
            message_class(f"{called}Response").FromString,
        )  # fmt: skip
        return asked(message_class(f"{called}Request")(**members), timeout=60)

    site = configure(site, serving={"shared_memory": True})
    with shared(struct.pack("<20f", *[0.5] * 20)) as path, serving(site.root) as server:
        address = f"127.0.0.1:{server.ready['beside']['grpc']}"
        with grpc.insecure_channel(address) as channel, connections(server, 2) as some:
            rpc(channel, "SystemSharedMemoryRegister", name="in", key=path.name, byte_size=80)
            assert [call_with(connection, "in") for connection in some] == [200, 200]
        victim, _ = server.ready["workers"]
        os.kill(victim, signal.SIGKILL)
        assert ended(victim)
        known = {*server.ready["workers"], server.ready["sequencer"]}
        keys: list[str] = []
        while not children(server) - known:
            with connections(server, 1) as (fresh,):
                keys.append(call(fresh))
        with grpc.insecure_channel(address) as channel:  # on whichever of them
            assert list(rpc(channel, "SystemSharedMemoryStatus").regions) == ["in"]
            # a change waits until the worker that begins is ready
            rpc(channel, "SystemSharedMemoryRegister", name="more", key=path.name, byte_size=8)
        with connections(server, 2) as later:
            assert [call_with(connection, "in") for connection in later] == [200, 200]
            assert len(sources([call(connection) for connection in later])) == 2
            names = [[region["name"] for region in get(each, f"{SHM}/status")[1]] for each in later]
            assert names == [["in", "more"]] * 2
            with grpc.insecure_channel(address) as channel:
                rpc(channel, "SystemSharedMemoryUnregister")
            assert [call_with(connection, "in") for connection in later] == [404, 404]


def test_a_site_that_admits_nothing_does_not_start(site: Site) -> None:
    package = next(site.packages_folder.glob("*.tar.gz"))
    package.write_bytes(package.read_bytes()[:-40])
    with pytest.raises(ChildProcessError, match="ended with"):
        ServerProcess(site.root).start()
