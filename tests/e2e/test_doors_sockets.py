"""Who may come in, over real sockets: the short way, the long way and gRPC say and record the same."""

from __future__ import annotations

import http.client
import json
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from pellucid.core.access import Caller, parse_networks
from pellucid.core.record import Call, Event
from pellucid.core.tensor import TensorSpec
from pellucid.errors import UnauthenticatedError
from pellucid.servers.grpc.messages import SERVICE, message_class
from pellucid.servers.grpc.serve import GrpcDoor
from pellucid.servers.http.crowd import Crowd
from pellucid.serving.doors import Doors
from pellucid.serving.limits import Limits
from pellucid.serving.rates import Rates
from pellucid.testing.plane import RealClock, echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.repository import MemoryRepository

pytestmark = pytest.mark.e2e

URL = "/v2/models/echo/infer"
GOOD = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
).encode()
CALLERS = {
    "c": Caller("token:anna", frozenset({"client"}), "token"),
    "a": Caller("token:otto", frozenset({"auditor"}), "token"),
    "s": Caller("token:sven", frozenset({"sre"}), "token"),
}


class Bearers:
    generation = 0

    def find(self, text: str, now_ns: int) -> Caller:
        if text not in CALLERS:
            raise UnauthenticatedError("token: expected a valid one, got another")
        return CALLERS[text]


class StillClock(RealClock):
    """Time that stands, so that a rate is met exactly."""

    def monotonic_ns(self) -> int:
        return 10**15


@dataclass
class House:
    http: int
    grpc: int
    recorder: MemoryRecorder
    told: list[Mapping[str, Any]] = field(default_factory=list)

    def call(self, key: str) -> Call:
        (found,) = [c for c in self.recorder.calls() if self.recorder.call_key(c.n) == key]
        return found

    def events(self) -> list[Event]:
        return [r for r in self.recorder.records if isinstance(r, Event)]


def open_house(**more: Any) -> Any:
    clock = StillClock()
    doors = Doors(
        now_ns=clock.now_ns, monotonic_ns=clock.monotonic_ns, forwarded_header="x-forwarded-for",
        **{"bearers": Bearers()} | more,
    )  # fmt: skip
    recorder, repository = MemoryRecorder(), MemoryRepository({"spare": lambda: echo_model("spare")})
    plane = make_plane(
        [echo_model(), echo_model("spare")], recorder, Limits(refusals_burst=10_000), doors=doors,
        repository=repository,
    )  # fmt: skip
    repository.pool = plane.pool
    return plane, recorder


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    plane, recorder = open_house()
    door = GrpcDoor("127.0.0.1", 0)
    with running(plane, [door]) as port:
        yield House(port, door.port, recorder)
    assert not recorder.open
    recorder.entries()


# -- three ways to call ---------------------------------------------------------------------------

Answer = tuple[int, str, str, str]  # status in HTTP's words, call key, trace, text


def short_way(house: House, headers: Mapping[str, str]) -> Answer:
    return _post(house.http, headers, [GOOD])


def long_way(house: House, headers: Mapping[str, str]) -> Answer:
    return _post(house.http, headers, [GOOD[:10], GOOD[10:]])


def _post(port: int, headers: Mapping[str, str], pieces: list[bytes]) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", URL, iter(pieces) if len(pieces) > 1 else pieces[0], dict(headers))
        reply = connection.getresponse()
        text = reply.read().decode()
        return reply.status, reply.getheader("pellucid-call", ""), reply.getheader("retry-after", ""), text


STATUSES = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 429}


