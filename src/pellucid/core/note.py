"""C2SP signed notes: a text, a blank line, signature lines. Ed25519 (type 01) only.

A verifier trusts keys it was given; lines of keys it does not know are ignored, and a line of a
known key that does not verify rejects the whole note. Source: spec/note.md, section 2.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from pellucid.core.signature import SigningKey, pem_ed25519, raw_ed25519, verify_signature
from pellucid.errors import FormatError, SignatureError

KIND_ED25519: Final = 1
NOTE_MAX: Final = 256 * 2**10  # limit: 64 post-quantum cosignatures fit
SIGNATURES_MAX: Final = 64  # limit; C2SP asks verifiers to take at least 16
_LINE: Final = re.compile(r"— (\S+) ([A-Za-z0-9+/]+={0,2})")
_VKEY: Final = re.compile(r"([^+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]+={0,2})")


class VerifierKey(msgspec.Struct, frozen=True):
    """A public key with its name.

    Attributes:
        name: Key name; no white space, no ``+``.
        key_id: First 4 bytes of SHA-256(name, newline, kind, public).
        kind: Signature type; 1 is Ed25519.
        public: Raw public key.
    """

    name: str
    key_id: bytes
    kind: int
    public: bytes


class Note(msgspec.Struct, frozen=True):
    """A note with at least one verified signature.

    Attributes:
        text: The signed text, with its final newline.
        verified_names: Names of the keys that signed, in the order of their lines.
    """

    text: str
    verified_names: tuple[str, ...]


def make_key(name: str, public: bytes) -> VerifierKey:
    """Ed25519 verifier key of a name and 32 raw bytes."""
    verify_name(name)
    if len(public) != 32:
        raise FormatError(f"verifier key: expected 32 bytes of Ed25519, got {len(public)}")
    head = name.encode() + b"\n" + bytes([KIND_ED25519])
    return VerifierKey(name, hashlib.sha256(head + public).digest()[:4], KIND_ED25519, public)


def format_vkey(name: str, kind: int, public_raw: bytes) -> str:
    """``name+hex8+base64`` of a key.

    Raises:
        FormatError: Another kind than Ed25519, or a name that is none.
    """
    if kind != KIND_ED25519:
        raise FormatError(f"verifier key: expected type 1 (Ed25519), got {kind}")
    key = make_key(name, public_raw)
    return f"{name}+{key.key_id.hex()}+{base64.b64encode(bytes([kind]) + public_raw).decode()}"


def parse_vkey(text: str) -> VerifierKey:
    """Read a verifier key; one final newline is allowed, as in a file.

    Raises:
        FormatError: Another form, another type than Ed25519, or a key id that does not match.
    """
    match = _VKEY.fullmatch(text.removesuffix("\n")) if len(text) <= 1024 else None
    raw = _strict_base64(match[3]) if match else None
    if match is None or raw is None:
        raise FormatError(f"verifier key: expected name+hex8+base64, got {text!r:.80}")
    if raw[0] != KIND_ED25519:
        raise FormatError(f"verifier key {match[1]!r:.80}: expected type 1 (Ed25519), got {raw[0]}")
    key = make_key(match[1], raw[1:])
    if key.key_id.hex() != match[2]:
        raise FormatError(f"verifier key {key.name!r:.80}: expected id {key.key_id.hex()}, got {match[2]}")
    return key


def sign_note(text: str, name: str, signer: SigningKey) -> bytes:
    """Note of a text with one Ed25519 signature.

    Raises:
        FormatError: The text is no note text, or the key is not Ed25519.
    """
    _check_text(text)
    key = make_key(name, raw_ed25519(signer.public_pem()))
    signed = base64.b64encode(key.key_id + signer.sign(text.encode())).decode()
    return f"{text}\n— {name} {signed}\n".encode()


def open_note(raw: bytes, keys: Iterable[VerifierKey]) -> Note:
    """Read a note that at least one of the keys signed.

    Raises:
        FormatError: Not a note, or beyond the limits.
        SignatureError: No known key signed it, or a known key's signature does not verify.
    """
    text, lines = _split(raw)
    known = {(key.name, key.key_id): key for key in keys}
    verified: list[VerifierKey] = []
    for line in lines:
        name, signed = _parse_line(line)
        key = known.get((name, signed[:4]))
        if key is None:
            continue
        if key in verified:
            raise FormatError(f"note: expected one signature by {name!r:.80}, got two")
        _verify_line(key, text, signed[4:])
        verified.append(key)
    if not verified:
        wanted = ", ".join(sorted(name for name, _ in known)) or "a known key"
        raise SignatureError(f"note: expected a signature by {wanted:.200}, got none")
    return Note(text, tuple(key.name for key in verified))


def _verify_line(key: VerifierKey, text: str, signature: bytes) -> None:
    try:
        verify_signature(pem_ed25519(key.public), text.encode(), signature)
    except SignatureError:
        raise SignatureError(
            f"note: expected a signature by {key.name!r:.80}, got one that does not verify",
            hint="the text changed after it was signed",
        ) from None


def _split(raw: bytes) -> tuple[str, list[str]]:
    if len(raw) > NOTE_MAX:
        raise FormatError(f"note: expected at most {NOTE_MAX:,} bytes, got {len(raw):,}")
    try:
        whole = raw.decode()
    except UnicodeDecodeError:
        raise FormatError("note: expected UTF-8, got other bytes") from None
    head, blank, tail = whole.rpartition("\n\n")
    if not blank or not tail.endswith("\n"):
        raise FormatError("note: expected a text, a blank line and signature lines, got something else")
    text, lines = head + "\n", tail[:-1].split("\n")
    _check_text(text)
    if len(lines) > SIGNATURES_MAX:
        raise FormatError(f"note: expected at most {SIGNATURES_MAX} signatures, got {len(lines):,}")
    return text, lines


def _parse_line(line: str) -> tuple[str, bytes]:
    match = _LINE.fullmatch(line)
    signed = _strict_base64(match[2]) if match else None
    if match is None or signed is None or len(signed) < 5:
        raise FormatError(f"note: expected a signature line, got {line!r:.80}")
    verify_name(match[1])
    return match[1], signed


def _check_text(text: str) -> None:
    if not text.endswith("\n") or any(c < " " and c != "\n" for c in text):
        raise FormatError("note: expected text without control characters that ends in a newline")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FormatError("note: expected Unicode text, got a lone surrogate") from None


def verify_name(name: str, subject: str = "key name") -> str:
    """A name that a key, and so a log, may have.

    Raises:
        FormatError: It is none.
    """
    plain = name.isprintable() and not any(c.isspace() for c in name) and "+" not in name
    if not name or not plain or len(name) > 256:
        raise FormatError(f"{subject}: expected 1 to 256 characters, no white space or +, got {name!r:.80}")
    return name


def _strict_base64(text: str) -> bytes | None:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if base64.b64encode(raw).decode() == text else None
