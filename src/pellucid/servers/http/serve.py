"""Runs the HTTP door on uvicorn with httptools and uvloop, until told to stop.

Order of a stop: no new connections, answers in flight leave, connections close. A fault of ours in
one request is answered with 500 in JSON and reported; the house goes on.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import uvicorn

from pellucid.app.listening import SideDoor
from pellucid.errors import UnavailableError
from pellucid.servers.http.app import FAULT, App, HttpDoor, Scope, Send, make_app
from pellucid.servers.http.body import Receive
from pellucid.servers.http.crowd import Crowd
from pellucid.servers.http.fast import FastProtocol
from pellucid.servers.http.protocol import SPARE
from pellucid.serving.dataplane import Dataplane

Step = Callable[[], Awaitable[None]]
KEEP_ALIVE_S: Final = 75  # precedent: nginx
BACKLOG: Final = 2_048
_HANDED_MAX: Final = 64  # limit: connections taken in before requests are looked at
RETIRE: Final = b"r"  # from the parent: no more connections come
RETIRE_MAX_S: Final = KEEP_ALIVE_S + 30.0  # limit: idle connections end by themselves before
_LOOK_S: Final = 0.1
HANDSHAKE_S: Final = 15.0  # limit: as for a head
GRACE_S: Final = 30  # limit: how long answers in flight may take at a stop


def bind(host: str, port: int) -> socket.socket:
    """Bound socket, not yet listening; port 0 takes any free one.

    Raises:
        UnavailableError: The address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:  # else another that takes any port could be given this one, until somebody listens
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"server: expected to listen on {host}:{port}, got {error.strerror or error}",
            hint="choose another port with --port; 0 takes a free one",
        ) from error
    listener.set_inheritable(False)
    return listener


