"""Judgement: one pure function says what a policy makes of one verified package on one node.

Every rule is judged and reported, passed or not, so that nobody learns of the second problem only
after mending the first. Nothing here acts. Source: spec/policy.md, section 'rules'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from pellucid.core.approval import Approval
from pellucid.core.environment import backend_version
from pellucid.core.finding import REFUSE, WARN, Finding, Verdict
from pellucid.core.policy_document import (
    AUDIT_FIELDS,
    DEFAULT_POLICY,
    AllowedPackage,
    Device,
    Instance,
    Policy,
    parse_policy,
)
from pellucid.core.qualification import differences, matching_qualification
from pellucid.core.trust import TrustedPackage
from pellucid.core.version import parse_range, parse_version

__all__ = [
    "AUDIT_FIELDS", "DEFAULT_POLICY", "DeviceFacts", "Finding", "History", "NodeFacts", "Policy", "Verdict",
    "evaluate", "matching_qualification", "parse_policy",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device of a node.

    Attributes:
        type: ``cpu`` or ``gpu``.
        partition: MIG instance id, or ``None``; profile: its profile, or ``""``.
        engines: Engines loaded on it (or on the instance) now.
    """

    type: str
    vendor: str
    model: str
    partition: int | None = None
    profile: str = ""
    engines: int = 0

    def text(self) -> str:
        slice_text = f", MIG {self.profile} (id {self.partition})" if self.partition is not None else ""
        return f"{self.type} {self.vendor} {self.model}{slice_text}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node can say about itself.

    Attributes:
        environment: As the backend reports it (``ports.Backend.environment``); ``None`` where no
            backend is installed: what needs a node is then reported as not judged.
        devices: Devices that engines can run on.
        sinks: Schemes this node's operators' log can be written to.
        memory_isolation: Isolation that the machine reports, for example ``iommu_enabled``.
        now_ns: Time of the judgement, nanoseconds since 1970.
    """

    environment: Mapping[str, Any] | None
    devices: tuple[DeviceFacts, ...] = ()
    sinks: tuple[str, ...] = ()
    memory_isolation: tuple[str, ...] = ()
    now_ns: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """What the ledger says was admitted so far under one model's name.

    Attributes:
        highest: Highest version admitted, or ``None``.
        packages: Version to the package digests admitted under it.
    """

    highest: str | None = None
    packages: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Case:
    policy: Policy
    package: TrustedPackage
    node: NodeFacts
    history: History


def evaluate(policy: Policy, package: TrustedPackage, node: NodeFacts, history: History) -> Verdict:
    """Judge a package on a node; pure, and every finding is reported.

    Args:
        policy: Parsed policy.
        package: Verified package: signature and digests already hold.
        node: What the node says about itself.
        history: What was admitted under this model's name so far.
    """
    case = _Case(policy, package, node, history)
    findings = [finding for rule in _RULES for finding in rule(case)]
    about_node = [finding for rule in _NODE_RULES for finding in rule(case)]
    if node.environment is None:
        about_node = [replace(f, passed=False, got=_NOT_JUDGED, severity=WARN) for f in about_node]
    findings += about_node
    return Verdict(policy.name, policy.digest, (*findings, *package.findings))


def _signature(case: _Case) -> Iterator[Finding]:
    expected, got = "a signature by a trusted builder key", f"key {case.package.signer[:16]}"
    yield Finding("security.require_signed_engine", True, expected, got)


def _runtime(case: _Case) -> Iterator[Finding]:
    wanted, environment = case.policy.document.runtime, case.node.environment or {}
    backend = str(environment.get("backend", "none"))
    if wanted.name is not None:
        passed = wanted.name in (backend, f"{backend}-runtime")
        yield Finding("runtime.name", passed, wanted.name, backend)
    if wanted.version is not None:
        got = backend_version(environment)
        passed = parse_range(wanted.version).allows(got)
        yield Finding("runtime.version", passed, wanted.version, f"{backend} {got or 'of unknown version'}")


def _precision(case: _Case) -> Iterator[Finding]:
    allowed, got = case.policy.allowed_precisions, case.package.computed_precision
    yield Finding("security.allowed_precision_modes", got in allowed, _one_of(allowed), got)
    tf32 = case.package.recipe.get("tf32", False) is not False
    allow_tf32 = case.policy.document.security.allow_tf32
    expected = "TF32 on or off" if allow_tf32 else "TF32 off"
    yield Finding("security.allow_tf32", allow_tf32 or not tf32, expected, "on" if tf32 else "off")


def _compile_at_load(case: _Case) -> Iterator[Finding]:
    level = str(case.package.recipe.get("serve_level", "portable"))
    allowed = case.policy.document.security.allow_compile_at_load
    expected = "any serve_level" if allowed else "portable"
    yield Finding("security.allow_compile_at_load", allowed or level == "portable", expected, level)


def _input_validation(case: _Case) -> Iterator[Finding]:
    yield Finding(
        "security.input_validation", True, case.policy.document.security.input_validation,
        "strict_shape_check (serving refuses every shape outside the engine's)",
    )  # fmt: skip


def _memory_isolation(case: _Case) -> Iterator[Finding]:
    wanted, has = case.policy.document.security.memory_isolation, case.node.memory_isolation
    if wanted is not None:
        got = ", ".join(has) or "a node that reports no memory isolation"
        yield Finding("security.memory_isolation", wanted in has, wanted, got)


def _allowed_packages(case: _Case) -> Iterator[Finding]:
    allowed = case.policy.document.security.allowed_packages
    if allowed is None:
        return
    package = case.package
    passed = any(_fits(item, package) for item in allowed)
    got = f"{package.name}:{package.version} ({package.digest[:19]}...)"
    expected = "; ".join(_allowed_text(item) for item in allowed) or "no package at all"
    yield Finding("security.allowed_packages", passed, expected, got)


def _fits(item: AllowedPackage, package: TrustedPackage) -> bool:
    return (
        fnmatchcase(package.name, item.name)
        and (item.versions is None or parse_range(item.versions).allows(package.version))
        and (item.digests is None or package.digest in item.digests)
    )


def _allowed_text(item: AllowedPackage) -> str:
    pins = f" pinned to {len(item.digests)} digests" if item.digests is not None else ""
    return f"{item.name}:{item.versions or '*'}{pins}"


def _rollback(case: _Case) -> Iterator[Finding]:
    if not case.policy.document.security.rollback_protection:
        return
    version, floor = parse_version(case.package.version), case.history.highest
    if floor is None or version >= parse_version(floor):
        expected = f"{floor} or later" if floor else "any version: none was admitted yet"
        yield Finding("security.rollback_protection", True, expected, str(version))
        return
    lowering = _lowering(case, floor)
    expected = f"{floor} or later, or a rollback approval of this package from {floor}"
    got = f"{version}, approved by {lowering.role} ({lowering.key[:16]})" if lowering else str(version)
    yield Finding("security.rollback_protection", lowering is not None, expected, got)


def _lowering(case: _Case, floor: str) -> Approval | None:
    """The approval that lowers the floor: bound to this floor, so that it dies with the next version."""
    for approval in case.package.approvals:
        if approval.kind != "rollback" or approval.is_expired(case.node.now_ns):
            continue
        if parse_version(approval.rolls_back_from) == parse_version(floor):
            return approval
    return None


def _immutable(case: _Case) -> Iterator[Finding]:
    if not case.policy.document.security.immutable_versions:
        return
    version = parse_version(case.package.version)
    known = {d for text, ds in case.history.packages.items() if parse_version(text) == version for d in ds}
    passed = known <= {case.package.digest}
    expected = ", ".join(sorted(d[:19] + "..." for d in known)) or "any digest: version never admitted"
    yield Finding("security.immutable_versions", passed, expected, case.package.digest[:19] + "...")


def _approvals(case: _Case) -> Iterator[Finding]:
    roles = {
        approval.role
        for approval in case.package.approvals
        if approval.kind == "release" and not approval.is_expired(case.node.now_ns)
    }
    for role in case.policy.document.security.required_approvals:
        got = f"approvals by {', '.join(sorted(roles)) or 'nobody'}"
        yield Finding(f"security.required_approvals.{role}", role in roles, f"approval by {role}", got)


# -- qualification --------------------------------------------------------------------------------


def _qualification(case: _Case) -> Iterator[Finding]:
    security = case.policy.document.security
    chosen, _ = matching_qualification(case.package, case.node.environment)
    severity = REFUSE if security.require_qualification else WARN
    passed, got = False, "none: measure it on this device with pellucid qualify"
    if chosen is not None:
        passed = chosen.passed
        got = f"{'passed' if passed else 'failed'}, {chosen.path}, by key {chosen.key[:16]}"
    expected = "a verified qualification that passed"
    yield Finding("security.require_qualification", passed, expected, got, severity)
    label, allowed = chosen.label if chosen else "untested", security.allowed_variance
    yield Finding("security.allowed_variance", label in allowed, _one_of(allowed), label, severity)


def _environment(case: _Case) -> Iterator[Finding]:
    here = case.node.environment or {}
    chosen, found = matching_qualification(case.package, here)
    if chosen is None:
        found = differences(case.package.environment, here)
    expected = f"the environment it was {'qualified' if chosen else 'built'} in"
    severity = REFUSE if case.policy.document.security.environment_match == "strict" else WARN
    got = "; ".join(found) or "the same"
    yield Finding("security.environment_match", not found, expected, got, severity)


# -- devices and audit ----------------------------------------------------------------------------


def _target(case: _Case) -> Iterator[Finding]:
    """An engine for one GPU architecture runs on that one only."""
    target = case.package.manifest.target
    if not target.startswith("sm"):
        return
    device = (case.node.environment or {}).get("device")
    got = "no GPU"
    if isinstance(device, dict):
        got = f"{device.get('name')} ({device.get('architecture')})"
    passed = isinstance(device, dict) and device.get("architecture") == target
    yield Finding("engine.target", passed, f"a GPU of {target}, which the engine was built for", got)


def _devices(case: _Case) -> Iterator[Finding]:
    wanted = case.policy.document.devices
    if wanted is None:
        return
    got = "; ".join(device.text() for device in case.node.devices) or "a node that reports no device"
    expected = "; ".join(_device_text(device) for device in wanted) or "no device at all"
    pairs = [(w, d) for w in wanted for d in case.node.devices if _device_fits(w, d)]
    yield Finding("devices", bool(pairs), expected, got)
    for position, device in enumerate(wanted):
        for number, instance in enumerate(device.partitioning.instances if device.partitioning else ()):
            if instance.max_engines is not None:
                rule = f"devices[{position}].partitioning.instances[{number}].max_engines"
                yield _engines_on(rule, instance, case.node.devices)


def _engines_on(rule: str, instance: Instance, devices: tuple[DeviceFacts, ...]) -> Finding:
    here = [d for d in devices if (d.partition, d.profile) == (instance.id, instance.profile)]
    loaded = sum(device.engines for device in here)
    limit = instance.max_engines or 0
    expected = f"at most {limit} engines on {instance.profile} (id {instance.id})"
    got = f"{loaded + 1} with this one" if here else "no such instance on this node"
    return Finding(rule, not here or loaded < limit, expected, got)


def _device_fits(wanted: Device, device: DeviceFacts) -> bool:
    texts = ((wanted.vendor, device.vendor), (wanted.model, device.model))
    if wanted.type != device.type or not all(w is None or w.casefold() in d.casefold() for w, d in texts):
        return False
    parts = wanted.partitioning
    if parts is None:
        return True
    if parts.mode == "none":
        return device.partition is None
    return any((i.id, i.profile) == (device.partition, device.profile) for i in parts.instances)


def _device_text(device: Device) -> str:
    words = [device.type, device.vendor, device.model]
    parts = device.partitioning
    if parts is not None:
        words.append(f"MIG {', '.join(i.profile for i in parts.instances)}" if parts.instances else "whole")
    return " ".join(word for word in words if word)


def _audit(case: _Case) -> Iterator[Finding]:
    audit = case.policy.document.audit
    if not audit.enable_logging:
        return
    scheme = audit.log_destination.partition(":")[0]
    got = f"a node that can write to {', '.join(case.node.sinks) or 'nowhere'}"
    yield Finding("audit.log_destination", scheme in case.node.sinks, audit.log_destination, got)
    yield Finding("audit.fields", True, f"{len(AUDIT_FIELDS)} known fields", f"{len(audit.fields)} of them")


def _one_of(words: tuple[str, ...]) -> str:
    return f"one of {', '.join(words)}" if words else "none at all"


_NOT_JUDGED: Final = "not judged: no node to judge it on (this install has no backend)"
_Rule = Callable[[_Case], Iterator[Finding]]
_RULES: Final[tuple[_Rule, ...]] = (
    _signature, _precision, _compile_at_load, _input_validation, _allowed_packages, _rollback, _immutable,
    _approvals, _qualification,
)  # fmt: skip
_NODE_RULES: Final[tuple[_Rule, ...]] = (_runtime, _environment, _memory_isolation, _target, _devices, _audit)
