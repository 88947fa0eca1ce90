"""Runs the gRPC door on the event loop of the HTTP door, until that one stops.

It has health checking (``grpc.health.v1``) and no reflection: the messages are served at
``/inference.proto``. Order of a stop: not serving any more, new RPCs refused, those in flight answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # before grpc is imported: stderr is for operators

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pellucid.app.tls import Tls, TlsFiles
from pellucid.errors import UnavailableError
from pellucid.servers.grpc.messages import SERVICE
from pellucid.servers.grpc.service import Service
from pellucid.serving.dataplane import Dataplane

FRAME_MAX: Final = 2**20  # limit: a message over the body's limit by less than this is refused by name
STREAMS_MAX: Final = 1_024  # limit: RPCs at once on one connection
METADATA_MAX: Final = 32_768  # limit: as the headers of the HTTP door
IDLE_S: Final = 75  # as the HTTP door
FLUSH_S: Final = 0.5  # limit: how long answers that are made may take to leave at a stop
_FAULT: Final = "server: expected an answer, got a fault of its own"
Method = Callable[[Any, Any], Awaitable[bytes]]


def answer_faults(method: Method) -> Method:
    """The method, with a status of ours where grpc would show the name of an exception."""

    @functools.wraps(method)
    async def guarded(message: Any, context: Any) -> bytes:
        try:
            return await method(message, context)
        except grpc.aio.AbortError:
            raise
        except Exception:
            traceback.print_exc(file=sys.stderr)
            await context.abort(grpc.StatusCode.INTERNAL, _FAULT)
            raise

    return guarded


class GrpcDoor:
    """One listening gRPC server beside the HTTP door.

    Args:
        port: 0 takes any free one; what it became stands in ``port`` once open or held.
        shared: Other processes listen on the same port, and the system shares out connections.
        tls: Every connection speaks it.
    """

    name = "grpc"

    def __init__(self, host: str, port: int, *, shared: bool = False, tls: Tls | None = None) -> None:
        self._tls = tls
        self._host, self.port, self._shared = host, port, shared
        self._server: Any = None
        self._health: Any = None
        self._service: Service | None = None
        self._plane: Dataplane | None = None
        self._telling: set[asyncio.Task[None]] = set()

    @contextmanager
    def hold(self) -> Iterator[list[str]]:
        """Keep the port for workers that share it; gives what to add to their command lines.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with contextlib.ExitStack() as sockets:
            try:
                with socket.socket(family, socket.SOCK_STREAM) as probe:  # nobody else's, shared or not
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((self._host, self.port))
                    self.port = probe.getsockname()[1]
                held = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                held.bind((self._host, self.port))
            except OSError as error:
                raise self._taken() from error
            yield ["--host", self._host, "--grpc-port", str(self.port)]

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
        self._plane, server = plane, grpc.aio.server(options=self._options(plane.limits.body_max_bytes))
        self._service = Service(plane)
        server.add_generic_rpc_handlers((self._service.handler(answer_faults),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            where = f"{host}:{self.port}"
            port = (
                server.add_secure_port(where, credentials(self._tls))
                if self._tls
                else server.add_insecure_port(where)
            )
        except RuntimeError as error:
            raise self._taken() from error
        await self._tell()
        plane.pool.on_change.append(self._changed)
        plane.on_drain.append(self._changed)
        await server.start()
        self._server, self.port = server, int(port)

    def _changed(self) -> None:
        task = asyncio.ensure_future(self._tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        assert self._plane is not None
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if self._plane.is_ready else statuses.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def close(self, grace_s: float) -> None:
        """Refuse new RPCs, let those in flight finish, and be gone."""
        server, loop = self._server, asyncio.get_running_loop()
        if server is None or self._service is None:
            return
        self._server = None
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.ensure_future(server.stop(grace_s))
        until = loop.time() + grace_s
        while self._service.busy and loop.time() < until and not stopping.done():
            await asyncio.sleep(0.005)
        # streams and watches that only wait would hold the stop for all of its grace
        await server.stop(FLUSH_S)
        await stopping

    def _options(self, body_max: int) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", min(body_max + FRAME_MAX, 2**31 - 1)),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(self._shared)),  # else a second server on this port is a mistake
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.max_metadata_size", METADATA_MAX),
            ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ]


def credentials(tls: Tls) -> Any:
    """What a gRPC server needs of TLS; files that were replaced are taken up at the next connection."""
    given = tls.files()

    def configuration(files: TlsFiles) -> Any:
        return grpc.ssl_server_certificate_configuration([(files.key, files.chain)], files.authorities)

    def newest() -> Any:
        nonlocal given
        files = tls.files()
        if files is given:
            return None  # nothing new
        given = files
        return configuration(files)

    required = given.authorities is not None
    return grpc.dynamic_ssl_server_credentials(
        configuration(given), newest, require_client_authentication=required
    )
