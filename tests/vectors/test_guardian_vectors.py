"""Every package and policy vector, run; and the generator writes the committed files again."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pellucid.core.archive import read_archive
from pellucid.core.model_signing import file_digests, root_digest
from pellucid.core.package import signed_paths
from pellucid.core.policy import History, NodeFacts, evaluate, parse_policy
from pellucid.core.times import parse_time
from pellucid.core.trust import TrustedPackage, TrustRoot, verify_package
from pellucid.core.version import parse_version
from pellucid.errors import PellucidError

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "package"
Case = dict[str, Any]
DOCUMENTS = {name: json.loads((VECTORS / f"{name}.json").read_text()) for name in ("package", "policy")}


def trusted(archive: str, trust: dict[str, str]) -> TrustedPackage:
    keys = {role: (pem.encode(),) for role, pem in trust.items()}
    return verify_package(read_archive(base64.b64decode(archive)), TrustRoot("", keys))


def run_read(case: Case) -> Case:
    package = read_archive(base64.b64decode(case["archive"]))
    return {"folder": package.name, "files": {path: data.hex() for path, data in package.files.items()}}


def run_digest(case: Case) -> Case:
    files = {path: bytes.fromhex(data) for path, data in case["files"].items()}
    return {"order": signed_paths(files), "package": root_digest(file_digests(files))}


def run_compare(case: Case) -> int:
    a, b = parse_version(case["a"]), parse_version(case["b"])
    return (a > b) - (a < b)


def run_verify(case: Case) -> Case:
    package = trusted(case["archive"], case["trust"])
    return {
        "package": package.digest, "name": package.name, "version": package.version,
        "label": package.label_variance, "approvals": [a.kind for a in package.approvals],
        "ignored": sorted(f.rule.removeprefix("attestation ") for f in package.findings),
    }  # fmt: skip


def run_parse(case: Case) -> Any:
    return json.loads(json.dumps(parse_policy(case["policy"].encode()).effective()))


def run_judge(case: Case) -> Case:
    package = trusted(DOCUMENTS["policy"]["archive"], DOCUMENTS["policy"]["trust"])
    node = case["node"]
    facts = NodeFacts(node["environment"], (), tuple(node["sinks"]), (), parse_time(node["now"]))
    verdict = evaluate(parse_policy(case["policy"].encode()), package, facts, History(case["highest"]))
    return {"allowed": verdict.allowed, "failed": sorted(finding.rule for finding in verdict.failed)}


RUNNERS = {
    "read": run_read, "digest": run_digest, "compare": run_compare, "verify": run_verify,
    "parse": run_parse, "judge": run_judge,
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["name"]) for doc in DOCUMENTS.values() for case in doc["cases"]]
)
def test_vector(case: Case):
    run = RUNNERS[case["operation"]]
    if case["name"].endswith("_fail"):
        with pytest.raises(PellucidError):
            run(case)
    else:
        assert run(case) == case["expected"]


def test_names_are_unique():
    names = [case["name"] for document in DOCUMENTS.values() for case in document["cases"]]
    assert len(names) == len(set(names))


def test_generating_again_changes_nothing(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(VECTORS / "generate.py"), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert written == {f"{name}.json": (VECTORS / f"{name}.json").read_bytes() for name in DOCUMENTS}
