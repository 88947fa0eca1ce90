"""What a child's work gave, or how it failed, as a value that goes to the parent; and back again."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from typing import Any

from pellucid.errors import BuildError, PellucidError, by_code


def guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` gives, or ``{"error": ...}``: whatever a library raises must reach the parent."""
    try:
        return work()
    except PellucidError as error:
        return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    except Exception as error:
        traceback.print_exc()
        return {"error": {"code": BuildError.code, "message": f"builder: {_words(error)}", "hint": ""}}


def unguarded(result: dict[str, Any]) -> dict[str, Any]:
    """What the work gave.

    Raises:
        PellucidError: What the work raised, or a ``BuildError`` in its place.
    """
    if "error" in result:
        error = result["error"]
        raise by_code(error["code"], BuildError)(error["message"], hint=error["hint"])
    return result


def _words(error: Exception) -> str:
    # what is mapped is refused in the system's words, what is allocated in Python's
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "expected to stay inside limits.memory_bytes, got out of memory"
    return f"expected an engine, got {type(error).__name__}: {error!s:.300}"
