"""The doors as ``app`` takes them: servers above this layer, handed down by whoever starts them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pellucid.serving.dataplane import Dataplane


class Door(Protocol):
    """How requests come in: a server above this layer, handed down by whoever starts it."""

    def bind(self, host: str, port: int) -> socket.socket:
        """Bound socket, not yet listening."""
        ...

    def run(
        self,
        plane: Dataplane,
        listener: socket.socket,
        *,
        attach: Callable[[asyncio.AbstractEventLoop], None],
        started: Callable[[], None],
        drain: Callable[[], Awaitable[object]],
        handed: bool = False,
        beside: Sequence[SideDoor] = (),
    ) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            handed: Connections come over ``listener``, a channel from the parent, which owns the port.
            beside: Open before ``started`` is called, and close with it.
        """
        ...


class SideDoor(Protocol):
    """A further way in, on the event loop of the door.

    Attributes:
        name: What it speaks.
        port: Where it listens, once open or held.
    """

    name: str
    port: int

    def hold(self) -> contextlib.AbstractContextManager[socket.socket]:
        """Bound socket, for a parent that takes connections and hands them to workers.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        ...

    @property
    def words(self) -> list[str]:
        """What to add to the command lines of such workers."""
        ...

    def join(self, connection: socket.socket) -> Awaitable[object]:
        """Take in a connection that a parent hands over."""
        ...

    def retire(self) -> None:
        """No more connections come: send clients elsewhere, and lose no call."""
        ...

    @property
    def is_empty(self) -> bool:
        """True when no connection is left."""
        ...

    async def open(self, plane: Dataplane) -> None:
        """Listen and answer. Raises ``UnavailableError`` when the address is taken or not ours."""
        ...

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let what is in flight finish for a while, and be gone."""
        ...