def over_grpc(house: House, headers: Mapping[str, str]) -> Answer:
    infer, response = message_class("ModelInferRequest"), message_class("ModelInferResponse")
    message = infer(
        model_name="echo", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 3]}],
        raw_input_contents=[struct.pack("<3f", 1, 2, 3)],
    )  # fmt: skip
    with grpc.insecure_channel(f"127.0.0.1:{house.grpc}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", lambda m: m.SerializeToString(), response.FromString
        )
        metadata = [(name.lower(), value) for name, value in headers.items()]
        try:
            told, done = call.with_call(message, timeout=20, metadata=metadata)
            return 200, dict(done.trailing_metadata())["pellucid-call"], "", str(told)
        except grpc.RpcError as error:
            marks = dict(error.trailing_metadata())
            wait = str(int(marks.get("grpc-retry-pushback-ms", 0)) // 1000 or "")
            return STATUSES[error.code().name], marks.get("pellucid-call", ""), wait, error.details()


WAYS = pytest.mark.parametrize("ask", [short_way, long_way, over_grpc])
Ask = Callable[[House, Mapping[str, str]], Answer]


@WAYS
def test_a_client_is_let_in_and_named_in_the_entry(house: House, ask: Ask):
    status, key, _, _ = ask(house, {"Authorization": "Bearer c"})
    assert status == 200
    record = house.call(key)
    assert record.outcome == "answered"
    assert (record.personal["caller"], record.personal["address"]) == ("token:anna", "127.0.0.1")


@WAYS
@pytest.mark.parametrize(
    ("headers", "status", "code", "caller"),
    [
        ({}, 401, "unauthenticated", None),
        ({"Authorization": "Bearer nobody"}, 401, "unauthenticated", None),
        ({"Authorization": "Basic Yzpj"}, 401, "unauthenticated", None),
        ({"Authorization": "Bearer a"}, 403, "forbidden", "token:otto"),
        ({"Authorization": "Bearer s"}, 403, "forbidden", "token:sven"),
    ],
)
def test_others_are_refused_and_recorded(
    house: House, ask: Ask, headers: dict[str, str], status: int, code: str, caller: str | None
):
    got, key, _, text = ask(house, headers)
    assert got == status
    assert "expected" in text
    assert "nobody" not in text  # a token is never told back
    record = house.call(key)
    assert (record.outcome, record.error, record.rows) == ("refused", code, ())
    assert record.personal.get("caller") == caller


def test_a_header_twice_is_no_header(house: House):
    with closing(socket.create_connection(("127.0.0.1", house.http), timeout=20)) as connection:
        head = f"POST {URL} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer c\r\nauthorization: Bearer c\r\n"
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
    with grpc.insecure_channel(f"127.0.0.1:{house.grpc}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ServerMetadata")
        twice = [("authorization", "Bearer c"), ("authorization", "Bearer c")]
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=20, metadata=twice)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_body_of_a_stranger_is_not_read(house: House):
    with closing(socket.create_connection(("127.0.0.1", house.http), timeout=20)) as connection:
        connection.sendall(f"POST {URL} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n".encode())
        answer = connection.recv(65_536)  # before a byte of it was sent
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer
        assert b"www-authenticate: Bearer" in answer


def test_a_stream_of_a_stranger_ends(house: House):
    infer = message_class("ModelInferRequest")
    with grpc.insecure_channel(f"127.0.0.1:{house.grpc}") as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", lambda m: m.SerializeToString())
        answers = stream(iter([infer(model_name="echo")] * 3), timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# -- everything but inference ---------------------------------------------------------------------


def get(house: House, path: str, token: str = "", method: str = "GET") -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", house.http, timeout=20)) as connection:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        reply = connection.getresponse()
        raw = reply.read()
        return reply.status, json.loads(raw) if raw else None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/health/live", "-cas"), ("GET", "/v2/health/ready", "-cas"),
        ("GET", "/v2", "cas"), ("GET", "/v2/models/echo", "cas"), ("GET", "/v2/models/echo/ready", "cas"),
        ("GET", "/openapi.json", "cas"), ("GET", "/whoami", "cas"), ("POST", "/v2/repository/index", "cas"),
        ("GET", "/v2/models/stats", "as"), ("GET", "/v2/logging", "as"), ("POST", "/v2/logging", "s"),
        ("POST", "/v2/repository/models/spare/load", "s"),
        ("GET", "/v2/systemsharedmemory/status", "c"),
    ],
)  # fmt: skip
def test_paths_and_roles(house: House, method: str, path: str, allowed: str):
    for token in ("", "c", "a", "s"):
        status, _ = get(house, path, token, method)
        if (token or "-") in allowed:
            assert status == 200, token
        else:
            assert status == (403 if token else 401), token


def test_what_is_nowhere_is_not_told_to_strangers(house: House):
    assert get(house, "/v2/nowhere")[0] == 401
    assert get(house, "/v2/models/nope")[0] == 401
    assert get(house, "/v2/nowhere", "c")[0] == 404


def test_orders_and_refusals_are_entries_with_who_it_was(house: House):
    before = len(house.events())
    get(house, "/v2/repository/models/spare/load", "s", "POST")
    get(house, "/v2/repository/models/spare/load", "c", "POST")
    ordered, refused = house.events()[before:]
    assert (ordered.kind, ordered.data) == ("config", {"change": "repository_asked"})
    assert ordered.personal == {"address": "127.0.0.1", "caller": "token:sven"}
    assert refused.kind == "alert"
    assert refused.data == {"kind": "refused_at_door", "action": "repository", "error": "forbidden"}
    assert refused.personal["caller"] == "token:anna"


