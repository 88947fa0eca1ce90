"""Which node became which layer, by comparing graphs and by nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend
from pellucid.backends.onnxruntime.graph import read
from pellucid.build.precision_half import FP16, halve
from pellucid.core.facts import Graph, Node, map_layers
from pellucid.testing.models import digits_like


def node(name: str, op: str, inputs: str, outputs: str, domain: str = "") -> Node:
    return Node(name, op, domain, tuple(inputs.split()), tuple(outputs.split()))


SOURCE = Graph(
    (
        node("scale", "Mul", "w two", "w2"),
        node("conv", "Conv", "x w2", "c"),
        node("relu", "Relu", "c", "r"),
        node("same", "Identity", "r", "i"),
        node("fc", "Gemm", "i v", "y"),
        node("dead", "Neg", "c", "unused"),
    ),
    frozenset({"w", "two", "v"}),
    ("y",),
    {"x": "FP32", "r": "FP32", "y": "FP32"},
)
ENGINE = Graph(
    (node("conv", "FusedConv", "x w2", "r", "com.microsoft"), node("fc", "Gemm", "r v", "y")),
    frozenset({"w2", "v"}),
    ("y",),
    {"x": "FP32", "y": "FP32"},
)


def test_both_directions() -> None:
    facts = map_layers(SOURCE, ENGINE)
    assert {layer["name"]: layer["nodes"] for layer in facts["layers"]} == {
        "conv": ["scale", "conv", "relu"],
        "fc": ["same", "fc"],
    }
    assert {n["name"]: (n["layers"], n["fate"]) for n in facts["nodes"]} == {
        "scale": (["conv"], "folded into a constant"),
        "conv": (["conv"], "computed"),
        "relu": (["conv"], "computed"),
        "same": (["fc"], "absorbed"),
        "fc": (["fc"], "computed"),
        "dead": ([], "removed"),
    }
    assert facts["fused_layers"] == 1
    assert facts["eliminated"] == ["scale", "same", "dead"]
    assert facts["unmapped_layers"] == []
    assert facts["layers"][0]["outputs"] == [{"name": "r", "datatype": "FP32"}]


def test_a_layer_of_made_up_tensors_is_said_to_be_unmapped() -> None:
    engine = Graph((node("made", "Gemm", "x v", "nobody_knows"),), frozenset({"v"}), ("nobody_knows",))
    facts = map_layers(SOURCE, engine)
    assert facts["unmapped_layers"] == ["made"]
    assert facts["fused_layers"] == 0


def test_random_numbers_are_no_constant() -> None:
    source = Graph(
        (node("noise", "RandomNormal", "", "n"), node("add", "Add", "x n", "y")), frozenset(), ("y",)
    )
    fates = {n["name"]: n["fate"] for n in map_layers(source, source)["nodes"]}
    assert fates == {"noise": "computed", "add": "computed"}


def test_quantised_operations_are_counted() -> None:
    engine = Graph(
        (node("q", "QuantizeLinear", "x", "q"), node("m", "MatMulInteger", "q w", "y")),
        frozenset("w"),
        ("y",),
    )
    assert map_layers(engine, engine)["quantized_ops_count"] == 1


def test_parts_of_an_operator_are_told_by_what_they_feed() -> None:
    """A builder that has no kernel writes an operator out, with tensors of its own between."""
    source = Graph(
        (node("fc", "Gemm", "x w", "l"), node("soft", "Softmax", "l", "y")), frozenset({"w"}), ("y",)
    )
    engine = Graph(
        (
            node("cast_w", "Cast", "w", "cast/w"),
            node("fc", "Gemm", "x cast/w", "cast/l"),
            node("exp", "Exp", "cast/l", "made_exp"),
            node("sum", "ReduceSum", "made_exp", "made_sum"),
            node("div", "Div", "made_exp made_sum", "y"),
        ),
        frozenset({"w"}),
        ("y",),
    )
    facts = map_layers(source, engine, {"cast/w": "w", "cast/l": "l"})
    assert {layer["name"]: layer["nodes"] for layer in facts["layers"]} == {
        "cast_w": ["fc"], "fc": ["fc"], "exp": ["soft"], "sum": ["soft"], "div": ["soft"],
    }  # fmt: skip
    assert (facts["unmapped_layers"], facts["fused_layers"], facts["eliminated"]) == ([], 0, [])


def test_every_layer_of_an_fp16_engine_names_its_own_operations() -> None:
    """ONNX Runtime puts casts around what it has no FP16 kernel for, and renames what they touch."""
    half = halve(onnx.load_model_from_string(digits_like()), FP16).model
    recipe = {"threads": 1, "serve_level": "portable"}
    facts = OnnxRuntimeBackend().build(recipe, half.SerializeToString(), lambda line: None).facts
    nodes = {layer["name"]: layer["nodes"] for layer in facts["layers"]}
    assert facts["unmapped_layers"] == []
    assert len(nodes) == len(facts["layers"])  # names are unique, also of parts that have none
    for name in ("relu1", "relu2", "pool", "flat", "fc"):
        assert nodes[name] == [name]
    assert nodes["conv1"] == ["graph_input_cast0", "conv1"]  # the library took the model's cast away
    assert nodes["conv2"] == ["same", "conv2"]
    parts = [name for name in nodes if "Softmax" in name]
    assert len(parts) == 4
    assert all(nodes[name] == ["softmax"] for name in parts)
    assert all(layer["placement"] == "CPUExecutionProvider" for layer in facts["layers"])
    assert {n["name"] for n in facts["nodes"] if not n["layers"]} == set()


@pytest.mark.parametrize("width", [127, 128, 300, 4096])
def test_large_weights_are_dropped_before_types_are_asked_for_and_counted_as_written(width: int) -> None:
    """Sizes on both sides of each length that takes a byte more, and of the limit."""
    make = onnx.helper.make_tensor_value_info
    x, y = (make(name, onnx.TensorProto.FLOAT, ["N", width]) for name in "xy")
    weights = onnx.numpy_helper.from_array(np.ones((width, width), np.float32), "w")
    shape = onnx.numpy_helper.from_array(np.array([-1, width], np.int64), "shape")
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"], name="m"),
        onnx.helper.make_node("Reshape", ["h", "shape"], ["y"], name="r"),
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], [weights, shape]))
    found = read(model.SerializeToString())
    assert found.weights_bytes == sum(t.ByteSize() for t in model.graph.initializer)
    assert found.graph.datatypes["h"] == found.graph.datatypes["w"] == "FP32"
    assert found.initializers == ("w", "shape")
