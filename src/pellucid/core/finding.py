"""Findings and verdicts: what was judged, what was expected, what was there. All of them, always."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

REFUSE: Final = "refuse"  # a failed finding of this severity refuses the package
WARN: Final = "warn"  # reported, recorded, does not refuse
TEXT_MAX: Final = 400  # limit: findings stand in entries, which are bounded


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one rule.

    Attributes:
        rule: Stable dotted name, for example ``security.allowed_precision_modes``.
        expected, got: Text for people; bounded.
    """

    rule: str
    passed: bool
    expected: str
    got: str
    severity: str = REFUSE

    @property
    def refuses(self) -> bool:
        return not self.passed and self.severity == REFUSE

    def text(self) -> str:
        """``rule: expected X, got Y``."""
        return f"{self.rule}: expected {self.expected}, got {self.got}"

    def record(self) -> dict[str, Any]:
        """The finding as it stands in entries and in ``--json``."""
        return {
            "rule": self.rule, "passed": self.passed, "expected": self.expected[:TEXT_MAX],
            "got": self.got[:TEXT_MAX], "severity": self.severity,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says about one package on one node.

    Attributes:
        policy: Name of the policy.
        policy_digest: Digest of the policy file's bytes.
        findings: One for every rule, passed or not.
    """

    policy: str
    policy_digest: str
    findings: tuple[Finding, ...]

    @property
    def allowed(self) -> bool:
        return not any(finding.refuses for finding in self.findings)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Findings that refuse."""
        return tuple(finding for finding in self.findings if finding.refuses)
