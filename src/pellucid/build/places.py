"""Folders of this machine in what a child said: a package is read by strangers, and two builds compare.

Only a child's own folder is looked for everywhere: its name is drawn, so nothing else can be meant.
The user's home could as well be a part of a node's name and is taken out only where a traceback or a
warning names a source file.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

TEMPORARY: Final = "<temporary>"
HOME: Final = "<home>"
_DRAWN: Final = r"(?:/tmp/(?:tmp|pellucid-(?:[a-z]{1,20}-)?)[a-z0-9_]{8}(?![a-z0-9_]))?"  # by ``tempfile``


def hide(said: str, scratch: Path) -> str:
    """Text with a child's folder, and folders drawn in it, as ``<temporary>``."""
    return re.sub(re.escape(str(scratch)) + _DRAWN, TEMPORARY, said)


def hide_in_log(log: bytes, scratch: Path) -> bytes:
    """The same for lines of JSON."""
    escaped = json.dumps(str(scratch), ensure_ascii=False)[1:-1]
    return re.sub((re.escape(escaped) + _DRAWN).encode(), TEMPORARY.encode(), log)


def hide_in(value: Any, scratch: Path) -> Any:
    """The same for every text of a message, keys too."""
    if isinstance(value, str):
        return hide(value, scratch)
    if isinstance(value, dict):
        return {hide_in(key, scratch): hide_in(item, scratch) for key, item in value.items()}
    return [hide_in(item, scratch) for item in value] if isinstance(value, list) else value


def hide_in_stderr(said: bytes, scratch: Path) -> bytes:
    """What a child printed, without its folder, and source files below the user's home as ``<home>``."""
    text = hide(said.decode("utf-8", "surrogateescape"), scratch)
    home = os.path.expanduser("~").rstrip("/")
    if home.startswith("/"):
        text = re.sub(rf'(?m)(^| File "){re.escape(home)}/', rf"\g<1>{HOME}/", text)
    return text.encode("utf-8", "surrogateescape")
