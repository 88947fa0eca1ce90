"""What the connections of one gRPC door share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pellucid.servers.grpc.held import Held
from pellucid.servers.grpc.rpc import Carrier
from pellucid.servers.grpc.service import Service
from pellucid.servers.http.crowd import Crowd


@dataclass(eq=False, slots=True)
class Door:
    """What the connections of one gRPC door share.

    Attributes:
        message_max: Bytes of a message that can become a call, also after decompression.
        connections_max: As many as the system's descriptors allow.
        connections: All that are open.
    """

    loop: asyncio.AbstractEventLoop
    service: Service
    held: Held
    message_max: int
    crowd: Crowd
    connections_max: int
    connections: set[Carrier] = field(default_factory=set)

    @property
    def is_busy(self) -> bool:
        """True while a message is being answered; a stream that waits for its client's next one is not."""
        return any(rpc.busy for connection in self.connections for rpc in connection.streams.values())
