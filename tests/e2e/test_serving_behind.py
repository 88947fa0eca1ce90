"""What stands behind a request, in the same bytes: it is read as alone, or by nobody."""

from __future__ import annotations

import socket
import time
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pellucid.servers.http.pieces import PiecesCycle
from pellucid.servers.http.slow import SlowBodies
from pellucid.serving.limits import Limits
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder

pytestmark = pytest.mark.e2e

GOOD = b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'


def post(model: bytes, *lines: bytes) -> bytes:
    head = [b"POST /v2/models/%s/infer HTTP/1.1" % model, b"host: a", *lines]
    return b"\r\n".join([*head, b"content-length: %d" % len(GOOD), b"", GOOD])


CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED += b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)


@pytest.fixture
def recorder() -> MemoryRecorder:
    return MemoryRecorder()


@pytest.fixture
def client(recorder: MemoryRecorder) -> Iterator[socket.socket]:
    plane = make_plane([echo_model()], recorder, Limits(refusals_burst=10**6))
    with running(plane) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def statuses(client: socket.socket) -> list[int]:
    """Of all answers until the other side closes."""
    received = b""
    while piece := client.recv(65_536):
        received += piece
    return [int(each[:3]) for each in received.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("behind", [CHUNKED, b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\n\r\n"])
def test_another_kind_of_request_behind_one_that_is_refused_at_once(client: socket.socket, behind: bytes):
    client.sendall(post(b"nobody") + behind)
    client.shutdown(socket.SHUT_WR)
    assert statuses(client) == [404, 200]


@pytest.mark.parametrize("model", [b"nobody", b"echo"])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_behind_the_last_request_nothing_is_run(
    client: socket.socket, recorder: MemoryRecorder, model: bytes, in_pieces: bool
):
    last = post(model, b"connection: close")
    stop = len(last) - 9 if in_pieces else 0
    client.sendall(last[:stop])
    until = time.monotonic() + 20
    while in_pieces and not recorder.open:  # until its head is read
        assert time.monotonic() < until
    client.sendall(last[stop:] + post(b"echo"))
    assert statuses(client) == [404 if model == b"nobody" else 200]
    assert len(recorder.calls()) == 1
    assert not recorder.open


@pytest.mark.parametrize("width", [2, 1_023, 1_024, 5_000])
@pytest.mark.parametrize("head", [0, 1, 700, 3_000])
def test_a_body_in_pieces_holds_little_more_than_it_brought(width: int, head: int):
    started: list[Any] = []

    class Cycle(PiecesCycle):
        def accept(self, headers: dict[bytes, bytes], size: int) -> bool:
            return True

        def start(self, *given: Any) -> None:
            started.append(given[2:])

    body = bytes(range(256)) * 400
    loop = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
    slow = SlowBodies(10, 2**30)
    parts: Any = SimpleNamespace(loop=loop), SimpleNamespace(slow=slow)
    cycle = Cycle(*parts, None, keep_alive=True)
    headers = {b"inference-header-content-length": b"%d" % head} if head else {}
    cycle.begin(SimpleNamespace(), headers, len(body))  # type: ignore[arg-type]
    tracemalloc.start()
    for start in range(0, len(body) - width, width):
        assert cycle.take(body[start : start + width]) == b""
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1.3 * len(body) + 10_000
    last = cycle.take(memoryview(body)[start + width :])
    assert last == b""
    ((text, tail),) = started
    assert text + (tail or b"") == body
    assert tail is None or len(text) == head
    assert slow.bytes == 0
