"""Schemas of Kubernetes and GitHub, a workflow security linter and a Dockerfile linter judge what we write.

Nothing here runs a manifest: no cluster, no GitHub and no container engine. Each judge also refuses
one that was made worse, so that a judge which says yes to everything is noticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pellucid.app.job import Wanted, write_manifests
from pellucid.testing.builds import write_recipe

HERE = Path(__file__).resolve().parent
IMAGE = "registry.example/team/pellucid@sha256:" + "ab" * 32
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # recipe's changes, options
    "cpu": ({}, {}),
    "validated": ({"validation": {"data": "v.npz"}}, {"commit": "e" * 40, "path": "recipes/toy/recipe.yaml"}),
    "gpu": (RTX, {"gpu": True}),
    "elsewhere": (RTX, {"runner": "builders", "places": (("namespace", "ml"), ("log_claim", "logs"))}),
}

pytestmark = pytest.mark.judge


def make(name: str) -> Path:
    done = subprocess.run(
        [sys.executable, str(HERE / "make_venvs.py"), name],
        capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    if done.returncode == 3:
        pytest.skip(f"NOT RUN {name}: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def programs() -> Path:
    return make("manifests").parent


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("manifests")
    for name, (recipe, options) in CASES.items():
        path = write_recipe(root / name / "toy", "credit_like", **recipe)
        write_manifests(path, Wanted(**({"image": IMAGE, "base": IMAGE} | options)), root / name)
    return [root / name for name in CASES]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


def worse(path: Path, tmp_path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    changed = tmp_path / path.name
    changed.write_text(text.replace(old, new))
    return changed


def test_kubernetes_takes_the_manifests_and_no_misspelt_one(
    programs: Path, written: list[Path], tmp_path: Path
) -> None:
    judge = (programs / "kubernetes-validate", "--strict")
    done = run(*judge, *(folder / "job.yaml" for folder in written))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == 2 * len(CASES)
    job = written[0] / "job.yaml"
    for old, new in (
        ("backoffLimit", "backoffLimt"), ("activeDeadlineSeconds: 2400", "activeDeadlineSeconds: soon"),
        ("podSelector:", "podSelektor:"), ("readOnlyRootFilesystem", "readonlyRootFilesystem"),
    ):  # fmt: skip
        assert run(*judge, worse(job, tmp_path, old, new)).returncode != 0, new


def test_github_takes_the_workflow_and_no_misspelt_one(
    programs: Path, written: list[Path], tmp_path: Path
) -> None:
    judge = (programs / "check-jsonschema", "--builtin-schema", "vendor.github-workflows")
    done = run(*judge, *(folder / "workflow.yml" for folder in written))
    assert done.returncode == 0, done.stdout
    workflow = written[0] / "workflow.yml"
    for old, new in (
        ("id-token: write", "id-token: maybe"),
        ("runs-on:", "run-on:"),
        ("needs: build", "needs: {}"),
    ):
        assert run(*judge, worse(workflow, tmp_path, old, new)).returncode != 0, new


def test_a_security_linter_finds_nothing_in_the_workflow_and_what_was_put_in(
    programs: Path, written: list[Path], tmp_path: Path
) -> None:
    judge = (programs / "zizmor", "--offline", "--no-config", "--persona", "pedantic")
    done = run(*judge, written[0] / "workflow.yml", written[1] / "workflow.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No findings" in done.stdout
    workflow = written[0] / "workflow.yml"
    for old, new in (
        ("08c6903cd8c0fde910a37f88322edcfb5dd907a8", "v5"),
        ("        with:\n          persist-credentials: false\n", ""),
        ("permissions: {}", "permissions: write-all"),
        ('docker pull --quiet "$IMAGE"', "docker pull ${{ github.head_ref }}"),
    ):
        assert run(*judge, worse(workflow, tmp_path, old, new)).returncode != 0, new


def test_a_dockerfile_linter_finds_nothing_and_what_was_put_in(written: list[Path], tmp_path: Path) -> None:
    folder = make("node")
    ours = [path / "Dockerfile" for path in written]
    bad = worse(ours[0], tmp_path, "RUN python", "RUM python")
    command = ["node", str(HERE / "node" / "dockerfile.js"), *map(str, [*ours, bad])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    *clean, found = json.loads(done.stdout)
    assert clean == [[]] * len(ours)
    assert found == ["Unknown instruction: RUM"]
