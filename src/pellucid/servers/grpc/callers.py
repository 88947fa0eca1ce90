"""What an RPC says of who sends it, and what it asks for, in the words of ``core.access``."""

from __future__ import annotations

from typing import Final

from pellucid.core.access import HEALTH
from pellucid.servers.grpc.heads import Head
from pellucid.serving.doors import Doors, Knock

_ACTIONS: Final = {
    "ServerLive": HEALTH, "ServerReady": HEALTH, "ModelInfer": "infer", "ModelStreamInfer": "infer",
    "ModelStatistics": "statistics", "RepositoryModelLoad": "repository",
    "RepositoryModelUnload": "repository",
    # a message of these two may hold changes, and is not read before it is known whose it is
    "TraceSetting": "change_settings", "LogSettings": "change_settings",
}  # fmt: skip


def action_of(name: str) -> str:
    """Action of an RPC; what has no row of its own is metadata, which every role may read."""
    if "SharedMemory" in name:
        return "shared_memory"
    return _ACTIONS.get(name, "metadata")


def knock_of(head: Head, peer: str, names: tuple[str, ...], doors: Doors | None, size: int) -> Knock:
    """Of an RPC that comes from a peer."""
    if doors is None:
        return Knock(peer)
    return Knock(peer, head.values(b"authorization"), head.values(doors.forwarded_key), names, size)
