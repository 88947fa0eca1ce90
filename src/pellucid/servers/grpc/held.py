"""Messages that have not come whole: how long, and how much of them, is held at once.

They have no call number yet, but memory. What takes too long ends; beyond the limit of bytes the one
that has waited longest ends: a crowd of slow clients pushes out each other, and nobody whose messages
come whole.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from pellucid.servers.grpc.statuses import StatusCode

if TYPE_CHECKING:
    import asyncio

    from pellucid.servers.grpc.rpc import Rpc

MESSAGE_TIMEOUT_S = 30.0  # limit: from an RPC's begin, in a stream from a message's, to the message's end
OVERHEAD: Final = 2_048  # what an RPC costs whose message has no byte yet


class Held:
    """All RPCs of a door whose messages are incomplete, and what waits in streams for its turn.

    Args:
        bytes_max: Of all of them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._timeout_s = bytes_max, MESSAGE_TIMEOUT_S
        self._sizes: OrderedDict[Rpc, int] = OrderedDict()
        self._since: OrderedDict[Rpc, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.bytes = self.pushed_out = 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the running loop."""
        self._loop = loop

    def begin(self, rpc: Rpc) -> None:
        """A message is awaited, or has begun."""
        assert self._loop is not None
        if rpc not in self._sizes:
            self._sizes[rpc] = OVERHEAD
            self.bytes += OVERHEAD
        self._since[rpc] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s / 30, self._look)
        if self.bytes > self._bytes_max:
            self._push_out()

    def grow(self, rpc: Rpc, count: int) -> None:
        """That many bytes of it more are in memory."""
        if rpc in self._sizes:
            self._sizes[rpc] += count
            self.bytes += count
            if self.bytes > self._bytes_max:
                self._push_out()

    def whole(self, rpc: Rpc) -> None:
        """No message of it is incomplete; what it holds stays counted."""
        self._since.pop(rpc, None)

    def leave(self, rpc: Rpc) -> None:
        """Nothing of it is held."""
        size = self._sizes.pop(rpc, None)
        if size is not None:
            self.bytes -= size
            self._since.pop(rpc, None)

    def _push_out(self) -> None:
        while self.bytes > self._bytes_max and len(self._sizes) > 1:
            self.pushed_out += 1
            self._end(next(iter(self._sizes)), StatusCode.RESOURCE_EXHAUSTED)

    def _end(self, rpc: Rpc, code: StatusCode) -> None:
        self.leave(rpc)
        within = f"{self._timeout_s:.0f} s, sooner where many are slow"
        rpc.end(code, f"message: expected all of it within {within}, got less")

    def _look(self) -> None:
        assert self._loop is not None
        self._timer, now = None, self._loop.time()
        while self._since:
            rpc, since = next(iter(self._since.items()))
            if now - since < self._timeout_s:
                self._timer = self._loop.call_later(self._timeout_s / 30, self._look)
                return
            self._end(rpc, StatusCode.DEADLINE_EXCEEDED)
