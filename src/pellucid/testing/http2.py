"""The client's side of HTTP/2 and gRPC, frame by frame: what a good client sends, and anything else."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hpack

from pellucid.servers.grpc.connection import Connection
from pellucid.servers.grpc.door import Door
from pellucid.servers.grpc.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PREFACE,
    Kind,
    frame,
    read_head,
    settings,
)
from pellucid.servers.grpc.held import Held
from pellucid.servers.grpc.messages import SERVICE
from pellucid.servers.grpc.service import Service
from pellucid.servers.grpc.wire import field as literal
from pellucid.servers.grpc.wire import framed
from pellucid.servers.http.crowd import Crowd
from pellucid.serving.dataplane import Dataplane

HELLO: Final = PREFACE + settings({})
Fields = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """Of RST_STREAM the code, of GOAWAY the code."""
        return int.from_bytes(self.payload[4:8] if self.kind == Kind.GOAWAY else self.payload[:4], "big")


def read_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """Whole frames, and what is left."""
    found, position = [], 0
    while len(data) - position >= HEAD_SIZE:
        high, low, kind, flags, stream = read_head(data, position)
        end = position + HEAD_SIZE + (high << 8 | low)
        if end > len(data):
            break
        found.append(Frame(kind, flags, stream, data[position + HEAD_SIZE : end]))
        position = end
    return found, data[position:]


def fields(rpc: str, more: Fields = (), *, service: str = SERVICE) -> list[tuple[str, str]]:
    """Headers of an RPC."""
    return [
        (":method", "POST"), (":scheme", "http"), (":path", f"/{service}/{rpc}"), (":authority", "x"),
        ("te", "trailers"), ("content-type", "application/grpc"), *more,
    ]  # fmt: skip


def block(headers: Fields) -> bytes:
    """A header block that needs no table, and changes none."""
    return b"".join([literal(name.encode(), value.encode()) for name, value in headers])


def headers(stream: int, rpc: str, more: Fields = (), *, end: bool = False, service: str = SERVICE) -> bytes:
    """A HEADERS frame that begins an RPC."""
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(Kind.HEADERS, flags, stream, block(fields(rpc, more, service=service)))


def call(stream: int, rpc: str, message: bytes, more: Fields = ()) -> bytes:
    """A whole unary RPC."""
    return headers(stream, rpc, more) + data(stream, framed(message), end=True)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    """A DATA frame."""
    return frame(Kind.DATA, END_STREAM if end else 0, stream, payload)


@dataclass
class Told:
    """What an RPC was told.

    Attributes:
        fields: Of headers and trailers.
        data: All of it.
        reset: The code of RST_STREAM.
    """

    fields: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    reset: int | None = None
    is_over: bool = False

    @property
    def status(self) -> int | None:
        """The RPC's status, once it is there."""
        return int(self.fields["grpc-status"]) if "grpc-status" in self.fields else None


class Ear:
    """Understands what a server sends."""

    def __init__(self) -> None:
        self._decoder, self._rest = hpack.Decoder(), b""
        self.frames: list[Frame] = []
        self.rpcs: dict[int, Told] = {}
        self.goaway: Frame | None = None

    def hear(self, data: bytes) -> None:
        """Take bytes in."""
        new, self._rest = read_frames(self._rest + data)
        for each in new:
            self.frames.append(each)
            told = self.rpcs.setdefault(each.stream, Told())
            if each.kind == Kind.HEADERS:
                told.fields |= {str(n): str(v) for n, v in self._decoder.decode(each.payload)}
            elif each.kind == Kind.DATA:
                told.data += each.payload
            elif each.kind == Kind.RST_STREAM:
                told.reset = each.number
            elif each.kind == Kind.GOAWAY:
                self.goaway = each
            told.is_over |= bool(each.kind in (Kind.HEADERS, Kind.DATA) and each.flags & END_STREAM)


class Talk(Ear):
    """A client on a socket that says whatever it is told to."""

    def __init__(self, port: int, *, hello: bytes = HELLO, receive_buffer: int = 0) -> None:
        super().__init__()
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        self.is_closed = False
        self.say(hello)

    def say(self, data: bytes) -> None:
        """Send bytes, whether or not anybody takes them."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True

    def listen(self) -> bool:
        """Hear once; False at the end."""
        try:
            heard = self.socket.recv(65_536)
        except ConnectionResetError:
            heard = b""
        self.hear(heard)
        self.is_closed |= not heard
        return bool(heard)

    def until_over(self, stream: int) -> Told:
        """What an RPC was told, when it is over."""
        while True:
            told = self.rpcs.get(stream, Told())
            if told.is_over or told.reset is not None or not self.listen():
                return told

    def until_closed(self) -> Frame | None:
        """The GOAWAY, when the connection has ended."""
        while self.listen():
            pass
        return self.goaway

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wire:
    """A transport that keeps what is written, for a connection without a socket."""

    def __init__(self) -> None:
        self.ear, self.closed = Ear(), False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.ear.hear(bytes(data))

    def get_extra_info(self, name: str) -> Any:
        """Of the loopback."""
        return ("::1", 5) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def connect(plane: Dataplane, crowd: Crowd | None = None) -> tuple[Connection, Wire]:
    """A connection without a socket, on the running loop."""
    loop, body_max = asyncio.get_running_loop(), plane.limits.body_max_bytes
    held = Held(2**26)
    held.attach(loop)
    door = Door(loop, Service(plane), held, body_max + 2**20, crowd or Crowd(), 2**31)
    connection, wire = Connection(door), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    return connection, wire


async def settle(connection: Connection) -> None:
    """Let what was begun finish."""
    for _ in range(2_000):
        if not any(rpc.busy for rpc in connection.streams.values()):
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("RPCs: expected an end, got none")


async def exchange(plane: Dataplane, rpc: str, messages: Sequence[bytes]) -> list[Told]:
    """Unary RPCs that arrive together, and what each was told."""
    connection, wire = connect(plane)
    sent = [call(2 * number + 1, rpc, message) for number, message in enumerate(messages)]
    connection.data_received(HELLO + b"".join(sent))
    await settle(connection)
    told = [wire.ear.rpcs[2 * number + 1] for number in range(len(messages))]
    connection.connection_lost(None)
    return told


def padded(payload: bytes, count: int) -> bytes:
    """Payload of a frame with the PADDED flag."""
    return struct.pack("B", count) + payload + bytes(count)
