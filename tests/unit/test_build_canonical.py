"""From the model as given to the graph that builders see: every step, and what each refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pellucid.build.canonical_compare import compare
from pellucid.build.canonical_graph import Canonical, canonicalise
from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.errors import ParseError
from pellucid.testing.models import MODELS, credit_like, digits_like

RECIPE: dict[str, Any] = {"buckets": [1, 4]}
FIXED: dict[str, Any] = {"buckets": []}


def value(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weights(**arrays: Any) -> list[Any]:
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], held: Any = (), **more: Any) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(held))
    opset, ir, functions = more.get("opset", 17), more.get("ir", 8), more.get("functions", [])
    imports = [helper.make_opsetid("", opset), *more.get("imports", [])]
    made = helper.make_model(graph, opset_imports=imports, ir_version=ir, functions=functions)
    raw: bytes = made.SerializeToString(deterministic=True)
    return raw


def read(done: Canonical) -> onnx.ModelProto:
    return onnx.load_model_from_string(done.compiled)


def steps(done: Canonical) -> list[str]:
    return [step["step"] for step in done.steps]


def shape_of(tensor: Any) -> list[Any]:
    return [d.dim_param or d.dim_value for d in tensor.type.tensor_type.shape.dim]


def run(raw: bytes, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    outputs: list[Any] = ort.InferenceSession(raw, options, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    return outputs


# -- every step -----------------------------------------------------------------------------------


def asked(opset: int | None = None, fold: bool = False, **more: Any) -> dict[str, Any]:
    return RECIPE | {"canonical": {"opset": opset, "fold": fold}} | more


@given(
    name=st.sampled_from(sorted(set(MODELS) - {"identity_bytes"})),
    opset=st.sampled_from([None, 17, 19]),
    fold=st.booleans(),
)
def test_the_same_bytes_in_give_the_same_bytes_out_and_those_stay(name: str, opset: int, fold: bool) -> None:
    recipe = asked(opset, fold) | ({"buckets": []} if name == "unbatched" else {})
    raw = MODELS[name]()
    first, second = canonicalise(raw, recipe), canonicalise(raw, recipe)
    assert first == second
    again = canonicalise(first.compiled, recipe)
    assert again.compiled == first.compiled
    assert again.steps == []
    canonical.encode(first.steps)
    before = sha256(raw)
    for step in first.steps:
        assert step["before"] == before
        assert step["before"] != step["after"]
        before = step["after"]
    assert before == sha256(first.compiled)


def test_a_graph_that_is_canonical_has_no_steps() -> None:
    done = canonicalise(credit_like(), RECIPE)
    assert done.compiled == credit_like()
    assert (done.steps, done.source, done.external) == ([], credit_like(), {})


def test_functions_are_written_out() -> None:
    twice = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    raw = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="local", name="t")], [value("x", ["N", 2])],
        [value("y", ["N", 2])], imports=[helper.make_opsetid("local", 1)], functions=[twice],
    )  # fmt: skip
    done = canonicalise(raw, RECIPE)
    assert [node.op_type for node in read(done).graph.node] == ["Add"]
    assert not read(done).functions
    assert steps(done)[:1] == ["inline"]
    assert done.steps[0]["detail"] == {"functions": ["'local:Twice'"]}


def test_weights_among_the_inputs_become_constants() -> None:
    raw = model(
        [helper.make_node("Add", ["x", "w"], ["y"], name="a")], [value("x", ["N", 2]), value("w", [2])],
        [value("y", ["N", 2])], weights(w=np.ones(2, np.float32)), ir=3, opset=9,
    )  # fmt: skip
    done = canonicalise(raw, RECIPE)
    assert [v.name for v in read(done).graph.input] == ["x"]
    assert "constants" in steps(done)


def test_comments_and_private_texts_are_dropped() -> None:
    proto = onnx.load_model_from_string(credit_like())
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "/home/somebody"
    proto.metadata_props.add(key="trained", value="/home/somebody/data")
    proto.graph.node[0].metadata_props.add(key="stack", value="/home/somebody/train.py")
    done = canonicalise(proto.SerializeToString(), RECIPE)
    assert b"somebody" not in done.compiled
    assert "comments" in steps(done)


# -- shapes ---------------------------------------------------------------------------------------


def image(dims: list[Any], out: list[Any]) -> bytes:
    return model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4, name="conv"),
            helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["y"], name="flat"),
        ],
        [value("x", dims)], [value("y", out)], weights(w=np.ones((4, 3, 3, 3), np.float32)),
    )  # fmt: skip


def test_variable_axes_are_fixed_and_everything_follows() -> None:
    raw = model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], name="pool")],
        [value("x", ["N", 3, "H", "W"])], [value("y", ["N", 3, None, None])],
    )  # fmt: skip
    done = canonicalise(raw, RECIPE | {"shapes": {"x": [-1, 3, 8, 6]}})
    assert shape_of(read(done).graph.input[0]) == ["N", 3, 8, 6]
    assert shape_of(read(done).graph.output[0]) == ["N", 3, 4, 3]
    assert done.steps[0]["detail"] == {"fixed": ["x: [-1, 3, 8, 6]"]}


def test_a_name_of_an_axis_that_is_fixed_is_fixed_everywhere() -> None:
    raw = model(
        [helper.make_node("Add", ["a", "b"], ["y"], name="add")],
        [value("a", ["N", "L"]), value("b", ["N", "L"])], [value("y", ["N", "L"])],
    )  # fmt: skip
    done = canonicalise(raw, RECIPE | {"shapes": {"a": [-1, 5]}})
    assert [shape_of(v) for v in [*read(done).graph.input, *read(done).graph.output]] == [["N", 5]] * 3


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": [1]}, r"expected one of the inputs \['x'\], got 'z'"),
        ({"x": [-1, 3, 8]}, "expected 4 axes, got 3"),
        ({"x": [-1, 4, 8, 8]}, "axis 1: expected 3, which the model says, got 4"),
        ({"x": [-1, -1, 8, 8]}, "axis 1: expected 3, which the model says, got -1"),
        ({"x": [-1, 3, 8, 9]}, "axis 3: expected 8, as another axis 'S' has, got 9"),
        ({"z": [1], "x": [-1, 4, 8, 9]}, "got 'z'.*axis 1.*axis 3"),
    ],
)
def test_shapes_that_contradict_the_model_are_refused_all_at_once(shapes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParseError, match=words):
        canonicalise(image(["N", 3, "S", "S"], ["N", 4]), RECIPE | {"shapes": shapes})


def test_shapes_that_the_operators_do_not_take_are_refused() -> None:
    raw = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [value("x", ["N", "L"])],
        [value("y", ["N", 2])], weights(w=np.ones((4, 2), np.float32)),
    )  # fmt: skip
    assert shape_of(read(canonicalise(raw, RECIPE | {"shapes": {"x": [-1, 4]}})).graph.input[0]) == ["N", 4]
    with pytest.raises(ParseError, match="expected shapes that the graph takes"):
        canonicalise(raw, RECIPE | {"shapes": {"x": [-1, 5]}})


def test_the_hint_for_a_free_axis_is_a_recipe_to_copy() -> None:
    with pytest.raises(ParseError, match=r"got axes 2, 3$") as error:
        canonicalise(image(["N", 3, "?", "?"], ["N", 4]), RECIPE)
    assert "shapes: {x: [-1, 3, ?, ?]}" in error.value.hint


# -- axes -----------------------------------------------------------------------------------------


def test_axes_that_share_a_name_by_accident_get_their_own() -> None:
    shapes = {"min": [1, 3, 4, 4], "opt": [2, 3, 8, 8], "max": [4, 3, 16, 16]}
    profiles = [{"name": "p", "inputs": {"x": shapes}}]
    done = canonicalise(image(["?", 3, "?", "?"], ["?", 4]), RECIPE | {"profiles": profiles})
    assert shape_of(read(done).graph.input[0]) == ["batch", 3, "x_axis2", "x_axis3"]


def test_the_batch_has_one_name_on_all_inputs() -> None:
    raw = model(
        [helper.make_node("Add", ["a", "b"], ["y"], name="add")],
        [value("a", ["rows", 2]), value("b", ["n", 2])], [value("y", ["n", 2])],
    )  # fmt: skip
    graph = read(canonicalise(raw, RECIPE)).graph
    assert [shape_of(v) for v in [*graph.input, *graph.output]] == [["rows", 2]] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"min": [1, 3, 4]}, "expected 4 axes as the model has, got 3"),
        ({"max": [4, 5, 16, 16]}, "axis 1: expected 3, which is fixed in the model, got 3, 3, 5"),
        ({"max": [3, 3, 16, 16]}, "bucket 4: expected a profile that takes it"),
    ],
)
def test_profiles_must_fit_the_model_and_take_every_bucket(change: dict[str, Any], words: str) -> None:
    shapes = {"min": [1, 3, 4, 4], "opt": [2, 3, 8, 8], "max": [4, 3, 16, 16]} | change
    recipe = RECIPE | {"profiles": [{"name": "p", "inputs": {"x": shapes}}]}
    raw = image(["N", 3, "H", "W"], ["N", 4])
    if not words:
        assert canonicalise(raw, recipe).compiled == raw
        return
    with pytest.raises(ParseError, match=words):
        canonicalise(raw, recipe)


def test_a_profile_names_every_input_and_no_other() -> None:
    shapes = {"min": [1], "opt": [1], "max": [1]}
    recipe = RECIPE | {"profiles": [{"name": "p", "inputs": {"ghost": shapes}}]}
    with pytest.raises(ParseError, match="another set: ghost, x"):
        canonicalise(image(["N", 3, "H", "W"], ["N", 4]), recipe)


# -- operator set ---------------------------------------------------------------------------------


def test_an_old_graph_is_raised_and_its_nodes_keep_their_names() -> None:
    scales = np.array([1, 1, 2, 2], np.float32)
    raw = model(
        [helper.make_node("Upsample", ["x", "s"], ["y"], mode="linear", name="larger")],
        [value("x", ["N", 1, 3, 3])], [value("y", ["N", 1, 6, 6])], weights(s=scales), opset=9,
    )  # fmt: skip
    done = canonicalise(raw, asked(17))
    nodes = {node.op_type: node.name for node in read(done).graph.node}
    assert nodes["Resize"] == "larger"
    detail = next(step["detail"] for step in done.steps if step["step"] == "opset")
    assert detail == {"from": 9, "to": 17, "operators_gone": ["Upsample"]}
    x = np.random.default_rng(0).random((2, 1, 3, 3), np.float32)
    assert np.array_equal(run(raw, {"x": x})[0], run(done.compiled, {"x": x})[0])


def test_slopes_by_channel_stay_with_their_channels() -> None:
    raw = model(
        [helper.make_node("PRelu", ["x", "slope"], ["y"], name="act")], [value("x", ["N", 3, 3])],
        [value("y", ["N", 3, 3])], weights(slope=np.array([0.1, 0.2, 0.3], np.float32)), opset=6,
    )  # fmt: skip
    x = -np.ones((1, 3, 3), np.float32)
    (y,) = run(canonicalise(raw, asked(17)).compiled, {"x": x})
    assert np.allclose(y[0, :, 0], [-0.1, -0.2, -0.3])
    assert np.allclose(y[0, 0], -0.1)


def hardmax(opset: int) -> bytes:
    node = helper.make_node("Hardmax", ["x"], ["y"], name="hard")
    return model([node], [value("x", ["N", 3, 4])], [value("y", ["N", 3, 4])], opset=opset)


def test_an_operator_whose_meaning_would_change_is_refused_by_name() -> None:
    with pytest.raises(ParseError, match=r"'hard' \(Hardmax\).*operator set 11 to 17") as error:
        canonicalise(hardmax(11), asked(17))
    assert "canonical: {opset: null}" in error.value.hint
    assert canonicalise(hardmax(11), asked(None)).compiled == hardmax(11)
    assert canonicalise(hardmax(13), asked(17)).notes == []


def test_what_the_converter_does_not_know_is_refused() -> None:
    node = helper.make_node("Dropout", ["x"], ["y"], name="d", is_test=0)
    raw = model([node], [value("x", ["N", 3])], [value("y", ["N", 3])], opset=6)
    with pytest.raises(ParseError, match="expected to bring operator set 6 to 17") as error:
        canonicalise(raw, asked(17))
    assert "canonical: {opset: null}" in error.value.hint


def test_a_graph_with_operators_of_others_keeps_its_operator_set_and_says_so() -> None:
    raw = model(
        [helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0], name="s")],
        [value("x", ["N", 3])], [value("y", ["N", 3])], opset=12,
        imports=[helper.make_opsetid("ai.onnx.ml", 1)],
    )  # fmt: skip
    done = canonicalise(raw, asked(17))
    assert [o.version for o in read(done).opset_import if o.domain == ""] == [12]
    assert done.notes == [
        "operator set 12 kept: the recipe asks for 17, and the model has operators of 'ai.onnx.ml', "
        "which the converter does not know"
    ]


def test_a_graph_that_computes_something_else_is_caught() -> None:
    """The net itself: two graphs of one interface, one number apart."""
    pair = [
        onnx.load_model_from_string(
            model(
                [helper.make_node("Mul", ["x", "w"], ["y"], name="m")], [value("x", ["N", 3])],
                [value("y", ["N", 3])], weights(w=np.array([1, 1, last], np.float32)),
            )
        )
        for last in (1, 1.1)
    ]  # fmt: skip
    assert compare(pair[0], pair[0]).reason == ""
    with pytest.raises(ParseError, match=r"output 'y'.*got an error of"):
        compare(*pair)


# -- folding --------------------------------------------------------------------------------------


def with_if() -> bytes:
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [op], name=op)], op, [], [value(op, ["N", 2])])
        for op in ("Relu", "Neg")
    ]
    return model(
        [
            helper.make_node("Not", ["no"], ["yes"], name="not"),
            helper.make_node("If", ["yes"], ["c"], "if", then_branch=branches[0], else_branch=branches[1]),
            helper.make_node("Identity", ["c"], ["same"], name="same"),
            helper.make_node("Add", ["w1", "w2"], ["w"], name="sum"),
            helper.make_node("Mul", ["same", "w"], ["y"], name="mul"),
        ],
        [value("x", ["N", 2])], [value("y", ["N", 2])],
        weights(no=np.array(False), w1=np.ones(2, np.float32), w2=np.ones(2, np.float32)),
    )  # fmt: skip


def test_constants_are_computed_and_dead_branches_go() -> None:
    done = canonicalise(with_if(), asked(fold=True))
    assert sorted(node.op_type for node in read(done).graph.node) == ["Mul", "Relu"]
    detail = next(step["detail"] for step in done.steps if step["step"] == "fold")
    assert {"if", "not", "same", "sum"} <= set(detail["removed"])
    assert {"operator": "If", "before": 1, "after": 0} in detail["operators"]
    x = np.array([[-1, 2]], np.float32)
    assert np.array_equal(run(done.compiled, {"x": x})[0], [[0, 4]])
    assert [v.name for v in [*read(done).graph.input, *read(done).graph.output]] == ["x", "y"]
    assert "fold" not in steps(canonicalise(with_if(), asked(fold=False)))


def test_names_of_the_source_are_still_in_the_map_when_folded() -> None:
    hostile = digits_like(nodes=lambda name: f"{name}\nx")
    done = canonicalise(hostile, asked(fold=True))
    assert len(done.names["nodes"]) == 9
    there = {node.name for node in read(done).graph.node}
    removed = next(step["detail"]["removed"] for step in done.steps if step["step"] == "fold")
    assert {row["to"] for row in done.names["nodes"]} == there | set(removed)


def test_fusions_are_left_to_the_builder() -> None:
    channels = {name: np.ones(4, np.float32) for name in "sbmv"}
    raw = model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], name="norm"),
        ],
        [value("x", ["N", 3, 4, 4])], [value("y", ["N", 4, 4, 4])],
        weights(w=np.ones((4, 3, 1, 1), np.float32), **channels),
    )  # fmt: skip
    assert [n.name for n in read(canonicalise(raw, asked(fold=True))).graph.node] == ["conv", "norm"]


def test_a_quantised_graph_keeps_its_quantisation() -> None:
    pair = [("x", "q", "d"), ("w0", "wq", "w")]
    nodes = [
        node
        for start, middle, end in pair
        for node in (
            helper.make_node("QuantizeLinear", [start, "s", "z"], [middle], name=f"q_{end}"),
            helper.make_node("DequantizeLinear", [middle, "s", "z"], [end], name=f"d_{end}"),
        )
        if not (start == "w0" and node.op_type == "QuantizeLinear")
    ]
    held = weights(s=np.float32(0.1), z=np.int8(0), wq=np.ones((3, 2), np.int8))
    raw = model(
        [*nodes, helper.make_node("MatMul", ["d", "w"], ["y"], name="mm")], [value("x", ["N", 3])],
        [value("y", ["N", 2])], held,
    )  # fmt: skip
    done = canonicalise(raw, asked(fold=True))
    kinds = [node.op_type for node in read(done).graph.node]
    assert sorted(kinds) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]


def test_a_large_constant_stays_the_operation_that_makes_it() -> None:
    shape = np.array([1024, 1024])
    fill = numpy_helper.from_array(np.ones(1, np.float32), "fill")
    raw = model(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["w"], value=fill, name="make"),
            helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
        ],
        [value("x", ["N", 1024])], [value("y", ["N", 1024])], weights(shape=shape),
    )  # fmt: skip
    assert len(canonicalise(raw, asked(fold=True)).compiled) < 10_000


def test_a_graph_that_the_folding_library_does_not_take_is_left_to_the_builder() -> None:
    raw = model(
        [helper.make_node("Special", ["x"], ["y"], domain="acme", name="s")], [value("x", ["N", 3])],
        [value("y", ["N", 3])], imports=[helper.make_opsetid("acme", 1)],
    )  # fmt: skip
    done = canonicalise(raw, asked(fold=True))
    assert done.compiled == raw
    assert any(note.startswith("constants not folded: onnxruntime does not take") for note in done.notes)
