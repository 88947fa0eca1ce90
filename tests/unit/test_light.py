"""Engines opened without copying their weights answer with the very bits of those that are served."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid import onnx_light
from pellucid.backends.onnxruntime import light, options
from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend, _open_made
from pellucid.build.golden import synthetic
from pellucid.errors import BuildError, ParseError
from pellucid.ports import LogLine

RECIPE: dict[str, Any] = {"threads": 1, "serve_level": "portable"}
WIDTH = 192  # 192 x 192 single precision take more than is left in a structure
DRAW = np.random.default_rng(5)
Weights = dict[str, np.ndarray[Any, Any]]


def drawn(*shape: int, dtype: str = "f4") -> Any:
    if np.dtype(dtype).kind in "iu":
        return DRAW.integers(0, 100, shape).astype(dtype)
    return (DRAW.standard_normal(shape) / 8).astype(dtype)


def graph(
    nodes: list[onnx.NodeProto], weights: Weights, shape: list[int | str], kind: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """A model of input ``x`` and output ``y``; a text of odd length moves its weights off any boundary."""
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", kind, None)
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    made.ir_version, made.doc_string = 8, "x" * 37
    return made


def node(op: str, *inputs: str, to: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [to], name=f"{op}_{to}", **attributes)


def gemm() -> onnx.ModelProto:
    nodes = [node("Gemm", "x", "w0", "b", to="h"), node("Relu", "h", to="r"), node("MatMul", "r", "w1")]
    weights = {"w0": drawn(WIDTH, WIDTH), "b": drawn(WIDTH), "w1": drawn(WIDTH, WIDTH + 3)}
    return graph(nodes, weights, ["n", WIDTH])


def matmul_of_doubles() -> onnx.ModelProto:
    nodes = [node("MatMul", "x", "w", to="h"), node("Add", "h", "b")]
    weights = {"w": drawn(WIDTH, WIDTH, dtype="f8"), "b": drawn(WIDTH, dtype="f8")}
    return graph(nodes, weights, ["n", WIDTH], TensorProto.DOUBLE)


def convolutions() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x", "w0", to="h", pads=[1, 1, 1, 1]),
        node("Relu", "h", to="r"),
        node("Conv", "r", "w1", to="d", pads=[1, 1, 1, 1], group=64),
        node("ConvTranspose", "d", "w2", strides=[2, 2]),
    ]
    weights = {"w0": drawn(64, 40, 3, 3), "w1": drawn(6400, 1, 3, 3), "w2": drawn(6400, 2, 2, 2)}
    return graph(nodes, weights, ["n", 40, 9, 9])


def recurrent() -> onnx.ModelProto:
    nodes = [
        node("Transpose", "x", to="t", perm=[1, 0, 2]),
        node("LSTM", "t", "w", "r", "b", to="s", hidden_size=64),
        node("Squeeze", "s", "one", to="q"),
        node("Transpose", "q", perm=[1, 0, 2]),
    ]
    weights = {"w": drawn(1, 256, 100), "r": drawn(1, 256, 64), "b": drawn(1, 512), "one": np.array([1])}
    return graph(nodes, weights, ["n", 5, 100])


def looked_up_and_scaled() -> onnx.ModelProto:
    """Weights of other types, used element by element, with sums over what they give."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], name="index", to=TensorProto.INT64),
        node("Gather", "table", "i", to="g"),
        helper.make_node("Cast", ["g"], ["f"], name="wider", to=TensorProto.FLOAT),
        node("Mul", "f", "row", to="p"),
        node("Exp", "p", to="e"),
        node("ReduceMean", "e", to="a", axes=[1], keepdims=1),
        node("Mul", "a", "m", to="k"),
        node("ReduceSum", "k", "last", keepdims=0),
    ]
    weights = {
        "table": drawn(300, 7, 331, dtype="f2"), "row": drawn(7, 331), "m": drawn(97, 7, 331),
        "last": np.array([2]),
    }  # fmt: skip
    return graph(nodes, weights, [97])


def quantised() -> onnx.ModelProto:
    nodes = [
        node("QuantizeLinear", "x", "s", "z", to="q"),
        node("MatMulInteger", "q", "w", "z", "zw", to="i"),
        helper.make_node("Cast", ["i"], ["f"], name="back", to=TensorProto.FLOAT),
        node("Mul", "f", "s"),
    ]
    weights = {
        "s": np.array(0.02, "f4"), "z": np.array(128, "u1"), "zw": np.array(3, "i1"),
        "w": drawn(256, 300, dtype="i1"),
    }  # fmt: skip
    return graph(nodes, weights, ["n", 256])


