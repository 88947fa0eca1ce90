"""What an entry speaks of, for those who search: the model, whatever its type calls it, and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_BY_NAME: Final = {  # types that say ``name``: what stands behind them is a package's own manifest
    "build", "package", "qualification", "approval", "rebuild", "recalibration",
}  # fmt: skip


class Summary(msgspec.Struct, frozen=True, gc=False):
    """What an index asks an entry for; ``""`` where the entry does not say it.

    Who forms an entry makes it from what is at hand, so that followers need not parse the entry.
    """

    time_ns: int
    model: str
    version: str
    package: str
    outcome: str
    trace: str


def model_of(kind: str, data: Mapping[str, Any]) -> str:
    """Name of the model that an entry's data speak of, or ``""``."""
    found = data.get("model") or (data.get("name") if kind in _BY_NAME else None)
    return found if isinstance(found, str) else ""


def summarise(kind: str, time_ns: int, data: Mapping[str, Any]) -> Summary:
    """Summary of an entry's data.

    Args:
        kind: The entry's type.
        time_ns: Its time, nanoseconds since 1970.
    """
    outcome = text_of(data, "outcome") or text_of(data, "verdict") or text_of(data, "phase")
    texts = (text_of(data, "version"), text_of(data, "package"), outcome, text_of(data, "trace"))
    return Summary(time_ns, model_of(kind, data), *texts)


def text_of(data: Mapping[str, Any], name: str) -> str:
    """A member's text; ``""`` where it is none."""
    value = data.get(name)
    return value if isinstance(value, str) else ""
