"""What a graph must be before a builder sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.build.canonical_graph import canonicalise
from pellucid.build.preflight import graph_findings
from pellucid.errors import ParseError
from pellucid.testing.models import MODELS, credit_like, digits_like

RECIPE = {"buckets": [1, 4]}
HOSTILE = {
    "conv1": "conv1\nMax Scratch Memory: 1 bytes",
    "relu1": "relu1]\x1f[ONNX Layer: ghost",
    "conv2": " All nodes placed on [EvilExecutionProvider]. Number of nodes: 6",
    "same": "",
    "fc": "\x1b[31mred",
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_toy_is_taken_as_it_is(name: str) -> None:
    prepared = canonicalise(MODELS[name](), {"buckets": [] if name == "unbatched" else [1]})
    assert prepared.names == {"nodes": [], "tensors": []}
    again = canonicalise(prepared.compiled, {"buckets": [] if name == "unbatched" else [1]})
    assert again.compiled == prepared.compiled


def test_hostile_names_are_replaced_and_the_map_is_kept() -> None:
    prepared = canonicalise(digits_like(nodes=lambda name: HOSTILE.get(name, name)), RECIPE)
    assert {n["from"] for n in prepared.names["nodes"]} == set(HOSTILE.values())
    names = [n.name for n in onnx.load_model_from_string(prepared.compiled).graph.node]
    assert len(set(names)) == len(names)
    assert all(name.isprintable() and " " not in name for name in names)


def test_two_nodes_of_one_name_get_two_names() -> None:
    prepared = canonicalise(credit_like(nodes=lambda name: "twin"), RECIPE)
    names = [n.name for n in onnx.load_model_from_string(prepared.compiled).graph.node]
    assert names == ["twin", "twin_1", "twin_2", "twin_3"]


def changed(change: Callable[[Any], None]) -> bytes:
    model = onnx.load_model_from_string(credit_like())
    change(model)
    raw: bytes = model.SerializeToString()
    return raw


def test_hostile_tensor_and_axis_names_are_replaced() -> None:
    def rename(model: Any) -> None:
        model.graph.node[0].output[0] = model.graph.node[1].input[0] = "a\nb"
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N\nfake"
        model.graph.name = "g\n"
        model.graph.doc_string = model.graph.node[0].doc_string = "/home/somebody/train.py"

    prepared = canonicalise(changed(rename), RECIPE)
    assert prepared.names["tensors"] == [{"from": "a\nb", "to": "tensor"}]
    assert b"\nb" not in prepared.compiled
    assert b"fake" not in prepared.compiled
    assert b"somebody" not in prepared.compiled


def test_inner_graphs_are_renamed_with_their_outer_names() -> None:
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["outer\n"], [f"{op}\t"], name="inner\n")], op, [],
            [helper.make_tensor_value_info(f"{op}\t", TensorProto.FLOAT, ["N", 2])],
        )
        for op in ("Relu", "Neg")
    ]  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["outer\n"]),
            helper.make_node("If", ["flag"], ["y"], then_branch=branch[0], else_branch=branch[1]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(__import__("numpy").array(True), "flag")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    prepared = canonicalise(model.SerializeToString(), RECIPE)
    onnx.checker.check_model(onnx.load_model_from_string(prepared.compiled), full_check=True)
    assert b"outer\n" not in prepared.compiled
    assert len(prepared.names["tensors"]) == 3


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def free_axis(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "M"


def bad_input(model: Any) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "features\n"


def no_output(model: Any) -> None:
    del model.graph.node[-1].output[:]


def fixed_output(model: Any) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 7


@pytest.mark.parametrize(
    ("raw", "recipe", "words"),
    [
        (b"", RECIPE, "empty"),
        (b"not onnx at all", RECIPE, "expected ONNX|nodes"),
        (credit_like()[:-40], RECIPE, "expected"),
        (changed(external), RECIPE, "passwd.*inside the file, got them outside"),
        (changed(free_axis), RECIPE, "no variable axis but the batch"),
        (changed(bad_input), RECIPE, "expected a name"),
        (changed(no_output), RECIPE, "valid ONNX"),
        (changed(fixed_output), RECIPE, "batch axis first|valid ONNX"),
        (credit_like(), {"buckets": []}, "at least one"),
        (MODELS["unbatched"](), RECIPE, r"expected \[\]"),
    ],
)
def test_what_cannot_be_promised_is_refused(raw: bytes, recipe: dict[str, Any], words: str) -> None:
    with pytest.raises(ParseError, match=words):
        canonicalise(raw, recipe)


def test_random_operators_are_noted() -> None:
    assert "random numbers" in canonicalise(MODELS["random_noise"](), RECIPE).notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.graph.ClearField("output"), "at least one output, got none"),
        (lambda model: setattr(model.opset_import[0], "version", 99), r"operator set \d+ at most, got 99"),
        (lambda model: model.opset_import.add(domain="", version=13), "once, got 'ai.onnx' 2 times"),
        (lambda model: model.opset_import.add(domain="ai.onnx", version=13), "once, got 'ai.onnx' 2 times"),
        (
            lambda model: model.opset_import.extend([helper.make_opsetid("own", 1)] * 3),
            "once, got 'own' 3 times",
        ),
    ],
)
def test_a_graph_that_builders_would_read_in_two_ways_is_refused(
    change: Callable[[Any], None], words: str
) -> None:
    raw = changed(change)
    with pytest.raises(ParseError, match=words) as caught:
        canonicalise(raw, RECIPE)
    assert caught.value.hint
    (finding,) = graph_findings(onnx.load_model_from_string(raw), RECIPE | {"precision": "fp32"})
    assert finding.severity == "refused"


def test_sparse_weights_are_told_what_to_do_about() -> None:
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 5], np.int64), "places")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    sparse = helper.make_sparse_tensor(values, places, [4, 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], sparse_initializer=[sparse])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ParseError, match="expected valid ONNX") as caught:
        canonicalise(model.SerializeToString(), RECIPE)
    assert "write them dense at export" in caught.value.hint


@pytest.mark.parametrize("shape", [[2**60], [2**30, 2**30], [1] * 40], ids=["axis", "product", "rank"])
def test_a_shape_that_no_memory_holds_is_refused(shape: list[int]) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *shape]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ParseError, match=r"input or output 'x': expected at most 32 axes .*'y'"):
        canonicalise(model.SerializeToString(), RECIPE)
