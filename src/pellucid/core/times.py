"""Times as text: RFC 3339, UTC, nanoseconds, always 30 characters."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from pellucid.errors import FormatError

_TEXT: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(?:Z|\+00:00)", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    except OverflowError:
        raise FormatError("time: expected a year of 1 to 9999, got another") from None


def format_time(unix_ns: int) -> str:
    """``2026-11-30T16:40:14.000000000Z`` of nanoseconds since 1970.

    Raises:
        FormatError: Before the year 1 or after 9999.
    """
    seconds, nanoseconds = divmod(unix_ns, 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds:09d}Z"


@lru_cache(maxsize=64)
def _unix_second(text: str) -> int:
    return (datetime.fromisoformat(text + "+00:00") - _EPOCH) // timedelta(seconds=1)


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time in UTC.

    Raises:
        FormatError: Another form, another offset, or a date that does not exist.
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FormatError(f"time: expected RFC 3339 in UTC, got {text!r:.60}")
    try:
        whole = _unix_second(match[1])
    except ValueError as error:
        raise FormatError(f"time: expected a date that exists, got {text!r:.60}") from error
    return whole * 1_000_000_000 + int((match[2] or "").ljust(9, "0"))
