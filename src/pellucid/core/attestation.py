"""Attestations beside a package: each believed under its own role's key, or ignored with a finding.

A qualification and an approval speak of exactly one package digest; provenance of files of the
package. Source: spec/package.md, section 6, step 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.approval import Approval, parse_approval
from pellucid.core.digest import sha256
from pellucid.core.dsse import parse_bundle
from pellucid.core.finding import WARN, Finding
from pellucid.core.manifest import Manifest
from pellucid.core.model_signing import verify_by_any
from pellucid.core.statement import APPROVAL, QUALIFICATION, SLSA, Statement, parse_statement
from pellucid.errors import FormatError, PellucidError, SignatureError, VerificationError

LABELS: Final = ("invariant", "bucket-invariant", "variant", "untested")  # best first
_ROLE_OF: Final = {QUALIFICATION: "qualifier", APPROVAL: "approver", SLSA: "builder"}


@dataclass(frozen=True, slots=True)
class TrustRoot:
    """The recipient's own keys: nothing of it ever comes from what is checked.

    Attributes:
        log_vkey: Verifier key of the log, or ``""``.
        keys: Role to PEMs allowed in it: builder, qualifier, approver, replayer, exporter.
    """

    log_vkey: str
    keys: Mapping[str, tuple[bytes, ...]]

    def of(self, role: str) -> tuple[bytes, ...]:
        return self.keys.get(role, ())


@dataclass(frozen=True, slots=True)
class Qualification:
    """A verified qualification: what was measured, on which device, by whose key."""

    predicate: dict[str, Any]
    key: str
    digest: str
    path: str

    @property
    def label(self) -> str:
        return str(self.predicate["variance"]["label"])

    @property
    def passed(self) -> bool:
        return self.predicate["accuracy"]["passed"] is True


class Attestations:
    """Takes each attestation or ignores it with a finding; what cannot be verified has no voice."""

    def __init__(self, folder: str, root: str, manifest: Manifest, trust: TrustRoot) -> None:
        self.folder, self.root, self.manifest, self.trust = folder, root, manifest, trust
        self.qualifications: list[Qualification] = []
        self.approvals: list[Approval] = []
        self.findings: list[Finding] = []
        self.ignored: set[str] = set()

    def take(self, path: str, raw: bytes) -> None:
        try:
            self._take(path, raw)
        except PellucidError as error:
            self.ignored.add(path)
            expected = "an attestation of this package by a trusted key"
            self.findings.append(Finding(f"attestation {path}", False, expected, error.message, WARN))

    def _take(self, path: str, raw: bytes) -> None:
        kind = parse_statement(parse_bundle(raw).payload).predicate_type  # unverified: only picks the role
        role = _ROLE_OF.get(kind)
        if role is None:
            raise VerificationError(f"{path}: expected a known predicate type, got {kind!r:.120}")
        payload, key = verify_by_any(path, raw, self.trust.of(role))
        statement = parse_statement(payload)
        if kind == SLSA:
            self._verify_provenance(path, statement)
            return
        self._verify_subject(path, statement)
        if kind == QUALIFICATION:
            self.qualifications.append(Qualification(_qualified(statement), key, sha256(raw), path))
        else:
            self.approvals.append(self._approval(path, statement, key, raw))

    def _verify_subject(self, path: str, statement: Statement) -> None:
        if [digest for _, digest in statement.subjects] != [self.root]:
            got = ", ".join(digest[:19] for _, digest in statement.subjects[:3])
            raise SignatureError(
                f"{path}: expected a statement about {self.root[:19]}..., got one about {got}..."
            )

    def _verify_provenance(self, path: str, statement: Statement) -> None:
        # SLSA names files (engine, compiled graph) and may name the package as well
        known = {file.digest for file in self.manifest.files} | {self.root}
        if not {digest for _, digest in statement.subjects} <= known:
            raise SignatureError(f"{path}: expected subjects of this package, got others")

    def _approval(self, path: str, statement: Statement, key: str, raw: bytes) -> Approval:
        approval = parse_approval(statement.predicate, key=key, digest=sha256(raw))
        said = (approval.package, approval.name, approval.version)
        if said != (self.root, self.manifest.name, self.manifest.version):
            raise SignatureError(f"{path}: expected an approval of this package, got {said!r:.200}")
        return approval


def _qualified(statement: Statement) -> dict[str, Any]:
    predicate = statement.predicate
    accuracy, variance = predicate.get("accuracy"), predicate.get("variance")
    if not isinstance(accuracy, dict) or not isinstance(accuracy.get("passed"), bool):
        raise FormatError("qualification: expected accuracy.passed as true or false, got something else")
    if not isinstance(variance, dict) or variance.get("label") not in LABELS:
        raise FormatError(f"qualification: expected variance.label of {', '.join(LABELS)}, got another")
    if not isinstance(predicate.get("environment"), dict):
        raise FormatError("qualification: expected the environment it was measured in, got none")
    return predicate
