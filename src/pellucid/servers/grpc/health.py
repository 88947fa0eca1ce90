"""``grpc.health.v1``: is the server serving? Check says it once, Watch says it again when it changes.

Its two messages have one field each; they are read and written here rather than by a library.
"""

from __future__ import annotations

import asyncio
from typing import Final

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

from pellucid.errors import PellucidError
from pellucid.servers.grpc.messages import SERVICE, read_message
from pellucid.servers.grpc.rpc import Rpc
from pellucid.servers.grpc.statuses import STATUSES, StatusCode
from pellucid.servers.grpc.wire import OK_TAIL

NAMES: Final = frozenset(["", SERVICE])
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
_UNKNOWN: Final = b"\x08\x03"  # to who watches a service that may come


def _request_class() -> type:
    described = descriptor_pb2.FileDescriptorProto(
        name="health.proto", package="grpc.health.v1", syntax="proto3"
    )
    field = described.message_type.add(name="HealthCheckRequest").field.add(name="service", number=1)
    field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    made: type = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("grpc.health.v1.HealthCheckRequest")
    )
    return made


_Request: Final = _request_class()


class Health:
    """What is said of the server, to who asks and to who watches."""

    def __init__(self) -> None:
        self._status = _NOT_SERVING
        self._watching: set[Rpc] = set()

    def set(self, *, serving: bool) -> None:
        """Say so from now on."""
        status = _SERVING if serving else _NOT_SERVING
        if status != self._status:
            self._status = status
            for rpc in list(self._watching):
                rpc.send(status)

    def check(self, rpc: Rpc, service: str) -> None:
        """Say it once."""
        if service in NAMES:
            rpc.answer(self._status, OK_TAIL)
        else:
            rpc.end(StatusCode.NOT_FOUND, f"service: expected {SERVICE} or none, got {service!r:.80}")

    def watch(self, rpc: Rpc, service: str) -> None:
        """Say it now, and whenever it changes, until the caller has heard enough."""
        known = service in NAMES
        rpc.send(self._status if known else _UNKNOWN)
        if known:
            self._watching.add(rpc)
        left_s = rpc.time_left()
        late = None
        if left_s is not None:
            late = asyncio.get_running_loop().call_later(left_s, self._late, rpc)

        def gone() -> None:
            self._watching.discard(rpc)
            if late is not None:
                late.cancel()  # it may be a year away, and holds the RPC

        rpc.on_lost = gone

    def _late(self, rpc: Rpc) -> None:
        self._watching.discard(rpc)
        rpc.end(StatusCode.DEADLINE_EXCEEDED, "watch: expected an end in time, got none")


class HealthMethod:
    """A method of it, as an RPC takes it."""

    is_stream = False

    def __init__(self, health: Health, *, watches: bool) -> None:
        self._say = health.watch if watches else health.check

    def begin(self, rpc: Rpc) -> None: ...

    def take(self, rpc: Rpc, message: bytes) -> None:
        try:
            asked = read_message(_Request, message)
        except PellucidError as error:
            rpc.end(STATUSES[type(error)], error.message)
            return
        self._say(rpc, asked.service)