def test_rpcs_and_roles(house: House):
    with grpc.insecure_channel(f"127.0.0.1:{house.grpc}") as channel:

        def code(rpc: str, token: str) -> str:
            metadata = [("authorization", f"Bearer {token}")] if token else None
            try:
                channel.unary_unary(f"/{SERVICE}/{rpc}")(b"", timeout=20, metadata=metadata)
                return "OK"
            except grpc.RpcError as error:
                return str(error.code().name)

        assert code("ServerLive", "") == code("ServerReady", "") == "OK"
        assert code("ServerMetadata", "") == "UNAUTHENTICATED"
        assert code("ServerMetadata", "c") == "OK"
        assert code("ModelStatistics", "c") == "PERMISSION_DENIED"
        assert code("ModelStatistics", "a") == "OK"
        assert code("RepositoryModelUnload", "c") == "PERMISSION_DENIED"
        assert code("LogSettings", "a") == "PERMISSION_DENIED"
        assert code("LogSettings", "s") == "OK"


def test_whoami_answers_and_names_the_caller(house: House):
    _, told = get(house, "/whoami", "a")
    assert told["caller"] == {"identity": "token:otto", "roles": ["auditor"], "how": "token"}
    (echo,) = [model for model in told["what"]["models"] if model["name"] == "echo"]
    assert echo["package"] == "sha256:" + "0" * 64
    assert echo["optimisations"]["buckets"] == [1, 4, 8]


# -- rates ----------------------------------------------------------------------------------------


@WAYS
def test_too_fast_is_429_with_a_time_and_an_entry(ask: Ask):
    plane, recorder = open_house(rates=Rates(0.25, 0))
    door = GrpcDoor("127.0.0.1", 0)
    with running(plane, [door]) as port:
        house = House(port, door.port, recorder)
        assert ask(house, {"Authorization": "Bearer c"})[0] == 200
        status, key, wait, text = ask(house, {"Authorization": "Bearer c"})
        assert (status, wait) == (429, "4")
        assert "0.25 requests a second" in text
        record = house.call(key)
        assert (record.outcome, record.error, record.personal["caller"]) == ("refused", "rate", "token:anna")
        assert ask(house, {})[0] == 401  # strangers use up nobody's rate
    assert not recorder.open


@WAYS
def test_bytes_are_counted_however_they_come(ask: Ask):
    plane, recorder = open_house(rates=Rates(0, 1), bearers=None)
    door = GrpcDoor("127.0.0.1", 0)
    with running(plane, [door]) as port:
        house = House(port, door.port, recorder)
        assert ask(house, {})[0] == 200
        assert ask(house, {})[0] == 429


@WAYS
def test_an_address_comes_from_a_trusted_proxy_only(ask: Ask):
    for proxies, expected in (("127.0.0.0/8", "192.0.2.7"), ("10.0.0.0/8", "127.0.0.1")):
        plane, recorder = open_house(proxies=parse_networks([proxies], "x"))
        door = GrpcDoor("127.0.0.1", 0)
        with running(plane, [door]) as port:
            house = House(port, door.port, recorder)
            _, key, _, _ = ask(house, {"Authorization": "Bearer c", "X-Forwarded-For": "6.6.6.6, 192.0.2.7"})
            assert house.call(key).personal["address"] == expected


# -- connections ----------------------------------------------------------------------------------


def test_one_connection_too_many_is_told_so_and_leaves_room_again():
    plane = make_plane([echo_model()])
    with running(plane, crowd=Crowd(total_max=0, address_max=2)) as port:

        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), timeout=20)

        def alive(connection: socket.socket) -> bytes:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            return connection.recv(65_536)[:12]

        with closing(connect()) as first, closing(connect()) as second:
            assert alive(first) == alive(second) == b"HTTP/1.1 200"
            with closing(connect()) as third:
                assert third.recv(65_536).startswith(b"HTTP/1.1 503 ")
                while third.recv(65_536):
                    pass
            second.close()
            while True:  # until the server has seen it go
                with closing(connect()) as fourth:
                    if alive(fourth) == b"HTTP/1.1 200":
                        break
            assert alive(first) == b"HTTP/1.1 200"


def test_a_client_that_does_not_read_is_cut_and_one_that_reads_is_not():
    wide = 12_000_000  # more than the buffers of the system hold
    plane = make_plane([echo_model("echo", TensorSpec("x", "UINT8", (-1, wide)))])
    item = {"name": "x", "shape": [1, wide], "datatype": "UINT8", "parameters": {"binary_data_size": wide}}
    body = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST {URL} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body) + wide}\r\n"
        f"inference-header-content-length: {len(body)}\r\n\r\n"
    ).encode()
    with running(plane, crowd=Crowd(write_timeout_s=0.2)) as port, closing(socket.socket()) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", port))
        slow.sendall(head + body + bytes(wide))
        with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as quick:
            quick.sendall(head + body + bytes(wide))
            got = 0
            while got < wide:
                piece = quick.recv(1 << 20)
                assert piece
                got += len(piece)
        poll = select.poll()
        poll.register(slow, select.POLLERR)
        assert poll.poll(15_000), "an answer that nobody reads was held"
