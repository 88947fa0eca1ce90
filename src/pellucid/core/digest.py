"""Digests as text: ``sha256:<64 hex digits>``, as OCI and in-toto write them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Any, Final

from pellucid.errors import DigestMismatchError, FormatError

Data = bytes | memoryview  # as read, or a file mapped into memory
_BLOCK: Final = 64  # bytes, of SHA-256
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_TEXT: Final = re.compile(r"sha256:[0-9a-f]{64}")


def sha256(data: bytes | bytearray | memoryview) -> str:
    """Digest of some bytes, as text."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def hmac_pads(key: bytes) -> tuple[bytes, bytes]:
    """What HMAC-SHA-256 (RFC 2104) hashes before the message, and before the inner hash."""
    if len(key) > _BLOCK:
        key = hashlib.sha256(key).digest()
    return key.translate(_INNER).ljust(_BLOCK, b"\x36"), key.translate(_OUTER).ljust(_BLOCK, b"\x5c")


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA-256 of a short message: six a call are made, and two plain hashes cost two thirds of
    what OpenSSL needs to set up a MAC."""
    inner, outer = hmac_pads(key)
    return hashlib.sha256(outer + hashlib.sha256(inner + message).digest()).digest()


def format_digest(raw: bytes) -> str:
    """Text of 32 raw digest bytes."""
    if len(raw) != 32:
        raise FormatError(f"digest: expected 32 bytes, got {len(raw)}")
    return "sha256:" + raw.hex()


def parse_digest(text: str) -> bytes:
    """Raw bytes of a digest's text.

    Raises:
        FormatError: Not ``sha256:`` and 64 lower-case hex digits.
    """
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise FormatError(f"digest: expected sha256:<64 hex digits>, got {text!r:.80}")
    return bytes.fromhex(text[7:])


def verify_digest(
    subject: str, data: bytes | memoryview, expected: str, digest: Callable[[Any], str] = sha256
) -> bytes | memoryview:
    """Return ``data`` if it has the expected digest.

    Args:
        digest: Gives the digest of ``data``, where it may be known already.

    Raises:
        DigestMismatchError: Names the subject, both digests and the size.
    """
    got = digest(data)
    if not hmac.compare_digest(got.encode(), expected.encode("utf-8", "surrogatepass")):
        raise DigestMismatchError(
            f"{subject}: expected {expected[:19]}..., got {got[:19]}... over {len(data):,} bytes",
            hint="the bytes changed after they were signed: fetch them again, or rebuild",
        )
    return data
