"""Canonical steps in a package: bound by its provenance, with what lay outside the model inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from pellucid.build.canonical_fold import refusals
from pellucid.build.canonical_graph import canonicalise
from pellucid.build.job import run_build
from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.metadata import parse_metadata, value_of
from pellucid.core.provenance import dependency
from pellucid.core.statement import parse_statement
from pellucid.errors import ParseError
from pellucid.testing.backend_models import model_paths, recipe_for
from pellucid.testing.builds import build_toy, toy_job, write_recipe
from pellucid.testing.models import credit_like

pytestmark = pytest.mark.e2e


def document(folder: Path, name: str) -> Any:
    return canonical.decode((folder / name).read_bytes())


def free_image() -> bytes:
    """``x`` FP32 [N,3,H,W] -> ``y`` [N,3]: axes that somebody must fix or cover."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["y"], name="flat"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("x", ["N", 3, "H", "W"]), ("y", ["N", 3]))
    )
    graph = helper.make_graph(nodes, "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    raw: bytes = made.SerializeToString()
    return raw


def test_weights_beside_the_model_are_embedded_and_bound(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", "credit_like")
    path = recipe.parent / "model.onnx"
    proto = onnx.load_model_from_string(credit_like())
    onnx.save(proto, str(path), save_as_external_data=True, location="weights.bin", size_threshold=100)
    job, _ = toy_job(tmp_path / "packages")
    folder = run_build(recipe, job).folder
    given, weights = sha256(path.read_bytes()), sha256((recipe.parent / "weights.bin").read_bytes())
    source = (folder / "model/source.onnx").read_bytes()
    assert onnx.load_model_from_string(source) == onnx.load_model_from_string(credit_like())
    provenance = parse_statement((folder / "provenance.json").read_bytes()).predicate
    assert dependency(provenance, "source") == given
    assert dependency(provenance, "source/weights.bin") == weights
    metadata = parse_metadata((folder / "metadata.json").read_bytes())
    assert value_of(metadata, "input_onnx_hash") == given
    steps = document(folder, "model/steps.json")["steps"]
    assert provenance["buildDefinition"]["internalParameters"]["steps"] == steps
    assert (steps[0]["step"], steps[0]["before"]) == ("external", given)
    assert steps[-1]["after"] == sha256((folder / "model/compiled.onnx").read_bytes())
    (recipe.parent / "weights.bin").unlink()
    with pytest.raises(ParseError, match=r"weights\.bin.*beside the model"):
        run_build(recipe, toy_job(tmp_path / "second")[0])


def test_a_recipe_fixes_axes_and_the_engine_has_them(tmp_path: Path) -> None:
    changes = {"shapes": {"x": [-1, 3, 6, 4]}, "canonical": {"opset": 17, "fold": True}}
    built = build_toy(tmp_path, free_image(), **changes)
    assert document(built.folder, "facts.json")["inputs"][0]["shape"] == [-1, 3, 6, 4]
    steps = document(built.folder, "model/steps.json")["steps"]
    assert [step["step"] for step in steps] == ["shapes", "opset"]
    assert steps[1]["detail"] == {"from": 11, "to": 17, "operators_gone": []}


def test_a_profile_covers_axes_beyond_the_batch(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    shapes = {"min": [1, 3, 4, 4], "opt": [4, 3, 8, 8], "max": [4, 3, 16, 32]}
    changes: dict[str, Any] = {
        "backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True,
        "profiles": [{"name": "any", "inputs": {"x": shapes}}],
        "reasons": [{"choice": "profiles", "reason": "images of many sizes", "reviewer": "a test"}],
    }  # fmt: skip
    facts = document(build_toy(tmp_path, free_image(), **changes).folder, "facts.json")
    assert facts["inputs"][0]["shape"] == [-1, 3, -1, -1]
    assert facts["options"]["profiles"] == [{"name": "any", "input": "x"} | shapes]
    with pytest.raises(ParseError, match="no variable axis but the batch"):
        build_toy(tmp_path / "none", free_image(), **changes | {"profiles": [], "reasons": []})


def arrays(folder: Path, kind: str) -> list[Any]:
    """Inputs or outputs that ONNX keeps beside a model; ``[]`` when any is no tensor."""
    found = []
    for path in sorted(folder.glob(f"test_data_set_0/{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1])):
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(path.read_bytes())
            found.append(numpy_helper.to_array(tensor))
        except (DecodeError, ValueError, TypeError, KeyError):
            return []
    return found


def test_canonical_graphs_compute_what_onnx_says_they_do() -> None:
    """ONNX's own models at operator sets 6 to 12, raised and folded, against the outputs it keeps."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    raised = {"canonical": {"opset": 17, "fold": True}}
    agreed, not_run = 0, []
    for name, path in model_paths(["pytorch-converted", "pytorch-operator"]):
        raw = path.read_bytes()
        done = canonicalise(raw, recipe_for("onnxruntime", raw) | raised)
        inputs, outputs = arrays(path.parent, "input"), arrays(path.parent, "output")
        try:
            session = ort.InferenceSession(done.compiled, options, providers=["CPUExecutionProvider"])
        except refusals():
            not_run.append(name)
            continue
        feeds = {spec.name: array for spec, array in zip(session.get_inputs(), inputs, strict=False)}
        for expected, got in zip(outputs, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5, err_msg=name)
        agreed += 1
    assert not_run == []
    assert agreed == 117
