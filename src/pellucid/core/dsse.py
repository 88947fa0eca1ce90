"""DSSE envelopes inside Sigstore bundles (v0.3), one signature each.

One signature a bundle, because stock verifiers read only the first: several parties are several
files. What is verified is the payload's bytes as they stand in the bundle; nothing outside payload
and payload type is believed. Source: spec/note.md, section 4.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.signature import SigningKey, key_id, verify_signature
from pellucid.errors import FormatError

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
BUNDLE_MAX: Final = 64 * 2**20  # limit: far beyond any statement of ours
PAYLOAD_TYPE_MAX: Final = 256  # limit


@dataclass(frozen=True, slots=True)
class Envelope:
    """A parsed envelope; nothing in it is verified yet."""

    payload_type: str
    payload: bytes
    signatures: tuple[bytes, ...]


def pae(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed: DSSE pre-authentication encoding, version 1."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_bundle(payload_type: str, payload: bytes, signer: SigningKey) -> bytes:
    """Sigstore bundle of one DSSE envelope, signed by one key, as stock verifiers read it."""
    signature = signer.sign(pae(payload_type, payload))
    return encode_bundle(payload_type, payload, signature, key_id(signer.public_pem()))


def encode_bundle(payload_type: str, payload: bytes, signature: bytes, hint: str) -> bytes:
    """Bundle of a signature that exists already."""
    bundle = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return canonical.encode_trusted(bundle)


def parse_bundle(raw: bytes) -> Envelope:
    """Read a bundle, ours or a stock signer's.

    Raises:
        FormatError: Not JSON, a duplicate key, another media type, loose base64, or a number of
            signatures other than one.
    """
    bundle = canonical.decode_foreign(raw, size_max=BUNDLE_MAX)
    media = _member(bundle, "bundle", "mediaType", str)
    if media != MEDIA_TYPE:
        raise FormatError(f"bundle: expected media type {MEDIA_TYPE}, got {media!r:.80}")
    envelope = _member(bundle, "bundle", "dsseEnvelope", dict)
    kind = _member(envelope, "envelope", "payloadType", str)
    if not 0 < len(kind) <= PAYLOAD_TYPE_MAX or not kind.isascii():
        raise FormatError(f"envelope: expected a payload type of ASCII, got {kind!r:.80}")
    payload = _base64("payload", _member(envelope, "envelope", "payload", str))
    signatures = _member(envelope, "envelope", "signatures", list)
    if len(signatures) != 1:
        raise FormatError(f"envelope: expected one signature, got {len(signatures):,}")
    signature = _base64("signature", _member(signatures[0], "signature", "sig", str))
    return Envelope(kind, payload, (signature,))


def verify_bundle(raw: bytes, public_pem: bytes, payload_type: str | None = None) -> bytes:
    """Payload of a bundle that this key signed.

    Args:
        raw: The bundle.
        public_pem: The key, from the verifier's own trust, never from the bundle.
        payload_type: Refuse every other type when given.

    Raises:
        FormatError: Not a bundle, or another payload type.
        SignatureError: The signature does not verify.
    """
    envelope = parse_bundle(raw)
    if payload_type is not None and envelope.payload_type != payload_type:
        raise FormatError(f"envelope: expected type {payload_type}, got {envelope.payload_type!r:.80}")
    verify_signature(public_pem, pae(envelope.payload_type, envelope.payload), envelope.signatures[0])
    return envelope.payload


def _member(parent: Any, subject: str, name: str, kind: type) -> Any:
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, kind):
        raise FormatError(f"{subject}: expected {name} as {kind.__name__}, got {type(value).__name__}")
    return value


def _base64(subject: str, text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise FormatError(f"{subject}: expected standard base64, got {text!r:.40}") from None
    if base64.b64encode(raw).decode() != text:  # loose trailing bits: two spellings of one value
        raise FormatError(f"{subject}: expected canonical base64, got another spelling")
    return raw
