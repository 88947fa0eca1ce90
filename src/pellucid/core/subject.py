"""What an entry speaks of, for those who search: the model, whatever its type calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BY_NAME: Final = {  # types that say ``name``: what stands behind them is a package's own manifest
    "build", "package", "qualification", "approval", "rebuild", "recalibration",
}  # fmt: skip


def model_of(kind: str, data: Mapping[str, Any]) -> str:
    """Name of the model that an entry's data speak of, or ``""``."""
    found = data.get("model") or (data.get("name") if kind in _BY_NAME else None)
    return found if isinstance(found, str) else ""
