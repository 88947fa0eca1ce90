"""Strict JSON at the door: no NaN, no byte order mark, no lone surrogate, no member twice.

The decoder refuses all of these but the last: it keeps the second of two members without a word.
Outside of texts each member has exactly one colon, and every member decoded has one of its own. So
when the body has as many colons as members were decoded, nothing was dropped; likewise when the rest
stands in decoded texts and none is escaped. Anything else takes the slow and exact way. Measured on a
body of 600 bytes: 1 us against 11 us.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from pellucid.errors import FormatError

DEPTH_MAX: Final = 64  # limit: a tensor has at most 32 dimensions, and a request a few levels
_decode: Final = msgspec.json.Decoder().decode


def decode_strict(body: bytes | bytearray | memoryview, *, subject: str = "body") -> Any:
    """Value of a JSON text.

    Raises:
        FormatError: Not JSON as RFC 8259 says, or a member that stands twice; with the position.
    """
    raw = bytes(body)
    if not raw:
        raise FormatError(f"{subject}: expected a JSON object, got nothing: the {subject} is empty")
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{subject}: expected valid JSON, got {error}") from None
    except RecursionError:
        raise _too_deep(subject) from None
    colons = raw.count(b":")
    if type(value) is dict and colons == _members(value, subject, 0):
        return value
    if colons != _colons(value, subject, 0) or b"\\u003" in raw:
        _refuse_twins(raw, subject)
    return value


def _too_deep(subject: str) -> FormatError:
    return FormatError(f"{subject}: expected at most {DEPTH_MAX} levels of nesting, got more")


def _members(value: dict[str, Any], subject: str, depth: int) -> int:
    """Members of an object and of the objects inside. Arrays of numbers are not looked into:
    whatever else stands in them makes the counts differ."""
    if depth > DEPTH_MAX:
        raise _too_deep(subject)
    count = len(value)
    for item in value.values():
        kind = type(item)
        if kind is dict:
            count += _members(item, subject, depth + 1)
        elif kind is list and item and type(item[0]) is dict:
            for each in item:
                if type(each) is dict:
                    count += _members(each, subject, depth + 1)
    return count


def _colons(value: Any, subject: str, depth: int) -> int:
    """Members, and colons in texts."""
    kind = type(value)
    if kind is str:
        return int(value.count(":"))
    if depth > DEPTH_MAX:
        raise _too_deep(subject)
    if kind is dict:
        names: int = sum([name.count(":") for name in value])
        return len(value) + names + sum([_colons(item, subject, depth + 1) for item in value.values()])
    if kind is list and value and type(value[0]) in (str, list, dict):
        return sum([_colons(item, subject, depth + 1) for item in value])
    return 0


def _refuse_twins(raw: bytes, subject: str) -> None:
    def pairs(members: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                raise FormatError(f"{subject}: expected each member once, got {name!r:.60} twice")
            seen.add(name)

    try:
        json.loads(raw, object_pairs_hook=pairs)
    except RecursionError:
        raise _too_deep(subject) from None
    except ValueError as error:
        raise FormatError(f"{subject}: expected valid JSON, got {error!s:.200}") from None
