"""Where a build ran: libraries as loaded, processor, system, source state, who and which CI run.

Part of it only the worker can say (``loaded``), part only the job (git, who, CI, container).
Whatever is not known is null with a reason. Source: spec/package.md, section 10; requirement B5.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pellucid.build.child import Ended, measures
from pellucid.core.image import parse_image
from pellucid.errors import UsageError

IMAGE: Final = "PELLUCID_IMAGE"
COMMIT: Final = "PELLUCID_COMMIT"
POD: Final = {"pod": "PELLUCID_POD", "namespace": "PELLUCID_POD_NAMESPACE", "node": "PELLUCID_POD_NODE"}
_GIT_S: Final = 10
_TEXT_MAX: Final = 200  # limit: names of runs and pods are shorter
_MARKS: Final = (("docker", "/.dockerenv"), ("podman", "/run/.containerenv"))

# What names a run, by system: the variable that gives the system away, then field -> variable. Only
# these are read: tokens stand in others, and addresses of repositories may carry one.
_CI: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "github-actions": ("GITHUB_ACTIONS", {
        "repository": "GITHUB_REPOSITORY", "run_id": "GITHUB_RUN_ID", "run_attempt": "GITHUB_RUN_ATTEMPT",
        "workflow": "GITHUB_WORKFLOW", "workflow_ref": "GITHUB_WORKFLOW_REF", "job": "GITHUB_JOB",
        "actor": "GITHUB_ACTOR", "event": "GITHUB_EVENT_NAME", "ref": "GITHUB_REF", "sha": "GITHUB_SHA",
    }),
    "gitlab-ci": ("GITLAB_CI", {
        "repository": "CI_PROJECT_PATH", "run_id": "CI_PIPELINE_ID", "job": "CI_JOB_NAME",
        "job_id": "CI_JOB_ID", "actor": "GITLAB_USER_LOGIN", "event": "CI_PIPELINE_SOURCE",
        "ref": "CI_COMMIT_REF_NAME", "sha": "CI_COMMIT_SHA",
    }),
    "jenkins": ("JENKINS_URL", {
        "run_id": "BUILD_NUMBER", "workflow": "JOB_NAME", "job": "BUILD_TAG", "actor": "BUILD_USER_ID",
        "ref": "GIT_BRANCH", "sha": "GIT_COMMIT",
    }),
    "buildkite": ("BUILDKITE", {
        "repository": "BUILDKITE_PIPELINE_SLUG", "run_id": "BUILDKITE_BUILD_ID", "job": "BUILDKITE_JOB_ID",
        "ref": "BUILDKITE_BRANCH", "sha": "BUILDKITE_COMMIT",
    }),
    "circleci": ("CIRCLECI", {
        "repository": "CIRCLE_PROJECT_REPONAME", "run_id": "CIRCLE_BUILD_NUM",
        "workflow": "CIRCLE_WORKFLOW_ID", "job": "CIRCLE_JOB", "actor": "CIRCLE_USERNAME",
        "ref": "CIRCLE_BRANCH", "sha": "CIRCLE_SHA1",
    }),
}  # fmt: skip


State = tuple[str | None, bool | None, str, str]
"""Commit and dirtiness of a repository, then why each is not known."""


def describe(worker: Mapping[str, Any], ended: Ended, state: State) -> dict[str, Any]:
    """``environment.json`` of a build, canonical profile.

    Args:
        worker: What the worker reported: backend versions, device, packages.
        ended: How its process ended and what it left behind.
        state: Of the repository that the recipe's folder lies in.
    """
    said = os.environ
    commit, dirty, commit_reason, dirty_reason = state
    container = find_container(said)
    image, image_reason = find_image(said, container)
    found = {
        "commit": (commit, commit_reason),
        "dirty": (dirty, dirty_reason),
        "ci": (find_ci(said), "no known CI system started this build"),
        "container": (container, "no sign of a container"),
        "image": (image, image_reason),
        **_gpu(worker),
    }
    reasons = [{"field": k, "reason": reason} for k, (value, reason) in found.items() if value is None]
    return {
        **worker,
        **{name: value for name, (value, _) in found.items()},
        "system": system(),
        "who": {"user": _user(), "host": _plain(platform.node())},
        "hermetic": {**measures().report, "left_behind": ended.left_behind[:20]},
        "null_reasons": sorted([*worker.get("null_reasons", []), *reasons], key=lambda item: item["field"]),
    }


def _gpu(worker: Mapping[str, Any]) -> dict[str, tuple[str | None, str]]:
    """Facts of the GPU, or why there are none; the backend says what its driver told it."""
    device = worker.get("device")
    fields = {"gpu": "name", "gpu_uuid": "uuid", "mig": "mig", "driver": "driver", "cuda": "cuda"}
    if device is None:
        reasons = [r["reason"] for r in worker.get("null_reasons", []) if r["field"] == "device"]
        why = reasons[0] if reasons else "the backend names no device"
        return dict.fromkeys(fields, (None, why))
    if device["kind"] != "gpu":
        return dict.fromkeys(fields, (None, "this backend runs on the CPU"))
    known = {"driver": device.get("driver_api"), **device}
    reasons_of = {
        "gpu_uuid": "the backend did not ask the driver for it",
        "mig": "the backend sees a whole GPU, or did not ask for its slice",
        "cuda": "the driver names its own interface only",
    }
    return {
        field: (None if (value := known.get(key)) is None else str(value), reasons_of.get(field, "not said"))
        for field, key in fields.items()
    }


def find_ci(said: Mapping[str, str]) -> dict[str, str] | None:
    """The run that started this build, by its system's own variables; never a token."""
    for name, (mark, fields) in _CI.items():
        if said.get(mark):
            values = {field: _plain(said.get(variable, "")) for field, variable in fields.items()}
            return {"system": name, **{field: value for field, value in values.items() if value}}
    return None


