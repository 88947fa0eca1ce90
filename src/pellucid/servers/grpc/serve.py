"""Runs the gRPC door on the event loop of the HTTP door, until that one stops.

It has health checking (``grpc.health.v1``) and no reflection: the messages are served at
``/inference.proto``. Order of a stop: not serving any more, connections told to go elsewhere, RPCs in
flight answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pellucid.app.tls import HTTP_2, Tls
from pellucid.errors import UnavailableError
from pellucid.servers.grpc.connection import Connection
from pellucid.servers.grpc.door import Door
from pellucid.servers.grpc.health import Health
from pellucid.servers.grpc.held import Held
from pellucid.servers.grpc.service import STOPS, Service
from pellucid.servers.grpc.statuses import StatusCode
from pellucid.servers.http.crowd import Crowd
from pellucid.servers.http.serve import BACKLOG, HANDSHAKE_S, connections_max
from pellucid.serving.dataplane import Dataplane

FRAME_MAX: Final = 2**20  # limit: a message over the body's limit by less than this is refused by name
MESSAGES_BYTES: Final = 256 * 2**20  # limit: of all messages that come in pieces, where one may be no larger
FLUSH_S: Final = 0.5  # limit: how long answers that are made may take to leave at a stop


class GrpcDoor:
    """One listening gRPC server beside the HTTP door.

    Args:
        port: 0 takes any free one; what it became stands in ``port`` once open or held.
        handed: A parent listens, and hands connections over.
        tls: Every connection speaks it.
        crowd: Limits of connections, counted with those of the HTTP door where it is the same.
    """

    name = "grpc"

    def __init__(
        self,
        host: str,
        port: int,
        *,
        handed: bool = False,
        tls: Tls | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self._tls, self._crowd = tls, crowd or Crowd()
        self._host, self.port, self._handed = host, port, handed
        self._server: Any = None
        self._door: Door | None = None
        self._health = Health()

    @contextmanager
    def hold(self) -> Iterator[socket.socket]:
        """Bound socket, for a parent that takes connections and hands them to workers.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        with self._bind() as listener:
            self.port = listener.getsockname()[1]
            yield listener

    @property
    def words(self) -> list[str]:
        """What to add to the command lines of such workers."""
        return ["--grpc-port", str(self.port)]

    def _taken(self) -> UnavailableError:
        return UnavailableError(
            f"server: expected to listen on {self._host}:{self.port} for gRPC, got an address that is taken",
            hint="choose another with --grpc-port; 0 takes a free one, -1 leaves gRPC out",
        )

    async def open(self, plane: Dataplane) -> None:
        """Listen and answer.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        loop, body_max = asyncio.get_running_loop(), plane.limits.body_max_bytes
        held = Held(max(MESSAGES_BYTES, 2 * body_max))
        held.attach(loop)
        service = Service(plane, self._health)
        door = Door(loop, service, held, body_max + FRAME_MAX, self._crowd, connections_max())
        self._door = door
        if not self._handed:
            listener = self._bind()
            self.port = listener.getsockname()[1]
            self._server = await loop.create_server(
                lambda: Connection(door), sock=listener, backlog=BACKLOG, **self._secure()
            )

        def changed() -> None:
            self._health.set(serving=plane.is_ready)

        changed()
        plane.pool.on_change.append(changed)
        plane.on_drain.append(changed)

    def _secure(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls.context(HTTP_2), "ssl_handshake_timeout": HANDSHAKE_S}

    async def join(self, connection: socket.socket) -> object:
        """Take in a connection that a parent hands over."""
        door = self._door
        assert door is not None, "open comes first"
        return await door.loop.connect_accepted_socket(lambda: Connection(door), connection, **self._secure())

    def retire(self) -> None:
        """No more connections come: send clients elsewhere, and lose no call."""
        assert self._door is not None, "open comes first"
        for connection in list(self._door.connections):
            connection.leave()

    @property
    def is_empty(self) -> bool:
        """True when no connection is left."""
        return self._door is None or not self._door.connections

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if self.port:  # else another that takes any port could be given this one, until somebody listens
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self.port))
        except OSError as error:
            listener.close()
            raise self._taken() from error
        listener.set_inheritable(False)
        return listener

    async def close(self, grace_s: float) -> None:
        """Send clients elsewhere, let what is in flight finish, and be gone."""
        door, loop = self._door, asyncio.get_running_loop()
        if door is None:
            return
        if self._server is not None:
            self._server.close()
        self._health.set(serving=False)
        self.retire()
        until = loop.time() + grace_s
        while door.is_busy and loop.time() < until:
            await asyncio.sleep(0.005)
        # streams and watches that only wait would hold the stop for all of its grace
        for connection in list(door.connections):
            for rpc in list(connection.streams.values()):
                rpc.end(StatusCode.UNAVAILABLE, STOPS)
        until = loop.time() + FLUSH_S
        while door.connections and loop.time() < until:
            await asyncio.sleep(0.005)
        for connection in list(door.connections):
            connection.abort()
