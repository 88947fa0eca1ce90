"""One RPC: a stream of HTTP/2 with messages in it, and the status at its end."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final, Protocol

from pellucid.servers.grpc.frames import END_HEADERS, Code, Kind, head_of
from pellucid.servers.grpc.heads import Head
from pellucid.servers.grpc.statuses import StatusCode
from pellucid.servers.grpc.wire import (
    OK_HEAD,
    PREFIX,
    RefusedError,
    framed,
    inflate,
    is_plain,
    too_large,
    trailers,
)

Marks = tuple[tuple[str, str], ...]
_Message = tuple[bool, bytes]  # compressed, and inflated only at its turn: few bytes may be very many
MESSAGE_OVERHEAD: Final = 128  # what a message that waits for its turn costs beyond its bytes
_UNARY_WRONG: Final = "request: expected one message, got "


class Method(Protocol):
    """What is called by a path.

    Attributes:
        is_stream: It takes as many messages as come.
    """

    is_stream: bool

    def begin(self, rpc: Rpc) -> None:
        """An RPC began; its messages are to come."""
        ...

    def take(self, rpc: Rpc, message: bytes) -> None:
        """The one message of an RPC that is no stream."""
        ...


class Sends(Protocol):
    """The sending half of a connection, ``sending.Sender``."""

    def write(self, data: bytes) -> None: ...
    def whole(self, rpc: Rpc, head: bytes, data: bytes, tail: bytes) -> None: ...
    def more(self, rpc: Rpc, data: bytes) -> None: ...
    def end(self, rpc: Rpc, tail: bytes) -> None: ...
    def forget(self, rpc: Rpc) -> None: ...


class Holds(Protocol):
    """Who counts messages that are not whole, ``held.Held``."""

    def begin(self, rpc: Rpc) -> None: ...
    def grow(self, rpc: Rpc, count: int) -> None: ...
    def whole(self, rpc: Rpc) -> None: ...
    def leave(self, rpc: Rpc) -> None: ...


class Carrier(Protocol):
    """What an RPC asks of its connection, ``connection.Connection``."""

    peer: str
    names: tuple[str, ...]
    streams: dict[int, Rpc]
    message_max: int

    @property
    def held(self) -> Holds: ...
    @property
    def sender(self) -> Sends: ...
    def earn(self) -> None: ...
    def credit(self, rpc: Rpc) -> None: ...
    def closed(self, rpc: Rpc, code: Code | None) -> None: ...
    def leave(self) -> None: ...
    def abort(self) -> None: ...


class Rpc:
    """One RPC. Lives on the event loop's thread.

    Attributes:
        until: Monotonic nanoseconds at which its caller gives up; 0 is never.
        is_over: Nobody waits any more: the status is sent, or the client left.
        busy: A message is being answered.
        ended: The client has said all that it says.
    """

    __slots__ = (
        "_buffer", "_drain", "_head_sent", "_inbox", "_method", "_one", "_size", "_wait", "busy",
        "connection", "ended", "head", "id", "is_over", "looked", "on_lost", "out", "received", "tail",
        "unacked", "until", "window",
    )  # fmt: skip

    def __init__(self, connection: Carrier, stream: int, head: Head, window: int, method: Method) -> None:
        self.connection, self.id, self.head, self.window, self._method = (
            connection,
            stream,
            head,
            window,
            method,
        )
        self.until = time.monotonic_ns() + head.timeout_ns if head.timeout_ns > 0 else 0
        self.is_over = self.busy = self.ended = self._head_sent = False
        self.received = self.unacked = 0
        self.looked = self._size = -1
        self._one: _Message | None = None  # of a unary RPC, until its end is seen
        self._buffer: bytearray | None = None
        self._inbox: deque[_Message] | None = None
        self.out: deque[memoryview] = deque()
        self.tail: bytes | None = None
        self._wait: asyncio.Future[None] | None = None
        self._drain: asyncio.Future[None] | None = None
        self.on_lost: Any = None

    # -- what comes -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Its headers have come."""
        if self._method.is_stream:
            self._inbox = deque()
        else:
            self.connection.held.begin(self)
        self._method.begin(self)

    def feed(self, data: bytes, *, end: bool) -> None:
        """Data of its stream; raises nothing that is not in its status."""
        if self.is_over:
            self.ended |= end
            return
        try:
            if end and self._buffer is None and self._inbox is None and is_plain(data):
                self._verify_size(len(data) - PREFIX)
                self.ended = True
                self.connection.held.leave(self)
                self.connection.earn()
                self._method.take(self, data[PREFIX:])  # nearly every call
                return
            if data:
                self._gather(data)
            if end:
                self._end_of_input()
        except RefusedError as error:
            self.end(error.code, str(error))

    def _verify_size(self, size: int) -> None:
        if size > self.connection.message_max:
            raise too_large(self.connection.message_max, f"{size:,}")

    def _gather(self, data: bytes) -> None:
        held = self.connection.held
        if self._buffer is None:
            self._buffer = bytearray()
            if self._inbox is not None:
                held.begin(self)
        buffer = self._buffer
        buffer += data
        held.grow(self, len(data))
        while not self.is_over:
            if self._size < 0:
                if len(buffer) < PREFIX:
                    break
                if buffer[0] > 1:
                    raise RefusedError(
                        StatusCode.INTERNAL, f"message: expected a flag of 0 or 1, got {buffer[0]}"
                    )
                self._size = int.from_bytes(buffer[1:PREFIX], "big")
                self._verify_size(self._size)
            if len(buffer) - PREFIX < self._size:
                break
            end = PREFIX + self._size
            message = bool(buffer[0]), bytes(memoryview(buffer)[PREFIX:end])
            del buffer[:end]
            self._size = -1
            self._put(message)
        if self._inbox is not None and not self.is_over:
            if not buffer:
                self._buffer = None
            if self._inbox:
                held.whole(self)  # what comes next waits for us, and is not late
            elif self._buffer is None:
                held.leave(self)

    def _put(self, message: _Message) -> None:
        self.connection.earn()
        if self._inbox is not None:
            self._inbox.append(message)
            self.connection.held.grow(self, MESSAGE_OVERHEAD)
            self._wake()
        elif self._one is not None:
            raise RefusedError(StatusCode.UNIMPLEMENTED, _UNARY_WRONG + "several")
        else:
            self._one = message

    def _end_of_input(self) -> None:
        self.ended = True
        if self.is_over:
            return
        if self._buffer:
            raise RefusedError(StatusCode.INTERNAL, "message: expected all of it, got an end in its midst")
        self.connection.held.whole(self)
        if self._inbox is not None:
            self._wake()
            return
        self.connection.held.leave(self)
        if self._one is None:
            raise RefusedError(StatusCode.UNIMPLEMENTED, _UNARY_WRONG + "none")
        one, self._one = self._one, None
        self._method.take(self, self._plain(one))

    def _plain(self, message: _Message) -> bytes:
        is_squeezed, data = message
        return inflate(data, self.head.encoding, self.connection.message_max) if is_squeezed else data

    def _wake(self) -> None:
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(None)

    async def next(self) -> bytes | None:
        """The next message of a stream; ``None`` at its end."""
        assert self._inbox is not None
        while not self._inbox:
            if self.ended or self.is_over:
                return None
            self._wait = asyncio.get_running_loop().create_future()
            await self._wait
        message, held = self._inbox.popleft(), self.connection.held
        held.grow(self, -PREFIX - len(message[1]) - MESSAGE_OVERHEAD)
        if not self._inbox:
            if self._buffer is None:
                held.leave(self)
            else:
                held.begin(self)
            self.connection.credit(self)
        try:
            return self._plain(message)
        except RefusedError as error:
            self.end(error.code, str(error))
            return None

    @property
    def takes(self) -> bool:
        """More of it may be sent: nothing waits for its turn."""
        return not self._inbox

    def time_left(self) -> float | None:
        """Seconds until its caller gives up."""
        return (self.until - time.monotonic_ns()) / 1e9 if self.until else None

    # -- what leaves ------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Bytes that wait for the client's window."""
        return sum([len(piece) for piece in self.out])

    def answer(self, message: bytes, tail: bytes) -> None:
        """The one answer, and its trailers."""
        if not self.is_over:
            self.is_over = True
            self.connection.sender.whole(self, OK_HEAD, framed(message), tail)

    def send(self, message: bytes) -> None:
        """One answer of a stream."""
        if self.is_over:
            return
        sender = self.connection.sender
        if not self._head_sent:
            self._head_sent = True
            sender.write(head_of(len(OK_HEAD), Kind.HEADERS, END_HEADERS, self.id) + OK_HEAD)
        sender.more(self, framed(message))

    async def drain(self) -> None:
        """Wait until what was sent has left."""
        while self.out and not self.is_over:
            self._drain = asyncio.get_running_loop().create_future()
            await self._drain

    def end(self, code: StatusCode, text: str = "", marks: Marks = ()) -> None:
        """The status, behind what was sent."""
        if not self.is_over:
            self.is_over = True
            tail = trailers(code, text, marks)
            self.connection.sender.end(self, tail if self._head_sent else OK_HEAD + tail)

    def end_with(self, head: bytes) -> None:
        """An answer of HTTP/2 alone, before anything was sent."""
        self.is_over = True
        self.connection.sender.end(self, head)

    def drained(self) -> None:
        """All that was sent has left."""
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)

    def done(self) -> None:
        """The status has left: the stream is over on our side, and for the client too."""
        self._let_go()
        self.connection.closed(self, Code.NO_ERROR if not self.ended else None)

    def lost(self) -> None:
        """The client left, or was cut."""
        self.is_over = True
        self.connection.sender.forget(self)
        self._let_go()
        if self.on_lost is not None:
            self.on_lost()
        self.connection.closed(self, None)

    def _let_go(self) -> None:
        self.connection.held.leave(self)
        self._buffer, self._one, self._inbox = None, None, None if self._inbox is None else deque()
        self._wake()
        self.drained()
