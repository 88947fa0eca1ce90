"""Operators inside If and Loop: counted, and never taken for a part of a fusion."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from pellucid.backends.onnxruntime import graph
from pellucid.build.label.composition import composition
from pellucid.cli.build import _layers
from pellucid.core import canonical
from pellucid.core.facts import map_layers
from pellucid.core.package_diff import compare
from pellucid.core.package_diff_sides import Kernel, Side, package_side


def branching() -> bytes:
    """One of two branches of two operators each, the second inside an If of its own."""
    x, y, inner, deep = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y", "i", "d")
    )
    once = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Tanh", ["r"], ["i"])]
    yes = helper.make_graph(once, "yes", [], [inner])
    nested = helper.make_node("If", ["c"], ["d"], then_branch=yes, else_branch=yes)
    no = helper.make_graph([nested], "no", [], [deep])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=yes, else_branch=no),
    ]
    zero = numpy_helper.from_array(np.float32(0), "zero")
    made = helper.make_graph(nodes, "g", [x], [y], [zero])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(made, opset_imports=opset, ir_version=9).SerializeToString())


def test_nodes_inside_are_counted_and_label_and_command_say_so() -> None:
    read = graph.read(branching())
    assert (len(read.graph.nodes), read.inner) == (3, 7)
    facts = map_layers(read.graph, read.graph) | {"inner_nodes": read.inner, "source_nodes": 10}
    (got,) = [
        value
        for name, value in composition(facts, "").rows
        if name == "Operators of the graph that the builder got"
    ]
    assert got == "3, and 7 inside branches and loops, whose layers this builder does not tell apart"
    assert _layers(facts).endswith("; 7 operators inside branches and loops are not told apart")
    assert "inside" not in _layers(facts | {"inner_nodes": 0})


def test_a_layer_in_a_branch_is_made_of_its_node_and_stands_inside_the_if() -> None:
    layer = {"name": "l", "op": "kgen", "nodes": ["choice", "relu"], "within": ["choice"], "fused": False}
    nodes = [{"name": "choice", "op": "If"}, {"name": "relu", "op": "Relu"}]
    facts = {"layers": [layer], "nodes": nodes, "fused_layers": 0, "eliminated": [], "quantized_ops_count": 0}
    (table,) = composition(facts, "").tables
    assert table.rows[0][2] == "relu (Relu), inside choice (If)"


def test_a_layer_computes_in_its_lowest_datatype_not_in_its_conditions() -> None:
    layer = {
        "name": "choice", "op": "If", "nodes": ["choice"], "inputs": [{"name": "c", "datatype": "BOOL"}],
        "outputs": [{"name": "y", "datatype": "FP32"}],
    }  # fmt: skip
    (kernel,) = (
        package_side("a", {"facts.json": canonical.encode({"layers": [layer], "nodes": []})}).kernels or ()
    )
    assert kernel.precision == "FP32"


def test_a_fusion_cut_into_many_layers_is_told_in_a_few_words() -> None:
    names = [f"n{i}" for i in range(40)]
    whole = Side("a", kernels=(Kernel("l", "kgen", frozenset(names), "t", "FP32"),))
    cut = Side("b", kernels=tuple(Kernel(n, "kgen", frozenset([n]), "t", "FP32") for n in names))
    (found,) = [d for d in compare(whole, cut).differences if d.section == "fusions"]
    assert found.b == "n0; n1; n2; n3; and 36 more"
