"""X5 and X6: a calibration set that does not stand for what comes is named, by slice and by layer.

Both build for real: canonical graph, INT8 by calibration, the engine, then the judge. The validation
rows are as narrow as the calibration rows, as they are in life, so that nothing seems lost yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.app.site import create_site
from pellucid.build.job import run_build
from pellucid.core import canonical
from pellucid.core.metadata import parse_metadata
from pellucid.errors import GateError
from pellucid.testing.builds import toy_job, write_recipe

pytestmark = pytest.mark.e2e
REASONS = [{"choice": "precision", "reason": "a story", "reviewer": "nobody"}]


def model(nodes: list[Any], inputs: list[Any], output: str, width: int, weights: dict[str, Any]) -> bytes:
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", width])]
    graph = helper.make_graph(nodes, "story", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    raw: bytes = made.SerializeToString(deterministic=True)
    return raw


def kept_of(packages: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Accuracy and representativeness, as they lie beside the log of a build that failed."""
    (kept,) = (packages / "failed").iterdir()
    accuracy, report = (
        json.loads((kept / f"{name}.json").read_bytes()) for name in ("accuracy", "representativeness")
    )
    return accuracy, report


# -- X5: day images only --------------------------------------------------------------------------

DAY, NIGHT = (0.6, 0.12), (0.08, 0.05)  # mean brightness and contrast of a camera's image


def street(count: int, light: tuple[float, float], seed: int) -> tuple[Any, Any]:
    """Images with a vertical or a horizontal edge, normalised as a day camera is, and which it was."""
    generator = np.random.default_rng(seed)
    mean, contrast = light
    images = generator.normal(0, contrast / 4, (count, 1, 8, 8))
    kinds = generator.integers(0, 2, count)
    for image, kind in zip(images, kinds, strict=True):
        view = image[0] if kind else image[0].T
        view[:, 4:] += contrast
    pixels = np.clip(images + mean, 0, 1)
    return ((pixels - DAY[0]) / DAY[1]).astype("<f4"), kinds


def edges() -> bytes:
    """Two filters, two sums: which edge is stronger; right by construction."""
    filters = np.zeros((2, 1, 3, 3), np.float32)
    filters[1, 0, :, 2], filters[1, 0, :, 0] = 1, -1
    filters[0, 0, 2, :], filters[0, 0, 0, :] = 1, -1
    return model(
        [
            helper.make_node("Conv", ["image", "filters"], ["slopes"], name="look"),
            helper.make_node("Relu", ["slopes"], ["found"], name="keep"),
            helper.make_node("GlobalAveragePool", ["found"], ["pooled"], name="pool"),
            helper.make_node("Flatten", ["pooled"], ["scores"], name="flat"),
        ],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        "scores", 2, {"filters": filters},
    )  # fmt: skip


