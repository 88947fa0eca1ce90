"""Where a build ran: libraries as loaded, processor, system, source state, who and which CI run.

Part of it only the worker can say (what it loaded), part only the job (git, who, CI). Whatever is
not known is null with a reason.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pellucid.build.child import Ended, measures

_CI: Final = (  # variables that name a run, by system; values go in as text, none is a secret
    "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_SHA", "GITHUB_WORKFLOW",
    "CI_PROJECT_PATH", "CI_PIPELINE_ID", "CI_JOB_ID", "BUILD_TAG", "BUILDKITE_BUILD_ID", "CIRCLE_BUILD_NUM",
)  # fmt: skip
_IMAGE: Final = "PELLUCID_IMAGE_DIGEST"
_GIT_S: Final = 10


def loaded_packages() -> list[dict[str, str]]:
    """Distributions whose modules this process has loaded, sorted; for the worker to call last."""
    tops = {name.partition(".")[0] for name in sys.modules}
    owners = importlib.metadata.packages_distributions()
    names = {name for top in tops for name in owners.get(top, [])}
    return [{"name": name, "version": importlib.metadata.version(name)} for name in sorted(names)]


def describe(worker: Mapping[str, Any], ended: Ended, folder: Path) -> dict[str, Any]:
    """``environment.json`` of a build, canonical profile.

    Args:
        worker: What the worker reported: backend versions, device, packages.
        ended: How its process ended and what it left behind.
        folder: The recipe's folder, for the state of its repository.
    """
    commit, dirty, git_reason = repository(folder)
    image = os.environ.get(_IMAGE)
    run = {name: os.environ[name][:200] for name in _CI if os.environ.get(name)}
    gpu, driver, why = _gpu(worker)
    reasons = list(worker.get("null_reasons", []))
    for name, value, reason in (
        ("gpu", gpu, why),
        ("driver", driver, why),
        ("cuda", None, why or "the driver names its own interface only"),
        ("commit", commit, git_reason),
        ("dirty", dirty, git_reason),
        ("image", image, f"no container image was named by {_IMAGE}"),
        ("ci", run or None, "no known CI system started this build"),
    ):
        if value is None:
            reasons.append({"field": name, "reason": reason})
    return {
        **worker,
        "system": system(),
        "commit": commit,
        "dirty": dirty,
        "who": {"user": _user(), "host": platform.node()[:200]},
        "ci": run or None,
        "image": image,
        "gpu": gpu,
        "driver": driver,
        "cuda": None,
        "hermetic": {**measures().report, "left_behind": ended.left_behind[:20]},
        "null_reasons": sorted(reasons, key=lambda item: item["field"]),
    }


def _gpu(worker: Mapping[str, Any]) -> tuple[str | None, str | None, str]:
    """Name and driver of the GPU, or why there are none."""
    device = worker.get("device")
    if device is None:
        reasons = [r["reason"] for r in worker.get("null_reasons", []) if r["field"] == "device"]
        return None, None, reasons[0] if reasons else "the backend names no device"
    if device["kind"] != "gpu":
        return None, None, "this backend runs on the CPU"
    return device["name"], str(device["driver_api"]), ""


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


def _user() -> str:
    try:
        return getpass.getuser()[:100]
    except (KeyError, OSError):
        return str(os.getuid())


def repository(folder: Path) -> tuple[str | None, bool | None, str]:
    """Commit and dirtiness of the folder's repository, and why they are not known."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None, "the recipe's folder is in no git repository that git will read"
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return commit.strip(), bool(changes), "git status failed"


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