def find_container(said: Mapping[str, str], root: Path = Path("/")) -> dict[str, str] | None:
    """Kind of container this runs in, and its pod as the manifest says; ``None`` without a sign of one."""
    pod = {field: value for field, name in POD.items() if (value := _plain(said.get(name, "")))}
    if said.get("KUBERNETES_SERVICE_HOST") or pod:
        return {"kind": "kubernetes", **pod}
    for kind, mark in _MARKS:
        if (root / mark.lstrip("/")).exists():
            return {"kind": kind}
    return {"kind": "other"} if said.get("container") else None


def find_image(said: Mapping[str, str], container: Mapping[str, str] | None) -> tuple[str | None, str]:
    """Image this runs in as it was started by, or why it is not known: no process can see its own."""
    named = said.get(IMAGE, "")
    if not named:
        return None, f"{IMAGE} does not name it" if container else "built outside a container"
    try:
        return str(parse_image(named, subject=IMAGE)), ""
    except UsageError as error:
        return None, error.message


def system() -> dict[str, str]:
    """Operating system, kernel, C library."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return {
        "name": name or platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "architecture": platform.machine(),
    }


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:_TEXT_MAX]


def _user() -> str:
    try:
        return _plain(getpass.getuser())
    except (KeyError, OSError):
        return str(os.getuid())


def source_state(folder: Path, said: Mapping[str, str]) -> State:
    """Commit and dirtiness, then why each is not known.

    A container has no checkout: there the manifest names the commit, and nobody has looked whether
    the files are still those of it.
    """
    commit, dirty, reason = repository(folder)
    named = said.get(COMMIT, "")
    if commit is not None:
        return commit, dirty, "", reason
    if not named:
        return None, None, f"{reason}, and {COMMIT} names no commit", reason
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", named):
        wrong = f"{COMMIT}: expected 40 or 64 hex digits, got {_plain(named)!r:.80}"
        return None, None, wrong, wrong
    return named, None, "", f"{COMMIT} named the commit; the recipe's folder is no checkout to compare with"


def repository(folder: Path) -> tuple[str | None, bool | None, str]:
    """Commit and dirtiness of the folder's repository, and why they are not known."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None, "the recipe's folder is in no git repository that git will read"
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return commit.strip(), None if changes is None else bool(changes), "git status failed"


def _git(folder: Path, *arguments: str) -> str | None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], env=env | {"GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
