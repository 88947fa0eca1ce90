"""What an RPC says of who sends it, and what it asks for, in the words of ``core.access``."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from pellucid.core.access import HEALTH
from pellucid.core.certificate import certificate_names
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


def knock_of(context: Any, doors: Doors | None, size: int) -> Knock:
    """Of an RPC."""
    peer = address_of(context.peer())
    if doors is None:
        return Knock(peer)
    authorization, forwarded = [], []
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            authorization.append(_bytes(value))
        elif name == doors.forwarded_header:
            forwarded.append(_bytes(value))
    return Knock(peer, authorization, forwarded, _names(context), size)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value


def _names(context: Any) -> tuple[str, ...]:
    pems = context.auth_context().get("x509_pem_cert") or ()
    return certificate_names(pems[0]) if pems else ()


def address_of(peer: str) -> str:
    """Address of ``ipv4:1.2.3.4:5``, ``ipv6:%5B::1%5D:5`` or ``unix:path``."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]")
