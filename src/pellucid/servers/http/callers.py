"""What a request says of who sends it, and what its route asks for, in the words of ``core.access``."""

from __future__ import annotations

from typing import Any, Final

from pellucid.core.access import HEALTH
from pellucid.serving.doors import Doors, Knock

_ACTIONS: Final = {
    "live": HEALTH, "ready": HEALTH, "whoami": "whoami", "stats": "statistics", "load": "repository",
    "unload": "repository", "trace": "settings", "logging": "settings",
}  # fmt: skip
_CHANGED: Final = frozenset({"trace", "logging"})


def action_of(kind: str, method: str) -> str:
    """Action of a route; what has no row of its own is metadata, which every role may read."""
    if kind in _CHANGED and method == "POST":
        return "change_settings"
    if kind.startswith(("shm_", "cuda_")):
        return "shared_memory"
    return _ACTIONS.get(kind, "metadata")


def knock_of(scope: dict[str, Any], doors: Doors | None) -> Knock:
    """Of a request as ASGI has it."""
    client = scope["client"]
    peer = client[0] if client else ""
    if doors is None:
        return Knock(peer)
    authorization, forwarded, size = [], [], 0
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization.append(value)
        elif name == doors.forwarded_key:
            forwarded.append(value)
        elif name == b"content-length" and value.isdigit():
            size = int(value[:20])
    return Knock(peer, authorization, forwarded, scope.get("names", ()), size)


def short_knock(
    peer: str, headers: dict[bytes, bytes], names: tuple[str, ...], size: int, doors: Doors
) -> Knock:
    """Of a request whose headers all came once."""
    authorization, forwarded = headers.get(b"authorization"), headers.get(doors.forwarded_key)
    return Knock(
        peer,
        () if authorization is None else (authorization,),
        () if forwarded is None else (forwarded,),
        names,
        size,
    )
