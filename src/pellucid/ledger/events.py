"""Events: everything that is not a call, checked at the door so that the sequencer can form its entry."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.entry import TYPES
from pellucid.core.record import PERSONAL, Event
from pellucid.errors import FormatError

EVENT_MAX: Final = 48 * 1024  # limit: an event must fit into one entry of 65,535 bytes
PERSONAL_MAX: Final = 4096  # limit: bytes of one personal value of an event


def make_event(
    n: int, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None, now_ns: int
) -> Event:
    """An event with a fresh seed, checked so that the sequencer can form its entry.

    Raises:
        FormatError: Outside the canonical profile, an unknown personal kind, or too large.
    """
    if kind not in TYPES or kind in ("call", "batch"):
        raise FormatError(f"event: expected a type of entry that is no call, got {kind!r:.40}")
    values = dict(personal or {})
    unknown = sorted(set(values) - set(PERSONAL))
    if unknown:
        raise FormatError(f"event {kind}: expected personal values of {', '.join(PERSONAL)}, got {unknown}")
    check_size(f"event {kind}", canonical.encode(data), EVENT_MAX)
    for name, value in values.items():
        try:
            check_size(f"event {kind}: {name}", value.encode(), PERSONAL_MAX)
        except UnicodeEncodeError:
            raise FormatError(f"event {kind}: {name}: expected Unicode text, got a lone surrogate") from None
    return Event(n, kind, now_ns, data, secrets.token_bytes(32) if values else b"", values)


def check_size(subject: str, raw: bytes, limit: int) -> None:
    """Refuse what is larger than its limit.

    Raises:
        FormatError: Names both sizes.
    """
    if len(raw) > limit:
        raise FormatError(f"{subject}: expected at most {limit:,} bytes, got {len(raw):,}")


def closed_epoch(
    epoch: int, worker: int, *, last: int, unresolved: int = 0, recovered: bool = False
) -> dict[str, Any]:
    """Data of the ``epoch`` entry that closes one worker's part of an epoch."""
    return {
        "epoch": epoch, "last": [last], "phase": "closed",
        "recovered": recovered, "unresolved": unresolved, "worker": worker,
    }  # fmt: skip
