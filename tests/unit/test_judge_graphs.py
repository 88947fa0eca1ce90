"""What the judge sees of a graph: what leaves a layer, what a tensor stands for, 16-bit types as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.app.processes import backend_for
from pellucid.build.judge import graphs, narrow
from pellucid.build.judge.runs import Graph

BACKEND = backend_for("reference")
FP16, BF16, FP32 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
NUMPY = {FP16: np.float16, BF16: ml_dtypes.bfloat16}


def value(name: str, kind: int = FP32, shape: Sequence[Any] = ("N", 3)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, values: Any, kind: int = FP32) -> Any:
    array = np.asarray(values, np.float32)
    if kind == FP32:
        return numpy_helper.from_array(array, name)
    return numpy_helper.from_array(array.astype(NUMPY[kind]), name)


def model(nodes: Sequence[Any], inputs: Any, outputs: Any, constants: Any = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def run(made: onnx.ModelProto, names: Sequence[str] = (), **arrays: Any) -> list[Any]:
    return Graph(BACKEND, graphs.exposing(made, names) if names else made.SerializeToString(), names).run(
        arrays
    )


# -- boundaries -----------------------------------------------------------------------------------


def chain() -> onnx.ModelProto:
    """Two layers with Q/DQ between them, as a quantiser writes it; ``r`` also leaves by a side door."""
    return model(
        [
            helper.make_node("Mul", ["x", "w"], ["m"], name="mul"),
            helper.make_node("Relu", ["m"], ["r"], name="relu"),
            helper.make_node("QuantizeLinear", ["r", "s", "z"], ["r_q"], name="q"),
            helper.make_node("DequantizeLinear", ["r_q", "s", "z"], ["r_dq"], name="dq"),
            helper.make_node("Add", ["r_dq", "w"], ["y"], name="add"),
        ],
        [value("x")], [value("y")],
        [constant("w", [1, -2, 3]), constant("s", 0.1), numpy_helper.from_array(np.int8(0), "z")],
    )  # fmt: skip


def source() -> onnx.ModelProto:
    return model(
        [
            helper.make_node("Mul", ["x", "w"], ["m"], name="mul"),
            helper.make_node("Relu", ["m"], ["r unsafe"], name="relu"),
            helper.make_node("Add", ["r unsafe", "w"], ["y"], name="add"),
        ],
        [value("x")], [value("y")], [constant("w", [1, -2, 3])],
    )  # fmt: skip


def test_only_what_is_taken_outside_leaves_a_layer() -> None:
    wiring = graphs.wire(chain())
    assert graphs.leaving(["mul", "relu", "q"], wiring) == ["r_q"]
    assert graphs.leaving(["mul", "relu"], wiring) == ["r"]
    assert graphs.leaving(["dq", "add"], wiring) == ["y"]
    assert graphs.leaving(["mul", "relu", "q", "dq", "add"], wiring) == ["y"]
    assert graphs.leaving(["nobody"], wiring) == []


def test_a_graph_inside_a_node_takes_tensors_too() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["m"], ["n"])], "then", [], [value("n")])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["i"])], "else", [], [value("i")])
    made = model(
        [
            helper.make_node("Relu", ["x"], ["m"], name="relu"),
            helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=other),
        ],
        [value("x"), value("c", TensorProto.BOOL, [])],
        [value("y")],
    )
    assert graphs.leaving(["relu"], graphs.wire(made)) == ["m"]


def test_a_tensor_stands_for_the_sources_through_quantisation_and_names() -> None:
    compiled, there = graphs.wire(chain()), graphs.wire(source())
    names = graphs.source_names({"tensors": [{"from": "r unsafe", "to": "r"}], "nodes": []})
    for tensor in ("r", "r_q", "r_dq"):
        assert graphs.origin(tensor, compiled, there, names) == "r unsafe"
    assert graphs.origin("x", compiled, there, names) == "x"
    assert graphs.origin("r", compiled, there, {}) is None
    assert graphs.origin("w", compiled, there, names) is None, "a weight is no activation"
    assert graphs.readable("r_q", compiled) == "r_dq"
    assert graphs.readable("m", compiled) == "m"


def test_inner_tensors_and_inputs_can_be_shown() -> None:
    made, before = chain(), chain().SerializeToString(deterministic=True)
    x = np.array([[1, 2, 3]], np.float32)
    shown = run(made, ["r_dq", "x", "m"], x=x)
    np.testing.assert_allclose(shown[0], [[1.0, 0.0, 9.0]], atol=0.05)
    assert (shown[1] == x).all()
    assert (shown[2] == x * [1, -2, 3]).all()
    assert made.SerializeToString(deterministic=True) == before, "the model itself stays as it was"


# -- sixteen bits ---------------------------------------------------------------------------------


def narrow_chain(kind: int) -> onnx.ModelProto:
    """Three products, each rounded: far from what one rounding at the end gives."""
    return model(
        [
            helper.make_node("Cast", ["x"], ["h"], name="in", to=kind),
            helper.make_node("Mul", ["h", "c"], ["a"], name="one"),
            helper.make_node("Mul", ["a", "d"], ["b"], name="two"),
            helper.make_node("Mul", ["b", "c"], ["e"], name="three"),
            helper.make_node("Cast", ["e"], ["y"], name="out", to=FP32),
        ],
        [value("x")], [value("y")], [constant("c", 3.14, kind), constant("d", 0.333, kind)],
    )  # fmt: skip


@pytest.mark.parametrize("kind", [FP16, BF16])
def test_every_result_is_rounded_to_the_type_it_has(kind: int) -> None:
    x = np.random.default_rng(0).random((400, 3)).astype(np.float32)
    half = NUMPY[kind]
    c, d, h = half(3.14), half(0.333), x.astype(half)
    steps = [h, h * c, (h * c) * d, ((h * c) * d) * c]
    wide = narrow.widen(narrow_chain(kind))
    assert narrow.narrow_types(narrow_chain(kind)) == [narrow.NARROW[kind]]
    shown = run(wide, ["h", "a", "b", "e"], x=x)
    for name, got, expected in zip("habe", shown, steps, strict=True):
        assert (got == expected.astype(np.float32)).all(), name
    once = (x.astype(half).astype(np.float32) * np.float32(c) * np.float32(d) * np.float32(c)).astype(half)
    assert (once.astype(np.float32) != shown[3]).mean() > 0.1, "the roundings between matter here"


def test_what_overflows_sixteen_bits_is_infinite() -> None:
    wide = narrow.widen(narrow_chain(FP16))
    (y,) = run(wide, x=np.array([[60000, 1, 1e6]], np.float32))
    assert np.isinf(y[0, [0, 2]]).all()
    assert np.isfinite(y[0, 1])


def test_sixteen_bits_inside_a_branch_are_rounded_too() -> None:
    inner = [helper.make_node("Mul", ["h", "h"], ["n"], name="square")]
    branch = helper.make_graph(inner, "then", [], [value("n", FP16)])
    other = helper.make_graph([helper.make_node("Identity", ["h"], ["i"])], "else", [], [value("i", FP16)])
    made = model(
        [helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=other)],
        [value("h", FP16), value("c", TensorProto.BOOL, [])],
        [value("y", FP16)],
    )
    x = np.random.default_rng(0).random((5, 3)).astype(np.float16)
    (y,) = run(narrow.widen(made), h=x, c=np.array(True))
    assert y.dtype == np.float32
    assert (y == (x * x).astype(np.float32)).all()


def test_operators_outside_the_standard_keep_the_type_they_take() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("FusedMatMul", ["h", "w"], ["m"], name="fused", domain="com.microsoft"),
            helper.make_node("Mul", ["m", "m"], ["y"], name="square"),
        ],
        "g", [value("h", FP16)], [value("y", FP16, ["N", 2])], [constant("w", np.eye(3, 2) * 1.1, FP16)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = np.random.default_rng(0).random((50, 3)).astype(np.float16)
    shown = run(narrow.widen(made), ["m"], h=x)[0]
    assert (shown == shown.astype(np.float16).astype(np.float32)).all()


def test_constants_and_made_tensors_become_wide() -> None:
    filler = helper.make_tensor(
        "v", FP16, [1], np.array([1.5], np.float16).view(np.uint16).tobytes(), raw=True
    )
    made = model(
        [
            helper.make_node("Shape", ["h"], ["n"], name="shape"),
            helper.make_node("ConstantOfShape", ["n"], ["f"], name="fill", value=filler),
            helper.make_node("Constant", [], ["k"], name="k", value=constant("k", 0.1, FP16)),
            helper.make_node("Add", ["f", "k"], ["s"], name="add"),
            helper.make_node("Add", ["s", "h"], ["y"], name="sum"),
        ],
        [value("h", FP16)],
        [value("y", FP16)],
    )
    (y,) = run(narrow.widen(made), h=np.zeros((2, 3), np.float16))
    assert (y == np.float32(np.float16(1.5) + np.float16(0.1))).all()
