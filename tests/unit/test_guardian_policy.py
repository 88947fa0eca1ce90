"""Rules of the policy: each alone, all always reported; the operators' sample loads as it stands."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pellucid.core.package import PackageFiles
from pellucid.core.policy import (
    DEFAULT_POLICY,
    DeviceFacts,
    Finding,
    History,
    NodeFacts,
    Policy,
    evaluate,
    parse_policy,
)
from pellucid.core.policy_document import AUDIT_FIELDS
from pellucid.core.times import parse_time
from pellucid.core.trust import verify_package
from pellucid.errors import PolicyFormatError
from pellucid.testing.packages import ENVIRONMENT, Workshop, digest_of

SAMPLE = """\
runtime:
  name: tensorrt-runtime
  version: "8.6"
security:
  require_signed_engine: true
  allowed_precision_modes: [fp16, int8]
  memory_isolation: smmu_enabled
  input_validation: strict_shape_check
devices:
  - type: gpu
    vendor: nvidia
    model: A100
    partitioning:
      mode: mig
      instances:
        - id: 0
          profile: 1g.10gb
          max_engines: 2
        - id: 1
          profile: 2g.20gb
          max_engines: 1
audit:
  enable_logging: true
  log_destination: "syslog://collector.example.com:514"
  fields:
    - timestamp
    - client_ip
    - model_name
    - input_size
    - execution_time_ms
