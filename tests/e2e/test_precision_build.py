"""A real model in every precision, for both builders: what the engine computes with, and what it lost."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml

from pellucid.build.job import BuildOutcome, run_build
from pellucid.core.calibration import parse_manifest
from pellucid.core.calibration_ranges import parse_ranges
from pellucid.core.digest import sha256
from pellucid.core.metadata import parse_metadata, value_of
from pellucid.errors import PrecisionError
from pellucid.testing.builds import toy_job

pytestmark = pytest.mark.e2e
TRAIN = Path(__file__).resolve().parents[2] / "examples/digits/train.py"
REASONS = [{"choice": "precision", "reason": "half the memory", "reviewer": "a test"}]
CALIBRATION = {
    "data": "calibration.npz", "method": "percentile", "slices": ["ink"], "source": "scikit-learn's digits",
    "select": {"rule": "stratified", "count": 200, "seed": 4, "slice": "ink"}, "licence": "CC BY 4.0",
}  # fmt: skip
GATE = {"samples_min": 500, "top1_drop_max": "0.02", "kl_mean_max": "0.02", "flips_max": "0.02",
        "slice_flips_max": "0.04", "bucket_flips_max": None}  # fmt: skip
RTX = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}
ORT = {"backend": "onnxruntime", "target": "cpu"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's folder, with rows to calibrate with that it does not validate with."""
    folder = tmp_path_factory.mktemp("digits")
    spec = importlib.util.spec_from_file_location("digits_train", TRAIN)
    assert spec is not None
    assert spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    old, sys.argv = sys.argv, ["train.py", "--out", str(folder)]
    try:
        with contextlib.redirect_stdout(None):
            train.main()
    finally:
        sys.argv = old
    held_out = np.load(folder / "validation.npz")["image"]
    images, _ = train.images()
    used = {row.tobytes() for row in held_out}
    others = np.stack([image for image in images if image.tobytes() not in used])
    ink = np.where(others.sum(axis=(1, 2, 3)) < 20, "light", "heavy")
    np.savez(folder / "calibration.npz", image=others, ink=ink)
    return folder


def build(
    digits: Path, out: Path, precision: str, backend: Mapping[str, Any], **changes: Any
) -> BuildOutcome:
    given: dict[str, Any] = {
        "name": "digits", "version": "1.0.0", "model": "model.onnx", "meaning": "meaning.json",
        "buckets": [1, 8], "precision": precision, "reasons": REASONS,
        "validation": {"data": "validation.npz", "labels": "labels", "slices": ["ink"]}, "gate": GATE,
    } | dict(backend)  # fmt: skip
    if precision == "int8":
        given["calibration"] = CALIBRATION
    recipe = digits / f"{out.name}.yaml"
    recipe.write_text(yaml.safe_dump(given | changes))
    job, _ = toy_job(out / "packages")
    return run_build(recipe, job)


def top1(model: bytes, digits: Path) -> float:
    rows = np.load(digits / "validation.npz")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    scores = session.run(None, {"image": rows["image"]})[0]
    return float((scores.argmax(1) == rows["labels"]).mean())


