"""Approvals: a person in a role says yes to exactly one package, signed, beside the package.

``release`` lets it into production where the policy asks for approvals; ``rollback`` lets exactly
this package go below the highest version admitted so far, and only while that highest version is
the one named. Source: spec/approval.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.statement import APPROVAL, make_statement
from pellucid.core.times import parse_time
from pellucid.core.version import parse_version
from pellucid.errors import FormatError

KINDS: Final = ("release", "rollback")
ROLE: Final = re.compile(r"[a-z][a-z0-9-]{0,39}", re.ASCII)
REASON_MAX: Final = 1000
_KEYS: Final = frozenset(
    ["kind", "name", "version", "package", "role", "reason", "approved", "expires", "rolls_back_from"]
)


@dataclass(frozen=True, slots=True)
class Approval:
    """One approval.

    Attributes:
        kind: ``release`` or ``rollback``.
        name, version, package: Model, version and package digest it is for.
        role: Role in which the approver speaks, for example ``ml-engineer``.
        approved, expires: RFC 3339 times; ``expires`` may be ``None``.
        rolls_back_from: For ``rollback``: highest version admitted when it was given.
        key: Id of the key that signed it; empty before it is verified.
        digest: Digest of the attestation's bytes; empty before it is verified.
    """

    kind: str
    name: str
    version: str
    package: str
    role: str
    reason: str
    approved: str
    expires: str | None = None
    rolls_back_from: str | None = None
    key: str = ""
    digest: str = ""

    def is_expired(self, now_ns: int) -> bool:
        return self.expires is not None and now_ns >= parse_time(self.expires)


def approval_statement(approval: Approval, folder: str) -> bytes:
    """Statement to sign: subject is the package's folder and digest.

    Raises:
        FormatError: A value that ``parse_approval`` would refuse.
    """
    predicate = {key: getattr(approval, key) for key in sorted(_KEYS)}
    parse_approval(predicate)
    return make_statement([(folder, approval.package)], APPROVAL, predicate)


def parse_approval(predicate: dict[str, Any], *, key: str = "", digest: str = "") -> Approval:
    """Approval of a statement's predicate; closed: unknown and missing keys are refused.

    Raises:
        FormatError: Names the key and what was expected.
    """
    if predicate.keys() != _KEYS:
        missing, unknown = sorted(_KEYS - predicate.keys()), sorted(predicate.keys() - _KEYS)
        raise FormatError(
            f"approval: expected exactly its keys, got missing {missing}, unknown {unknown!r:.200}"
        )
    for name in ("kind", "name", "version", "package", "role", "reason", "approved"):
        if not isinstance(predicate[name], str):
            raise FormatError(f"approval: {name}: expected text, got {type(predicate[name]).__name__}")
    if predicate["kind"] not in KINDS:
        raise FormatError(f"approval: kind: expected {' or '.join(KINDS)}, got {predicate['kind']!r:.40}")
    if not ROLE.fullmatch(predicate["role"]):
        raise FormatError(f"approval: role: expected [a-z][a-z0-9-]*, got {predicate['role']!r:.60}")
    if not 0 < len(predicate["reason"].strip()) <= REASON_MAX:
        raise FormatError(f"approval: reason: expected 1 to {REASON_MAX:,} characters, got another length")
    _check_versions(predicate)
    _check_times(predicate)
    return Approval(**predicate, key=key, digest=digest)


def _check_versions(predicate: dict[str, Any]) -> None:
    own = parse_version(predicate["version"], subject="approval: version")
    origin = predicate["rolls_back_from"]
    if predicate["kind"] == "release":
        if origin is not None:
            raise FormatError(f"approval: rolls_back_from: expected null for a release, got {origin!r:.60}")
        return
    if own >= parse_version(origin, subject="approval: rolls_back_from"):
        raise FormatError(f"approval: rolls_back_from: expected a version above {own}, got {origin!r:.60}")


def _check_times(predicate: dict[str, Any]) -> None:
    approved, expires = parse_time(predicate["approved"]), predicate["expires"]
    if expires is not None and parse_time(expires) <= approved:
        raise FormatError(f"approval: expires: expected a time after {predicate['approved']}, got {expires}")
