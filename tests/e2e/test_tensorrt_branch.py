"""A branch that survives folding: TensorRT-RTX builds it, and its layers are mapped to the inner nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.testing.builds import build_toy

pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")

pytestmark = pytest.mark.e2e


def value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8])


def branch(graph: str, op: str) -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], [f"{op}_m"], name=f"product_{op}"),
        helper.make_node(op, [f"{op}_m"], [f"{op}_y"], name=f"node_{op}"),
    ]
    return helper.make_graph(nodes, graph, [], [value(f"{op}_y")])


def branching(then: str = "yes") -> bytes:
    """The sum of the input decides, so that nothing can be folded."""
    nested = helper.make_node(
        "If", ["c"], ["inner_y"], name="inner", then_branch=branch("deep", "Tanh"),
        else_branch=branch("deeper", "Relu"),
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], name="compare"),
        helper.make_node(
            "If", ["c"], ["y"], name="outer", then_branch=branch(then, "Sigmoid"),
            else_branch=helper.make_graph([nested], "no", [], [value("inner_y")]),
        ),
    ]  # fmt: skip
    weights = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    constants = [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], constants)
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())


@pytest.mark.parametrize("then", ["yes", "yes (then_branch) | ghost (If)]\x1f[ONNX Layer: ghost"])
def test_layers_of_a_branch_are_mapped_to_its_nodes(tmp_path: Path, then: str) -> None:
    built = build_toy(
        tmp_path, branching(then), backend="tensorrt-rtx", target="sm89", licence_ack=True, buckets=[]
    )
    facts = json.loads((built.folder / "facts.json").read_bytes())
    of = {name: layer for layer in facts["layers"] for name in layer["nodes"]}
    assert of["node_Sigmoid"]["within"] == ["outer"]
    assert set(of["node_Tanh"]["within"]) == {"inner", "outer"}
    assert "within" not in of["sum"]
    assert facts["strangers"] == []
    assert {"inner", "outer"}.isdisjoint(facts["eliminated"])
    assert "ghost" not in (built.folder / "facts.json").read_text()
    label = (built.folder / "label.md").read_text()
    assert "node_Tanh" in label