"""
NOW = parse_time("2026-11-30T18:00:00Z")
CPU = DeviceFacts("cpu", "AMD", "AMD EPYC")
NODE = NodeFacts(ENVIRONMENT, (CPU,), ("stdout",), (), NOW)


@pytest.fixture(scope="module")
def shop() -> Workshop:
    return Workshop()


@pytest.fixture(scope="module")
def package(shop: Workshop) -> PackageFiles:
    return shop.package()


def policy(**security: Any) -> Policy:
    document = yaml.safe_load(DEFAULT_POLICY)
    document["security"] |= security
    return parse_policy(yaml.safe_dump(document).encode())


def judge(
    shop: Workshop, files: PackageFiles, judged: Policy | None = None, node: NodeFacts = NODE, history=None
) -> dict[str, Finding]:
    verdict = evaluate(judged or policy(), verify_package(files, shop.trust), node, history or History())
    assert verdict.allowed == (not verdict.failed)
    rules = [finding.rule for finding in verdict.findings]
    assert len(rules) == len(set(rules))
    return {finding.rule: finding for finding in verdict.findings}


def refusals(findings: dict[str, Finding]) -> set[str]:
    return {rule.rpartition("security.")[2] for rule, finding in findings.items() if finding.refuses}


def test_a_good_package_passes_every_rule_of_the_default_policy(shop: Workshop, package: PackageFiles):
    findings = judge(shop, package)
    assert refusals(findings) == set()
    assert all(finding.passed for finding in findings.values())
    assert len(findings) >= 12


def test_the_operators_sample_loads_and_every_line_has_an_effect(shop: Workshop, package: PackageFiles):
    judged = parse_policy(SAMPLE.encode())
    assert judged.audit_fields == ("timestamp", "client_ip", "model_name", "input_size", "execution_time_ms")
    assert judged.audit_enabled
    assert judged.log_destination == "syslog://collector.example.com:514"
    assert judged.allowed_precisions == ("fp16", "int8")
    findings = judge(shop, package, judged)
    for rule, expected, got in (
        ("runtime.name", "tensorrt-runtime", "fake"),
        ("runtime.version", "8.6", "fake 1.2.3"),
        ("security.allowed_precision_modes", "one of fp16, int8", "fp32"),
        ("security.memory_isolation", "smmu_enabled", "a node that reports no memory isolation"),
        ("devices", "gpu nvidia A100 MIG 1g.10gb, 2g.20gb", "cpu AMD AMD EPYC"),
        ("audit.log_destination", "syslog://collector", "a node that can write to stdout"),
    ):
        assert findings[rule].refuses, rule
        assert expected in findings[rule].expected
        assert got in findings[rule].got
    for rule in ("security.require_signed_engine", "security.input_validation", "audit.fields"):
        assert findings[rule].passed
    for number in (0, 1):
        assert f"devices[0].partitioning.instances[{number}].max_engines" in findings


def test_the_operators_sample_allows_the_node_it_was_written_for(shop: Workshop):
    environment = {"backend": "tensorrt", "tensorrt": "8.6.1", "device": {"kind": "gpu", "name": "A100"}}
    files = shop.qualify(shop.package(recipe={"precision": "fp16"}), environment=environment)
    device = DeviceFacts("gpu", "NVIDIA", "NVIDIA A100-SXM4-80GB", 0, "1g.10gb", engines=1)
    node = NodeFacts(environment, (device,), ("syslog",), ("smmu_enabled",), NOW)
    assert refusals(judge(shop, files, parse_policy(SAMPLE.encode()), node)) == set()
    crowded = (DeviceFacts("gpu", "NVIDIA", "A100", 0, "1g.10gb", engines=2),)
    full = NodeFacts(environment, crowded, ("syslog",), ("smmu_enabled",), NOW)
    assert refusals(judge(shop, files, parse_policy(SAMPLE.encode()), full)) == {
        "devices[0].partitioning.instances[0].max_engines"
    }


@pytest.mark.parametrize(
    ("recipe", "security", "refused"),
    [
        ({"precision": "int8"}, {}, {"allowed_precision_modes"}),
        ({"precision": "FP32"}, {}, set()),
        ({"precision": "int8"}, {"allowed_precision_modes": ["int8"]}, set()),
        ({"precision": "int8"}, {"allowed_precision_modes": None}, set()),
        ({"precision": "unheard-of"}, {"allowed_precision_modes": None}, {"allowed_precision_modes"}),
        ({"tf32": True}, {}, {"allow_tf32"}),
        ({"tf32": "false"}, {}, {"allow_tf32"}),
        ({"tf32": True}, {"allow_tf32": True}, set()),
        ({"serve_level": "native"}, {}, set()),
        ({"serve_level": "native"}, {"allow_compile_at_load": False}, {"allow_compile_at_load"}),
        ({}, {"memory_isolation": "iommu_enabled"}, {"memory_isolation"}),
        ({}, {"required_approvals": ["sre"]}, {"required_approvals.sre"}),
        ({}, {"allowed_packages": []}, {"allowed_packages"}),
        ({}, {"allowed_packages": [{"name": "t*"}]}, set()),
        ({}, {"allowed_packages": [{"name": "T*"}]}, {"allowed_packages"}),
        ({}, {"allowed_packages": [{"name": "x"}, {"name": "toy", "versions": ">=1, <2"}]}, set()),
        ({}, {"allowed_packages": [{"name": "toy", "versions": ">1"}]}, {"allowed_packages"}),
        ({}, {"allowed_packages": [{"digests": ["sha256:" + "0" * 64]}]}, {"allowed_packages"}),
    ],
    ids=str,
)
def test_rules_about_the_package(shop: Workshop, recipe: dict, security: dict, refused: set[str]):
    assert refusals(judge(shop, shop.package(recipe=recipe), policy(**security))) == refused


def test_a_pinned_digest_lets_exactly_one_package_in(shop: Workshop, package: PackageFiles):
    pinned = policy(allowed_packages=[{"digests": [digest_of(package)]}])
    assert refusals(judge(shop, package, pinned)) == set()
    assert refusals(judge(shop, shop.package("1.0.1"), pinned)) == {"allowed_packages"}


@pytest.mark.parametrize(
    ("name", "version", "refused"),
    [
        ("fake", "1.2", set()), ("fake", "1.2.3", set()), ("fake-runtime", "1", set()),
        ("fake", "1.20", {"runtime.version"}), ("fake", ">=1.2, <2", set()),
        ("fake", "<1.2", {"runtime.version"}), ("onnxruntime", None, {"runtime.name"}),
        ("onnxruntime", "9", {"runtime.name", "runtime.version"}),
    ],
)  # fmt: skip
def test_the_runtime(shop: Workshop, package: PackageFiles, name: str, version: str | None, refused: set):
    document = yaml.safe_load(DEFAULT_POLICY) | {"runtime": {"name": name, "version": version}}
    assert refusals(judge(shop, package, parse_policy(yaml.safe_dump(document).encode()))) == refused


# -- qualification and environment ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "passed", "security", "refused"),
    [
        ("invariant", True, {}, set()),
        ("variant", True, {}, set()),
        ("untested", True, {}, {"allowed_variance"}),
        ("invariant", False, {}, {"require_qualification"}),
        ("variant", True, {"allowed_variance": ["invariant"]}, {"allowed_variance"}),
        ("variant", False, {"require_qualification": False, "allowed_variance": []}, set()),
    ],
)
def test_the_qualification(shop: Workshop, label: str, passed: bool, security: dict, refused: set[str]):
    files = shop.qualify(shop.package(qualified=False), label=label, passed=passed)
    assert refusals(judge(shop, files, policy(**security))) == refused


def test_without_qualification(shop: Workshop):
    files = shop.package(qualified=False)
    assert refusals(judge(shop, files)) == {"require_qualification", "allowed_variance"}
    assert refusals(judge(shop, files, policy(require_qualification=False))) == set()


DEVICE = ENVIRONMENT["device"]


@pytest.mark.parametrize(
    ("here", "got"),
    [
        (ENVIRONMENT | {"fake": "1.2.4"}, "backend_version '1.2.3' there, '1.2.4' here"),
        (ENVIRONMENT | {"backend": "other"}, "backend 'fake' there, 'other' here"),
        (ENVIRONMENT | {"device": DEVICE | {"isa": ["avx2", "fma", "avx512f"]}}, "with avx512f here"),
        (ENVIRONMENT | {"device": DEVICE | {"isa": ["avx2"]}}, "with fma there, with nothing more here"),
        (ENVIRONMENT | {"device": DEVICE | {"architecture": "aarch64"}}, "device.architecture"),
        (ENVIRONMENT | {"device": DEVICE | {"kind": "gpu"}}, "device.kind"),
        ({}, "backend 'fake' there, None here"),
    ],
)
def test_another_environment_is_refused_or_reported(
    shop: Workshop, package: PackageFiles, here: dict, got: str
):
    node = NodeFacts(here, (CPU,), ("stdout",), (), NOW)
    findings = judge(shop, package, node=node)
    assert "environment_match" in refusals(findings)
    assert got in findings["security.environment_match"].got
    reported = judge(shop, package, policy(environment_match="report"), node)
    assert not reported["security.environment_match"].passed
    assert "environment_match" not in refusals(reported)


def test_the_processors_name_does_not_count_but_threads_do(shop: Workshop, package: PackageFiles):
    renamed = ENVIRONMENT | {"device": DEVICE | {"name": "AMD EPYC 9654"}}
    assert refusals(judge(shop, package, node=NodeFacts(renamed, (CPU,), ("stdout",), (), NOW))) == set()
    files = shop.qualify(shop.package(qualified=False), environment=ENVIRONMENT | {"threads": 4})
    findings = judge(shop, files)
    assert refusals(findings) == {"environment_match"}
    assert "threads 4 there, 1 here" in findings["security.environment_match"].got


def test_the_qualification_of_this_environment_is_the_one_that_counts(shop: Workshop):
    elsewhere = ENVIRONMENT | {"fake": "9"}
    files = shop.package(qualified=False)
    files = shop.qualify(files, environment=elsewhere, passed=True, name="a-elsewhere")
    files = shop.qualify(files, passed=False, name="b-here")
    assert refusals(judge(shop, files)) == {"require_qualification"}
    files = shop.qualify(files, passed=True, name="c-here")
    assert refusals(judge(shop, files)) == set()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_of_two_labels_measured_here_the_worse_counts(shop: Workshop, names: tuple[str, str]):
    files = shop.package(qualified=False)
    for name, label in zip(names, ("invariant", "variant"), strict=True):
        files = shop.qualify(files, label=label, name=name)
    allowed = policy(allowed_variance=["invariant", "bucket-invariant"])
    assert refusals(judge(shop, files, allowed)) == {"allowed_variance"}


def test_where_no_backend_is_installed_node_rules_are_said_not_judged(shop: Workshop, package: PackageFiles):
    findings = judge(shop, package, parse_policy(SAMPLE.encode()), NodeFacts(None))
    assert refusals(findings) == {"allowed_precision_modes"}
    unjudged = {rule for rule, finding in findings.items() if "not judged" in finding.got}
    assert {"runtime.name", "runtime.version", "devices", "security.environment_match"} <= unjudged


# -- rollback, approvals, versions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("highest", "refused"),
    [
        (None, set()), ("0.9.0", set()), ("1.0.0", set()), ("1.0", set()), ("1.0.0-rc.1", set()),
        ("1.0.1", {"rollback_protection"}), ("1.0.0.1", {"rollback_protection"}),
        ("1.10.0", {"rollback_protection"}), ("2.0.0-alpha", {"rollback_protection"}),
    ],
)  # fmt: skip
def test_the_rollback_floor(shop: Workshop, package: PackageFiles, highest: str | None, refused: set[str]):
    history = History(highest)
    assert refusals(judge(shop, package, history=history)) == refused
    assert refusals(judge(shop, package, policy(rollback_protection=False), history=history)) == set()


@pytest.mark.parametrize(
    ("approval", "refused"),
    [
        ({"kind": "rollback", "rolls_back_from": "1.2.0"}, set()),
        ({"kind": "rollback", "rolls_back_from": "1.2"}, set()),
        # the floor has moved on since: an old approval must not roll back again
        ({"kind": "rollback", "rolls_back_from": "1.1.0"}, {"rollback_protection"}),
        ({"kind": "rollback", "rolls_back_from": "1.3.0"}, {"rollback_protection"}),
        ({"kind": "release"}, {"rollback_protection"}),
        ({"kind": "rollback", "rolls_back_from": "1.2.0", "expires": "2026-11-30T16:40:15Z"},
         {"rollback_protection"}),
        ({"kind": "rollback", "rolls_back_from": "1.2.0", "expires": "2099-01-01T00:00:00Z"}, set()),
    ],
    ids=str,
)  # fmt: skip
def test_a_rollback_approval_lowers_the_floor_for_one_package_from_one_version(
    shop: Workshop, package: PackageFiles, approval: dict, refused: set[str]
):
    assert refusals(judge(shop, shop.approve(package, **approval), history=History("1.2.0"))) == refused


def test_a_rollback_approval_of_another_package_or_key_does_not_count(shop: Workshop, package: PackageFiles):
    other = shop.approve(shop.package("0.9.0"), "rollback", rolls_back_from="1.2.0")
    path = "attestations/approval-rollback-ml-engineer.sigstore.json"
    stolen = PackageFiles(package.name, {**package.files, path: other.files[path]})
    assert refusals(judge(shop, stolen, history=History("1.2.0"))) == {"rollback_protection"}
    foreign = shop.approve(package, "rollback", rolls_back_from="1.2.0", signer=shop.builder)
    assert refusals(judge(shop, foreign, history=History("1.2.0"))) == {"rollback_protection"}


def test_required_approvals(shop: Workshop, package: PackageFiles):
    judged = policy(required_approvals=["ml-engineer", "sre"])
    one = shop.approve(package, role="ml-engineer")
    assert refusals(judge(shop, one, judged)) == {"required_approvals.sre"}
    both = shop.approve(one, role="sre")
    assert refusals(judge(shop, both, judged)) == set()
    late = shop.approve(one, role="sre", expires="2026-11-30T16:40:15Z")
    assert refusals(judge(shop, late, judged)) == {"required_approvals.sre"}


def test_a_version_stands_for_one_digest(shop: Workshop, package: PackageFiles):
    same = History("1.0.0", {"1.0.0": frozenset({digest_of(package)})})
    assert refusals(judge(shop, package, history=same)) == set()
    for text in ("1.0.0", "1.0"):
        other = History(text, {text: frozenset({"sha256:" + "0" * 64})})
        assert refusals(judge(shop, package, history=other)) == {"immutable_versions"}
        assert refusals(judge(shop, package, policy(immutable_versions=False), history=other)) == set()


def test_every_finding_is_reported_at_once(shop: Workshop):
    files = shop.package(recipe={"precision": "int8", "tf32": True}, qualified=False)
    node = NodeFacts(ENVIRONMENT | {"fake": "2"}, (CPU,), (), (), NOW)
    assert refusals(judge(shop, files, node=node, history=History("2.0.0"))) == {
        "allowed_precision_modes", "allow_tf32", "rollback_protection", "require_qualification",
        "allowed_variance", "environment_match", "audit.log_destination",
    }  # fmt: skip


def test_what_trust_ignored_is_in_the_verdict(shop: Workshop, package: PackageFiles):
    findings = judge(shop, shop.approve(package, signer=shop.builder))
    ignored = [f for rule, f in findings.items() if rule.startswith("attestation ")]
    assert len(ignored) == 1
    assert not ignored[0].refuses


# -- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "fits"),
    [
        ({"type": "cpu"}, True),
        ({"type": "cpu", "vendor": "amd", "model": "epyc"}, True),
        ({"type": "cpu", "vendor": "Intel"}, False),
        ({"type": "gpu"}, False),
        ({"type": "cpu", "partitioning": {"mode": "none"}}, True),
    ],
)
def test_devices(shop: Workshop, package: PackageFiles, device: dict, fits: bool):
    document = yaml.safe_load(DEFAULT_POLICY) | {"devices": [device]}
    findings = judge(shop, package, parse_policy(yaml.safe_dump(document).encode()))
    assert findings["devices"].passed == fits


# -- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("securty: {}", "unknown field `securty`"),
        ("security: {allow_all: true}", r"unknown field `allow_all` - at `\$.security`"),
        ("devices: [{type: gpu, vendr: x}]", r"`vendr` - at `\$.devices\[0\]`"),
        ("devices: [{type: gpu, partitioning: {mode: mig, instances: [{id: 0, profile: p, max: 1}]}}]",
         r"at `\$.devices\[0\].partitioning.instances\[0\]`"),
        ("security: {require_signed_engine: false}", "expected true, got false"),
        ("security: {allowed_precision_modes: [fp99]}", r"allowed_precision_modes\[0\]"),
        ("security: {allowed_precision_modes: [fp32, fp32]}", "one twice"),
        ("security: {memory_isolation: magic}", "memory_isolation"),
        ("security: {input_validation: none}", "input_validation"),
        ("security: {nonfinite: maybe}", "nonfinite"),
        ("security: {allowed_variance: [best]}", "allowed_variance"),
        ("security: {required_approvals: ['A B']}", r"required_approvals\[0\]"),
        ("security: {allowed_packages: [{versions: '>=x'}]}", r"allowed_packages\[0\].versions"),
        ("security: {allowed_packages: [{digests: [abc]}]}", "digest"),
        ("runtime: {version: 8.6}", "Expected `str"),
        ("runtime: {version: '>> 8'}", "runtime.version"),
        ("audit: {fields: [timestamp, password]}", r"audit.fields\[1\]"),
        ("audit: {log_destination: somewhere}", "log_destination"),
        ("devices: [{type: tpu}]", "type"),
        ("devices: [{type: cpu, partitioning: {mode: mig, instances: [{id: 0, profile: p}]}}]", "mode mig"),
        ("devices: [{type: gpu, partitioning: {mode: mig}}]", "mode mig"),
        ("devices: [{type: gpu, partitioning: {mode: none, instances: [{id: 0, profile: p}]}}]", "mode none"),
        ("devices: [{type: gpu, partitioning: {mode: mig, instances: [{id: 0, profile: p}, "
         "{id: 0, profile: q}]}}]", "each once"),
        ("devices: [{type: gpu, partitioning: {mode: mig, instances: [{id: 0, profile: p, "
         "max_engines: 0}]}}]", "1 or more"),
        ("name: ''", "name"),
        ("a: 1\na: 2", "twice"),
        ("x: &a 1\ny: *a", "alias"),
        ("[]", "Expected `object`"),
        ("", "Expected `object`"),
        ("\x00", "YAML"),
        ("security: {required_approvals: [" + "a," * 300 + "]}", "at most 256"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_have_its_effect_is_refused(text: str, reason: str):
    with pytest.raises(PolicyFormatError, match=reason) as caught:
        parse_policy(text.encode())
    assert caught.value.message.startswith("policy: ")


def test_the_effective_policy_says_everything():
    effective = parse_policy(b"{}").effective()
    assert effective["security"]["require_qualification"] is True
    assert set(effective["audit"]["fields"]) <= set(AUDIT_FIELDS)
    assert parse_policy(b"{}").audit_fields == parse_policy(DEFAULT_POLICY.encode()).audit_fields
