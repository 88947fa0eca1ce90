"""Clients of the gRPC door that break HTTP/2, flood it, do not send, do not read or do not leave.

Each over a real socket, frame by frame. What ends a connection ends only that one, and every number is
closed.
"""

from __future__ import annotations

import select
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import hpack
import pytest

from pellucid.core.tensor import TensorSpec
from pellucid.servers.grpc import connection as limits_of_connections
from pellucid.servers.grpc import held, serve
from pellucid.servers.grpc.connection import BLOCK_FRAMES_MAX, STREAMS_MAX
from pellucid.servers.grpc.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    Code,
    Kind,
    Setting,
    frame,
    head_of,
    rst_stream,
    settings,
    window_update,
)
from pellucid.servers.grpc.messages import InferRequest, InferResponse
from pellucid.servers.grpc.serve import GrpcDoor
from pellucid.servers.grpc.statuses import StatusCode
from pellucid.servers.grpc.wire import framed
from pellucid.servers.http.crowd import Crowd
from pellucid.serving.limits import Limits
from pellucid.testing.http2 import HELLO, Talk, block, call, data, fields, headers, padded
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder

pytestmark = pytest.mark.e2e

FLOATS = struct.pack("<3f", 1, 2, 3)
GOOD = InferRequest(
    model_name="echo", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 3]}],
    raw_input_contents=[FLOATS],
).SerializeToString()  # fmt: skip
WIDE = 400_000


def wide() -> bytes:
    given = {"name": "x", "datatype": "UINT8", "shape": [1, WIDE]}
    raw: bytes = InferRequest(
        model_name="wide", inputs=[given], raw_input_contents=[bytes(WIDE)]
    ).SerializeToString()
    return raw


class House:
    def __init__(self, **more: Any) -> None:
        self.recorder, self.crowd = MemoryRecorder(), Crowd(**more)
        models = [echo_model(), echo_model("wide", TensorSpec("x", "UINT8", (-1, WIDE)))]
        self.plane = make_plane(
            models, self.recorder, Limits(body_max_bytes=1_000_000, refusals_burst=10_000)
        )
        self.door = GrpcDoor("127.0.0.1", 0, crowd=self.crowd)

    def talk(self, **more: Any) -> Talk:
        return Talk(self.door.port, **more)

    def is_well(self) -> bool:
        with self.talk() as good:
            good.say(call(1, "ModelInfer", GOOD))
            told = good.until_over(1)
        answer = InferResponse.FromString(told.data[5:])
        return told.status == 0 and list(answer.raw_output_contents) == [FLOATS]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    made = House()
    with running(made.plane, [made.door], crowd=made.crowd):
        yield made
        assert made.is_well()
    assert not made.recorder.open
    made.recorder.entries()


# -- what is no HTTP/2 ----------------------------------------------------------------------------

