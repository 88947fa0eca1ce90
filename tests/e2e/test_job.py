"""The job's own words, run here: its containers one after the other, and the workflow's script.

No container engine is needed: what the manifests ask the engine for is judged elsewhere. A stand-in
takes the place of ``docker`` and runs the very arguments with the very environment on this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pellucid.testing.builds import write_recipe

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "registry.example/team/pellucid@sha256:" + "ab" * 32
COMMIT = "e" * 40
DOCKER = '''\
#!{python}
"""docker, as far as the workflow uses it: volumes become folders, the container a process."""
import os, subprocess, sys

arguments, volumes, env = sys.argv[1:], {{}}, {{"PATH": os.environ["PATH"]}}
if arguments[0] == "pull":
    sys.exit(0 if arguments[2] == os.environ["IMAGE"] else 1)
assert arguments.pop(0) == "run"
valued = {{"--network", "--user", "--cap-drop", "--security-opt", "--memory", "--tmpfs", "--pull"}}
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    if option == "--env":
        name, given, value = arguments.pop(0).partition("=")
        if given or name in os.environ:
            env[name] = value if given else os.environ[name]
    elif option == "--volume":
        place, inside = arguments.pop(0).split(":")[:2]
        volumes[inside] = place
    elif option in valued:
        arguments.pop(0)
    else:
        assert option in ("--rm", "--read-only"), option
assert arguments.pop(0) == os.environ["IMAGE"]
for inside, place in volumes.items():
    arguments = [place + a[len(inside):] if a.startswith(inside + "/") else a for a in arguments]
sys.exit(subprocess.run([sys.executable, "-m", "pellucid", *arguments], env=env).returncode)
'''


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository's folder: a recipe with a validation set, and the manifests written for it."""
    root = tmp_path_factory.mktemp("sources")
    rows = np.random.default_rng(0).standard_normal((40, 20)).astype("<f4")
    recipe = write_recipe(
        root / "recipes" / "toy", "credit_like", validation={"data": "v.npz"}, buckets=[1, 4], gate={}
    )
    np.savez(recipe.parent / "v.npz", features=rows)
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", "job", "recipes/toy/recipe.yaml", "--image", IMAGE,
         "--base", IMAGE, "--commit", COMMIT, "--json"],
        cwd=root, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout)["files"] == ["deploy/job.yaml", "deploy/workflow.yml", "deploy/Dockerfile"]
    return root


def moved(argument: str, places: dict[str, str]) -> str:
    """The argument with the one mount it begins with replaced by its folder here."""
    for inside, place in places.items():
        if argument.startswith(inside):
            return place + argument.removeprefix(inside)
    return argument


def environment_of(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((package / "environment.json").read_bytes())
    return found


def test_the_containers_of_the_job_build_the_package(sources: Path, tmp_path: Path) -> None:
    _, job = yaml.safe_load_all((sources / "deploy" / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    places = {"/models": str(sources), "/log": str(tmp_path / "log"), "/tmp": str(tmp_path / "tmp")}
    for place in ("log", "tmp"):
        (tmp_path / place).mkdir()
    downward = {"PELLUCID_POD": "build-toy-x7", "PELLUCID_POD_NAMESPACE": "b", "PELLUCID_POD_NODE": "n1"}
    for container in [*pod["initContainers"], *pod["containers"]]:
        env = {item["name"]: item.get("value") or downward[item["name"]] for item in container["env"]}
        arguments = [a.replace("$(PELLUCID_POD)", env["PELLUCID_POD"]) for a in container["args"]]
        mounted = {f"/{mount['mountPath'].strip('/')}/" for mount in container["volumeMounts"]}
        arguments = [
            moved(argument, {m: f"{places[m.rstrip('/')]}/" for m in mounted}) for argument in arguments
        ]
        assert container["command"] == ["pellucid"]
        done = subprocess.run(
            [sys.executable, "-m", "pellucid", *arguments],
            env=env | {"PATH": os.environ["PATH"], "HOME": places[env["HOME"]]},
            cwd=places[container["workingDir"]], capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    found = environment_of(Path(built["folder"]))
    assert Path(built["folder"]).is_relative_to(tmp_path / "log" / "build-toy-x7")
    assert (found["image"], found["commit"], found["dirty"]) == (IMAGE, COMMIT, None)
    assert found["container"] == {"kind": "kubernetes", "pod": "build-toy-x7", "namespace": "b", "node": "n1"}


def test_the_script_of_the_workflow_builds_gates_and_packs(sources: Path, tmp_path: Path) -> None:
    workflow = yaml.safe_load((sources / "deploy" / "workflow.yml").read_text())
    build = workflow["jobs"]["build"]
    bin_folder, temp, work = tmp_path / "bin", tmp_path / "temp", tmp_path / "work"
    for folder in (bin_folder, temp):
        folder.mkdir()
    work.symlink_to(sources)
    docker = bin_folder / "docker"
    docker.write_text(DOCKER.format(python=sys.executable))
    docker.chmod(0o755)
    env = build["env"] | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}", "RUNNER_TEMP": str(temp), "GITHUB_WORKSPACE": str(work),
        "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "42", "GITHUB_REPOSITORY": "bank/models",
        "GITHUB_SHA": COMMIT, "GITHUB_REF": "refs/tags/toy-v1.0.0", "GITHUB_ACTOR": "someone",
        "GITHUB_TOKEN": "s3cret",
    }  # fmt: skip
    scripts = [step["run"] for step in build["steps"] if "run" in step]
    assert len(scripts) == 2
    for script in scripts:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert "allows it" in done.stdout
    (archive,) = (tmp_path / "dist").glob("toy-v1.0.0-*.tar.gz")
    package = temp / "log" / "site" / "packages" / archive.name.removesuffix(".tar.gz")
    found = environment_of(package)
    assert (found["image"], found["commit"]) == (IMAGE, COMMIT)
    assert found["ci"] == {
        "system": "github-actions", "repository": "bank/models", "run_id": "42", "actor": "someone",
        "ref": "refs/tags/toy-v1.0.0", "sha": COMMIT,
    }  # fmt: skip
    assert not [path for path in package.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


def test_the_command_refuses_a_tag_in_words(sources: Path) -> None:
    command = [sys.executable, "-m", "pellucid", "job", "recipes/toy/recipe.yaml", "--image", "pellucid:1.0"]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--image: expected NAME@sha256:<64 hex digits>, got 'pellucid:1.0'" in done.stderr
    assert "a tag can be moved" in done.stderr


def test_the_commands_of_the_how_to_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "build-in-a-cluster.md").read_text()
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", page)
    assert len(blocks) == 2
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "BASE": IMAGE, "IMAGE": IMAGE}
    script = "\n".join(blocks)
    command = ["bash", "-eu", "-o", "pipefail", "-c", script]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60)
    written = sorted(path.name for path in (tmp_path / "deploy-digits").iterdir())
    assert written == ["Dockerfile", "job.yaml", "workflow.yml"]
    name = yaml.safe_load_all((tmp_path / "deploy-digits" / "job.yaml").read_text())
    assert {document["metadata"]["name"][:19] for document in name} == {"build-digits-1-0-0-"}