def inside_a_branch() -> onnx.ModelProto:
    """The weight belongs to the outer graph, and its only readers stand in inner ones."""

    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"o_{op}", TensorProto.FLOAT, None)
        return helper.make_graph([node(op, "x", "w", to=f"o_{op}")], op, [], [out])

    nodes = [
        node("ReduceSum", "x", to="s", keepdims=0),
        node("Greater", "s", "zero", to="c"),
        node("If", "c", then_branch=branch("MatMul"), else_branch=branch("Gemm")),
    ]
    weights = {"w": drawn(WIDTH, WIDTH), "zero": np.array(0, "f4")}
    return graph(nodes, weights, ["n", WIDTH])


GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    made.__name__: made
    for made in (
        gemm, matmul_of_doubles, convolutions, recurrent, looked_up_and_scaled, quantised, inside_a_branch,
    )
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of these graphs are cut out and handed, as those of graphs a hundred times as large."""
    monkeypatch.setattr(light, "WEIGHTS_MIN", 2**16)
    monkeypatch.setattr("pellucid.onnx_light._LARGE", 2**10)


def answers(session: Any) -> list[list[tuple[Any, ...]]]:
    found = []
    for bucket in (1, 4):
        generator = np.random.default_rng(bucket)
        batch = [synthetic(spec, bucket if spec.shape[0] < 0 else 0, generator) for spec in session.inputs]
        found.append([(t.shape, bytes(t.data)) for t in session.infer(batch)])
    return found


def opened_light(path: Path, *, copied: bool) -> light.Light | None:
    asked = options.make_options(0, 1, severity=3)
    return light.open_light(path, light.contents(path), asked, copied=copied)


def opened_made(path: Path, *, copied: bool, recipe: dict[str, Any] = RECIPE) -> Any:
    return _open_made(path, recipe, severity=3, copied=copied, source="served")[2]


def in_file(raw: bytes, folder: Path) -> Path:
    path = folder / "engine"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_bits_as_an_engine_that_is_served(name: str, copied: bool, tmp_path: Path) -> None:
    engine = bytes(OnnxRuntimeBackend().build(RECIPE, GRAPHS[name]().SerializeToString(), _ignore).engine)
    served = answers(OnnxRuntimeBackend().open(engine, RECIPE))
    for shift in (0, 1, 3, 8):  # weights begin at other places of the file
        model = onnx.load_model_from_string(engine)
        model.producer_name = "p" * (40 + shift)
        path = in_file(model.SerializeToString(), tmp_path)
        made = opened_light(path, copied=copied)
        assert made is not None
        assert bool(made.weights) == copied
        opened = opened_made(path, copied=copied)
        assert answers(opened) == served
        assert (
            opened.describe()["settings"] == OnnxRuntimeBackend().open(engine, RECIPE).describe()["settings"]
        )


def _ignore(line: LogLine) -> None:
    pass


def test_copied_weights_lie_as_the_library_lays_its_own(tmp_path: Path) -> None:
    path = in_file(gemm().SerializeToString(), tmp_path)
    made = opened_light(path, copied=True)
    assert made is not None
    assert len(made.weights) == 2
    assert all(value.data_ptr() % light.ALIGNMENT == 0 for value in made.weights)


def test_the_log_of_a_build_says_which_weights_were_handed_over() -> None:
    lines: list[LogLine] = []
    built = OnnxRuntimeBackend().build(RECIPE, convolutions().SerializeToString(), lines.append)
    assert isinstance(built.engine, memoryview)
    handed = [re.search(r"user supplied initializer with name \((.*)\)", line.message) for line in lines]
    assert sorted(match[1] for match in handed if match) == ["w0", "w1", "w2"]
    assert built.facts["log"]["unknown"] == 0


def bfloat16(model: onnx.ModelProto) -> None:
    (tensor,) = [t for t in model.graph.initializer if t.name == "w0"]
    tensor.data_type, tensor.raw_data = TensorProto.BFLOAT16, tensor.raw_data[: len(tensor.raw_data) // 2]


def an_input_too(model: onnx.ModelProto) -> None:
    shape = [WIDTH, WIDTH]
    model.graph.input.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, shape))


def twice_named(model: onnx.ModelProto) -> None:
    model.graph.initializer[2].name = "w0"


def too_short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]


def values_too(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].float_data.append(1.0)


@pytest.mark.parametrize("change", [bfloat16, an_input_too, twice_named, too_short, values_too])
def test_other_than_plain_weights_are_opened_as_ever(change: Callable[[Any], None], tmp_path: Path) -> None:
    model = gemm()
    change(model)
    path = in_file(model.SerializeToString(), tmp_path)
    for copied in (True, False):
        assert opened_light(path, copied=copied) is None


def field(number: int, content: bytes) -> bytes:
    """A protobuf field of bytes."""
    return bytes([number << 3 | 2]) + onnx_light._as_varint(len(content)) + content


@pytest.mark.parametrize("small_first", [True, False])
def test_a_weight_that_is_written_twice_is_no_plain_one(tmp_path: Path, small_first: bool) -> None:
    """The later one holds, whichever of them is large."""
    model = gemm()
    small = onnx.TensorProto(raw_data=bytes(4)).SerializeToString()
    large = model.graph.initializer.pop(0).SerializeToString()
    tensor = small + large if small_first else large + small
    body = model.graph.SerializeToString() + field(5, tensor)
    model.ClearField("graph")
    path = in_file(model.SerializeToString() + field(7, body), tmp_path)
    assert opened_light(path, copied=True) is None


def test_a_graph_that_is_written_in_parts_is_one(tmp_path: Path) -> None:
    model, first = gemm(), onnx.ModelProto()
    first.graph.initializer.extend([numpy_helper.from_array(np.array([n], "f4"), f"n{n}") for n in range(3)])
    path = in_file(first.SerializeToString() + model.SerializeToString(), tmp_path)
    served = answers(OnnxRuntimeBackend().open(path.read_bytes(), RECIPE))
    for copied in (True, False):
        assert opened_light(path, copied=copied) is not None
        assert answers(opened_made(path, copied=copied)) == served


def test_truths_that_are_neither_0_nor_1_are_opened_as_ever(tmp_path: Path) -> None:
    nodes = [node("Cast", "w", to="c"), node("ReduceSum", "c", to="s"), node("Add", "x", "s")]
    nodes[0].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    model = graph(nodes, {"w": np.ones((300, 300), bool)}, ["n", 3])
    for odd in (False, True):
        if odd:  # the library makes 1 of it where it copies
            model.graph.initializer[0].raw_data = bytes([2]) + bytes([1]) * (300 * 300 - 1)
        path = in_file(model.SerializeToString(), tmp_path)
        served = answers(OnnxRuntimeBackend().open(path.read_bytes(), RECIPE))
        for copied in (True, False):
            assert (opened_light(path, copied=copied) is None) == odd
            assert answers(opened_made(path, copied=copied)) == served


def test_a_level_that_looks_at_weights_opens_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("expected the plain way")

    monkeypatch.setattr(light, "open_light", never)
    path = in_file(gemm().SerializeToString(), tmp_path)
    recipe = RECIPE | {"serve_level": "native"}
    opened = opened_made(path, copied=True, recipe=recipe)
    assert answers(opened) == answers(OnnxRuntimeBackend().open(path.read_bytes(), recipe))


def test_where_the_library_does_not_take_it_so_it_is_opened_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light, "_FOLDER", "session.no_such_entry")  # then files are looked for elsewhere
    path = in_file(gemm().SerializeToString(), tmp_path)
    with pytest.raises(Exception, match="External data path"):
        opened_light(path, copied=False)
    opened = OnnxRuntimeBackend().open_made(path, RECIPE)
    assert answers(opened) == answers(OnnxRuntimeBackend().open(path.read_bytes(), RECIPE))


def test_what_is_no_engine_is_refused_in_the_words_of_the_plain_way(tmp_path: Path) -> None:
    with pytest.raises((ParseError, BuildError)):
        OnnxRuntimeBackend().open_made(in_file(b"\x00" * 2**17, tmp_path), RECIPE)


@pytest.mark.parametrize("name", ["with a space", "ünïcode", "link"])
def test_wherever_the_file_lies(name: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    folder = tmp_path / name
    if name == "link":
        folder.symlink_to(tmp_path / "real")
    else:
        folder.mkdir()
    path = in_file(gemm().SerializeToString(), folder)
    served = answers(OnnxRuntimeBackend().open(path.read_bytes(), RECIPE))
    for copied in (True, False):
        assert opened_light(path, copied=copied) is not None
        assert answers(opened_made(path, copied=copied)) == served
