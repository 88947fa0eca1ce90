"""Streams of the gRPC door that go on behind their end, wait long, come squeezed, or never close."""

from __future__ import annotations

import asyncio
import gc
import threading
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import TensorSpec
from pellucid.servers.grpc import held
from pellucid.servers.grpc.frames import (
    END_HEADERS,
    END_STREAM,
    ID_MAX,
    PADDED,
    PREFACE,
    PRIORITISED,
    Code,
    Kind,
    Setting,
    frame,
    rst_stream,
    settings,
    window_update,
)
from pellucid.servers.grpc.heads import HeadReader
from pellucid.servers.grpc.messages import InferRequest, StreamResponse
from pellucid.servers.grpc.rpc import Rpc
from pellucid.servers.grpc.serve import GrpcDoor
from pellucid.servers.grpc.statuses import StatusCode
from pellucid.servers.grpc.wire import TEXT_MAX, framed, trailers
from pellucid.servers.http.crowd import Crowd
from pellucid.serving.limits import Limits
from pellucid.testing.http2 import HELLO, Talk, block, call, connect, data, fields, headers, settle
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.session import EchoSession

pytestmark = pytest.mark.e2e

WIDTH = 4_000
SPEC = TensorSpec("x", "UINT8", (-1, WIDTH))
GOOD: bytes = InferRequest(
    model_name="echo", inputs=[{"name": "x", "datatype": "UINT8", "shape": [1, WIDTH]}],
    raw_input_contents=[bytes(WIDTH)],
).SerializeToString()  # fmt: skip


class House:
    def __init__(self, **more: Any) -> None:
        self.recorder, self.session = MemoryRecorder(), EchoSession((SPEC,))
        limits = Limits(body_max_bytes=1_000_000, refusals_burst=10_000, inline_max_ns=0)
        self.plane = make_plane([echo_model(session=self.session)], self.recorder, limits)
        self.door = GrpcDoor("127.0.0.1", 0, crowd=Crowd(**more))

    def talk(self, **more: Any) -> Talk:
        return Talk(self.door.port, **more)


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    with running(made.plane, [made.door]):
        yield made
    assert not made.recorder.open
    made.recorder.entries()


@pytest.mark.parametrize(
    "more",
    [
        data(1, framed(GOOD), end=True),
        data(1, b"", end=True),
        frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, block([("x-t", "1")])),
    ],
    ids=["a second message", "a second end", "trailers"],
)
@pytest.mark.parametrize("rpc", ["ModelInfer", "ModelStreamInfer"])
def test_nothing_is_heard_behind_the_end_of_a_stream(house: House, rpc: str, more: bytes):
    house.session.gate = gate = threading.Event()
    with house.talk() as client:
        client.say(call(1, rpc, GOOD) + more)
        told = client.until_closed()
    gate.set()
    assert told is not None
    assert told.number == Code.STREAM_CLOSED
    with house.talk() as client:
        client.say(call(1, rpc, GOOD))
        assert client.until_over(1).status == 0
    assert len(house.recorder.calls()) <= 2


def squeezed(message: bytes) -> bytes:
    made = zlib.compressobj(wbits=31)
    small = made.compress(message) + made.flush()
    return b"\1" + len(small).to_bytes(4, "big") + small


def memory_of(rpc: Rpc) -> int:
    """Bytes that an RPC holds of what came."""
    found, size = [rpc._one, rpc._buffer, rpc._inbox], 0
    while found:
        each = found.pop()
        if isinstance(each, bytes | bytearray):
            size += len(each)
        else:
            found.extend(gc.get_referents(each))
    return size


@pytest.mark.parametrize("rpc", ["ModelInfer", "ModelStreamInfer"])
def test_what_comes_squeezed_is_held_squeezed_until_its_turn(rpc: str):
    async def held_of() -> int:
        plane = make_plane([echo_model()], None, Limits(body_max_bytes=1_000_000))
        connection, _ = connect(plane)
        many = 1 if rpc == "ModelInfer" else 20
        bombs = squeezed(bytes(900_000)) * many
        connection.data_received(HELLO + headers(1, rpc, [("grpc-encoding", "gzip")]) + data(1, bombs))
        size = memory_of(connection.streams[1])
        assert size <= len(bombs)
        connection.connection_lost(None)
        return size

    assert asyncio.run(held_of()) > 0


