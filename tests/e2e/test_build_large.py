"""An engine with many weights: what a build recorded of it is what a server will find."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.app import build as app
from pellucid.app.site import create_site
from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend
from pellucid.backends.onnxruntime.light import WEIGHTS_MIN
from pellucid.guardian.golden import judge_golden, parse_golden
from pellucid.testing.builds import write_recipe

pytestmark = pytest.mark.e2e
WIDTH = 1250


def large_model() -> bytes:
    """Two layers, 12.5 MB of drawn weights."""
    generator = np.random.default_rng(3)
    weights = [(generator.standard_normal((WIDTH, WIDTH)) / 32).astype("f4") for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        helper.make_node("Tanh", ["h"], ["t"], name="bend"),
        helper.make_node("MatMul", ["t", "w1"], ["y"], name="second"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy")
    constants = [numpy_helper.from_array(value, f"w{n}") for n, value in enumerate(weights)]
    graph = helper.make_graph(nodes, "large", [x], [y], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return bytes(onnx.ModelProto.SerializeToString(made))


def test_golden_cases_of_a_large_engine_are_what_a_served_one_answers(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site", node="test1")
    package = app.build(site, write_recipe(tmp_path / "recipe", large_model())).folder
    log = (package / "build.log.jsonl").read_text()
    assert log.count("Using user supplied initializer") == 2  # it was opened without copies
    engine = (package / "engine/model.onnx").read_bytes()
    assert len(engine) > WEIGHTS_MIN
    session = OnnxRuntimeBackend().open(engine, {"threads": 1, "serve_level": "portable"})
    document = json.loads((package / "golden/golden.json").read_bytes())
    assert [case.bucket for case in parse_golden(document)] == [1, 4]
    (finding,) = judge_golden(session, document, severity="refuse")
    assert finding.passed, finding
