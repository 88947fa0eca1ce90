"""X11: the log system is down. Serving does not notice; at the limit it says so, and then goes on.

Real servers: the sequencer stopped by a signal, a sink whose reader reads no more, a disk that is full.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pellucid.app.ledger import check_ledger, is_sequencing, ledger_vkey, open_ledger, settle
from pellucid.app.site import Site, open_site
from pellucid.cli.ledger import command as ledger_command
from pellucid.core.entry import Entry, parse_entry
from pellucid.errors import NotFoundError
from pellucid.ledger.complete import complete
from pellucid.ledger.follower import CHUNK
from pellucid.ledger.reader import LedgerReader
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import configure, make_site

pytestmark = pytest.mark.e2e
LIMIT = 2**20  # the smallest backlog that a site may have
BODY = json.dumps(
    {"inputs": [{"name": "features", "shape": [1, 20], "datatype": "FP32", "data": [0.5] * 20}]}
).encode()
Reply = tuple[int, Any, dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture
def site(made: Site, tmp_path: Path) -> Site:
    shutil.copytree(made.root, tmp_path / "site")
    return open_site(tmp_path / "site")


def call(connection: http.client.HTTPConnection) -> Reply:
    connection.request("POST", "/v2/models/credit/infer", BODY)
    reply = connection.getresponse()
    return reply.status, reply.headers, json.loads(reply.read())


@contextlib.contextmanager
def client(server: ServerProcess) -> Iterator[http.client.HTTPConnection]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        yield connection


def call_until(connection: http.client.HTTPConnection, status: int, keys: list[str]) -> Reply:
    """Call until that status comes; answered calls are noted."""
    for _ in range(20_000):
        told = call(connection)
        if told[0] == 200:
            keys.append(told[1]["pellucid-call"])
        if told[0] == status:
            return told
        if told[0] != 200:
            threading.Event().wait(0.01)  # as its Retry-After asks, only sooner
    pytest.fail(f"no {status} came")


def assert_refused(told: Reply, hint: str) -> None:
    status, headers, body = told
    assert (status, headers["retry-after"]) == (503, "1")
    assert hint in body["hint"]


def judged(site: Site, keys: list[str]) -> list[Entry]:
    """Every reply has its entry, every number is closed, the ledger holds."""
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    assert check_ledger(site.ledger_folder, ledger_vkey(site), site.config.ledger.origin).findings == ()
    assert complete(entries).findings == ()
    answered = [e.id for e in entries if e.type == "call" and e.data["outcome"] == "answered"]
    assert sorted(answered) == sorted(keys)
    return entries


def test_story_x11_the_sequencer_stands_still_and_serving_does_not_notice(site: Site):
    site = configure(site, ledger={"backlog_max_bytes": LIMIT})
    keys: list[str] = []
    with serving(site.root) as server, client(server) as connection:
        os.kill(server.ready["sequencer"], signal.SIGSTOP)
        try:
            for _ in range(500):
                assert call(connection)[0] == 200
                keys.append("")
            keys.clear()
            refused = call_until(connection, 503, keys)
            assert_refused(refused, "is the sequencer running?")
            assert "ledger.backlog_max_bytes" in refused[2]["error"]
            assert len(keys) > 500
        finally:
            os.kill(server.ready["sequencer"], signal.SIGCONT)
        call_until(connection, 200, keys)
        assert server.ready["pid"] == server.pid
    settle(site)
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    assert complete(entries).findings == ()
    answered = [e.id for e in entries if e.type == "call" and e.data["outcome"] == "answered"]
    assert len(answered) == len(set(answered)) == 500 + len(keys)
    assert set(keys) <= set(answered)
    counts = [e.data for e in entries if e.type == "alert" and e.data.get("reason") == "refused_over_rate"]
    assert sum(count["not_numbered"] for count in counts) >= 1  # who was sent away is counted


def status(site: Site) -> dict[str, Any]:
    """What ``pellucid ledger status`` says."""
    told = CliRunner().invoke(ledger_command, ["status", "--site", str(site.root), "--json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def status_of(site: Site, name: str) -> dict[str, Any]:
    (only,) = [each for each in status(site)["followers"] if each["name"].startswith(name)]
    return only


def status_until(site: Site, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in range(3_000):
        if condition(told := status_of(site, name)):
            return told
        threading.Event().wait(0.01)
    pytest.fail(f"not within the time: {told}")


class Reader:
    """The far end of a pipe of 64 KiB: whoever collects standard output; it reads when told to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._text = descriptor, bytearray()
        self._thread = threading.Thread(target=self._drain)

    def start(self) -> None:
        self._thread.start()

    def _drain(self) -> None:
        while piece := os.read(self._descriptor, 65_536):
            self._text += piece

    def indices(self) -> list[int]:
        """Entries whose lines came, once the writer is gone. A line that a kill tore is no line."""
        self._thread.join(60)
        found = []
        for line in self._text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line)["index"])
        return found


def answer(connection: http.client.HTTPConnection, count: int) -> list[str]:
    told = [call(connection) for _ in range(count)]
    assert [status for status, _, _ in told] == [200] * count
    return [headers["pellucid-call"] for _, headers, _ in told]


def lines_wanted(site: Site) -> list[int]:
    """Entries that give a line."""
    with closing(open_ledger(site)) as ledger:
        entries = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    return [index for index, entry in enumerate(entries) if entry.type != "batch"]


