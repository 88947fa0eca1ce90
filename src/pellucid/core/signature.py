"""Signatures over bytes: Ed25519, and ECDSA P-256 over SHA-256 as strict DER.

These two and no others: Ed25519 for the log (witness networks want it), P-256 for everything that
other tools or hardware tokens must sign or check. A key is its SubjectPublicKeyInfo in PEM.
Source: spec/note.md, section 1.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from pellucid.errors import FormatError, SignatureError

ED25519: Final = "ed25519"
ECDSA_P256: Final = "ecdsa-p256"
PEM_MAX: Final = 4096  # limit: a P-256 key takes 178 bytes

PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


class SigningKey(Protocol):
    """What core asks of a private key; every ``ports.Signer`` is one."""

    @property
    def algorithm(self) -> str: ...
    def public_pem(self) -> bytes: ...
    def sign(self, message: bytes) -> bytes: ...


@lru_cache(maxsize=64)
def load_public_key(public_pem: bytes) -> PublicKey:
    """Key of its PEM text.

    Raises:
        FormatError: Not a PEM SubjectPublicKeyInfo, or neither Ed25519 nor P-256.
    """
    if len(public_pem) > PEM_MAX:
        raise FormatError(f"public key: expected at most {PEM_MAX:,} bytes of PEM, got {len(public_pem):,}")
    try:
        key = load_pem_public_key(public_pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FormatError(
            "public key: expected PEM of an Ed25519 or P-256 key, got something else"
        ) from error
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise FormatError(f"public key: expected Ed25519 or P-256, got {type(key).__name__}")


def algorithm_of(public_pem: bytes) -> str:
    """``ed25519`` or ``ecdsa-p256``."""
    return ED25519 if isinstance(load_public_key(public_pem), ed25519.Ed25519PublicKey) else ECDSA_P256


def verify_signature(public_pem: bytes, message: bytes, signature: bytes) -> None:
    """Return only if the key signed the message.

    Raises:
        SignatureError: It did not, or the signature is not 64 bytes (Ed25519) or strict DER (P-256).
        FormatError: The key is not a key.
    """
    key = load_public_key(public_pem)
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))  # refuses BER (a test says so)
    except InvalidSignature:
        raise SignatureError(
            f"signature: expected one by key {key_id(public_pem)[:16]}..., got one that does not verify",
            hint="the bytes changed after they were signed, or another key signed them",
        ) from None


def key_id(public_pem: bytes) -> str:
    """Hex SHA-256 of the key's PEM text as OpenSSL writes it; the hint of OpenSSF Model Signing."""
    key = load_public_key(public_pem)
    return hashlib.sha256(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def raw_ed25519(public_pem: bytes) -> bytes:
    """The 32 raw bytes of an Ed25519 key.

    Raises:
        FormatError: Another kind of key.
    """
    key = load_public_key(public_pem)
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise FormatError("public key: expected Ed25519, got ECDSA P-256", hint="logs sign with Ed25519")
    return key.public_bytes_raw()


def pem_ed25519(raw: bytes) -> bytes:
    """PEM of 32 raw Ed25519 public bytes."""
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise FormatError(f"public key: expected 32 bytes of Ed25519, got {len(raw)}") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