def test_a_squeezed_message_of_a_stream_that_is_none_ends_it_at_its_turn(house: House):
    with house.talk() as client:
        client.say(headers(1, "ModelStreamInfer", [("grpc-encoding", "gzip")]))
        client.say(data(1, squeezed(GOOD) + b"\1" + framed(GOOD)[1:] + squeezed(GOOD)))
        told = client.until_over(1)
    assert told.status == StatusCode.INTERNAL
    assert StreamResponse.FromString(told.data[5:]).infer_response.model_name == "echo"
    assert len(house.recorder.calls()) == 1


def test_a_message_that_waits_behind_others_is_not_late(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held, "MESSAGE_TIMEOUT_S", 0.3)
    house = House()
    house.session.gate = gate = threading.Event()
    with running(house.plane, [house.door]), house.talk() as client:
        message = framed(GOOD)
        client.say(headers(1, "ModelStreamInfer") + data(1, message * 2 + message[:9]))
        client.say(headers(3, "ModelStreamInfer") + data(3, message[:9]))
        assert client.until_over(3).status == StatusCode.DEADLINE_EXCEEDED
        assert 1 not in client.rpcs  # it is we who are slow
        gate.set()
        client.say(data(1, message[9:], end=True))
        assert client.until_over(1).status == 0
    assert len(house.recorder.calls()) == 3


def test_a_stream_whose_messages_never_end_with_a_frame_holds_what_it_holds():
    async def held_bytes() -> list[int]:
        plane = make_plane([echo_model(session=EchoSession((SPEC,)))])
        plane.attach(asyncio.get_running_loop())
        connection, wire = connect(plane)
        message, told = framed(GOOD), list[int]()
        connection.data_received(HELLO + headers(1, "ModelStreamInfer") + data(1, message[:100]))
        for _ in range(5):
            count = len(wire.ear.rpcs[1].data) if 1 in wire.ear.rpcs else 0
            connection.data_received(data(1, message[100:] + message[:100]))
            connection.data_received(window_update(0, 9_000) + window_update(1, 9_000))
            while 1 not in wire.ear.rpcs or len(wire.ear.rpcs[1].data) < count + WIDTH:
                await asyncio.sleep(0.001)
            await settle(connection)
            told.append(connection.held.bytes)  # type: ignore[attr-defined]
        connection.connection_lost(None)
        assert connection.held.bytes == 0  # type: ignore[attr-defined]
        await plane.drain(5)
        return told

    assert asyncio.run(held_bytes()) == [held.OVERHEAD + 100] * 5


def test_a_stream_that_takes_answer_after_answer_is_not_cut_as_slow():
    house = House(write_timeout_s=0.2)
    with (
        running(house.plane, [house.door]),
        house.talk(hello=PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 3_000})) as client,
    ):
        client.say(headers(1, "ModelStreamInfer"))
        clock = threading.Event()
        for number in range(1, 9):
            client.say(data(1, framed(GOOD)))
            while len(client.rpcs[1].data if 1 in client.rpcs else b"") < (number - 1) * 1_000 + 2_999:
                assert client.listen(), "cut"
            clock.wait(0.1)  # half of an answer waits here, each time of another
            client.say(window_update(1, 5_000) + window_update(0, 5_000))
            assert client.rpcs[1].reset is None
        client.say(data(1, b"", end=True))
        assert client.until_over(1).status == 0


def test_a_watch_leaves_no_clock_behind():
    async def clocks() -> int:
        plane = make_plane([echo_model()], None, Limits())
        connection, _ = connect(plane)
        connection.data_received(HELLO)
        for stream in range(1, 41, 2):
            more = [("grpc-timeout", "9H")]
            connection.data_received(
                headers(stream, "Watch", more, service="grpc.health.v1.Health")
                + data(stream, framed(b""), end=True) + rst_stream(stream, Code.CANCEL)
            )  # fmt: skip
        connection.connection_lost(None)
        gc.collect()
        return sum(isinstance(each, Rpc) for each in gc.get_objects())

    gc.collect()
    before = sum(isinstance(each, Rpc) for each in gc.get_objects())
    assert asyncio.run(clocks()) == before


def test_a_connection_whose_last_stream_there_can_be_is_over_is_closed(house: House):
    with house.talk() as client:
        client.say(call(ID_MAX, "ModelInfer", GOOD))
        assert client.until_over(ID_MAX).status == 0
        assert house.plane._loop is not None
        house.plane._loop.call_soon_threadsafe(house.door.retire)
        client.socket.settimeout(5)
        told = client.until_closed()
        assert told is not None


