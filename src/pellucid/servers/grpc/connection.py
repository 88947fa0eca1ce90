"""One connection of HTTP/2, as a server that never pushes: frames in, RPCs out.

Everything that a client may do for nothing has a price: frames that bring no call nearer are counted
against what calls earn (CVE-2019-9512 and its like, CVE-2023-44487), header blocks are bounded in
bytes and frames (the CONTINUATION floods of 2024), and who sends without reading is not read.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Final, cast

from pellucid.core.certificate import certificate_names
from pellucid.servers.grpc.door import Door
from pellucid.servers.grpc.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    ID_MAX,
    PREFACE,
    PRIORITISED,
    WINDOW,
    WINDOW_MAX,
    BrokenError,
    Code,
    Kind,
    Setting,
    frame,
    goaway,
    read_head,
    rst_stream,
    settings,
    unpadded,
    window_update,
)
from pellucid.servers.grpc.heads import LIST_MAX, Head, HeadReader
from pellucid.servers.grpc.rpc import Rpc
from pellucid.servers.grpc.sending import WAITING_MAX, Sender

STREAMS_MAX: Final = 1_024  # limit: RPCs at once on one connection
FRAME_MAX: Final = 65_536  # limit: bytes of a frame; so much is held before anybody counts it
STREAM_WINDOW: Final = 2**20  # limit: bytes of a stream that may be on their way
CONNECTION_WINDOW: Final = 4 * 2**20
BLOCK_MAX: Final = 40_960  # limit: bytes of a compressed header block
BLOCK_FRAMES_MAX: Final = 8
CREDIT: Final = 1_000  # limit: frames that bring no call nearer, at once
CREDIT_PER_S: Final = 50.0
CREDIT_PER_MESSAGE: Final = 4
SMALL: Final = 256  # data in smaller pieces that end nothing is counted
PREFACE_S = 15.0  # limit: as for a head of the HTTP door
IDLE_S = 75.0  # as the HTTP door
LAST_CALL_S: Final = 0.25  # between the announcement of an end and the last stream that is taken

_HELLO: Final = settings({
    Setting.MAX_CONCURRENT_STREAMS: STREAMS_MAX, Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    Setting.MAX_FRAME_SIZE: FRAME_MAX, Setting.MAX_HEADER_LIST_SIZE: LIST_MAX,
}) + window_update(0, CONNECTION_WINDOW - WINDOW)  # fmt: skip


class Connection(asyncio.Protocol):
    """One connection. Lives on the event loop's thread.

    Attributes:
        peer: Address of the other end; ``""`` where there is none.
        names: Of the client's certificate.
        streams: RPCs that are not over, by stream.
    """

    transport: asyncio.Transport
    sender: Sender

    def __init__(self, door: Door) -> None:
        self._door, self.held, self.message_max = door, door.held, door.message_max
        self._loop = door.loop
        self.peer, self.names = "", tuple[str, ...]()
        self.streams: dict[int, Rpc] = {}
        self._heads = HeadReader()
        self._buffer, self._greeted, self._settled = b"", False, False
        self._last = 0  # the newest stream
        self._last_taken = ID_MAX  # none beyond is taken
        self._block: list[bytes] = []
        self._block_of = (0, 0)  # stream and flags of the block that goes on
        self._unacked = 0
        self._credit, self._credited = float(CREDIT), 0.0
        self._counted: str | None = None
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = self._last_said = self._dead = False

    # -- begin and end ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        crowd = self._door.crowd
        self.sender = Sender(self.transport, self._loop, crowd.write_timeout_s)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.names = certificate_names(tls.getpeercert(True) or b"")
        self._idle_since = self._credited = self._loop.time()
        self._door.connections.add(self)
        self.sender.write(_HELLO)
        if crowd.enter(self.peer):
            self._counted = self.peer
            if crowd.total <= self._door.connections_max:
                self._timer = self._loop.call_later(PREFACE_S, self._look)
                return
        text = "server: expected fewer connections at once, got one too many"
        self._fail(BrokenError(Code.ENHANCE_YOUR_CALM, text))

    def connection_lost(self, exc: Exception | None) -> None:
        self._dead = True
        if self._counted is not None:
            self._door.crowd.leave(self._counted)
        if self._timer is not None:
            self._timer.cancel()
        self.sender.close()
        for rpc in list(self.streams.values()):
            rpc.lost()
        self._door.connections.discard(self)
        self._buffer, self._block = b"", []

    def eof_received(self) -> bool:
        return False  # who sends no more takes no windows up: nothing could be answered for long

    def pause_writing(self) -> None:
        self.sender.pause()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.sender.resume()
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _fail(self, error: BrokenError) -> None:
        """Say why, and be gone."""
        self._dead = True
        for rpc in list(self.streams.values()):
            rpc.lost()
        self.sender.write(goaway(self._last, error.code, str(error)))
        self._close()

    def leave(self) -> None:
        """Take no more RPCs soon, and close when the last one is over."""
        if self._leaving or self._dead:
            return
        self._leaving = True
        self.sender.write(goaway(ID_MAX, Code.NO_ERROR))
        self._loop.call_later(LAST_CALL_S, self._last_call)

    def _last_call(self) -> None:
        if not self._dead:
            self._last_taken, self._last_said = self._last, True
            self.sender.write(goaway(self._last, Code.NO_ERROR))
            self._close_if_empty()

    def _close_if_empty(self) -> None:
        if self._last_said and not self.streams and not self._dead:
            self._dead = True
            self._close()

    def _close(self) -> None:
        """Send what is written, for a while, and be gone."""
        self.transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._door.crowd.write_timeout_s, self.transport.abort)

    def abort(self) -> None:
        """Be gone."""
        self.transport.abort()

    def _look(self) -> None:
        """One clock a connection: for the preface, then for idleness."""
        self._timer = None
        left = self._idle_since + IDLE_S - self._loop.time()
        if not self._settled:
            self._fail(BrokenError(Code.PROTOCOL_ERROR, "connection: expected settings in time, got none"))
        elif self.streams:
            self._timer = self._loop.call_later(IDLE_S, self._look)
        elif left > 0:
            self._timer = self._loop.call_later(max(left, 1.0), self._look)
        else:
            self.leave()

    # -- frames -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._dead:
            return
        buffer = self._buffer + data if self._buffer else data
        try:
            position, size = 0, len(buffer)
            if not self._greeted:
                if not PREFACE.startswith(buffer[: len(PREFACE)]):
                    raise BrokenError(Code.PROTOCOL_ERROR, "connection: expected HTTP/2, got something else")
                if size < len(PREFACE):
                    self._buffer = buffer
                    return
                self._greeted, position = True, len(PREFACE)
            while size - position >= HEAD_SIZE:
                high, low, kind, flags, stream = read_head(buffer, position)
                length = high << 8 | low
                if length > FRAME_MAX:
                    raise BrokenError(
                        Code.FRAME_SIZE_ERROR, f"frame: expected at most {FRAME_MAX:,} bytes, got {length:,}"
                    )
                begin = position + HEAD_SIZE
                position = begin + length
                if position > size:
                    position = begin - HEAD_SIZE
                    break
                self._frame(kind, flags, stream & ID_MAX, buffer[begin:position])
                if self._dead:
                    return
            self._buffer = buffer[position:] if position < size else b""
        except BrokenError as error:
            self._fail(error)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._fail(BrokenError(Code.INTERNAL_ERROR, "server: expected to go on, got a fault of its own"))

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block_of[0] and (kind != Kind.CONTINUATION or stream != self._block_of[0]):
            raise BrokenError(Code.PROTOCOL_ERROR, "headers: expected their continuation, got another frame")
        if kind == Kind.DATA:
            self._data(flags, stream, payload)
        elif kind == Kind.HEADERS:
            self._headers(flags, stream, payload)
        elif not self._settled and kind != Kind.SETTINGS:
            raise BrokenError(Code.PROTOCOL_ERROR, "connection: expected settings first, got another frame")
        elif kind == Kind.WINDOW_UPDATE:
            self._window(stream, payload)
        elif kind == Kind.SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == Kind.PING:
            self._ping(flags, stream, payload)
        elif kind == Kind.RST_STREAM:
            self._reset(stream, payload)
        elif kind == Kind.CONTINUATION:
            self._continue(flags, payload)
        elif kind == Kind.PUSH_PROMISE:
            raise BrokenError(Code.PROTOCOL_ERROR, "frame: expected none of PUSH_PROMISE, got one")
        elif kind == Kind.PRIORITY and (not stream or len(payload) != 5):
            raise BrokenError(Code.PROTOCOL_ERROR, "priority: expected five bytes of a stream, got others")
        else:
            self._pay()  # GOAWAY, PRIORITY and what comes later: nothing is to be done

    def _pay(self, price: int = 1) -> None:
        """Something that brought no call nearer.

        Raises:
            BrokenError: Too much of it.
        """
        self._credit -= price
        if self._credit < 0:
            now = self._loop.time()
            self._credit = min(float(CREDIT), self._credit + (now - self._credited) * CREDIT_PER_S)
            self._credited = now
            if self._credit < 0:
                raise BrokenError(Code.ENHANCE_YOUR_CALM, "connection: expected calls, got too much else")

    def earn(self) -> None:
        """A whole message came."""
        if self._credit < CREDIT:
            self._credit += CREDIT_PER_MESSAGE

    # -- RPCs -------------------------------------------------------------------------------------

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        payload = unpadded(flags, payload)
        if flags & PRIORITISED:
            if len(payload) < 5:
                raise BrokenError(Code.FRAME_SIZE_ERROR, "headers: expected a priority, got less")
            payload = payload[5:]
        if not stream & 1:
            raise BrokenError(Code.PROTOCOL_ERROR, f"headers: expected a stream of a client, got {stream}")
        if flags & END_HEADERS:
            self._head(flags, stream, payload)
        else:
            self._block, self._block_of = [payload], (stream, flags)

    def _continue(self, flags: int, payload: bytes) -> None:
        stream, first = self._block_of
        if not stream:
            raise BrokenError(Code.PROTOCOL_ERROR, "continuation: expected headers before, got none")
        self._block.append(payload)
        if len(self._block) > BLOCK_FRAMES_MAX or sum(map(len, self._block)) > BLOCK_MAX:
            raise BrokenError(
                Code.ENHANCE_YOUR_CALM,
                f"headers: expected at most {BLOCK_MAX:,} bytes in {BLOCK_FRAMES_MAX} frames, got more",
            )
        if flags & END_HEADERS:
            block, self._block, self._block_of = b"".join(self._block), [], (0, 0)
            self._head(first, stream, block)

    def _head(self, flags: int, stream: int, block: bytes) -> None:
        if len(block) > 1_024:
            self._pay(len(block) >> 10)  # what is that long is dear to decompress
        if not self._settled:
            raise BrokenError(Code.PROTOCOL_ERROR, "connection: expected settings first, got headers")
        if len(block) > BLOCK_MAX:
            text = f"headers: expected at most {BLOCK_MAX:,} bytes, got more"
            raise BrokenError(Code.ENHANCE_YOUR_CALM, text)
        head = self._heads.read(block)
        rpc = self.streams.get(stream)
        if rpc is not None:  # trailers
            _verify_open(rpc)
            if not flags & END_STREAM:
                text = "headers: expected trailers to end their stream, got more"
                raise BrokenError(Code.PROTOCOL_ERROR, text)
            self._feed(rpc, b"", end=True)
            return
        if stream <= self._last:
            self._pay()  # of a stream that is over already
            return
        self._last = stream
        if stream > self._last_taken:
            self._pay()  # it was said that this one would not be heard
            return
        if head.problem:
            self._pay()
            self.sender.write(rst_stream(stream, Code.PROTOCOL_ERROR))
        elif len(self.streams) >= STREAMS_MAX or self.sender.waiting > WAITING_MAX:
            self._pay()
            self.sender.write(rst_stream(stream, Code.REFUSED_STREAM))
        else:
            self._begin(stream, head, end=bool(flags & END_STREAM))

    def _begin(self, stream: int, head: Head, *, end: bool) -> None:
        rpc = Rpc(self, stream, head, self.sender.stream_window, self._door.service.method(head))
        self.streams[stream] = rpc
        rpc.begin()
        if end:
            self._feed(rpc, b"", end=True)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._unacked += size
        if self._unacked > CONNECTION_WINDOW // 2:
            self.sender.write(window_update(0, self._unacked))
            self._unacked = 0
        rpc = self.streams.get(stream)
        if rpc is None:
            if not stream or stream > self._last:
                raise BrokenError(Code.PROTOCOL_ERROR, f"data: expected a stream that began, got {stream}")
            self._pay()  # of a stream that is over already
            return
        _verify_open(rpc)
        rpc.unacked += size
        if rpc.unacked > STREAM_WINDOW:
            raise BrokenError(
                Code.FLOW_CONTROL_ERROR, f"data: expected at most {STREAM_WINDOW:,} bytes, got more"
            )
        end = flags & END_STREAM
        if flags & 0x8:
            payload = unpadded(flags, payload)
        if not end and len(payload) < SMALL:
            self._pay()
        self._feed(rpc, payload, end=bool(end))
        if rpc.unacked > STREAM_WINDOW // 2 and not end:
            self.credit(rpc)

    def _feed(self, rpc: Rpc, payload: bytes, *, end: bool) -> None:
        rpc.received += len(payload)
        announced = rpc.head.length
        if announced >= 0 and (rpc.received > announced or (end and rpc.received != announced)):
            self.sender.reset(rpc, Code.PROTOCOL_ERROR)
            return
        rpc.feed(payload, end=end)

    def credit(self, rpc: Rpc) -> None:
        """Let the client send more of a stream, where nothing of it waits."""
        if rpc.unacked and rpc.takes and rpc.id in self.streams:
            self.sender.write(window_update(rpc.id, rpc.unacked))
            rpc.unacked = 0

    def closed(self, rpc: Rpc, code: Code | None) -> None:
        """An RPC is over; ``code`` tells a client that may still be sending."""
        if self.streams.pop(rpc.id, None) is None:
            return
        if code is not None and not self._dead:
            self.sender.write(rst_stream(rpc.id, code))
        if not self.streams:
            self._idle_since = self._loop.time()
            self._close_if_empty()

    def _reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4 or not stream or stream > self._last:
            raise BrokenError(
                Code.PROTOCOL_ERROR, "reset: expected four bytes of a stream that began, got others"
            )
        rpc = self.streams.get(stream)
        self._pay(1 if rpc is None else CREDIT_PER_MESSAGE + 1)
        if rpc is not None:
            rpc.lost()

    # -- the connection itself --------------------------------------------------------------------

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        self._pay()
        if stream or (flags & ACK and payload):
            raise BrokenError(Code.PROTOCOL_ERROR, "settings: expected them of no stream, got others")
        if flags & ACK:
            return
        more = self.sender.agree(payload)
        for rpc in self.streams.values():
            rpc.window += more
            if rpc.window > WINDOW_MAX:
                raise BrokenError(Code.FLOW_CONTROL_ERROR, "settings: expected windows below 2^31, got more")
        self._settled = True
        self.sender.write(frame(Kind.SETTINGS, ACK, 0))
        self.sender.proceed()

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        self._pay()
        if stream or len(payload) != 8:
            raise BrokenError(Code.FRAME_SIZE_ERROR, "ping: expected eight bytes of no stream, got others")
        if not flags & ACK:
            self.sender.write(frame(Kind.PING, ACK, 0, payload))

    def _window(self, stream: int, payload: bytes) -> None:
        count = int.from_bytes(payload, "big") & ID_MAX
        if len(payload) != 4 or not count:
            raise BrokenError(Code.PROTOCOL_ERROR, "window: expected four bytes that are not 0, got others")
        if count < SMALL:
            self._pay()
        if not stream:
            self.sender.widen(count)
            return
        if stream > self._last:
            raise BrokenError(Code.PROTOCOL_ERROR, f"window: expected a stream that began, got {stream}")
        rpc = self.streams.get(stream)
        if rpc is None:
            return
        rpc.window += count
        if rpc.window > WINDOW_MAX:
            self.sender.reset(rpc, Code.FLOW_CONTROL_ERROR)
        elif rpc.out:
            self.sender.proceed(rpc)


def _verify_open(rpc: Rpc) -> None:
    """Nothing comes behind the end of a stream: it would be a second call."""
    if rpc.ended:
        raise BrokenError(Code.STREAM_CLOSED, f"stream {rpc.id}: expected nothing behind its end, got more")
