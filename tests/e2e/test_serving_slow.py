"""Clients that are slow on purpose, at a real socket: what they hold is bounded, and for a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest

from pellucid.servers.http.crowd import Crowd
from pellucid.servers.http.protocol import PIPELINE_MAX, DoorProtocol
from pellucid.serving.limits import Limits
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder

pytestmark = pytest.mark.e2e
GOOD = b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}'


def head(length: int) -> bytes:
    return b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length


@contextmanager
def door(recorder: MemoryRecorder, limits: Limits | None = None) -> Iterator[ExitStack]:
    """A door; ``connect`` of what is given opens connections to it that are closed before it."""
    with running(make_plane([echo_model()], recorder, limits)) as port, ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=10)))

        stack.connect = connect  # type: ignore[attr-defined]
        yield stack
    assert not recorder.open


def status(connection: socket.socket) -> int:
    return int(connection.recv(65_536).split(b" ")[1])


def is_served(connection: socket.socket) -> bool:
    connection.sendall(head(len(GOOD)) + GOOD)
    return status(connection) == 200


def test_a_body_of_which_nothing_ever_comes_gives_its_number_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.body.BODY_TIMEOUT_S", 0.05)
    recorder = MemoryRecorder()
    with door(recorder) as opened:
        mute = opened.connect()  # type: ignore[attr-defined]
        mute.sendall(head(100))
        assert status(mute) == 504
    assert [call.error for call in recorder.calls()] == ["deadline"]


def test_slow_bodies_push_out_each_other_and_nobody_else():
    recorder = MemoryRecorder(limit=8)  # as a board with eight places
    with door(recorder, Limits(slow_bodies_max=4)) as opened:
        slow = [opened.connect() for _ in range(40)]  # type: ignore[attr-defined]
        for connection in slow:
            connection.sendall(head(len(GOOD)) + GOOD[:5])
        told = [status(connection) for connection in slow[:36]]
        assert set(told) == {504}
        good = opened.connect()  # type: ignore[attr-defined]
        assert is_served(good)
        for connection in slow[36:]:  # the newest ones have their places, and finish
            connection.sendall(GOOD[5:])
            assert status(connection) == 200
    assert [call.outcome for call in recorder.calls()].count("answered") == 5


def test_slow_bodies_hold_so_many_bytes_together_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.app.BODIES_BYTES", 0)
    with door(MemoryRecorder(), Limits(body_max_bytes=2**20)) as opened:
        first, second, third = (opened.connect() for _ in range(3))  # type: ignore[attr-defined]
        for connection in (first, second, third):
            connection.sendall(head(900_000) + bytes(800_000))
        assert status(first) == 504  # two bodies of that size may be held
        assert is_served(opened.connect())  # type: ignore[attr-defined]


PAGE = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"


def send_and_read_nothing(connection: socket.socket) -> None:
    for _ in range(100_000):
        connection.sendall(PAGE * 100)


def test_a_client_that_reads_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("pellucid.servers.http.serve.Crowd", partial(Crowd, write_timeout_s=0.1))
    with door(MemoryRecorder()) as opened:
        deaf, good = opened.connect(), opened.connect()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            send_and_read_nothing(deaf)
        assert is_served(good)
    assert caplog.records == []


def test_a_client_that_reads_slowly_and_steadily_is_not_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.serve.Crowd", partial(Crowd, write_timeout_s=0.3))
    monkeypatch.setattr("pellucid.servers.http.protocol.PACE_BYTES_PER_S", 1)
    with door(MemoryRecorder()) as opened:
        slow = opened.connect()  # type: ignore[attr-defined]
        slow.sendall(PAGE)
        first = slow.recv(65_536)
        length = int(first.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        size = first.index(b"\r\n\r\n") + 4 + length
        left = size - len(first)
        for _ in range(5):
            slow.sendall(PAGE * 60)
            left += 60 * size
            while left:
                piece = slow.recv(16_384)
                assert piece, "cut"
                left -= len(piece)


def test_more_requests_at_once_than_may_wait_are_not_all_answered():
    with door(MemoryRecorder()) as opened:
        eager = opened.connect()  # type: ignore[attr-defined]
        eager.sendall(b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n" * 1_000)
        told = b""
        while piece := eager.recv(65_536):
            told += piece
        assert told.count(b"HTTP/1.1 200 OK") == PIPELINE_MAX + 1  # the one that is answered, and who waits
        assert is_served(opened.connect())  # type: ignore[attr-defined]


def test_more_connections_than_there_is_room_for_are_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pellucid.servers.http.serve.connections_max", lambda: 3)
    assert DoorProtocol.connections_max > 3
    with door(MemoryRecorder()) as opened:
        inside = [opened.connect() for _ in range(3)]  # type: ignore[attr-defined]
        assert all(is_served(connection) for connection in inside)
        assert status(opened.connect()) == 503  # type: ignore[attr-defined]
        assert all(is_served(connection) for connection in inside)
        inside[0].close()
        while True:  # as soon as the server has seen that it left
            late = opened.connect()  # type: ignore[attr-defined]
            try:
                if is_served(late):
                    break
            except (OSError, IndexError):
                continue