OPEN = headers(1, "ModelInfer")
BROKEN: dict[str, tuple[bytes, Code]] = {
    "HTTP/1.1": (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Code.PROTOCOL_ERROR),
    "no settings": (PREFACE + OPEN, Code.PROTOCOL_ERROR),
    "a ping before settings": (PREFACE + frame(Kind.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
    "a frame too large": (HELLO + head_of(65_537, Kind.DATA, 0, 1), Code.FRAME_SIZE_ERROR),
    "an even stream": (HELLO + headers(2, "ModelInfer"), Code.PROTOCOL_ERROR),
    "headers of stream 0": (HELLO + headers(0, "ModelInfer"), Code.PROTOCOL_ERROR),
    "data of stream 0": (HELLO + data(0, b"x"), Code.PROTOCOL_ERROR),
    "data before headers": (HELLO + data(1, b"x"), Code.PROTOCOL_ERROR),
    "padding too long": (HELLO + OPEN + frame(Kind.DATA, PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
    "a push": (HELLO + frame(Kind.PUSH_PROMISE, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "half a setting": (HELLO + frame(Kind.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "settings of a stream": (HELLO + frame(Kind.SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "a window of 2^31": (HELLO + settings({Setting.INITIAL_WINDOW_SIZE: 2**31}), Code.FLOW_CONTROL_ERROR),
    "frames of 1": (HELLO + settings({Setting.MAX_FRAME_SIZE: 1}), Code.PROTOCOL_ERROR),
    "push of 2": (HELLO + settings({Setting.ENABLE_PUSH: 2}), Code.PROTOCOL_ERROR),
    "a short ping": (HELLO + frame(Kind.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "a window of nothing": (HELLO + window_update(0, 0), Code.PROTOCOL_ERROR),
    "a window too wide": (HELLO + window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "a window of an idle stream": (HELLO + window_update(1, 1), Code.PROTOCOL_ERROR),
    "a reset of an idle stream": (HELLO + rst_stream(1, Code.CANCEL), Code.PROTOCOL_ERROR),
    "a short priority": (HELLO + frame(Kind.PRIORITY, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "a continuation of nothing": (HELLO + frame(Kind.CONTINUATION, 4, 1), Code.PROTOCOL_ERROR),
    "headers that are interrupted": (
        HELLO + frame(Kind.HEADERS, 0, 1, b"") + frame(Kind.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR,
    ),
    "trailers that go on": (HELLO + OPEN + OPEN, Code.PROTOCOL_ERROR),
    "no HPACK": (
        HELLO + frame(Kind.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\x0f"), Code.COMPRESSION_ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_ends_the_connection_and_says_why(house: House, name: str):
    raw, code = BROKEN[name]
    with house.talk(hello=raw) as client:
        told = client.until_closed()
    assert told is not None
    assert told.number == code
    assert b"expected" in told.payload


def malformed(*more: tuple[str, str], without: str = "") -> list[tuple[str, str]]:
    return [item for item in fields("ModelInfer") if item[0] != without] + list(more)


MALFORMED = {
    "upper case": malformed(("X-A", "b")),
    "a space in a name": malformed(("x a", "b")),
    "connection": malformed(("connection", "close")),
    "transfer-encoding": malformed(("transfer-encoding", "chunked")),
    "te of something": malformed(("te", "gzip")),
    "a line break": malformed(("x-a", "b\r\nc: d")),
    "a NUL": malformed(("x-a", "b\0")),
    "no path": malformed(without=":path"),
    "no method": malformed(without=":method"),
    "an unknown pseudo-header": [(":status", "200"), *malformed()],
    "a late pseudo-header": malformed((":authority", "y")),
    "a path twice": [(":path", "/x"), *malformed()],
    "content-length of words": malformed(("content-length", "many")),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_headers_end_their_stream_only(house: House, name: str):
    with house.talk() as client:
        client.say(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, block(MALFORMED[name])))
        assert client.until_over(1).reset == Code.PROTOCOL_ERROR
        client.say(call(3, "ModelInfer", GOOD))
        assert client.until_over(3).status == 0


@pytest.mark.parametrize("length", [0, len(GOOD) + 4, len(GOOD) + 6])
def test_a_content_length_that_is_not_kept(house: House, length: int):
    before = len(house.recorder.calls())
    with house.talk() as client:
        client.say(call(1, "ModelInfer", GOOD, [("content-length", str(length))]))
        assert client.until_over(1).reset == Code.PROTOCOL_ERROR
        client.say(call(3, "ModelInfer", GOOD, [("content-length", str(len(GOOD) + 5))]))
        assert client.until_over(3).status == 0
    assert len(house.recorder.calls()) == before + 1


# -- what is no gRPC ------------------------------------------------------------------------------


def test_requests_that_are_none_of_grpc(house: House):
    with house.talk() as client:
        for stream, name, value in ((1, ":method", "GET"), (3, "content-type", "application/json")):
            changed = [(n, value if n == name else v) for n, v in fields("ModelInfer")]
            client.say(frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream, block(changed)))
            assert client.until_over(stream).fields == {":status": "415"}


ODD: dict[str, tuple[bytes, StatusCode]] = {
    "no message": (headers(1, "ModelInfer", end=True), StatusCode.UNIMPLEMENTED),
    "two messages": (OPEN + data(1, framed(GOOD) * 2, end=True), StatusCode.UNIMPLEMENTED),
    "half a message": (OPEN + data(1, framed(GOOD)[:-1], end=True), StatusCode.INTERNAL),
    "half a length": (OPEN + data(1, b"\0\0\0", end=True), StatusCode.INTERNAL),
    "a flag of 2": (OPEN + data(1, b"\2" + framed(GOOD)[1:], end=True), StatusCode.INTERNAL),
    "compressed as nothing": (
        OPEN + data(1, b"\1" + framed(GOOD)[1:], end=True), StatusCode.INTERNAL,
    ),
    "no gzip": (
        headers(1, "ModelInfer", [("grpc-encoding", "gzip")]) + data(1, b"\1" + framed(GOOD)[1:], end=True),
        StatusCode.INTERNAL,
    ),
    "brotli": (headers(1, "ModelInfer", [("grpc-encoding", "br")]), StatusCode.UNIMPLEMENTED),
    "a timeout of words": (headers(1, "ModelInfer", [("grpc-timeout", "soon")]), StatusCode.INTERNAL),
    "an unknown method": (headers(1, "ModelTrain"), StatusCode.UNIMPLEMENTED),
    "an unknown service": (headers(1, "ModelInfer", service="x"), StatusCode.UNIMPLEMENTED),
    "a message announced too large": (
        OPEN + data(1, b"\0" + (2**32 - 1).to_bytes(4, "big")), StatusCode.RESOURCE_EXHAUSTED,
    ),
    "metadata over the limit": (
        headers(1, "ModelInfer", [("x", "y" * 32_700)]), StatusCode.RESOURCE_EXHAUSTED,
    ),
    "too many fields": (headers(1, "ModelInfer", [("x", "y")] * 200), StatusCode.RESOURCE_EXHAUSTED),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_never_becomes_a_call_has_a_status(house: House, name: str):
    raw, code = ODD[name]
    before = len(house.recorder.calls())
    with house.talk() as client:
        client.say(raw)
        told = client.until_over(1)
        assert told.status == code
        assert "expected" in told.fields["grpc-message"]
        client.say(call(3, "ModelInfer", GOOD))
        assert client.until_over(3).status == 0
    assert len(house.recorder.calls()) == before + 1


def test_every_way_to_send_one_message(house: House):
    squeezed = zlib.compressobj(wbits=31)
    small = squeezed.compress(GOOD) + squeezed.flush()
    encoder = hpack.Encoder()  # with a table and Huffman codes, as most clients do
    first, second = (encoder.encode(fields("ModelInfer", [("x-a", "b")])) for _ in range(2))
    cut_block = block(fields("ModelInfer"))
    ways = [
        OPEN + b"".join(data(1, framed(GOOD)[i : i + 1]) for i in range(len(GOOD) + 5))
        + data(1, b"", end=True),
        frame(Kind.HEADERS, END_HEADERS | PADDED, 3, padded(cut_block, 7))
        + frame(Kind.DATA, END_STREAM | PADDED, 3, padded(framed(GOOD), 200)),
        frame(Kind.HEADERS, 0, 5, cut_block[:9]) + frame(Kind.CONTINUATION, 0, 5, cut_block[9:20])
        + frame(Kind.CONTINUATION, END_HEADERS, 5, cut_block[20:]) + data(5, framed(GOOD), end=True),
        headers(7, "ModelInfer", [("grpc-encoding", "gzip")])
        + data(7, b"\1" + len(small).to_bytes(4, "big") + small, end=True),
        frame(Kind.HEADERS, END_HEADERS, 9, first) + data(9, framed(GOOD), end=True),
        frame(Kind.HEADERS, END_HEADERS, 11, second) + data(11, framed(GOOD), end=True),
        frame(Kind.HEADERS, END_HEADERS | 0x20, 13, bytes(5) + cut_block) + data(13, framed(GOOD), end=True),
        headers(15, "ModelInfer") + data(15, framed(GOOD))
        + frame(Kind.HEADERS, END_HEADERS | END_STREAM, 15, block([("x-t", "1")])),
    ]  # fmt: skip
    with house.talk() as client:
        client.say(frame(0x77, 0, 0, b"of tomorrow") + frame(Kind.PRIORITY, 0, 1, bytes(5)))
        for number, raw in enumerate(ways):
            client.say(raw)
            told = client.until_over(2 * number + 1)
            assert told.status == 0, number
            assert list(InferResponse.FromString(told.data[5:]).raw_output_contents) == [FLOATS]


# -- floods ---------------------------------------------------------------------------------------

MANY = 3_000
FLOODS: dict[str, bytes] = {
    "pings": frame(Kind.PING, 0, 0, bytes(8)) * MANY,
    "settings": settings({}) * MANY,
    "priorities": frame(Kind.PRIORITY, 0, 1, bytes(5)) * MANY,
    "unknown frames": frame(0x77, 0, 0) * MANY,
    "empty data": OPEN + data(1, b"") * MANY,
    "tiny windows": OPEN + window_update(1, 1) * MANY,
    "resets before any message": b"".join(
        headers(n, "ModelInfer") + rst_stream(n, Code.CANCEL) for n in range(1, 2 * MANY, 2)
    ),
    "resets of calls": b"".join(
        call(n, "ModelStreamInfer", GOOD) + rst_stream(n, Code.CANCEL) for n in range(1, 6 * MANY, 2)
    ),
    "malformed headers": b"".join(
        frame(Kind.HEADERS, END_HEADERS, n, block([("x", "y")])) for n in range(1, 2 * MANY, 2)
    ),
    "continuations": frame(Kind.HEADERS, 0, 1, b"") + frame(Kind.CONTINUATION, 0, 1, b"") * BLOCK_FRAMES_MAX,
    "a long block": frame(Kind.HEADERS, 0, 1, b"") + frame(Kind.CONTINUATION, 0, 1, bytes(40_000)) * 2,
    "a long block at once": frame(Kind.HEADERS, END_HEADERS, 1, bytes(40_000)),
    "an HPACK bomb": frame(
        Kind.HEADERS, END_HEADERS, 1, b"\x40\x01x\x7f\x81\x1e" + b"y" * 3_968 + b"\xbe" * 100
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOODS)
def test_floods_end_their_connection(house: House, name: str):
    with house.talk() as client, house.talk() as neighbour:
        client.say(FLOODS[name])
        told = client.until_closed()
        neighbour.say(call(1, "ModelInfer", GOOD))
        assert neighbour.until_over(1).status == 0
    if told is not None:  # else the client still sent when it was cut
        assert told.number == Code.ENHANCE_YOUR_CALM
    assert client.is_closed


def test_streams_beyond_the_limit_are_refused_for_another_time(house: House):
    with house.talk() as client:
        client.say(b"".join(headers(2 * n + 1, "ModelStreamInfer") for n in range(STREAMS_MAX + 1)))
        assert client.until_over(2 * STREAMS_MAX + 1).reset == Code.REFUSED_STREAM
        client.say(rst_stream(1, Code.CANCEL) + call(2 * STREAMS_MAX + 3, "ModelInfer", GOOD))
        assert client.until_over(2 * STREAMS_MAX + 3).status == 0


def test_a_thousand_calls_on_one_connection_are_no_flood(house: House):
    with house.talk() as client:
        for number in range(1_500):
            client.say(call(2 * number + 1, "ModelInfer", GOOD) + frame(Kind.PING, 0, 0, bytes(8)))
            assert client.until_over(2 * number + 1).status == 0
            if number % 100 == 99:
                client.say(window_update(0, 60_000))


# -- who does not send ----------------------------------------------------------------------------


def test_a_message_that_does_not_come_ends_and_holds_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held, "MESSAGE_TIMEOUT_S", 0.3)
    house = House()
    with running(house.plane, [house.door]), house.talk() as client:
        client.say(headers(1, "ModelInfer"))
        client.say(headers(3, "ModelInfer") + data(3, framed(GOOD)[:9]))
        client.say(headers(5, "ModelStreamInfer") + data(5, framed(GOOD)[:9]))
        client.say(headers(7, "ModelStreamInfer"))  # a stream may wait with nothing begun
        for stream in (1, 3, 5):
            told = client.until_over(stream)
            assert told.status == StatusCode.DEADLINE_EXCEEDED
        client.say(data(7, framed(GOOD), end=True))
        assert client.until_over(7).status == 0
    assert len(house.recorder.calls()) == 1


def test_a_crowd_of_halves_pushes_out_each_other_and_not_who_sends_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "MESSAGES_BYTES", 0)  # so that twice the largest body is the limit
    house = House()
    half = b"\0" + (900_000).to_bytes(4, "big") + bytes(599_000)
    with running(house.plane, [house.door]), house.talk() as client:
        for stream in (1, 3, 5, 7, 9):
            client.say(headers(stream, "ModelInfer"))
            for begin in range(0, len(half), 60_000):
                client.say(data(stream, half[begin : begin + 60_000]))
        for stream in (1, 3):
            told = client.until_over(stream)
            assert told.status == StatusCode.RESOURCE_EXHAUSTED
            assert "sooner where many are slow" in told.fields["grpc-message"]
        assert house.is_well()


def test_an_idle_connection_is_told_to_go_and_one_that_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits_of_connections, "IDLE_S", 0.3)
    monkeypatch.setattr(limits_of_connections, "PREFACE_S", 0.2)
    house = House()
    with running(house.plane, [house.door]):
        with house.talk() as idle:
            idle.say(call(1, "ModelInfer", GOOD))
            told = idle.until_closed()
            assert told is not None
            assert (told.number, told.payload[:4]) == (Code.NO_ERROR, (1).to_bytes(4, "big"))
        with house.talk(hello=PREFACE[:5]) as silent:
            silent.until_closed()


# -- who does not read ----------------------------------------------------------------------------


def test_an_answer_waits_for_windows_and_comes_whole(house: House):
    with house.talk(hello=PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 1_000})) as client:
        client.say(headers(1, "ModelInfer"))
        message = framed(wide())
        for begin in range(0, len(message), 60_000):
            client.say(data(1, message[begin : begin + 60_000], end=begin + 60_000 >= len(message)))
        told = client.rpcs.get(1)
        while told is None or len(told.data) < 1_000:
            assert client.listen()
            told = client.rpcs.get(1)
        assert len(told.data) == 1_000
        client.say(call(3, "ModelInfer", GOOD))  # others do not wait behind it
        assert client.until_over(3).status == 0
        client.say(settings({Setting.INITIAL_WINDOW_SIZE: 30_000}))  # of the stream that is open, too
        while len(told.data) < 30_000:
            assert client.listen()
        assert len(told.data) == 30_000
        client.say(window_update(1, WIDE) + window_update(0, WIDE))
        assert client.until_over(1).status == 0
        assert len(InferResponse.FromString(told.data[5:]).raw_output_contents[0]) == WIDE


def test_a_client_that_gives_no_window_loses_its_stream_and_one_that_does_not_read_its_connection():
    house = House(write_timeout_s=0.2)
    with running(house.plane, [house.door]):
        with house.talk() as client:
            client.say(headers(1, "ModelInfer"))
            message = framed(wide())
            for begin in range(0, len(message), 60_000):
                client.say(data(1, message[begin : begin + 60_000], end=begin + 60_000 >= len(message)))
            assert client.until_over(1).reset == Code.CANCEL
            client.say(window_update(0, WIDE) + call(3, "ModelInfer", GOOD))
            assert client.until_over(3).status == 0
        hello = PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update(0, 2**30)
        with house.talk(hello=hello, receive_buffer=4_096) as deaf:
            for number in range(32):
                stream = 2 * number + 1
                deaf.say(headers(stream, "ModelInfer"))
                for begin in range(0, len(message), 60_000):
                    deaf.say(
                        data(stream, message[begin : begin + 60_000], end=begin + 60_000 >= len(message))
                    )
                if deaf.is_closed:
                    break
            poll = select.poll()
            poll.register(deaf.socket, select.POLLERR)
            assert poll.poll(15_000), "answers that nobody reads were held"
        assert house.is_well()
    assert not house.recorder.open


def test_pings_that_nobody_hears_of_are_not_held(house: House):
    with house.talk(receive_buffer=4_096) as client:
        client.socket.settimeout(2)
        said, some = (
            0,
            b"".join(frame(Kind.PING, 0, 0, bytes(8)) + call(n, "x", b"") for n in range(1, 999, 2)),
        )
        with suppress(TimeoutError, ConnectionError):
            while not client.is_closed and said < 10**9:
                client.say(some)
                said += len(some)
        assert said < 10**9, "what nobody reads was answered without end"


# -- crowds and ends ------------------------------------------------------------------------------


def test_connections_are_counted_by_address_over_both_doors():
    house = House(address_max=2)
    asks = b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n"
    with running(house.plane, [house.door], crowd=house.crowd) as http:
        first, other = house.talk(), Talk(http, hello=asks)
        with first, other:
            assert other.socket.recv(65_536).startswith(b"HTTP/1.1 200")
            first.say(call(1, "ModelInfer", GOOD))
            assert first.until_over(1).status == 0
            with house.talk() as third:
                told = third.until_closed()
                assert told is not None
                assert told.number == Code.ENHANCE_YOUR_CALM
            other.close()
            wait_for(lambda: house.crowd.total == 1)
            assert house.is_well()
    assert house.crowd.total == 0


def wait_for(reached: Callable[[], bool]) -> None:
    import threading
    import time

    until = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < until
        threading.Event().wait(0.005)


def test_calls_of_a_client_that_resets_or_leaves_are_closed(house: House):
    before = len(house.recorder.calls())
    with house.talk() as client:
        client.say(call(1, "ModelInfer", GOOD) + rst_stream(1, Code.CANCEL))
        client.say(call(3, "ModelInfer", GOOD))
        assert client.until_over(3).status == 0
        client.say(call(5, "ModelInfer", GOOD) + headers(7, "ModelStreamInfer") + data(7, framed(GOOD) * 3))
    wait_for(lambda: len(house.recorder.calls()) >= before + 3 and not house.recorder.open)


def test_a_stream_that_sends_without_reading_is_held_back_and_loses_nothing(house: House):
    before, many = len(house.recorder.calls()), 500
    with house.talk(hello=PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 10})) as client:
        client.say(headers(1, "ModelStreamInfer") + data(1, framed(GOOD) * many, end=True))
        client.say(call(3, "ServerLive", b""))
        assert client.until_over(3).status == 0
        assert len(house.recorder.calls()) <= before + 1  # the second waits until the first answer has left
        client.say(window_update(1, 10_000_000) + window_update(0, 10_000_000))
        assert client.until_over(1).status == 0
    assert len(house.recorder.calls()) == before + many


def test_a_retired_connection_is_told_twice_and_loses_no_call():
    import threading

    from pellucid.testing.session import EchoSession

    session = EchoSession((TensorSpec("x", "FP32", (-1, 3)),))
    plane = make_plane([echo_model(session=session)], None, Limits(inline_max_ns=0))
    session.gate = gate = threading.Event()
    door = GrpcDoor("127.0.0.1", 0)
    with running(plane, [door]), Talk(door.port) as client:
        client.say(call(1, "ModelInfer", GOOD))
        wait_for(lambda: plane.pool.waiting == 1)
        assert plane._loop is not None
        plane._loop.call_soon_threadsafe(door.retire)
        while client.goaway is None:
            assert client.listen()
        assert client.goaway.payload[:4] == (2**31 - 1).to_bytes(4, "big")
        client.say(call(3, "ModelInfer", GOOD))  # it was on its way
        while client.goaway.payload[:4] != (3).to_bytes(4, "big"):
            assert client.listen()
        client.say(call(5, "ModelInfer", GOOD))  # this one came too late, and the client knows
        assert not door.is_empty
        gate.set()
        assert (client.until_over(1).status, client.until_over(3).status) == (0, 0)
        client.until_closed()
        assert 5 not in client.rpcs
        wait_for(lambda: door.is_empty)
