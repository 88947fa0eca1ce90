"""X3: the same model, slower elsewhere. The diff of two builds names layer, tactics and reason first."""

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

from pellucid.app.build import build
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site
from pellucid.testing.builds import write_recipe

pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
pytestmark = pytest.mark.e2e
DATA = Path(__file__).parent / "data"
HALF: dict[str, Any] = {
    "precision": "fp16", "validation": {"data": "v.npz"},
    "reasons": [{"choice": "precision", "reason": "sm75 has no FP32 matrix kernels", "reviewer": "a test"}],
}  # fmt: skip
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "licence_ack": True}


def pellucid(*arguments: str | Path, width: str = "200") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pellucid", *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | {"COLUMNS": width}, timeout=300,
    )  # fmt: skip


def json_of(*arguments: str | Path) -> dict[str, Any]:
    done = pellucid(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return create_site(tmp_path_factory.mktemp("diff") / "site", node="test1")


@pytest.fixture(scope="module")
def built(site: Site) -> dict[str, Path]:
    """One model in FP16 for two targets (signed), and in FP32 (not signed)."""
    rows = np.random.default_rng(3).standard_normal((64, 1, 8, 8)).astype("<f4")
    made = {}
    for number, (key, target, more) in enumerate(
        [("sm75", "sm75", HALF), ("sm80", "sm80", HALF), ("fp32", "sm80", {})]
    ):
        folder = site.path("recipes") / key
        changes = RTX | more | {"name": "digits", "version": f"1.0.{number}", "target": target}
        recipe = write_recipe(folder, "digits_like", **changes)
        np.savez(folder / "v.npz", image=rows)
        made[key] = build(site, recipe).folder
    for key in ("sm75", "sm80"):
        made[key] = sign_folder(site, made[key]).archive
    return made


def test_a_convolution_that_lost_its_winograd_tactic_is_named_first() -> None:
    files = DATA / "classic-fast.jsonl", DATA / "classic-slow.jsonl"
    done = pellucid("diff", "--logs", *files)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("layer conv2 + relu2 runs ampere_fp16_winograd_128x128_ldg8_relu_align8")
    for words in (
        "(0.187 ms) in A", "_aligna1_alignc1 (0.409 ms) in B", "it lost its Winograd tactic",
        "alignment 8 by the tactic's name, vectors of 8 by the format in A, 1 by the tactic's name",
        "B did not time the tactic of A",
    ):  # fmt: skip
        assert words in first
    assert "form: classic, not verified against a real log" in done.stdout
    back = json_of("diff", "--logs", *reversed(files))
    assert "it gained its Winograd tactic" in back["first"]
    same = json_of("diff", "--logs", files[0], files[0])
    assert (same["differences"], same["first"]) == ([], "no difference in anything that was compared")


def test_two_targets_differ_where_the_builder_decided_otherwise(site: Site, built: dict[str, Path]) -> None:
    found = json_of("diff", built["sm75"], "digits:1.0.1", "--site", site.root)
    assert found["a"]["trust"].startswith("verified: every byte is signed by key ")
    assert found["b"]["trust"].startswith("verified")
    assert found["first"].startswith(
        "target sm75 in A, sm80 in B, the likely cause: layer fc runs runtime_fusion in A and gemm chosen at "
        "run time in B; seen in: "
    )
    assert "tensor shape [-1, 16] in A, [-1, 10] in B" in found["first"]
    subjects = {(d["section"], d["subject"]) for d in found["differences"]}
    assert {("recipe", "target"), ("engine", "bytes"), ("memory", "weights_bytes")} <= subjects
    assert "graph" in found["same"]
    assert "precision" in found["same"]
    assert found["not_compared"]["ranges"] == "neither says"


def test_fp16_against_fp32_names_precision_and_what_is_not_signed(site: Site, built: dict[str, Path]) -> None:
    found = json_of("diff", built["fp32"], built["sm80"], "--site", site.root)
    assert found["a"]["trust"].startswith("not signed")
    assert "precision FP32 in A, FP16 in B" in found["first"]
    said = {d["reason"] for d in found["differences"] if d["section"] == "precision"}
    assert said == {"the recipe asks for fp32 in A, fp16 in B"}


@pytest.fixture(scope="module")
def elsewhere(site: Site) -> Path:
    """The same model by another backend."""
    recipe = write_recipe(site.path("recipes") / "ort", "digits_like", name="digits", version="2.0.0")
    return build(site, recipe).folder


@pytest.mark.parametrize("width", ["80", "120"])
def test_two_backends_are_set_side_by_side_without_their_options(
    site: Site, built: dict[str, Path], elsewhere: Path, width: str
) -> None:
    done = pellucid("diff", elsewhere, built["fp32"], "--site", site.root, width=width)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    said = " ".join(done.stdout.split())
    assert lines[0].startswith("backend onnxruntime in A, tensorrt-rtx in B, the likely cause: ")
    assert all(len(line) <= int(width) for line in lines[1:])
    assert len(lines) < 100
    assert said.count("not comparable name by name") == 1
    for words in ("Builders", "versions onnxruntime 1", "target cpu sm80", "precision fp32 fp32", "Recipe"):
        assert words in said
    for noise in ("options.", "not in the logs", "what went in differs"):
        assert noise not in said
    assert said.count("onnxruntime in A") == 1
    whole = json_of("diff", elsewhere, built["fp32"], "--site", site.root)
    options = {d["subject"].removeprefix("options.") for d in whole["differences"]}
    assert {"execution_mode", "strongly_typed"} <= options
    assert "execution_mode" in whole["backends"]["options"]["only_a"]
    assert "strongly_typed" in whole["backends"]["options"]["only_b"]


def test_what_went_in_is_said_once(site: Site, built: dict[str, Path]) -> None:
    done = pellucid("diff", built["fp32"], built["sm80"], "--site", site.root)
    assert done.stdout.count("What went in differs: precision fp32 in A, fp16 in B;") == 1
    assert "; what went in differs" not in done.stdout
    assert "not in the logs" in done.stdout
    whole = json_of("diff", built["fp32"], built["sm80"], "--site", site.root)
    assert whole["backends"] is None
    reasons = [d["reason"] for d in whole["differences"]]
    assert sum("not in the logs; what went in differs: precision fp32" in reason for reason in reasons) > 1


def test_a_tampered_package_is_not_compared(site: Site, built: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / built["sm75"].name
    raw = bytearray(built["sm75"].read_bytes())
    raw[len(raw) // 2] ^= 1
    broken.write_bytes(raw)
    done = pellucid("diff", broken, built["sm80"], "--site", site.root)
    assert done.returncode in (2, 3)
    assert "runs" not in done.stdout


def test_people_get_tables_and_need_only_keys(site: Site, built: dict[str, Path]) -> None:
    done = pellucid("diff", built["sm75"], built["sm80"], "--trust", site.trust_folder)
    assert done.returncode == 0, done.stderr
    for words in ("Tactics", "Memory", "Same in both: ", "Not compared: ranges: neither says."):
        assert words in done.stdout
    sizes = re.findall(r"_bytes +(\S+) +(\S+)", done.stdout)
    assert sizes
    assert all(re.fullmatch(r"\d{1,3}(,\d{3})*", size) for pair in sizes for size in pair)
    assert any("," in size for pair in sizes for size in pair)
