"""What leaves a connection: answers within the windows that the client gives, and no slower than may be.

An answer that fits leaves in one write. What does not waits here, a bounded amount of it, and gets
its turn stream by stream; a stream or a connection that takes too little of it is cut.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Final

from pellucid.servers.grpc.frames import (
    END_HEADERS,
    END_STREAM,
    SIZE_MIN,
    WINDOW,
    WINDOW_MAX,
    BrokenError,
    Code,
    Kind,
    Setting,
    head_of,
    read_settings,
    rst_stream,
)
from pellucid.servers.http.crowd import PACE_BYTES_PER_S

if TYPE_CHECKING:
    from pellucid.servers.grpc.rpc import Rpc

WAITING_MAX: Final = 64 * 2**20  # limit: bytes of answers that wait; beyond no RPC begins
_PIECE_MAX: Final = 65_536
_LAST: Final = END_STREAM | END_HEADERS


class Sender:
    """The sending half of one connection.

    Attributes:
        window, stream_window, frame_max: What the client lets us send: in all, in a stream that begins,
            in one frame.
        waiting: Bytes of answers that wait for its windows.
        paused: The system takes no more, since the client does not read.
    """

    __slots__ = (
        "_before", "_blocked", "_loop", "_timeout_s", "_timer", "frame_max", "paused", "stream_window",
        "transport", "waiting", "window",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout_s: float):
        self.transport, self._loop, self._timeout_s = transport, loop, timeout_s
        self.window = self.stream_window = WINDOW
        self.frame_max, self.waiting, self.paused = SIZE_MIN, 0, False
        self._blocked: dict[int, Rpc] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._before = -1  # bytes in the system's buffer at the last look; -1: none

    # -- frames -----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send frames that no window counts."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def whole(self, rpc: Rpc, head: bytes, data: bytes, tail: bytes) -> None:
        """Send headers, data and trailers of an answer, and end its stream on our side."""
        size, stream = len(data), rpc.id
        if size > self.window or size > rpc.window or size > self.frame_max or self._blocked or self.paused:
            self.write(head_of(len(head), Kind.HEADERS, END_HEADERS, stream) + head)
            rpc.tail = tail
            self.more(rpc, data)
            return
        self.window -= size
        self.write(b"".join([
            head_of(len(head), Kind.HEADERS, END_HEADERS, stream), head,
            head_of(size, Kind.DATA, 0, stream), data,
            head_of(len(tail), Kind.HEADERS, _LAST, stream), tail,
        ]))  # fmt: skip
        rpc.done()

    def more(self, rpc: Rpc, data: bytes) -> None:
        """Send data of a stream as it may leave."""
        rpc.out.append(memoryview(data))
        self.waiting += len(data)
        self._blocked[rpc.id] = rpc
        self.proceed()

    def end(self, rpc: Rpc, tail: bytes) -> None:
        """Send trailers behind what waits."""
        if rpc.out:
            rpc.tail = tail
        else:
            self.write(head_of(len(tail), Kind.HEADERS, _LAST, rpc.id) + tail)
            rpc.done()

    def forget(self, rpc: Rpc) -> None:
        """Nothing of it is sent any more."""
        if self._blocked.pop(rpc.id, None) is not None:
            self.waiting -= rpc.left
            rpc.out.clear()

    def reset(self, rpc: Rpc, code: Code) -> None:
        """End a stream at once."""
        self.write(rst_stream(rpc.id, code))
        rpc.lost()

    # -- windows ----------------------------------------------------------------------------------

    def agree(self, payload: bytes) -> int:
        """Take up the client's settings; returns by how much the windows of its streams grow.

        Raises:
            BrokenError: They are none.
        """
        before = self.stream_window
        for name, value in read_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise BrokenError(
                        Code.FLOW_CONTROL_ERROR, "settings: expected a window below 2^31, got more"
                    )
                self.stream_window = value
            elif name == Setting.MAX_FRAME_SIZE:
                if not SIZE_MIN <= value < 2**24:
                    raise BrokenError(
                        Code.PROTOCOL_ERROR, f"settings: expected frames of 2^14 to 2^24, got {value}"
                    )
                self.frame_max = value
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise BrokenError(Code.PROTOCOL_ERROR, f"settings: expected push of 0 or 1, got {value}")
        return self.stream_window - before

    def proceed(self, only: Rpc | None = None) -> None:
        """Send what may leave, a frame of each stream in turn; or ``only`` of the one whose window grew."""
        moved = True
        while moved and self._blocked and not self.paused and not self.transport.is_closing():
            moved = False
            for rpc in [only] if only is not None else list(self._blocked.values()):
                if self.paused or self.window <= 0:
                    break
                moved |= rpc.id in self._blocked and self._piece(rpc)
        if self._blocked and self._timer is None:
            self._watch()

    def _piece(self, rpc: Rpc) -> bool:
        data = rpc.out[0]
        size = min(len(data), self.window, rpc.window, self.frame_max, _PIECE_MAX)
        if size <= 0 < len(data):
            return False
        self.window -= size
        rpc.window -= size
        self.waiting -= size
        piece = head_of(size, Kind.DATA, 0, rpc.id) + data[:size]
        if size < len(data):
            rpc.out[0] = data[size:]
        else:
            rpc.out.popleft()
        if rpc.out:
            self.write(piece)
            return True
        del self._blocked[rpc.id]
        rpc.looked = -1  # what waits next has its own time
        if rpc.tail is None:
            self.write(piece)
            rpc.drained()
        else:
            self.write(piece + head_of(len(rpc.tail), Kind.HEADERS, _LAST, rpc.id) + rpc.tail)
            rpc.done()
        return True

    def widen(self, count: int) -> None:
        """The client takes more in all.

        Raises:
            BrokenError: More than there can be.
        """
        self.window += count
        if self.window > WINDOW_MAX:
            raise BrokenError(Code.FLOW_CONTROL_ERROR, "window: expected less than 2^31, got more")
        self.proceed()

    # -- slow readers -----------------------------------------------------------------------------

    def pause(self) -> None:
        """The system's buffer is full."""
        self.paused = True
        if self._timer is None:
            self._watch()

    def resume(self) -> None:
        """There is room again."""
        self.paused, self._before = False, -1
        self.proceed()

    def close(self) -> None:
        """Nothing is sent any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._blocked.clear()
        self.waiting = 0

    def _watch(self) -> None:
        if self.paused and self._before < 0:
            self._before = self.transport.get_write_buffer_size()
        for rpc in self._blocked.values():
            if rpc.looked < 0:
                rpc.looked = rpc.left
        self._timer = self._loop.call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        """Cut what took too little since the last look."""
        self._timer = None
        enough = self._timeout_s * PACE_BYTES_PER_S
        if self.paused and self._before >= 0:
            if self._before - self.transport.get_write_buffer_size() < enough:
                self.cut()
                return
            self._before = -1
        for rpc in list(self._blocked.values()):
            if 0 <= rpc.looked < rpc.left + enough:
                self.reset(rpc, Code.CANCEL)
            rpc.looked = -1
        if self._blocked or self.paused:
            self._watch()

    def cut(self) -> None:
        """Cut the connection, and have the system forget what nobody has read."""
        if (connection := self.transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