def document(built: BuildOutcome, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((built.folder / name).read_bytes())
    return value


def test_onnxruntime_int8_runs_integer_kernels(digits: Path, tmp_path: Path) -> None:
    built = build(digits, tmp_path, "int8", ORT)
    engine = (built.folder / "engine/model.onnx").read_bytes()
    kernels = [node.op_type for node in onnx.load_model_from_string(engine).graph.node]
    assert (kernels.count("QLinearConv"), kernels.count("QGemm")) == (2, 1)
    assert built.facts["quantized_ops_count"] == 3
    source = (digits / "model.onnx").read_bytes()
    assert top1(source, digits) > 0.96
    assert abs(top1(engine, digits) - top1(source, digits)) <= 0.01
    assert len(engine) < len(source)
    found = parse_manifest((built.folder / "calibration/manifest.json").read_bytes())
    data = (digits / "calibration.npz").read_bytes()
    metadata = parse_metadata((built.folder / "metadata.json").read_bytes())
    assert value_of(metadata, "calibration_dataset_hash") == found.data == sha256(data)
    assert value_of(metadata, "builder_config.int8_mode") is True
    assert [(v["value"], v["selected"]) for v in found.slices[0]["values"]] == [
        ("heavy", 100),
        ("light", 100),
    ]
    ranges = parse_ranges((built.folder / "calibration/ranges.json").read_bytes())
    assert (ranges.method, ranges.samples, len(ranges.weights)) == ("percentile", 200, 3)
    steps = document(built, "model/steps.json")["steps"]
    assert [s["step"] for s in steps][-2:] == ["precision.basic", "precision.int8"]
    assert all(a["after"] == b["before"] for a, b in itertools.pairwise(steps))
    assert steps[-1]["after"] == sha256((built.folder / "model/compiled.onnx").read_bytes())
    assert document(built, "golden/golden.json")["cases"]
    raw = b"".join(p.read_bytes() for p in built.folder.rglob("*") if p.is_file())
    image = np.load(digits / "calibration.npz")["image"][found.samples[0].index]
    assert image.tobytes() not in raw
    # the same set is not calibrated twice, and other data are not taken for it
    (digits / "ranges.json").write_bytes((built.folder / "calibration/ranges.json").read_bytes())
    reused = {"calibration": CALIBRATION | {"artefact": "ranges.json"}, "version": "1.0.1"}
    again = build(digits, tmp_path, "int8", ORT, **reused)
    assert (again.folder / "model/compiled.onnx").read_bytes() == (
        built.folder / "model/compiled.onnx"
    ).read_bytes()
    first = CALIBRATION | {"artefact": "ranges.json", "select": {"rule": "first", "count": 200}}
    with pytest.raises(PrecisionError, match="chosen samples sha256"):
        build(digits, tmp_path, "int8", ORT, calibration=first, version="1.0.2")


def test_onnxruntime_fp16_keeps_what_clients_see(digits: Path, tmp_path: Path) -> None:
    built = build(digits, tmp_path, "fp16", ORT)
    facts = built.facts
    assert [(t["datatype"]) for t in (*facts["inputs"], *facts["outputs"])] == ["FP32", "FP32"]
    assert facts["quantized_ops_count"] == 0
    engine = (built.folder / "engine/model.onnx").read_bytes()
    assert abs(top1(engine, digits) - top1((digits / "model.onnx").read_bytes(), digits)) <= 0.004
    said = document(built, "precision.json")
    assert said["precision"] == "fp16"
    assert sum(i["overflow"] for i in said["initialisers"]) == 0
    assert not (built.folder / "calibration").exists()


def test_tensorrt_int8_computes_with_integers(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    built = build(digits, tmp_path, "int8", RTX)
    facts = built.facts
    assert facts["quantized_ops_count"] >= 3
    assert {"INT8"} <= {layer["precision"] for layer in facts["layers"]}
    assert not [w for w in facts["warnings"] if "zero_point" in w["kind"]]
    compiled = (built.folder / "model/compiled.onnx").read_bytes()
    assert abs(top1(compiled, digits) - top1((digits / "model.onnx").read_bytes(), digits)) <= 0.01


def test_tensorrt_fp16_and_bf16_hold_half_the_weights(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    built = build(digits, tmp_path, "fp16", RTX)
    assert "FP16" in {layer["precision"] for layer in built.facts["layers"]}
    weights = built.facts["memory"]["weights_bytes"]
    assert weights < (digits / "model.onnx").stat().st_size * 0.6
    compiled = (built.folder / "model/compiled.onnx").read_bytes()
    assert abs(top1(compiled, digits) - top1((digits / "model.onnx").read_bytes(), digits)) <= 0.004
    wide = {"canonical": {"opset": 22}, "version": "1.0.1"}
    brain = build(digits, tmp_path, "bf16", RTX, **wide)
    assert "BF16" in {layer["precision"] for layer in brain.facts["layers"]}
    assert document(brain, "precision.json")["precision"] == "bf16"
