"""``pellucid build`` and ``pellucid qualify`` as a person and as a machine meet them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.app.site import create_site
from pellucid.testing.builds import write_recipe

pytestmark = pytest.mark.e2e


def pellucid(*arguments: str | Path, columns: int = 200) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"COLUMNS": f"{columns}"}
    return subprocess.run(
        [sys.executable, "-m", "pellucid", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )


def json_of(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    done = pellucid(*arguments, "--json")
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli") / "site"
    create_site(root, node="test1")
    rows = np.random.default_rng(0).standard_normal((40, 20)).astype("<f4")
    for name, said in (("good", {"validation": {"data": "v.npz"}}), ("blind", {})):
        folder = root / "recipes" / name
        write_recipe(folder, "credit_like", name=name, **said)
        np.savez(folder / "v.npz", features=rows)
    return root


def test_build_sign_qualify(site: Path) -> None:
    code, built = json_of("build", site / "recipes/good/recipe.yaml", "--site", site)
    assert (code, built["name"], built["fused_layers"]) == (0, "good", 1)
    assert Path(built["folder"]).is_dir()
    code, _ = json_of("sign", built["folder"], "--site", site)
    assert code == 0
    archive = Path(built["folder"] + ".tar.gz")
    done = pellucid("qualify", archive, "--site", site)
    assert done.returncode == 0, done.stderr
    for words in ("accuracy gate", "passed", "variance", "rows/s", "not measured"):
        assert words in done.stdout
    code, again = json_of("qualify", archive, "--site", site)
    assert (code, again["passed"], again["package"]) == (0, True, built["package"])
    code, shown = json_of("ledger", "get", again["entry"], "--site", site)
    assert code == 0
    assert "qualification" in json.dumps(shown)
    assert shown["openings"] == "none"
    assert_found_by_its_model(site)


def assert_found_by_its_model(site: Path) -> None:
    for command in ("verify", "inspect"):
        code, found = json_of(command, "good:1.0.0", "--site", site)
        assert (code in (0, 4), found["name"]) == (True, "good")
    code, found = json_of("ledger", "show", "--model", "good", "--site", site)
    assert code == 0
    assert {each["type"] for each in found["entries"]} == {"build", "package", "qualification"}
    assert {(each["model"], each["version"]) for each in found["entries"]} == {("good", "1.0.0")}


def test_what_comes_next_can_be_pasted_as_it_stands(tmp_path: Path) -> None:
    site = create_site(tmp_path / "a site").root
    recipe = write_recipe(tmp_path / "recipe", "credit_like")
    done = pellucid("build", recipe, "--site", site, columns=60)
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:3] == ["Next:", "pellucid", "sign"]
    done = pellucid(*words[2:])
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_not_signed_is_said_to_be_so(site: Path) -> None:
    folder = write_recipe(site / "recipes/unsigned", "credit_like", name="unsigned")
    _, built = json_of("build", folder, "--site", site)
    for command in ("rebuild", "inspect", "verify"):
        code, error = json_of(command, "unsigned:1.0.0", "--site", site)
        assert (code, error["code"]) == (2, "not_found")
        assert error["hint"] == f"sign it first: pellucid sign {built['folder']}"


def test_a_gate_that_fails_is_attached_and_exits_five(site: Path) -> None:
    """No rows, no accuracy: FP32 may be built without, since its graph is the source's."""
    _, built = json_of("build", site / "recipes/blind/recipe.yaml", "--site", site)
    assert pellucid("sign", built["folder"], "--site", site).returncode == 0
    code, found = json_of("qualify", built["folder"] + ".tar.gz", "--site", site)
    assert (code, found["passed"]) == (5, False)
    assert found["qualification"]["accuracy"]["findings"] == ["samples: expected a validation set, got none"]
    assert found["entry"]


def test_a_name_moves_no_cursor_and_turns_no_line(site: Path, tmp_path: Path) -> None:
    done = pellucid("build", tmp_path / "a\nhint: all is well \u202e\x1b[2J.yaml", "--site", site)
    assert done.returncode == 2
    assert r"a\nhint: all is well \u202e\x1b[2J.yaml" in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_a_link_that_leads_to_itself_is_no_recipe(site: Path, tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    code, error = json_of("build", tmp_path / "loop.yaml", "--site", site)
    assert (code, error["code"]) == (2, "not_found")


def test_refusals_say_what_to_do(site: Path, tmp_path: Path) -> None:
    code, error = json_of("build", tmp_path / "nothing.yaml", "--site", site)
    assert (code, error["code"]) == (2, "not_found")
    half = write_recipe(tmp_path / "half", "credit_like", precision="fp16")
    done = pellucid("build", half, "--site", site)
    assert done.returncode == 2
    assert "risky choice" in done.stderr
    broken = write_recipe(tmp_path / "broken", b"no onnx", name="broken")
    done = pellucid("build", broken, "--site", site)
    assert done.returncode == 5
    assert "expected ONNX" in done.stderr
    assert "build.log.jsonl" in done.stderr
    code, error = json_of("qualify", tmp_path / "nothing.tar.gz", "--site", site)
    assert code == 2
