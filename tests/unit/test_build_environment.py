"""Where a build ran: what is known is said, what is not known says why."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pellucid.build import environment, loaded
from pellucid.build.child import Ended
from pellucid.build.environment import (
    describe,
    find_ci,
    find_container,
    find_image,
    repository,
    source_state,
    system,
)
from pellucid.build.loaded import loaded_packages
from pellucid.core import canonical

ENDED = Ended(0, False, [], b"", ["tmp/left"])
IMAGE = "registry.example/pellucid:1@sha256:" + "a" * 64
TOKENS = (
    "GITHUB_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_RUNTIME_TOKEN", "CI_JOB_TOKEN",
    "CI_REPOSITORY_URL", "CI_REGISTRY_PASSWORD", "GIT_URL", "BUILDKITE_AGENT_ACCESS_TOKEN",
    "CIRCLE_OIDC_TOKEN",
)  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that no CI system, container or manifest says anything to."""
    marks = [mark for mark, _ in environment._CI.values()]
    others = [environment.IMAGE, environment.COMMIT, *environment.POD.values(), "container"]
    for name in (*marks, *others, "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def reasons(found: dict[str, Any]) -> dict[str, str]:
    said = [item["field"] for item in found["null_reasons"]]
    assert said == sorted(set(said))
    return {item["field"]: item["reason"] for item in found["null_reasons"]}


def test_commit_and_dirtiness_are_the_recipes_own(tmp_path: Path) -> None:
    recipe, other = tmp_path / "recipe", tmp_path / "other"
    recipe.mkdir()
    other.mkdir()
    assert repository(recipe)[:2] == (None, None)
    git(tmp_path, "init", "-q")
    (recipe / "recipe.yaml").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (other / "unrelated").write_text("b")
    commit, dirty, _ = repository(recipe)
    assert commit is not None
    assert len(commit) == 40
    assert dirty is False
    (recipe / "recipe.yaml").write_text("changed")
    assert repository(recipe)[:2] == (commit, True)
    named = {environment.COMMIT: "b" * 40}
    assert source_state(recipe, named)[:2] == (commit, True), "a checkout is believed before a variable"


def test_without_a_checkout_the_manifest_names_the_commit(tmp_path: Path) -> None:
    commit, dirty, _, why = source_state(tmp_path, {environment.COMMIT: "b" * 40})
    assert (commit, dirty) == ("b" * 40, None)
    assert "no checkout to compare with" in why
    commit, _, why, _ = source_state(tmp_path, {environment.COMMIT: "HEAD; rm\n"})
    assert commit is None
    assert why == "PELLUCID_COMMIT: expected 40 or 64 hex digits, got 'HEAD; rm'"


def test_every_null_has_its_reason(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    found = describe({"backend": "toy"}, ENDED, source_state(tmp_path, os.environ))
    canonical.encode(found)
    assert set(reasons(found)) == {k for k, v in found.items() if v is None}
    assert found["hermetic"]["left_behind"] == ["tmp/left"]
    assert {"gpu", "gpu_uuid", "mig", "driver", "cuda", "commit", "dirty", "ci", "image"} <= set(
        reasons(found)
    )
    bare.setenv("GITHUB_ACTIONS", "true")
    bare.setenv("GITHUB_RUN_ID", "42")
    bare.setenv("PELLUCID_IMAGE", IMAGE)
    bare.setenv("PELLUCID_POD", "build-x")
    bare.setenv("PELLUCID_COMMIT", "c" * 40)
    known = describe({"backend": "toy"}, ENDED, source_state(tmp_path, os.environ))
    canonical.encode(known)
    assert known["ci"]["run_id"] == "42"
    assert known["image"] == IMAGE
    assert known["container"] == {"kind": "kubernetes", "pod": "build-x"}
    assert known["commit"] == "c" * 40
    assert {"ci", "image", "container", "commit"} & set(reasons(known)) == set()
    assert "dirty" in reasons(known)


@pytest.mark.parametrize("name", list(environment._CI))
def test_a_run_of_each_ci_system_is_named_and_no_token_is_taken(name: str) -> None:
    mark, fields = environment._CI[name]
    assert not set(fields.values()) & set(TOKENS)
    said = dict.fromkeys(TOKENS, "s3cret") | {mark: "true"}
    said |= {variable: f"value-{field}" for field, variable in fields.items()}
    assert find_ci(said) == {"system": name} | {field: f"value-{field}" for field in fields}
    assert "s3cret" not in str(find_ci(dict.fromkeys(TOKENS, "s3cret") | {mark: "true"}))


def test_a_run_is_plain_text_of_some_length() -> None:
    found = find_ci(
        {"GITHUB_ACTIONS": "true", "GITHUB_REF": "a\x1b[31m\udc80\n" + "b" * 500, "GITHUB_SHA": ""}
    )
    assert found == {"system": "github-actions", "ref": ("a[31m" + "b" * 500)[:200]}
    canonical.encode(found)
    assert find_ci({"GITHUB_RUN_ID": "42"}) is None, "a variable alone is no CI system"


@pytest.mark.parametrize(("mark", "kind"), [(".dockerenv", "docker"), ("run/.containerenv", "podman")])
def test_a_container_is_known_by_its_marks(mark: str, kind: str, tmp_path: Path) -> None:
    assert find_container({}, tmp_path) is None
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).touch()
    assert find_container({}, tmp_path) == {"kind": kind}
    assert find_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == {"kind": "kubernetes"}
    assert find_container({"container": "lxc"}, tmp_path / "nothing") == {"kind": "other"}


def test_an_image_is_said_by_digest_or_not_at_all() -> None:
    assert find_image({"PELLUCID_IMAGE": IMAGE}, None) == (IMAGE, "")
    assert find_image({}, None) == (None, "built outside a container")
    assert find_image({}, {"kind": "docker"}) == (None, "PELLUCID_IMAGE does not name it")
    for wrong in ("registry.example/pellucid:1", "sha256:" + "a" * 64, "\x1b" * 1000):
        image, why = find_image({"PELLUCID_IMAGE": wrong}, None)
        assert image is None
        assert why.startswith("PELLUCID_IMAGE: expected NAME@sha256:")
        assert len(why) < 300
        assert why.isprintable()


def test_a_gpu_is_described_as_far_as_the_backend_asked() -> None:
    device = {"kind": "gpu", "name": "Toy GPU", "architecture": "sm89", "isa": [], "driver_api": 13000}
    known = environment._gpu({"device": device})
    assert {k: v for k, (v, _) in known.items()} == {
        "gpu": "Toy GPU", "gpu_uuid": None, "mig": None, "driver": "13000", "cuda": None,
    }  # fmt: skip
    assert all(why for value, why in known.values() if value is None)
    more = {"uuid": "GPU-1", "mig": "1g.10gb", "driver": "580.1", "cuda": "13.0"}
    whole = environment._gpu({"device": device | more})
    assert [v for v, _ in whole.values()] == ["Toy GPU", "GPU-1", "1g.10gb", "580.1", "13.0"]
    on_cpu = environment._gpu({"device": {"kind": "cpu"}})
    assert set(on_cpu.values()) == {(None, "this backend runs on the CPU")}
    absent = environment._gpu({"device": None, "null_reasons": [{"field": "device", "reason": "no driver"}]})
    assert set(absent.values()) == {(None, "no driver")}


def test_the_system_and_what_is_loaded_have_names() -> None:
    assert all(system().values())
    names = {package["name"] for package in loaded_packages()}
    assert {"pytest", "msgspec"} <= names


def test_modules_of_a_distribution_are_those_of_its_record() -> None:
    infos = [info for folder in sys.path for info in Path(folder).glob("*.dist-info") if folder]
    read = 0
    for info in infos:
        if (info / "top_level.txt").exists() or not (info / "RECORD").exists():
            continue
        with (info / "RECORD").open(newline="") as file:
            paths = [row[0] for row in csv.reader(file) if row]
        assert loaded._modules_of(info) == {path.split("/")[0].split(".")[0].encode() for path in paths}
        read += 1
    assert read


def test_modules_of_a_distribution_are_those_it_names_where_it_does(tmp_path: Path) -> None:
    (tmp_path / "RECORD").write_text('"quoted/a, b.py",sha256=x,1\nsingle.py,sha256=y/z,2\nbare,,\n')
    assert loaded._modules_of(tmp_path) == {b"quoted", b"single", b"bare"}
    (tmp_path / "top_level.txt").write_text("one\ntwo\n")
    assert loaded._modules_of(tmp_path) == {b"one", b"two"}
    assert loaded._modules_of(tmp_path / "none") == set()
