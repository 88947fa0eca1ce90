"""A call by the short way whose body is larger than one read: its pieces, until they are whole.

It has its number from the head on, and its place among the slow bodies. The pieces are kept as they
came and put together once: what is behind the JSON head of a binary request in one piece of its own,
which is the tensor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pellucid.errors import DeadlineError, PellucidError
from pellucid.servers.http import body as bodies
from pellucid.servers.http.short import NOBODY, ShortCycle

if TYPE_CHECKING:
    from pellucid.servers.http.routes import Route

Piece = bytes | memoryview
_SMALL: Final = 1_024  # smaller ones are gathered: each of its own would hold more than it brings


class PiecesCycle(ShortCycle):
    """One such call.

    Attributes:
        left: Bytes that have not come yet.
    """

    __slots__ = ("_headers", "_pieces", "_route", "_timer", "left")

    def begin(self, route: Route, headers: dict[bytes, bytes], size: int) -> None:
        """Give the call its number, and wait for that many bytes."""
        self._route, self._headers, self.left = route, headers, size
        self._pieces: list[Piece | bytearray] = []
        self._timer: asyncio.TimerHandle | None = None
        self.message_event, self.more_body = self, True
        if self.accept(headers, size):
            self._timer = self._protocol.loop.call_later(bodies.BODY_TIMEOUT_S, self._give_up)
            self._door.slow.enter(self, self._give_up)

    def take(self, piece: Piece) -> Piece:
        """Keep what belongs to the body; returns what stands behind it."""
        own, rest = (
            (piece, piece[:0]) if len(piece) <= self.left else (piece[: self.left], piece[self.left :])
        )
        self.left -= len(own)
        if not self.response_complete:
            self._keep(own)
            self._door.slow.grow(self, len(own))  # this may be the one that has to go
        if not self.left:
            self.more_body = False
            if not self.response_complete:
                self._let_go()
                self.start(self._route, self._headers, *self._put_together())
        return rest

    def _keep(self, piece: Piece) -> None:
        pieces = self._pieces
        if len(piece) >= _SMALL:
            pieces.append(piece)
        elif pieces and type(pieces[-1]) is bytearray:
            pieces[-1] += piece
        else:
            pieces.append(bytearray(piece))

    def set(self) -> None:
        """The connection is lost."""
        if self.more_body and not self.response_complete:
            size = sum(map(len, self._pieces))
            self._end(DeadlineError(f"body: expected all of it, got {size:,} bytes before the client left"))

    def _give_up(self) -> None:
        self._end(bodies.too_late())

    def _end(self, error: PellucidError) -> None:
        self._let_go()
        self._pieces.clear()
        self.set_exception(error)

    def _let_go(self) -> None:
        self._door.slow.leave(self)
        self.message_event = NOBODY
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _put_together(self) -> tuple[bytes, bytes | None]:
        """The body; or its head, and what follows, where one is announced and lies in the first piece."""
        pieces, head = self._pieces, self.announced(self._headers)
        self._pieces = []
        if head and head <= len(pieces[0]) and (head < len(pieces[0]) or len(pieces) > 1):
            first = memoryview(pieces[0])
            return bytes(first[:head]), b"".join([first[head:], *pieces[1:]])
        return b"".join(pieces), None
