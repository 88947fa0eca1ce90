"""Stores: where immutable objects lie. One file an adapter; the rules of their paths are here."""

from __future__ import annotations

import re
from typing import Final

from pellucid.errors import UsageError

DEPTH_MAX: Final = 16  # limit: deeper than any path of ours
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def is_name(text: str) -> bool:
    """True for one part of a path; drafts and hidden files are none."""
    return _NAME.fullmatch(text) is not None


def check_path(path: str) -> str:
    """The path itself, if it is one of a store.

    Raises:
        UsageError: Absolute, empty parts, dots in front, other characters, or too deep.
    """
    parts = path.split("/")
    if len(parts) > DEPTH_MAX or not all(map(is_name, parts)):
        raise UsageError(f"store path: expected a/b/c of [A-Za-z0-9._-], got {path!r:.120}")
    return path
