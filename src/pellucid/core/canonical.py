"""Canonical JSON: the bytes that are signed or hashed.

RFC 8785 on a restricted profile: no floating point, integers with ``|n| < 2**53``, keys of
``[A-Za-z0-9_]``. On that profile an encoder with sorted keys gives the bytes of RFC 8785
(tests compare it with a reference encoder). Source: spec/canonical.md, section 1.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import msgspec

from pellucid.errors import FormatError

INTEGER_MAX: Final = 2**53 - 1  # RFC 8785 numbers are binary64: beyond this they are not exact
DEPTH_MAX: Final = 32  # limit: deeper than any document of ours; bounds recursion
_KEY: Final = re.compile(r"[A-Za-z0-9_]{1,128}")
_encoder: Final = msgspec.json.Encoder(order="sorted")
_ordered: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()

Json = None | bool | int | str | list["Json"] | dict[str, "Json"]


def encode(value: Any) -> bytes:
    """Give the one byte form of a value of the profile.

    Raises:
        FormatError: The value is outside the profile (float, big integer, key, lone surrogate).
    """
    _check(value, "$", 0)
    return encode_trusted(value)


def encode_trusted(value: Any) -> bytes:
    """``encode`` for values this program built itself from checked parts; skips the profile check."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise FormatError(f"canonical JSON: expected a value of the profile, got {error}") from error


def encode_ordered(value: Any) -> bytes:
    """``encode_trusted`` for values whose members stand in canonical order already: structs."""
    try:
        return _ordered.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise FormatError(f"canonical JSON: expected a value of the profile, got {error}") from error


def decode(data: bytes, *, size_max: int = 16 * 2**20) -> Any:
    """Read canonical JSON; refuses any bytes that ``encode`` would not have written.

    Duplicate keys, white space, floats, NaN and other number spellings all fail, because the value
    is encoded again and compared.

    Raises:
        FormatError: Not JSON, not canonical, too deep or larger than ``size_max`` bytes.
    """
    if len(data) > size_max:
        raise FormatError(f"canonical JSON: expected at most {size_max:,} bytes, got {len(data):,}")
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"canonical JSON: expected valid JSON, got {error}") from error
    if encode(value) != data:
        raise FormatError(
            "canonical JSON: expected the canonical form, got another spelling",
            hint="duplicate keys, white space, unsorted keys or escaped characters",
        )
    return value


def decode_foreign(data: bytes, *, size_max: int = 16 * 2**20) -> Any:
    """Read JSON that others wrote (any spelling, floats too); a duplicate key or NaN is refused.

    Raises:
        FormatError: Not JSON, a duplicate key, NaN or infinity, or larger than ``size_max`` bytes.
    """
    if len(data) > size_max:
        raise FormatError(f"JSON: expected at most {size_max:,} bytes, got {len(data):,}")
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"JSON: expected valid JSON, got {error!s:.120}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise FormatError("JSON: expected each key once, got a duplicate")
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise FormatError(f"JSON: expected finite numbers, got {text}")


def _check(value: Any, where: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise FormatError(f"canonical JSON: expected at most {DEPTH_MAX} levels at {where[:200]}")
    if value is None or value is True or value is False:
        return
    kind = type(value)
    if kind is str:
        _check_text(value, where)
    elif kind is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise FormatError(f"{where[:200]}: expected |n| < 2**53, got {value.bit_length()} bits")
    elif kind is list or kind is tuple:
        for position, item in enumerate(value):
            _check(item, f"{where}[{position}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str or not _KEY.fullmatch(key):
                raise FormatError(f"{where[:200]}: expected a key of [A-Za-z0-9_], got {key!r:.80}")
            _check(item, f"{where}.{key}", depth + 1)
    else:
        raise FormatError(f"{where[:200]}: expected a value of the profile, got {kind.__name__}")


def _check_text(value: str, where: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{where[:200]}: expected Unicode text, got a lone surrogate") from error
