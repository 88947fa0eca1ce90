"""Nothing loads that the policy does not allow: verify, judge, open, run golden inputs, record, admit.

The session is opened from the very bytes that were verified; the guardian never builds. Both answers
become entries before anyone sees them: ``load`` or ``load.refused``. When the ledger cannot take the
entry, nothing is admitted. Source: spec/policy.md, section 'admission'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.finding import REFUSE, WARN, Finding, Verdict
from pellucid.core.package import PackageFiles
from pellucid.core.policy import History, NodeFacts, Policy, evaluate
from pellucid.core.qualification import differences, matching_qualification
from pellucid.core.trust import TrustedPackage, TrustRoot, verify_package
from pellucid.errors import PellucidError, PolicyDeniedError
from pellucid.guardian.golden import judge_golden
from pellucid.ports import Backend, EventRecorder, Session

FINDINGS_MAX: Final = 48  # limit: with bounded texts they fit an entry
TEXT_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Admitted:
    """A running session of a package that the policy allows, and what entries say of it.

    Attributes:
        session: Open; whoever holds it closes it.
        package: The verified package.
        verdict: Every finding, golden inputs included.
        label_variance: Label that holds in this environment; ``untested`` when none does.
        facts: For every call's entry: model, version, package, engine, policy, environment,
            precision, device, threads, commitment, label_variance.
        environment: As the backend reported it.
        key: Key of the ``load`` entry.
    """

    session: Session = field(repr=False)
    package: TrustedPackage
    verdict: Verdict = field(repr=False)
    label_variance: str
    facts: dict[str, Any]
    environment: dict[str, Any] = field(repr=False)
    key: str


class Guardian:
    """Stands before every load; one per serving process.

    Args:
        policy: What may load.
        trust: The site's keys.
        backend_for: Backend of a name.
        recorder: Where verdicts become entries.
        history: What was admitted so far under a model's name.
        node: What this node says of itself, given the backend's environment and the number of
            engines that this guardian has admitted.
        serving: Settings under which what is admitted will answer; they stand in its ``load`` entry.
        room: Whether there is memory for an engine; asked before it is opened.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        trust: TrustRoot,
        backend_for: Callable[[str], Backend],
        recorder: EventRecorder,
        history: Callable[[str], History],
        node: Callable[[dict[str, Any], int], NodeFacts],
        serving: Mapping[str, Any] | None = None,
        room: Callable[[TrustedPackage], Finding] | None = None,
    ) -> None:
        self._policy, self._trust, self._backend_for = policy, trust, backend_for
        self._recorder, self._history, self._node = recorder, history, node
        self._room = room
        self._admitted, self._serving = 0, dict(serving or {})

    def admit(self, files: PackageFiles) -> Admitted:
        """Session of a package, once everything holds.

        Raises:
            VerificationError: Signature, digests or shape do not hold.
            PolicyDeniedError: A rule or a golden input refuses; the message names every one.
        """
        package = self._verify(files)
        try:
            backend = self._backend_for(package.manifest.backend)
            environment = backend.environment()
        except PellucidError as error:
            self._refuse(
                package, {}, Verdict(self._policy.name, self._policy.digest, (_failed("backend", error),))
            )
            raise
        node, history = self._node(environment, self._admitted), self._history(package.name)
        verdict = evaluate(self._policy, package, node, history)
        if self._room is not None:
            verdict = _with(verdict, [self._room(package)])
        if not verdict.allowed:
            self._refuse(package, environment, verdict)
            raise denied(package, verdict)
        with ExitStack() as opened:
            session = self._open(backend, package, environment, verdict)
            opened.callback(session.close)
            admitted = self._admit(session, package, environment, verdict)
            opened.pop_all()  # only an admitted session stays open
        return admitted

    def let_go(self) -> None:
        """One engine that was admitted runs no more: the policy counts those that do."""
        self._admitted -= 1

    def _verify(self, files: PackageFiles) -> TrustedPackage:
        try:
            return verify_package(files, self._trust)
        except PellucidError as error:
            finding = _failed("verification", error)
            data = {
                "folder": files.name.encode("utf-8", "replace").decode()[:TEXT_MAX],
                "archive": files.digest or None, "policy": self._policy.digest, "verdict": "refused",
                "findings": [finding.record()],
            }  # fmt: skip
            self._recorder.event("load.refused", data)
            raise

    def _open(
        self, backend: Backend, package: TrustedPackage, environment: dict[str, Any], verdict: Verdict
    ) -> Session:
        try:
            return backend.open(package.engine, package.recipe)
        except PellucidError as error:
            self._refuse(package, environment, _with(verdict, [_failed("open", error)]))
            raise

    def _admit(
        self, session: Session, package: TrustedPackage, environment: dict[str, Any], verdict: Verdict
    ) -> Admitted:
        elsewhere = differences(package.environment, environment)
        severity = WARN if elsewhere else REFUSE
        verdict = _with(verdict, judge_golden(session, package.golden, severity=severity))
        if not verdict.allowed:
            self._refuse(package, environment, verdict)
            raise denied(package, verdict)
        data = self._load_data(package, environment, verdict)
        terms = self._serving | _own_terms(package.recipe)
        key = self._recorder.event("load", data | {"session": session.describe(), "serving": terms})
        self._admitted += 1
        facts = context_facts(package, environment, self._policy.digest)
        label = label_here(package, environment)
        return Admitted(session, package, verdict, label, facts, environment, key)

    def _refuse(self, package: TrustedPackage, environment: dict[str, Any], verdict: Verdict) -> None:
        self._recorder.event("load.refused", self._load_data(package, environment, verdict))

    def _load_data(
        self, package: TrustedPackage, environment: dict[str, Any], verdict: Verdict
    ) -> dict[str, Any]:
        facts = context_facts(package, environment, self._policy.digest)
        findings = sorted(verdict.findings, key=lambda finding: finding.passed)
        return facts | {
            "archive": package.archive or None, "buckets": list(package.recipe.get("buckets") or []),
            "environment_facts": environment, "signer": package.signer,
            "verdict": "allowed" if verdict.allowed else "refused",
            "findings": [finding.record() for finding in findings[:FINDINGS_MAX]],
            "findings_left_out": max(0, len(findings) - FINDINGS_MAX),
        }  # fmt: skip


