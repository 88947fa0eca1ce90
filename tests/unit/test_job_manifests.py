"""What a job's manifests give away, and what they ask for: as little as can be."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pellucid.app.job import Wanted, manifests, write_manifests
from pellucid.build import manifests_image, manifests_workflow
from pellucid.core.digest import sha256
from pellucid.errors import UsageError
from pellucid.testing.builds import write_recipe

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "registry.example/team/pellucid@sha256:" + "ab" * 32
BASE = "python:3.12-slim@sha256:" + "cd" * 32
WRITABLE = {"/log", "/tmp"}
SECRET = re.compile(r"(?i)secret|token|password|credential|private|api_?key")
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    limits = {"timeout_s": 100, "memory_bytes": 2**31, "file_bytes": 2**20 + 1}
    return write_recipe(tmp_path / "toy", "credit_like", threads=3, limits=limits)


def written(recipe: Path, **changes: Any) -> dict[str, str]:
    return manifests(recipe, Wanted(**({"image": IMAGE, "base": BASE} | changes)))


def documents(texts: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    policy, job = yaml.safe_load_all(texts["job.yaml"])
    return policy, job


def containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    pod = job["spec"]["template"]["spec"]
    return [*pod["initContainers"], *pod["containers"]]


def values(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from values(inner)


def test_the_pod_gets_no_right_it_does_not_need(recipe: Path) -> None:
    _, job = documents(written(recipe))
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["restartPolicy"] == "Never"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(job):
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
        assert context["readOnlyRootFilesystem"] is True
    found = {key for key, _ in values(job)}
    hosts = {"hostNetwork", "hostPID", "hostIPC", "hostPath", "hostPort", "serviceAccountName", "devices"}
    assert not found & (hosts | {"secret", "secretKeyRef", "secretRef", "envFrom", "add", "projected"})


def test_only_log_and_tmp_can_be_written(recipe: Path) -> None:
    _, job = documents(written(recipe))
    volumes = {v["name"]: v for v in job["spec"]["template"]["spec"]["volumes"]}
    assert set(volumes) == {"models", "log", "tmp"}
    assert volumes["models"]["persistentVolumeClaim"]["readOnly"] is True
    assert volumes["tmp"]["emptyDir"]["sizeLimit"] == str(3 * (2**20 + 1))
    for container in containers(job):
        mounts = container["volumeMounts"]
        assert {m["mountPath"] for m in mounts if not m.get("readOnly")} == WRITABLE
    assert [m["mountPath"] for m in containers(job)[1]["volumeMounts"] if m.get("readOnly")] == ["/models"]


def test_the_policy_denies_everything_to_exactly_these_pods(recipe: Path) -> None:
    policy, job = documents(written(recipe))
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert policy["metadata"]["namespace"] == job["metadata"]["namespace"]
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    assert (policy["spec"]["ingress"], policy["spec"]["egress"]) == ([], [])


def test_limits_come_from_the_recipe(recipe: Path) -> None:
    _, job = documents(written(recipe))
    spec = job["spec"]
    assert spec["activeDeadlineSeconds"] == 3 * 100 + 600
    assert spec["backoffLimit"] == 0
    assert spec["ttlSecondsAfterFinished"] > 0
    for container in containers(job):
        assert container["resources"] == {
            "requests": {"cpu": "3", "memory": "3Gi"}, "limits": {"cpu": "4", "memory": "3Gi"},
        }  # fmt: skip
    assert job["metadata"]["annotations"] == {"pellucid-recipe": sha256(recipe.read_bytes())}


def test_the_environment_says_where_it_runs_and_holds_no_secret(recipe: Path) -> None:
    _, job = documents(written(recipe, commit="e" * 40))
    for container in containers(job):
        env = {item["name"]: item for item in container["env"]}
        assert len(env) == len(container["env"])
        assert env["PELLUCID_IMAGE"]["value"] == container["image"] == IMAGE
        assert env["PELLUCID_COMMIT"]["value"] == "e" * 40
        assert env["ORT_DISABLE_TELEMETRY"]["value"] == "1"
        fields = {n: i["valueFrom"]["fieldRef"]["fieldPath"] for n, i in env.items() if "valueFrom" in i}
        assert fields["PELLUCID_POD"] == "metadata.name"
        assert fields["PELLUCID_POD_NODE"] == "spec.nodeName"
        assert not [name for name in env if SECRET.search(name)]
    assert "PELLUCID_COMMIT" not in written(recipe)["job.yaml"]


def test_images_stand_by_digest_everywhere(recipe: Path) -> None:
    texts = written(recipe)
    _, job = documents(texts)
    assert {c["image"] for c in containers(job)} == {IMAGE}
    froms = re.findall(r"(?m)^FROM (\S+)", texts["Dockerfile"])
    assert froms == [BASE, BASE]
    assert yaml.safe_load(texts["workflow.yml"])["jobs"]["build"]["env"]["IMAGE"] == IMAGE
    for option, said in itertools.product(("image", "base"), ("python:3.12", "python", "python@sha256:12")):
        with pytest.raises(UsageError, match=f"--{option}: expected NAME@sha256"):
            written(recipe, **{option: said})
    with pytest.raises(UsageError, match="expected --image"):
        written(recipe, image=None, base=None)


def test_a_gpu_is_asked_for_only_by_whom_needs_it(recipe: Path, tmp_path: Path) -> None:
    assert "nvidia.com/gpu" not in written(recipe)["job.yaml"]
    rtx = write_recipe(tmp_path / "rtx", "credit_like", **RTX)
    assert "nvidia.com/gpu" not in written(rtx)["job.yaml"]
    assert "--gpus" not in written(rtx)["workflow.yml"]
    asked = written(rtx, gpu=True)
    limits = [c["resources"]["limits"] for c in containers(documents(asked)[1])]
    assert ["nvidia.com/gpu" in each for each in limits] == [False, True]
    assert " --gpus 1 " in asked["workflow.yml"]
    assert yaml.safe_load(asked["workflow.yml"])["jobs"]["build"]["runs-on"] == ["self-hosted", "gpu"]


def test_a_builder_that_times_kernels_asks_for_its_gpu(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "x", "credit_like", **(RTX | {"backend": "tensorrt"}))
    texts = written(path, base=None)
    limits = [c["resources"]["limits"] for c in containers(documents(texts)[1])]
    assert [each.get("nvidia.com/gpu") for each in limits] == [None, "1"]
    assert documents(texts)[1]["spec"]["template"]["spec"]["tolerations"]
    assert " --gpus 1 " in texts["workflow.yml"]
    assert "nvidia.com/gpu" not in written(path, base=None, gpu=False)["job.yaml"]


def test_names_fit_a_cluster_whatever_the_model_is_called(tmp_path: Path) -> None:
    names = set()
    for version in ("1.2.3-rc.1", "1.2.3-rc.2"):
        path = write_recipe(tmp_path / version, "credit_like", name="a_b." + "c" * 57 + "d", version=version)
        _, job = documents(written(path, path="x/recipe.yaml"))
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", job["metadata"]["name"])
        names.add(job["metadata"]["name"])
    assert len(names) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": "../recipe.yaml"}, "--path"),
        ({"path": "/etc/recipe.yaml"}, "--path"),
        ({"path": 'a"; rm -rf $HOME #'}, "--path"),
        ({"path": "${{ github.token }}"}, "--path"),
        ({"path": "-e/recipe.yaml"}, "--path"),
        ({"commit": "main"}, "--commit"),
        ({"runner": "x, evil"}, "--runner"),
        ({"pins": ("actions/checkout=v5",)}, "--pin"),
        ({"pins": ("actions/checkout=08c6903",)}, "--pin"),
        ({"pins": ("actions/other=" + "a" * 40,)}, "--pin"),
        ({"places": (("namespace", "a/b"),)}, "--namespace"),
        ({"places": (("log_claim", "-x"),)}, "--log-claim"),
    ],
)
def test_what_a_shell_or_a_yaml_reader_could_misread_is_refused(
    recipe: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        written(recipe, **changes)
    assert caught.value.message.startswith(f"{said}: expected ")


def test_a_validation_path_that_a_workflow_would_expand_is_refused(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "x", "credit_like", validation={"data": "${{ github.token }}"})
    with pytest.raises(UsageError, match=r"validation\.data"):
        written(path)
    plain = write_recipe(tmp_path / "y", "credit_like", validation={"data": "data/v.npz"})
    assert (
        '--data "/models/models/toy/data/v.npz"'
        in written(plain, path="models/toy/recipe.yaml")["workflow.yml"]
    )


def test_the_workflow_grants_each_job_the_least(recipe: Path) -> None:
    whole = yaml.safe_load(written(recipe)["workflow.yml"])
    assert whole["permissions"] == {}
    jobs = whole["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "sign": {"id-token": "write", "attestations": "write"},
        "publish": {"contents": "write"},
    }
    assert (jobs["sign"]["needs"], jobs["publish"]["needs"]) == ("build", "sign")
    assert "run" not in {key for step in jobs["sign"]["steps"] for key in step}, "no code beside the identity"
    assert all(job["timeout-minutes"] for job in jobs.values())
    checkout = jobs["build"]["steps"][0]
    assert checkout["with"]["persist-credentials"] is False
    assert "secrets." not in written(recipe)["workflow.yml"]


def test_actions_are_pinned_by_whole_commits(recipe: Path) -> None:
    text = written(recipe)["workflow.yml"]
    uses = re.findall(r"(?m)^\s*uses: (.*)$", text)
    assert len(uses) == 6
    assert all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40} # \S.*", each) for each in uses)
    other = written(recipe, pins=("actions/checkout=" + "f" * 40,))["workflow.yml"]
    assert f"actions/checkout@{'f' * 40} # by --pin" in other
    assert {each.partition("@")[0] for each in uses} == set(manifests_workflow.PINS)


def test_the_container_of_the_workflow_is_as_shut_as_the_pod(recipe: Path) -> None:
    steps = yaml.safe_load(written(recipe)["workflow.yml"])["jobs"]["build"]["steps"]
    (script,) = [step["run"] for step in steps if "docker run" in step.get("run", "")]
    for said in (
        "--network none", "--read-only", "--cap-drop ALL", "no-new-privileges", "--user 65532:65532",
        "--pull never", '"$GITHUB_WORKSPACE:/models:ro"', f"--memory {2**31 + 2**30}",
    ):  # fmt: skip
        assert said in script
    passed = re.findall(r"--env (\w+)", script)
    assert not [name for name in passed if SECRET.search(name)]
    assert subprocess.run(["bash", "-n", "-c", script], capture_output=True).returncode == 0


@pytest.mark.parametrize("backend", list(manifests_image.EXTRA_LOCKS))
def test_the_image_is_made_of_what_is_here_and_pinned(backend: str, tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "x", "credit_like", **(RTX if backend == "tensorrt-rtx" else {}))
    lines = written(path)["Dockerfile"].splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / source).exists() for source in itertools.chain(*copied))
    locks = [source for source in itertools.chain(*copied) if source.startswith("requirements/")]
    for lock in locks:
        pinned = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
        assert all("==" in each and "--hash=sha256:" in each for each in pinned)
    runs = [line for line in lines if line.startswith("RUN ") and " pip " in line]
    assert all("--require-hashes" in run or ("--network=none" in run and "--no-index" in run) for run in runs)
    last = lines[max(n for n, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 65532:65532" in last
    assert "ENV ORT_DISABLE_TELEMETRY=1" in last
    assert not [line for line in last if line.startswith(("RUN ", "ADD ", "EXPOSE "))]
    assert ("NVIDIA" in "\n".join(lines)) == (backend != "onnxruntime")


def test_a_backend_without_a_lock_says_what_to_do() -> None:
    from pellucid.core.image import parse_image

    with pytest.raises(UsageError) as caught:
        manifests_image.dockerfile("tensorrt", parse_image(BASE))
    assert "image of your own" in caught.value.hint


def test_files_of_others_are_never_replaced(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = [path.name for path in write_manifests(recipe, Wanted(IMAGE, BASE), out)]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    write_manifests(recipe, Wanted(IMAGE, BASE, commit="e" * 40), out)
    assert "e" * 40 in (out / "job.yaml").read_text()
    (out / "Dockerfile").write_text("FROM scratch\n")
    (out / "job.yaml").unlink()
    with pytest.raises(UsageError, match="earlier `pellucid job`"):
        write_manifests(recipe, Wanted(IMAGE, BASE), out)
    assert not (out / "job.yaml").exists(), "nothing is written when one file is another's"


def test_the_examples_are_what_the_command_writes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy" / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    ours = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "deploy" / "digits").iterdir()}
    assert kept == ours, "run: python deploy/generate.py"
