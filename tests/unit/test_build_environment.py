"""Where a build ran: what is known is said, what is not known says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pellucid.build import environment
from pellucid.build.child import Ended
from pellucid.build.environment import describe, loaded_packages, repository, system
from pellucid.core import canonical

ENDED = Ended(0, False, [], b"", ["tmp/left"])


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


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


def test_every_null_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*environment._CI, environment._IMAGE):
        monkeypatch.delenv(name, raising=False)
    found = describe({"backend": "toy"}, ENDED, tmp_path)
    canonical.encode(found)
    assert {r["field"] for r in found["null_reasons"]} == {k for k, v in found.items() if v is None}
    assert found["hermetic"]["left_behind"] == ["tmp/left"]
    monkeypatch.setenv("GITHUB_RUN_ID", "42")
    monkeypatch.setenv("PELLUCID_IMAGE_DIGEST", "sha256:" + "a" * 64)
    known = describe({"backend": "toy"}, ENDED, tmp_path)
    assert known["ci"] == {"GITHUB_RUN_ID": "42"}
    assert known["image"] == "sha256:" + "a" * 64
    assert {"ci", "image"} & {r["field"] for r in known["null_reasons"]} == set()


def test_the_system_and_what_is_loaded_have_names() -> None:
    assert all(system().values())
    names = {package["name"] for package in loaded_packages()}
    assert {"pytest", "msgspec"} <= names
