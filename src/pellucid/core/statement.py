"""in-toto Statements, version 1: who says what about which digests. Source: spec/note.md, section 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pellucid.core import canonical
from pellucid.core.digest import parse_digest
from pellucid.errors import FormatError

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
QUALIFICATION: Final = "urn:pellucid:qualification:v1"
REPLAY: Final = "urn:pellucid:replay:v1"
APPROVAL: Final = "urn:pellucid:approval:v1"
SLSA: Final = "https://slsa.dev/provenance/v1"
MODEL_SIGNING: Final = "https://model_signing/signature/v1.0"
STATEMENT_MAX: Final = 48 * 2**20  # limit: what fits a bundle of the size allowed, in base64


class Statement(msgspec.Struct, frozen=True):
    """A parsed statement.

    Attributes:
        subjects: Name and digest (``sha256:...``) of each subject, in order.
        predicate_type: URI that says how to read the predicate.
        predicate: JSON object.
    """

    subjects: tuple[tuple[str, str], ...]
    predicate_type: str
    predicate: dict[str, Any]


def make_statement(
    subjects: Sequence[tuple[str, str]], predicate_type: str, predicate: dict[str, Any]
) -> bytes:
    """Statement in canonical JSON.

    Raises:
        FormatError: No subject, a digest that is none, or a predicate outside the JSON profile.
    """
    if not subjects:
        raise FormatError("statement: expected at least one subject, got none")
    return canonical.encode(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": parse_digest(digest).hex()}} for name, digest in subjects
            ],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def parse_statement(payload: bytes) -> Statement:
    """Read a verified payload, ours or a stock signer's.

    Raises:
        FormatError: Not JSON, a duplicate key, another type, or a subject without SHA-256.
    """
    value = canonical.decode_foreign(payload, size_max=STATEMENT_MAX)
    if not isinstance(value, dict) or value.get("_type") != STATEMENT_TYPE:
        raise FormatError(f"statement: expected _type {STATEMENT_TYPE}, got something else")
    subjects, kind, predicate = value.get("subject"), value.get("predicateType"), value.get("predicate")
    if not isinstance(subjects, list) or not subjects:
        raise FormatError("statement: expected at least one subject, got none")
    if not isinstance(kind, str) or not isinstance(predicate, dict):
        raise FormatError("statement: expected predicateType and predicate, got something else")
    return Statement(tuple(map(_subject, subjects)), kind, predicate)


def _subject(value: Any) -> tuple[str, str]:
    name = value.get("name", "") if isinstance(value, dict) else None
    digests = value.get("digest") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(digests, dict):
        raise FormatError("statement: expected subjects with name and digest, got something else")
    digest = f"sha256:{digests.get('sha256', '')}"
    parse_digest(digest)
    return name, digest