def test_a_block_that_is_remembered_means_the_same_in_another_table():
    reader = HeadReader()
    added = block(fields("ModelInfer")) + b"\x40\x03x-a\x01b"  # with indexing
    reader.read(b"\x20" + block(fields("ModelInfer")))  # a table of nothing
    reader.read(added)
    reader.read(b"\x3f\xe1\x1f" + block(fields("ModelInfer")))  # a table of 4,096
    reader.read(added)
    assert reader.read(block(fields("ModelInfer")) + b"\xbe").values(b"x-a") == [b"b"]


OPEN = headers(1, "ModelInfer")
BROKEN = {
    "no whole priority": (
        frame(Kind.HEADERS, END_HEADERS | PRIORITISED, 1, bytes(4)), Code.FRAME_SIZE_ERROR,
    ),
    "a window that settings make too wide": (
        OPEN + window_update(1, ID_MAX - 65_535) + settings({Setting.INITIAL_WINDOW_SIZE: 65_536}),
        Code.FLOW_CONTROL_ERROR,
    ),
    "data that are padding": (
        OPEN + frame(Kind.DATA, PADDED, 1, b"\xff" + bytes(255)) * 2_000, Code.ENHANCE_YOUR_CALM,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_else_ends_a_connection(house: House, name: str):
    raw, code = BROKEN[name]
    with house.talk() as client:
        client.say(raw)
        told = client.until_closed()
    assert told is None or told.number == code
    assert told is not None or name == "data that are padding"  # it still sent when it was cut


@pytest.mark.parametrize("name", ["content-length", "content-type", "grpc-encoding", "grpc-timeout"])
def test_a_header_that_says_two_things_is_refused(house: House, name: str):
    with house.talk() as client:
        client.say(headers(1, "ModelInfer", [(name, "7"), (name, "8")], end=True))
        assert client.until_over(1).reset == Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("kind", "is_ours"),
    [
        ("application/grpc", True), ("application/grpc+proto", True), ("application/grpc; x=y", True),
        ("application/grpc-web", False), ("application/grpc-web+proto", False),
        ("application/grpc+json", False), ("application/grpcx", False), ("", False),
    ],
)  # fmt: skip
def test_only_messages_of_protobuf_in_frames_of_grpc_are_read(house: House, kind: str, is_ours: bool):
    said = [(name, kind if name == "content-type" else value) for name, value in fields("ModelInfer")]
    with house.talk() as client:
        client.say(frame(Kind.HEADERS, END_HEADERS, 1, block(said)) + data(1, framed(GOOD), end=True))
        assert client.until_over(1).fields[":status"] == ("200" if is_ours else "415")


@given(st.text() | st.text("a%ä\U0001f600\ud800", min_size=500, max_size=3_000))
def test_a_status_text_fits_into_what_clients_take_and_comes_back(text: str):
    tail = trailers(StatusCode.INTERNAL, text)
    assert len(tail) < 8_000
    told = dict(hpack.Decoder().decode(tail))
    back = unquote(told.get("grpc-message", ""), errors="strict")
    assert text.encode("utf-8", "replace").decode().startswith(back)
    assert len(back.encode()) > min(len(text.encode("utf-8", "replace")), TEXT_MAX) - 4


def test_a_window_of_one_stream_does_not_walk_over_all():
    class Counted(dict[int, Rpc]):
        walks = 0

        def values(self) -> Any:
            self.walks += 1
            return super().values()

    async def walks() -> int:
        plane = make_plane([echo_model(session=EchoSession((SPEC,)))])
        plane.attach(asyncio.get_running_loop())
        connection, wire = connect(plane)
        connection.data_received(PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 0}))
        for stream in range(1, 21, 2):
            connection.data_received(call(stream, "ServerLive", b""))
        while len(connection.sender._blocked) < 10:
            await asyncio.sleep(0.001)
        counted = connection.sender._blocked = Counted(connection.sender._blocked)
        counted.walks = 0
        connection.data_received(window_update(19, 256))
        assert wire.ear.rpcs[19].status == 0
        told = counted.walks
        connection.connection_lost(None)
        await plane.drain(5)
        return told

    assert asyncio.run(walks()) == 0


def test_a_stream_that_goes_on_sending_does_not_hold_a_stop():
    house = House()
    with running(house.plane, [house.door]), house.talk() as client:
        client.say(headers(1, "ModelStreamInfer") + data(1, framed(GOOD)))
        while 1 not in client.rpcs or len(client.rpcs[1].data) < WIDTH:
            assert client.listen()
        assert house.plane._loop is not None
        house.plane._loop.call_soon_threadsafe(house.plane.refuse_new)
        client.say(data(1, framed(GOOD) * 3))
        assert client.until_over(1).status == StatusCode.UNAVAILABLE
    assert len(house.recorder.calls()) == 1