def answer_faults(app: App) -> App:
    """The app, with a JSON answer where it would have none."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(FAULT))]
            # where an answer has begun already this raises, and the server cuts the connection
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": FAULT})

    return guarded


async def _nothing() -> None: ...


def connections_max() -> int:
    """Connections that may be open at once: all descriptors that the system lets us have, but for some.

    A crowd that took them all would leave none for the next segment of the journal.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return max(soft - SPARE, soft // 2)


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Tells when it listens, and lets the caller drain before connections are cut."""

    def __init__(
        self,
        config: uvicorn.Config,
        started: Callable[[], None],
        drain: Callable[[], Awaitable[object]],
        channel: socket.socket | None,
        opened: Step,
        closed: Step,
        retire: Callable[[], None],
        beside: Sequence[SideDoor],
    ) -> None:
        super().__init__(config)
        self._retire, self._retired_at, self._beside = retire, 0.0, beside
        self._tell, self._drain, self._channel = started, drain, channel
        self._opened, self._closed = opened, closed
        self._joining: set[asyncio.Task[Any]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._channel is None and self.config.ssl is not None:
            await self._listen(sockets or [])
        elif self._channel is None:
            await super().startup(sockets)
        else:
            self.servers: list[Any] = []
            self.started = True
            self._channel.setblocking(False)
            asyncio.get_running_loop().add_reader(self._channel.fileno(), self._hear, self._channel)
        await self._opened()
        self._tell()

    async def _listen(self, sockets: list[socket.socket]) -> None:
        """As uvicorn, but for the time that a handshake may take."""
        listening = asyncio.get_running_loop().create_server
        self.servers = [
            await listening(
                self._protocol, sock=listener, ssl=self.config.ssl, backlog=BACKLOG,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
            for listener in sockets
        ]  # fmt: skip
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )
        return made

    def _hear(self, channel: socket.socket) -> None:
        """Take the connections that the parent hands over; its end is ours."""
        for _ in range(_HANDED_MAX):
            try:
                message, descriptors, _, _ = socket.recv_fds(channel, 1, 4)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                asyncio.get_running_loop().remove_reader(channel.fileno())
                self.should_exit = True
                return
            if message == RETIRE and not self._retired_at:
                self._retired_at = asyncio.get_running_loop().time()
                self._retire()
                self._end_when_empty()
            for descriptor in descriptors:
                self._join(socket.socket(fileno=descriptor), int(message))

    def _end_when_empty(self) -> None:
        """Another has our place: end when the last client has gone, or was silent for long enough."""
        loop = asyncio.get_running_loop()
        empty = not self.server_state.connections and not self._joining
        empty = empty and all(door.is_empty for door in self._beside)
        if empty or loop.time() - self._retired_at > RETIRE_MAX_S:
            self.should_exit = True
        else:
            loop.call_later(_LOOK_S, self._end_when_empty)

    def _join(self, connection: socket.socket, door: int) -> None:
        """Take in a connection of this door, which is the first, or of one beside it."""
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        connection.setblocking(False)
        joining: Awaitable[object]
        if door:
            joining = self._beside[door - 1].join(connection)
        else:
            joining = loop.connect_accepted_socket(
                self._protocol, connection, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S if tls else None
            )
        task = asyncio.ensure_future(joining)
        self._joining.add(task)
        task.add_done_callback(self._joined)

    def _joined(self, task: asyncio.Task[Any]) -> None:
        self._joining.discard(task)
        if not task.cancelled():
            task.exception()  # a client that left before it was taken in is nobody's fault

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.gather(super().shutdown(sockets), self._closed())
        await self._drain()
        for connection in list(self.server_state.connections):
            connection.transport.cut()  # who was told, and does not go
        await asyncio.sleep(0)


def run(
    door: HttpDoor,
    listener: socket.socket,
    *,
    attach: Callable[[asyncio.AbstractEventLoop], None],
    started: Callable[[], None],
    drain: Callable[[], Awaitable[object]],
    handed: bool = False,
    on_server: Callable[[uvicorn.Server], None] | None = None,
    opened: Step = _nothing,
    closed: Step = _nothing,
    tls: ssl.SSLContext | None = None,
    crowd: Crowd | None = None,
    beside: Sequence[SideDoor] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, or until the server's ``should_exit`` is set.

    Args:
        attach: Called on the loop's thread before the first request.
        started: Called when connections are accepted.
        drain: Awaited when no connection is left and before the loop ends.
        handed: ``listener`` is a channel over which a parent hands connections.
        on_server: Gets the server before it starts.
        opened, closed: Awaited when it listens, and beside its stop: for doors next to this one.
        tls: Every connection speaks it.
        crowd: Limits of connections.
        beside: What else the parent hands connections for.
    """
    config = uvicorn.Config(
        answer_faults(make_app(door)),
        http=type(
            "BoundProtocol",
            (FastProtocol,),
            {"door": door, "crowd": crowd or Crowd(), "connections_max": connections_max()},
        ),
        loop="uvloop",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",  # what a client did wrong is in its answer and in the ledger
        server_header=False,
        proxy_headers=False,  # whose word counts is for ``serving.doors`` to say
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )

    def retire() -> None:
        door.retiring = True
        for side in beside:
            side.retire()

    async def settle() -> None:
        door.slow.end()
        await drain()

    config.load()
    config.ssl = tls
    server = _Server(config, started, settle, listener if handed else None, opened, closed, retire, beside)

    async def serve() -> None:
        attach(asyncio.get_running_loop())
        await server.serve(sockets=[] if handed else [listener])

    if on_server is not None:
        on_server(server)
    with _quiet_signals(), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())


class UvicornDoor:
    """The HTTP door as ``app.serve`` takes it."""

    def __init__(self, tls: ssl.SSLContext | None = None, crowd: Crowd | None = None) -> None:
        self._tls, self._crowd = tls, crowd

    def bind(self, host: str, port: int) -> socket.socket:
        """Bound socket, not yet listening.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        return bind(host, port)

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
        """Serve a data plane until SIGTERM or SIGINT."""
        opened, closed = around(plane, beside)
        run(
            HttpDoor(plane),
            listener,
            attach=attach,
            started=started,
            drain=drain,
            handed=handed,
            opened=opened,
            closed=closed,
            tls=self._tls,
            crowd=self._crowd,
            beside=beside,
        )


def around(plane: Dataplane, doors: Sequence[SideDoor]) -> tuple[Step, Step]:
    """``opened`` and ``closed`` of ``run``, for doors beside this one."""

    async def opened() -> None:
        for door in doors:
            await door.open(plane)

    async def closed() -> None:
        await asyncio.gather(*(door.close(GRACE_S) for door in doors))

    return opened, closed


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn raises a signal again when it has stopped: by then it has done its work."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread only
        return
    handled = (signal.SIGTERM, signal.SIGINT)
    previous = {name: signal.signal(name, lambda *_: None) for name in handled}
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