def _own_terms(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What a package says itself of how its calls are served; the rest is the site's."""
    delay = recipe.get("batch_delay_us")
    return {} if delay is None else {"batch_delay_us": delay}


def label_here(package: TrustedPackage, environment: dict[str, Any]) -> str:
    """Variance label that holds in this environment; ``untested`` when none was measured in it."""
    chosen, found = matching_qualification(package, environment)
    return chosen.label if chosen is not None and not found else "untested"


def context_facts(package: TrustedPackage, environment: dict[str, Any], policy: str) -> dict[str, Any]:
    """What every call's entry says of the engine that answered it."""
    device = environment.get("device")
    return {
        "model": package.name, "version": package.version, "package": package.digest,
        "engine": package.engine_digest, "policy": policy,
        "environment": sha256(canonical.encode(environment)),
        "precision": package.computed_precision, "threads": package.recipe.get("threads"),
        "device": str(device.get("name", ""))[:TEXT_MAX] if isinstance(device, dict) else None,
        "commitment": package.recipe.get("commitment", "salted"),
        "label_variance": label_here(package, environment),
    }  # fmt: skip


def denied(package: TrustedPackage, verdict: Verdict) -> PolicyDeniedError:
    """The error that names every rule that refuses."""
    failed = verdict.failed
    return PolicyDeniedError(
        f"package {package.name}:{package.version} refused by policy {verdict.policy!r} "
        f"({verdict.policy_digest[:19]}...): {len(failed)} of {len(verdict.findings)} rules failed: "
        + "; ".join(finding.text() for finding in failed),
        hint="pellucid verify shows every finding; the refusal is an entry of the ledger",
    )


def _with(verdict: Verdict, findings: list[Finding]) -> Verdict:
    return Verdict(verdict.policy, verdict.policy_digest, (*verdict.findings, *findings))


def _failed(rule: str, error: PellucidError) -> Finding:
    return Finding(rule, False, "no error", f"{error.code}: {error.message}")