def test_story_x11_a_sink_that_hangs_holds_up_nobody_is_named_and_catches_up(site: Site):
    site = configure(site, ledger={"sinks": ["stdout:"]})
    reading, writing = os.pipe()  # of 64 KiB, and nobody reads
    reader = Reader(reading)
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        with serving(site.root, stdout=writing) as server, client(server) as connection:
            os.close(writing)
            keys = answer(connection, 2_000)
            index = status_until(site, "index", lambda told: told["position"] > 2_000)
            assert index["behind"] == 0
            hung = status_until(site, "stdout:", lambda told: told["failing"] is not None)
            assert hung["failing"].startswith("hangs since ")
            assert hung["behind"] > 0
            assert hung["since"] is not None
            keys += answer(connection, 200)
            assert status(site)["published"] >= index["position"]
            for key in (keys[0], keys[-1]):
                with closing(open_ledger(site)) as ledger:
                    wait_for_entry(ledger.reader, key)
            assert status_of(site, "stdout:")["position"] == hung["position"]
            reader.start()
            status_until(site, "stdout:", lambda told: told["behind"] == 0 and told["failing"] is None)
        indices = reader.indices()
    judged(site, keys)
    assert indices == lines_wanted(site)  # nothing is missing, nothing twice, in order


def wait_for_entry(reader: LedgerReader, key: str) -> None:
    """It is under a published checkpoint."""
    for _ in range(3_000):
        with contextlib.suppress(NotFoundError):
            assert parse_entry(reader.entry(reader.locate(key))).id == key
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{key} was not integrated")


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_story_x11_beside_a_hung_sink_a_server_ends_at_once_and_the_next_goes_on(site: Site, way: str):
    site = configure(site, ledger={"sinks": ["stdout:"]})
    reading, writing = os.pipe()
    reader = Reader(reading)
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        server = ServerProcess(site.root, stdout=writing).start()
        with client(server) as connection:
            keys = answer(connection, 1_000)
        status_until(site, "index", lambda told: told["position"] > 1_000)
        if way == "stop":
            assert server.stop() == 0
        else:
            server.kill()
            os.kill(server.ready["sequencer"], signal.SIGKILL)
        for _ in range(1_000):
            if not is_sequencing(site):
                break
            threading.Event().wait(0.01)
        behind = status_of(site, "stdout:")
        assert behind["behind"] > 0
        with serving(site.root, stdout=writing) as server, client(server) as connection:
            os.close(writing)
            reader.start()
            keys += answer(connection, 100)
        indices = reader.indices()
    judged(site, keys)
    assert sorted(set(indices)) == lines_wanted(site)  # nothing is missing
    assert max(indices.count(index) for index in set(indices)) <= 2  # at least once, from its position on
    doubled = {index for index in indices if indices.count(index) == 2}
    assert all(behind["position"] <= index < behind["position"] + 2 * CHUNK for index in doubled)


# -- a full disk ----------------------------------------------------------------------------------

HELD = 24


def hold_open(server: ServerProcess, count: int) -> list[http.client.HTTPConnection]:
    """Calls that are accepted and whose bodies are not whole yet."""
    held = []
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.putrequest("POST", "/v2/models/credit/infer")
        connection.putheader("content-length", str(len(BODY)))
        connection.endheaders(BODY[:10])
        held.append(connection)
    return held


def fill(folder: Path) -> Path:
    """Write until nothing fits any more."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass
    return path


def play(root: Path) -> None:
    """The whole story on the file system of ``root``, which is small and this process's own."""
    site, keys = open_site(root / "site"), list[str]()
    with serving(site.root) as server, client(server) as connection:
        for _ in range(100):
            call_until(connection, 200, keys)
        held = hold_open(server, HELD)
        call_until(connection, 200, keys)  # behind them: they have their numbers
        filler = fill(root)
        refused = call_until(connection, 503, keys)  # once what was taken ahead for new calls is used up
        assert_refused(refused, "free some disk space")
        again = fill(root / "site")  # what the sequencer let go of meanwhile
        for each in held:
            each.send(BODY[10:])
            reply = each.getresponse()
            told = json.loads(reply.read())
            assert reply.status == 200, told  # accepted, so answered, and its record has its place
            keys.append(reply.headers["pellucid-call"])
            each.close()
        assert_refused(call_until(connection, 503, keys), "free some disk space")
        filler.unlink()
        again.unlink()
        call_until(connection, 200, keys)  # without a restart
        for _ in range(100):
            call_until(connection, 200, keys)
        assert server.ready["pid"] == server.pid
    judged(site, keys)
    print(f"answered {len(keys):,}, of them {HELD} on a full disk")


def test_story_x11_a_full_disk_closes_what_was_accepted_and_goes_on_when_there_is_room(
    made: Site, tmp_path: Path
):
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=48m tmpfs "$2" && cp -a "$3" "$2/site" && exec "$1" "$0" "$2"'
    inside = ["sh", "-c", script, __file__, sys.executable, str(small), str(made.root)]
    ways = (["unshare", "-rm"], ["sudo", "-n", "-E", "unshare", "-m"])
    for way in ways:
        if shutil.which(way[0]) and not subprocess.run([*way, "true"], capture_output=True).returncode:
            done = subprocess.run([*way, *inside], capture_output=True, text=True)
            print(done.stdout)
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"of them {HELD} on a full disk" in done.stdout
            return
    pytest.skip("NOT RUN unshare: no small file system can be mounted here")


if __name__ == "__main__":
    play(Path(sys.argv[1]))
