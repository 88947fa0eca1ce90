"""The policy file: what may load and what is written about calls. Closed: unknown keys are refused.

Sections and words are the ones operators know (runtime, security, devices, audit); every line has an
effect or is refused with the reason. Source: spec/policy.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from pellucid.core import strict_yaml
from pellucid.core.attestation import LABELS
from pellucid.core.digest import parse_digest, sha256
from pellucid.core.version import parse_range
from pellucid.errors import FormatError, PolicyFormatError

PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4")
AUDIT_FIELDS: Final = (
    "timestamp", "trace_id", "client_ip", "model_name", "model_version", "input_size", "input_hash",
    "output_label", "confidence", "inference_time_ms", "execution_time_ms", "precision_mode", "gpu_device",
)  # fmt: skip
_DEFAULT_FIELDS: Final = tuple(name for name in AUDIT_FIELDS if name != "execution_time_ms")
ITEMS_MAX: Final = 256  # limit: of every list in a policy


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Runtime(_Section, frozen=True):
    """Which backend and version may open engines; ``None`` does not restrict.

    Attributes:
        name: Backend, for example ``onnxruntime``; ``tensorrt-runtime`` means ``tensorrt``.
        version: Prefix such as ``"8.6"``, or a range such as ``">=1.20, <2"``.
    """

    name: str | None = None
    version: str | None = None


class AllowedPackage(_Section, frozen=True):
    """A package is allowed when name, version and digest all fit; ``None`` does not restrict.

    Attributes:
        name: Shell pattern over the model's name, for example ``credit-*``.
        versions: Prefix or range, as in ``runtime.version``.
        digests: Package digests, pinned.
    """

    name: str = "*"
    versions: str | None = None
    digests: list[str] | None = None


class Security(_Section, frozen=True):
    """What a package must be before it may load.

    Attributes:
        require_signed_engine: Only ``true``: unsigned packages cannot even be opened.
        allowed_precision_modes: ``None`` does not restrict.
        allow_tf32: Whether a recipe may have TF32 on.
        allow_compile_at_load: Whether a backend may still choose kernels or fuse when it loads
            (``serve_level: native``).
        memory_isolation: ``smmu_enabled`` or ``iommu_enabled``: this machine must report it.
        input_validation: Only ``strict_shape_check``: serving does no other.
        nonfinite: ``refuse`` or ``allow`` NaN and infinities in inputs; the stricter of policy,
            configuration and recipe wins.
        require_qualification: A verified, passed qualification must be there.
        allowed_variance: Labels that may load.
        environment_match: ``strict`` refuses another environment than the qualified one;
            ``report`` only says so.
        rollback_protection: Nothing below the highest version admitted, but by approval.
        immutable_versions: A version, once admitted, stands for one package digest.
        required_approvals: Roles that must have approved the release.
        allowed_packages: ``None`` does not restrict.
    """

    require_signed_engine: bool = True
    allowed_precision_modes: list[str] | None = None
    allow_tf32: bool = False
    allow_compile_at_load: bool = True
    memory_isolation: Literal["smmu_enabled", "iommu_enabled"] | None = None
    input_validation: Literal["strict_shape_check"] = "strict_shape_check"
    nonfinite: Literal["refuse", "allow"] = "refuse"
    require_qualification: bool = True
    allowed_variance: tuple[str, ...] = ("invariant", "bucket-invariant", "variant")
    environment_match: Literal["strict", "report"] = "strict"
    rollback_protection: bool = True
    immutable_versions: bool = True
    required_approvals: list[str] = []
    allowed_packages: list[AllowedPackage] | None = None


class Instance(_Section, frozen=True):
    """One MIG instance and how many engines it may carry."""

    id: int
    profile: str
    max_engines: int | None = None


class Partitioning(_Section, frozen=True):
    mode: Literal["mig", "none"]
    instances: list[Instance] = []


class Device(_Section, frozen=True):
    """A device that may run engines; text is compared without regard to case."""

    type: Literal["gpu", "cpu"]
    vendor: str | None = None
    model: str | None = None
    partitioning: Partitioning | None = None


class Audit(_Section, frozen=True):
    """The structured log for operators; the ledger records every call whatever stands here.

    Attributes:
        log_destination: URI; its scheme must be one this node can write to.
        fields: Which of ``AUDIT_FIELDS`` are written.
    """

    enable_logging: bool = True
    log_destination: str = "stdout:"
    fields: tuple[str, ...] = _DEFAULT_FIELDS


class Document(_Section, frozen=True):
    """The whole file; ``devices`` left out does not restrict."""

    name: str = "policy"
    runtime: Runtime = Runtime()
    security: Security = Security()
    devices: list[Device] | None = None
    audit: Audit = Audit()


@dataclass(frozen=True, slots=True)
class Policy:
    """A parsed policy and the digest of the bytes it was read from."""

    document: Document
    digest: str

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def audit_fields(self) -> tuple[str, ...]:
        return tuple(self.document.audit.fields)

    @property
    def audit_enabled(self) -> bool:
        return self.document.audit.enable_logging

    @property
    def log_destination(self) -> str:
        return self.document.audit.log_destination

    @property
    def allowed_precisions(self) -> tuple[str, ...]:
        """Precisions that may load; all known ones when the policy does not restrict."""
        modes = self.document.security.allowed_precision_modes
        return PRECISIONS if modes is None else tuple(modes)

    @property
    def nonfinite(self) -> str:
        return self.document.security.nonfinite

    def effective(self) -> dict[str, Any]:
        """Every value in force, defaults included."""
        built: dict[str, Any] = msgspec.to_builtins(self.document)
        return built


def parse_policy(raw: bytes) -> Policy:
    """Policy of a YAML file's bytes.

    Raises:
        PolicyFormatError: Not YAML, an unknown key (with its path), or a value that cannot have an
            effect.
    """
    try:
        document = msgspec.convert(strict_yaml.load(raw, subject="policy"), Document)
        _check(document)
    except FormatError as error:
        raise PolicyFormatError(_subject(error.message), hint=error.hint) from error
    except msgspec.ValidationError as error:
        raise PolicyFormatError(
            f"policy: expected a known key and type, got {error}",
            hint="see spec/policy.md; numbers that are versions need quotes",
        ) from error
    return Policy(document, sha256(raw))


def _subject(message: str) -> str:
    return message if message.startswith("policy") else f"policy: {message}"


def _check(document: Document) -> None:
    security = document.security
    if not security.require_signed_engine:
        raise FormatError(
            "security.require_signed_engine: expected true, got false",
            hint="pellucid opens no unsigned package; sign it: pellucid sign FOLDER",
        )
    _words("security.allowed_precision_modes", security.allowed_precision_modes or (), PRECISIONS)
    _words("security.allowed_variance", security.allowed_variance, LABELS)
    _words("audit.fields", document.audit.fields, AUDIT_FIELDS)
    if document.runtime.version is not None:
        parse_range(document.runtime.version, subject="runtime.version")
    for position, allowed in enumerate(_bounded("security.allowed_packages", security.allowed_packages)):
        _check_allowed(f"security.allowed_packages[{position}]", allowed)
    for position, role in enumerate(_bounded("security.required_approvals", security.required_approvals)):
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", role):
            raise FormatError(f"security.required_approvals[{position}]: expected a role, got {role!r:.60}")
    for position, device in enumerate(_bounded("devices", document.devices)):
        _check_device(f"devices[{position}]", device)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:\S{0,500}", document.audit.log_destination):
        got = document.audit.log_destination
        raise FormatError(f"audit.log_destination: expected a URI such as stdout:, got {got!r:.120}")
    if not re.fullmatch(r"[^\x00-\x1f]{1,80}", document.name):
        raise FormatError(f"name: expected 1 to 80 printable characters, got {document.name!r:.60}")


def _bounded(where: str, items: list[Any] | None) -> list[Any]:
    if items is not None and len(items) > ITEMS_MAX:
        raise FormatError(f"{where}: expected at most {ITEMS_MAX} items, got {len(items):,}")
    return items or []


def _words(where: str, words: Any, known: tuple[str, ...]) -> None:
    for position, word in enumerate(words):
        if word not in known:
            raise FormatError(f"{where}[{position}]: expected one of {', '.join(known)}, got {word!r:.60}")
    if len(set(words)) != len(words):
        raise FormatError(f"{where}: expected each word once, got one twice")


def _check_allowed(where: str, allowed: AllowedPackage) -> None:
    if allowed.versions is not None:
        parse_range(allowed.versions, subject=f"{where}.versions")
    for digest in _bounded(f"{where}.digests", allowed.digests):
        parse_digest(digest)


def _check_device(where: str, device: Device) -> None:
    parts = device.partitioning
    if parts is None:
        return
    if parts.mode == "mig" and (device.type != "gpu" or not parts.instances):
        raise FormatError(f"{where}.partitioning: expected a gpu with instances for mode mig, got another")
    if parts.mode == "none" and parts.instances:
        raise FormatError(f"{where}.partitioning.instances: expected none for mode none, got some")
    ids = [instance.id for instance in _bounded(f"{where}.partitioning.instances", parts.instances)]
    if len(set(ids)) != len(ids) or any(number < 0 for number in ids):
        raise FormatError(f"{where}.partitioning.instances: expected ids of 0 and up, each once, got {ids}")
    for position, instance in enumerate(parts.instances):
        if instance.max_engines is not None and instance.max_engines < 1:
            path = f"{where}.partitioning.instances[{position}].max_engines"
            raise FormatError(f"{path}: expected 1 or more, got {instance.max_engines}")


DEFAULT_POLICY: Final = """\
# What may load on this site, and what the operators' log says about calls. See spec/policy.md.
# Every rule is judged and reported at every load; the verdict is a ledger entry.
name: default
security:
  require_signed_engine: true
  allowed_precision_modes: [fp32]
  allow_tf32: false
  allow_compile_at_load: true         # recorded; engines of serve_level native choose kernels at load
  input_validation: strict_shape_check
  nonfinite: refuse
  require_qualification: true         # measured on a device and signed: pellucid qualify
  allowed_variance: [invariant, bucket-invariant, variant]
  environment_match: strict           # same instruction sets, library version and threads as qualified
  rollback_protection: true           # below the highest version admitted only by a signed approval
  immutable_versions: true
  required_approvals: []              # roles, for example [ml-engineer, compliance]
audit:
  enable_logging: true
  log_destination: "stdout:"
  fields: [timestamp, trace_id, client_ip, model_name, model_version, input_size, input_hash,
           output_label, confidence, inference_time_ms, precision_mode, gpu_device]
"""
