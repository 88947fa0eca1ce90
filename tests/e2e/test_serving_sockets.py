"""Hostile bytes over real sockets: a right answer or a clear 4xx, and the door stays open."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pellucid.core.record import Call
from pellucid.core.tensor import TensorSpec
from pellucid.servers.http.protocol import PIPELINE_MAX
from pellucid.serving.limits import Limits
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder

pytestmark = pytest.mark.e2e

URL = "/v2/models/echo/infer"
ITEM: dict[str, Any] = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
GOOD = json.dumps({"inputs": [ITEM]}).encode()


class Door:
    """A running door and what it recorded."""

    def __init__(self, port: int, recorder: MemoryRecorder) -> None:
        self.port, self.recorder = port, recorder

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def call(self, headers: dict[str, str]) -> Call:
        """The one record of the call that was answered with these headers."""
        (found,) = [
            c for c in self.recorder.calls() if self.recorder.call_key(c.n) == headers["pellucid-call"]
        ]
        return found

    def talk(self, raw: bytes) -> list[tuple[int, dict[str, str], bytes]]:
        """Send bytes, read every answer until the server closes or has answered all."""
        with self.connect() as connection:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while piece := connection.recv(65_536):
                received += piece
        return list(answers(received))


def answers(raw: bytes) -> Iterator[tuple[int, dict[str, str], bytes]]:
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        size = int(headers.get("content-length", 0))
        code = int(status.split(" ")[1])
        if code != 100:
            yield code, headers, raw[:size]
        raw = raw[size:]


def post(body: bytes, *headers: str, path: str = URL, close: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"content-length: {len(body)}")
    if close:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    recorder = MemoryRecorder()
    text = echo_model("text", TensorSpec("x", "BYTES", (-1, 1)))
    plane = make_plane([echo_model(), text], recorder, Limits(body_max_bytes=100_000, refusals_burst=10_000))
    with running(plane) as port:
        yield Door(port, recorder)
    assert not recorder.open


def j(**changes: Any) -> bytes:
    item = {name: value for name, value in (ITEM | changes).items() if value is not ...}
    return json.dumps({"inputs": [item]}).encode()


def binary(data: bytes, size: int | None = None, length: int | None = None, **changes: Any) -> bytes:
    parameters = {"binary_data_size": len(data) if size is None else size}
    head = j(data=..., parameters=parameters, **changes)
    return post(head + data, f"inference-header-content-length: {len(head) if length is None else length}")


BAD: dict[str, tuple[bytes, int]] = {
    "wrong name": (post(j(name="y")), 400),
    "wrong datatype": (post(j(datatype="INT32")), 400),
    "wrong rank": (post(j(shape=[3])), 400),
    "wrong shape": (post(j(shape=[1, 4], data=[1, 2, 3, 4])), 400),
    "too many rows": (post(j(shape=[9, 3], data=[0] * 27)), 400),
    "wrong size": (post(j(data=[1, 2])), 400),
    "zero rows": (post(j(shape=[0, 3], data=[])), 400),
    "2^40 rows": (post(j(shape=[2**40, 3])), 400),
    "2^64 rows": (post(j(shape=[2**64, 3])), 400),
    "malformed JSON": (post(b'{"inputs":['), 400),
    "duplicate keys": (post(GOOD[:-1] + b',"inputs":[]}'), 400),
    "duplicate keys in a tensor": (post(GOOD.replace(b'"name"', b'"name": "y", "name"')), 400),
    "byte order mark": (post(b"\xef\xbb\xbf" + GOOD), 400),
    "NaN": (post(GOOD.replace(b"[1, 2, 3]}", b"[NaN, 2, 3]}")), 400),
    "deep": (post(b"[" * 90_000), 400),
    "truncated binary": (binary(b"\0" * 11, 12), 400),
    "too much binary": (binary(b"\0" * 13, 12), 400),
    "huge binary size": (binary(b"\0" * 12, 2**62), 400),
    "binary NaN": (binary(struct.pack("<3f", 1, float("nan"), 2)), 400),
    "header length beyond the body": (binary(b"\0" * 12, length=10**9), 400),
    "header length of 30 digits": (binary(b"\0" * 12, length=10**30), 400),
    "header length negative": (binary(b"\0" * 12, length=-5), 400),
    "id with line breaks": (post(j()[:-1] + b',"id":"a\\r\\nset-cookie: x"}'), 400),
    "id with NUL": (post(j()[:-1] + b',"id":"a\\u0000"}'), 400),
    "id of 10,000 characters": (post(j()[:-1] + b',"id":"' + b"i" * 10_000 + b'"}'), 400),
    "id that is no text": (post(j()[:-1] + b',"id":{"a":1}}'), 400),
    "id with a lone surrogate": (post(j()[:-1] + b',"id":"\\ud800"}'), 400),
    "body of 200,000 bytes": (post(b" " * 200_000), 413),
    "announced 10^18 bytes": (post(b"", "content-length: 1000000000000000000"), 413),
    "chunked beyond the limit": (
        post(b"1ffff\r\n" + b" " * 0x1FFFF + b"\r\n0\r\n\r\n", "transfer-encoding: chunked"),
        413,
    ),
    "brotli": (post(GOOD, "content-encoding: br"), 415),
    "unknown model": (post(GOOD, path="/v2/models/nope/infer"), 404),
    "hostile model name": (post(GOOD, path="/v2/models/%0d%0aset-cookie:%20x/infer"), 400),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_refused_clearly_and_recorded(door: Door, name: str):
    raw, status = BAD[name]
    ((got, headers, body),) = door.talk(raw)
    assert got == status, body
    told = json.loads(body)
    assert set(told) <= {"error", "hint"}
    assert "expected" in told["error"]
    assert "got" in told["error"]
    assert headers["content-type"] == "application/json"
    assert "set-cookie" not in headers
    call = door.call(headers)
    assert call.outcome == "refused"
    assert call.personal["message"] == told["error"][:512]


def test_bytes_that_are_no_text_get_a_clear_answer(door: Door):
    item = {"name": "x", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
    head = json.dumps({"inputs": [item]}).encode()
    raw = post(
        head + b"\x01\0\0\0\xff",
        f"inference-header-content-length: {len(head)}",
        path="/v2/models/text/infer",
    )
    ((status, _, body),) = door.talk(raw)
    assert status == 400
    assert "UTF-8" in json.loads(body)["error"]


CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
# what comes behind must never be taken for a request of its own
SMUGGLED = post(GOOD[:-1] + b', "id": "smuggled"}')


def assert_nothing_was_smuggled(door: Door) -> None:
    assert "smuggled" not in [call.personal.get("request_id") for call in door.recorder.calls()]


FRAMING: dict[str, bytes] = {
    "OIP-037 length and chunked": post(
        b"0\r\n\r\n", "content-length: 5", "transfer-encoding: chunked", close=False
    ),
    "OIP-037 two lengths": post(GOOD, f"content-length: {len(GOOD)}", "content-length: 3", close=False),
    "OIP-037 length no number": post(GOOD, "content-length: abc", close=False),
    "OIP-037 negative length": post(GOOD, "content-length: -1", close=False),
    "OIP-037 unknown transfer coding": post(GOOD, "transfer-encoding: gzip", close=False),
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "line folded header": b"GET /v2 HTTP/1.1\r\nhost: x\r\n folded\r\n\r\n",
    "space before colon": b"GET /v2 HTTP/1.1\r\nhost : x\r\n\r\n",
    "NUL in header": b"GET /v2 HTTP/1.1\r\nhost: x\0y\r\n\r\n",
    "chunked and length, turned round": post(
        CHUNKED, "transfer-encoding: chunked", f"content-length: {len(CHUNKED)}", close=False
    ),
    "the same length twice": post(
        GOOD, f"content-length: {len(GOOD)}", f"content-length: {len(GOOD)}", close=False
    ),
    "a list of lengths": post(GOOD, f"content-length: {len(GOOD)}, {len(GOOD)}", close=False),
    "a length with a sign": post(GOOD, f"content-length: +{len(GOOD)}", close=False),
    "a length in hex": post(GOOD, f"content-length: 0x{len(GOOD):x}", close=False),
    "an empty length": post(GOOD, "content-length: ", close=False),
    "a length beyond 64 bits": post(GOOD, f"content-length: {2**64 + 1}", close=False),
    **{
        f"transfer-encoding {value!r}": post(CHUNKED, f"transfer-encoding:{value}", close=False)
        for value in (
            " xchunked",
            " chunked, chunked",
            " gzip, chunked",
            " chunked, identity",
            " identity",
            ' "chunked"',
            " \x0bchunked",
            " chunked;q=1",
            " ",
        )
    },
    "transfer-encoding twice": post(
        CHUNKED, "transfer-encoding: chunked", "transfer-encoding: chunked", close=False
    ),
    "transfer-encoding and a space": post(CHUNKED, "transfer-encoding : chunked", close=False),
    "chunked in HTTP/1.0": post(CHUNKED, "transfer-encoding: chunked", close=False).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    ),
    "line folded value": post(GOOD, "x: a\r\n b", close=False),
    "line folded with a tab": post(GOOD, "x: a\r\n\tb", close=False),
    "line folded transfer-encoding": post(CHUNKED, "transfer-encoding:\r\n chunked", close=False),
    "bare line feeds": b"GET /v2 HTTP/1.1\nhost: x\n\n",
    "one bare line feed": b"GET /v2 HTTP/1.1\r\nhost: x\ny: z\r\n\r\n",
    "bare carriage return": b"GET /v2 HTTP/1.1\r\nhost: x\ry: z\r\n\r\n",
    "no host": b"GET /v2 HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v2 HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n",
    "a host that is a list": b"GET /v2 HTTP/1.1\r\nhost: x, y\r\n\r\n",
    "a host with a user": b"GET /v2 HTTP/1.1\r\nhost: a@x\r\n\r\n",
    "a header without a colon": b"GET /v2 HTTP/1.1\r\nhost: x\r\nabc\r\n\r\n",
    "a header without a name": b"GET /v2 HTTP/1.1\r\nhost: x\r\n: abc\r\n\r\n",
    "a space in a name": b"GET /v2 HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n",
    "a space in the target": b"GET /v2 x HTTP/1.1\r\nhost: x\r\n\r\n",
    "NUL in the target": b"GET /v2\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "HTTP/2.0": b"GET /v2 HTTP/2.0\r\nhost: x\r\n\r\n",
    "HTTP/1.2": b"GET /v2 HTTP/1.2\r\nhost: x\r\n\r\n",
    "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in small letters": b"get /v2 HTTP/1.1\r\nhost: x\r\n\r\n",
}
CHUNKS: dict[str, bytes] = {
    "a size that is no number": b"zz\r\n",
    "a size with a sign": b"+%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD),
    "a negative size": b"-1\r\n",
    "a size with 0x": b"0x%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD),
    "a size beyond 64 bits": b"f" * 17 + b"\r\n",
    "a space behind the size": b"%x \r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD),
    "bare line feeds": b"%x\n%s\n0\n\n" % (len(GOOD), GOOD),
    "more data than the size": b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD) - 1, GOOD),
    "no line end behind the data": b"%x\r\n%s0\r\n\r\n" % (len(GOOD), GOOD),
    "a length in the trailer": b"%x\r\n%s\r\n0\r\ncontent-length: 5\r\n\r\n" % (len(GOOD), GOOD),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_broken_chunks_are_answered_with_400_closed_and_reach_no_model(door: Door, name: str):
    got = door.talk(post(CHUNKS[name], "transfer-encoding: chunked", close=False) + SMUGGLED)
    assert [status for status, _, _ in got] == [400]
    assert got[0][1]["connection"] == "close"
    assert_nothing_was_smuggled(door)


@pytest.mark.parametrize("name", FRAMING)
def test_ambiguous_framing_is_answered_with_400_and_closed(door: Door, name: str):
    got = door.talk(FRAMING[name] + SMUGGLED)
    assert_nothing_was_smuggled(door)
    assert [status for status, _, _ in got] == [400]
    assert got[0][1]["connection"] == "close"
    assert "expected" in json.loads(got[0][2])["error"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (b"GET /v2 HTTP/1.1\r\nhost: x\r\na: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_endless_heads_are_cut_off(door: Door, raw: bytes, status: int):
    got = door.talk(raw)
    assert [each[0] for each in got] == [status]


def test_pipelined_requests_are_answered_in_order(door: Door):
    raw = b"".join(post(j(data=[n, 0, 0]), close=n == 9) for n in range(10))
    got = door.talk(raw)
    assert [json.loads(body)["outputs"][0]["data"][0] for _, _, body in got] == list(range(10))


def test_nonsense_behind_a_good_request_does_not_take_its_answer(door: Door):
    got = door.talk(post(GOOD, close=False) + b"\x00\x01nonsense\r\n\r\n")
    assert [status for status, _, _ in got] == [200]
    assert got[0][1]["connection"] == "close"


def test_a_body_that_breaks_off_in_its_framing(door: Door):
    got = door.talk(post(b'5\r\n{"inp\r\nzz\r\n', "transfer-encoding: chunked", close=False))
    assert [status for status, _, _ in got] == [400]
    assert door.call(door.talk(post(GOOD))[0][1]).outcome == "answered"


def test_expect_100_continue_and_http_1_0(door: Door):
    with door.connect() as connection:
        head = post(b"", "expect: 100-continue", f"content-length: {len(GOOD)}")
        connection.sendall(head)
        assert connection.recv(1024).startswith(b"HTTP/1.1 100")
        connection.sendall(GOOD)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    old = post(GOOD).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert [status for status, _, _ in door.talk(old)] == [200]


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "x"])
def test_an_offered_upgrade_is_ignored_and_the_connection_goes_on(door: Door, protocol: str):
    upgrade = ["connection: Upgrade, HTTP2-Settings", f"upgrade: {protocol}", "http2-settings: AAMAAABk"]
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    raw = b"".join(
        [
            post(GOOD, *upgrade, close=False),
            post(chunked, *upgrade, "transfer-encoding: chunked", close=False),
            b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n" + "\r\n".join([*upgrade, "", ""]).encode(),
            post(GOOD, close=False),
            post(GOOD, *upgrade, "transfer-encoding: chunked", "content-length: 5", close=False),
        ]
    )
    assert [status for status, _, _ in door.talk(raw[:-40])][:4] == [200] * 4
    with door.connect() as connection:
        for piece in (raw[i : i + 7] for i in range(0, len(raw), 7)):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while got := connection.recv(65_536):
            received += got
    # the last one is ambiguous: 400, or just closed when an answer before it was still on its way
    assert [status for status, _, _ in answers(received)] in ([200] * 4, [200] * 4 + [400])


def test_connect_is_no_method_here(door: Door):
    got = door.talk(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + post(GOOD))
    assert got[0][0] in (400, 404)
    assert door.talk(post(GOOD))[0][0] == 200


def test_chunked_bodies_and_any_content_type(door: Door):
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, GOOD[i : i + 1]) for i in range(len(GOOD))) + b"0\r\n\r\n"
    assert door.talk(post(chunks, "transfer-encoding: chunked"))[0][0] == 200
    for kind in ("text/plain", "application/json; charset=utf-8", "application/octet-stream", ""):
        assert door.talk(post(GOOD, f"content-type: {kind}"))[0][0] == 200


def test_head_is_get_without_the_body(door: Door):
    raw = b"HEAD /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with door.connect() as connection:
        connection.sendall(raw)
        received = connection.recv(65_536)
        assert connection.recv(10) == b""
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n")
    assert b"content-length: 13" in received


def test_one_write_an_answer(door: Door):
    """Head and body arrive together: two segments would wait for a delayed acknowledgement."""
    with door.connect() as connection:
        for _ in range(20):
            connection.sendall(post(GOOD, close=False))
            received = connection.recv(65_536)
            head, _, body = received.partition(b"\r\n\r\n")
            assert body, head


def test_clients_that_vanish_do_not_stop_the_door(door: Door):
    for cut in range(0, len(post(GOOD)), 9):
        with door.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(post(GOOD)[:cut] or b"P")
    assert door.talk(post(GOOD))[0][0] == 200


def test_clients_that_say_nothing_or_never_finish_are_let_go(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.protocol.HEAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr("pellucid.servers.http.body.BODY_TIMEOUT_S", 0.05)
    with door.connect() as silent, door.connect() as slow:
        slow.sendall(b"POST /v2 HTTP/1.1\r\nhos")
        assert silent.recv(10) == b""
        assert slow.recv(10) == b""
    with door.connect() as connection:
        connection.sendall(post(b'{"inputs"', "content-length: 100"))
        ((status, headers, _),) = answers(connection.recv(65_536))
    assert status == 504
    assert door.call(headers).error == "deadline"


def test_bodies_that_are_not_whole_at_a_stop_or_never_will_be_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.serve.GRACE_S", 0)
    recorder = MemoryRecorder()

    def until(is_so: Callable[[], bool]) -> None:
        limit = time.monotonic() + 20
        while not is_so():
            assert time.monotonic() < limit

    with running(make_plane([echo_model()], recorder)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as gone:
            gone.sendall(post(b'{"inputs"', "content-length: 100"))
            until(lambda: bool(recorder.open))
        until(lambda: not recorder.open)
        stays = socket.create_connection(("127.0.0.1", port), timeout=10)
        stays.sendall(post(b'{"inputs"', "content-length: 100"))
        until(lambda: bool(recorder.open))
    stays.close()
    assert not recorder.open
    assert [(c.outcome, c.error) for c in recorder.calls()] == [("refused", "deadline")] * 2


@pytest.mark.parametrize("name", ["header", "target", "line breaks", "chunk extension", "trailer"])
def test_what_never_becomes_whole_is_cut_before_it_fills_the_memory(door: Door, name: str):
    begin = {
        "header": b"GET /v2 HTTP/1.1\r\nhost: x\r\na: ",
        "target": b"GET /",
        "line breaks": b"",
        "chunk extension": post(b"5;a=", "transfer-encoding: chunked", close=False),
        "trailer": post(b"1\r\n{\r\n0\r\na: ", "transfer-encoding: chunked", close=False),
    }[name]
    filler = b"\r\n" if name == "line breaks" else b"aa"
    with door.connect() as connection:
        connection.sendall(begin)
        for _ in range(3):
            connection.sendall(filler * 32_768)
        (status, headers, _) = next(answers(connection.recv(65_536)))
    assert status in (414, 431)
    assert headers["connection"] == "close"


def test_line_breaks_behind_an_answer_do_not_hold_a_connection(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.protocol.HEAD_TIMEOUT_S", 0.05)
    with door.connect() as connection:
        connection.sendall(post(GOOD, close=False))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert connection.recv(10) == b""


@pytest.mark.parametrize(
    "trailer",
    [
        "content-encoding: gzip",
        "inference-header-content-length: 5",
        f"traceparent: 00-{'1' * 32}-{'2' * 16}-01",
    ],
)
def test_a_trailer_is_no_header(door: Door, trailer: str):
    """Otherwise it would count when it comes in one piece with the head, and not when it comes later."""
    chunked = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(GOOD), GOOD, trailer.encode())
    ((status, headers, _),) = door.talk(post(chunked, "transfer-encoding: chunked"))
    assert status == 200
    assert headers["pellucid-trace"] != "1" * 32


def test_any_number_of_offered_upgrades_in_one_piece(door: Door):
    raw = b"GET /v2 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    answered = PIPELINE_MAX + 1  # who is answered, and who may wait behind it
    assert [status for status, _, _ in door.talk(raw * 2_000)] == [200] * answered


def test_idle_connections_do_not_delay_a_stop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.protocol.LINGER_S", 30)
    plane = make_plane([echo_model()])
    with running(plane) as port:
        silent = socket.create_connection(("127.0.0.1", port), timeout=10)
        used = socket.create_connection(("127.0.0.1", port), timeout=10)
        used.sendall(post(GOOD, close=False))
        assert used.recv(65_536).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
    assert time.monotonic() - began < 10  # far below what a lingering connection is given
    for connection in (silent, used):
        assert connection.recv(10) == b""
        connection.close()


def test_a_client_that_sends_for_ever_behind_its_refusal_is_cut(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.protocol.LINGER_BYTES", 300_000)
    with door.connect() as connection, pytest.raises(OSError):
        send_for_ever(connection)


def send_for_ever(connection: socket.socket) -> None:
    connection.sendall(post(b"", "content-length: 1000000000000000000"))
    for _ in range(10_000):
        connection.sendall(bytes(65_536))


def test_a_fault_of_ours_is_500_in_json_and_the_number_is_closed(
    door: Door, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pellucid.serving.dataplane.read_infer", broken)
    ((status, headers, body),) = door.talk(post(GOOD))
    assert status == 500
    assert json.loads(body) == {"error": "server: expected an answer, got a fault of its own"}
    assert headers["content-type"] == "application/json"
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert not door.recorder.open