def street_recipe(folder: Path, select: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (day, day_kind), (night, _) = street(96, DAY, 1), street(96, NIGHT, 2)
    light = np.array(["day"] * 96 + ["night"] * 96)
    both = np.concatenate([day, night])
    np.savez(folder / "calibration.npz", image=both, light=light)
    np.savez(folder / "validation.npz", image=day, edge=day_kind)
    seen = np.concatenate([street(60, DAY, 3)[0], street(20, NIGHT, 4)[0]])
    np.savez(folder / "road.npz", image=seen, light=np.array(["day"] * 60 + ["night"] * 20))
    meaning = {"decision": {"kind": "argmax", "output": "scores", "labels": ["level", "upright"]}}
    return write_recipe(
        folder, edges(), meaning=meaning, precision="int8", reasons=REASONS,
        calibration={"data": "calibration.npz", "slices": ["light"], "select": select},
        validation={"data": "validation.npz", "labels": "edge"},
        reference={"data": "road.npz", "slices": ["light"]},
    )  # fmt: skip


def test_story_x5_calibrated_by_day_the_report_names_the_night_before_accuracy_is_lost(
    tmp_path: Path,
) -> None:
    recipe = street_recipe(tmp_path / "recipe", {"rule": "first", "count": 64})
    job, _ = toy_job(tmp_path / "packages")
    with pytest.raises(GateError) as caught:
        run_build(recipe, job)
    error, (accuracy, report) = caught.value, kept_of(tmp_path / "packages")
    assert (
        "slice light=night: reference activations out of range: expected at most 5 %, got " in error.message
    )
    assert "light=day" not in error.message
    assert accuracy["passed"], "by day nothing is lost: accuracy alone would have let it go"
    assert accuracy["top1"] == accuracy["top1_source"] == "1"
    image = next(item for item in report["tensors"] if item["tensor"] == "image")
    shares = {s["value"]: float(s["share_outside"]) for s in image["slices"]}
    assert shares["day"] < 0.01 < 0.9 < shares["night"]
    assert any(text.startswith("image: ") and "(slice light=night: " in text for text in report["warnings"])
    assert all(name in error.hint for name in ("accuracy.json", "representativeness.json"))


def test_story_x5_calibrated_by_day_and_night_it_passes(tmp_path: Path) -> None:
    select = {"rule": "stratified", "slice": "light", "count": 64, "seed": 1}
    job, _ = toy_job(tmp_path / "packages")
    folder = run_build(street_recipe(tmp_path / "recipe", select), job).folder
    report = canonical.decode((folder / "representativeness.json").read_bytes())
    assert report["passed"]
    assert {item["reason"] for item in report["tensors"]} == {None}, "every calibrated tensor was measured"
    metrics = parse_metadata((folder / "metadata.json").read_bytes())["accuracy_metrics"]
    assert metrics["top1_acc"] == "1"
    assert 20 < float(metrics["psnr_db"]) < 100


# -- X6: an embedding that never met its rare users -----------------------------------------------

COMMON = 400  # ids below are common users, the others rare ones


def recommender() -> tuple[bytes, Any]:
    """``user`` INT64 [N] -> ``scores`` FP32 [N,4]; rare users were trained little and lie far out."""
    generator = np.random.default_rng(7)
    kinds = np.kron(np.eye(4), np.ones(4)).astype(np.float32)  # four kinds of users, four features each
    table = generator.normal(0, 1, (500, 16)).astype(np.float32)
    table[:COMMON] = 2 * kinds[np.arange(COMMON) % 4] + table[:COMMON] / 4
    table[COMMON:] *= 20
    weights = {"table": table, "taste": kinds.T / 4}
    nodes = [
        helper.make_node("Gather", ["table", "user"], ["who"], name="embed_3"),
        helper.make_node("MatMul", ["who", "taste"], ["likes"], name="score"),
        helper.make_node("Softmax", ["likes"], ["scores"], name="softmax", axis=-1),
    ]
    inputs = [helper.make_tensor_value_info("user", TensorProto.INT64, ["N"])]
    return model(nodes, inputs, "scores", 4, weights), table


def test_story_x6_an_embedding_without_rare_users_is_named_with_its_share(tmp_path: Path) -> None:
    raw, table = recommender()
    folder = tmp_path / "recipe"
    folder.mkdir()
    common = np.arange(COMMON, dtype=np.int64)
    seen = np.concatenate([np.arange(60), np.arange(COMMON, 500)]).astype(np.int64)
    who = np.where(seen < COMMON, "common", "rare")
    np.savez(folder / "calibration.npz", user=common)
    np.savez(folder / "validation.npz", user=common)
    np.savez(folder / "visits.npz", user=seen, users=who)
    recipe = write_recipe(
        folder, raw, precision="int8", reasons=REASONS, calibration={"data": "calibration.npz"},
        validation={"data": "validation.npz"}, reference={"data": "visits.npz", "slices": ["users"]},
    )  # fmt: skip
    site = create_site(tmp_path / "site", node="test1").root
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", "build", str(recipe), "--site", str(site)],
        capture_output=True, text=True, env=os.environ | {"COLUMNS": "1000"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == GateError.exit_code
    accuracy, report = kept_of(site / "packages")

    low, high = table[:COMMON].min(), table[:COMMON].max()
    outside = (table[seen] < low) | (table[seen] > high)
    whole, rare = outside.mean(), outside[who == "rare"].mean()
    assert 0.3 < whole < rare
    sentence = f"embed_3: {whole:.0%} of reference activations out of range (slice users=rare: {rare:.0%})"
    assert sentence.replace("%", " %") in report["warnings"]
    assert "embed_3: slice users=rare: reference activations out of range: " in done.stderr
    assert f"expected at most 5 %, got {100 * rare:.3g} %" in done.stderr
    assert accuracy["findings"] == [], "common users notice nothing"
    (layer,) = (item for item in report["layers"] if item["layer"] == "embed_3")
    assert (layer["elements"], layer["outside"]) == (outside.size, int(outside.sum()))
