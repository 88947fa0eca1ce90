"""Graphs given their precision: FP16, BF16, INT8 by three methods, and what is refused."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from pellucid.build import precision
from pellucid.core import canonical
from pellucid.core.calibration import parse_manifest
from pellucid.core.calibration_ranges import parse_ranges
from pellucid.core.digest import sha256
from pellucid.core.recipe import effective, parse_recipe
from pellucid.core.tensor import Tensor, row_digest
from pellucid.errors import FormatError, PellucidError, PrecisionError, RecipeError
from pellucid.testing.models import MODELS, digits_like

yaml = pytest.importorskip("yaml")
RTX = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}
REASONS = [{"choice": "precision", "reason": "half the memory", "reviewer": "a test"}]
IMAGES = np.random.default_rng(3).standard_normal((48, 1, 8, 8)).astype(np.float32)
LIGHT = np.array(["day", "night", "day"] * 16)
TIMES = np.array(["2026-03-01T10:00:00Z", "2026-03-01T11:00:00+01:00", "2026-02-28"] * 16)
NOBODYS = np.array(["2026-03-01T10:00:00"] * 48)  # of no time zone
SET = {"data": "c.npz", "slices": ["light"], "times": "seen"}


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


DATA = npz(image=IMAGES, light=LIGHT, seen=TIMES)


def recipe(kind: str, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "m.onnx",
        "buckets": [1, 4], "precision": kind,
    }  # fmt: skip
    values |= {"calibration": dict(SET)} if kind == "int8" else {}
    values |= {} if kind == "fp32" else {"reasons": REASONS}
    return effective(parse_recipe(yaml.safe_dump(values | changes).encode()))


def apply(model: bytes, said: Mapping[str, Any], data: bytes = DATA, **files: bytes) -> Any:
    return precision.apply(model, said, {"calibration": data} | files)


def run(model: bytes, feed: Mapping[str, Any], level: int = 99) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    options.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, dict(feed))


def graph_of(raw: bytes) -> onnx.GraphProto:
    return onnx.load_model_from_string(raw).graph


def ops(raw: bytes) -> list[str]:
    return [node.op_type for node in graph_of(raw).node]


def with_initialiser(name: str, change: Callable[[Any], Any]) -> bytes:
    model = onnx.load_model_from_string(digits_like())
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    raw: bytes = model.SerializeToString()
    return raw


# -- fp32 -----------------------------------------------------------------------------------------


def test_fp32_changes_no_byte() -> None:
    done = apply(digits_like(), recipe("fp32"))
    assert (done.model, done.steps) == (digits_like(), [])
    assert done.documents["precision.json"]["precision"] == "fp32"
    assert done.documents["precision.json"]["quantised"] == []


# -- fp16, bf16 -----------------------------------------------------------------------------------


def test_fp16_halves_the_weights_and_keeps_what_clients_see() -> None:
    done = apply(digits_like(), recipe("fp16"))
    graph = graph_of(done.model)
    assert {t.data_type for t in graph.initializer} == {TensorProto.FLOAT16}
    assert [v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)] == [TensorProto.FLOAT] * 2
    (before,), (after,) = (run(raw, {"image": IMAGES}) for raw in (digits_like(), done.model))
    assert 0 < np.abs(before - after).max() < 5e-3
    document = done.documents["precision.json"]
    assert [item["name"] for item in document["initialisers"]] == ["b1", "b2", "bf", "w1", "w2", "wf"]
    assert sum(item["elements"] for item in document["initialisers"]) == 8 * 9 + 8 + 1152 + 16 + 2560 + 10
    (step,) = done.steps
    assert (step["before"], step["after"]) == (sha256(digits_like()), sha256(done.model))


def test_weights_are_rounded_to_nearest_and_the_small_are_counted() -> None:
    small = np.array([1e-12, -3e-8, 1e-6, 1 / 3], np.float32)

    def change(array: Any) -> Any:
        array.reshape(-1)[:4] = small
        return array

    done = apply(with_initialiser("w1", change), recipe("fp16"))
    (found,) = (numpy_helper.to_array(t) for t in graph_of(done.model).initializer if t.name == "w1")
    assert found.reshape(-1)[:4].tolist() == small.astype(np.float16).tolist()
    assert found.reshape(-1)[0] == 0  # the converter itself would have made it 6e-8
    (counts,) = (i for i in done.documents["precision.json"]["initialisers"] if i["name"] == "w1")
    assert (counts["overflow"], counts["flushed"]) == (0, 1)
    assert counts["subnormal"] >= 2
    assert "below what fp16 holds" in done.notes[0]


def test_weights_that_do_not_fit_are_named() -> None:
    def change(array: Any) -> Any:
        array.reshape(-1)[:2] = (70000, -1e30)
        return array

    with pytest.raises(PrecisionError) as error:
        apply(with_initialiser("wf", change), recipe("fp16"))
    assert "'wf' (2 of 2,560, largest 1e+30)" in error.value.message
    assert "bf16" in error.value.hint


def test_an_operator_that_stays_fp32_keeps_weights_that_would_not_fit() -> None:
    nodes = [
        helper.make_node("Add", ["x", "small"], ["y"], name="add"),
        helper.make_node("Min", ["y", "large"], ["z"], name="cap"),
    ]
    raw = _model(nodes, {"small": np.ones(3, np.float32), "large": np.full(3, 1e6, np.float32)})
    done = apply(raw, recipe("fp16"))
    document = done.documents["precision.json"]
    assert document["kept_fp32"] == ["cap"]
    kept = {item["name"]: item["kept_fp32"] for item in document["initialisers"]}
    assert kept == {"large": True, "small": False}
    x = np.array([[1, 2, 3]], np.float32)
    assert run(done.model, {"x": x})[0].tolist() == [[2, 3, 4]]


def _model(
    nodes: list[Any], weights: dict[str, Any], opset: int = 17, kind: int = TensorProto.FLOAT
) -> bytes:
    graph = helper.make_graph(
        nodes, "toy", [helper.make_tensor_value_info("x", kind, ["N", 3])],
        [helper.make_tensor_value_info("z", kind, ["N", 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    raw: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ).SerializeToString()
    return raw


def test_bf16_has_the_range_of_fp32_and_says_what_it_needs() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
        helper.make_node("Relu", ["y"], ["z"], name="relu"),
    ]
    large = np.full((3, 3), 1e30, np.float32)
    done = apply(_model(nodes, {"w": large}), recipe("bf16", **RTX))
    (weight,) = graph_of(done.model).initializer
    assert weight.data_type == TensorProto.BFLOAT16
    assert np.allclose(numpy_helper.to_array(weight).astype(np.float32), large, rtol=2**-8)
    assert {v.type.tensor_type.elem_type for v in graph_of(done.model).input} == {TensorProto.FLOAT}
    with pytest.raises(PrecisionError) as error:
        apply(digits_like(), recipe("bf16", **RTX))  # a convolution of opset 17
    assert "canonical: {opset: 22}" in error.value.hint


@pytest.mark.parametrize(("kind", "name"), [(TensorProto.FLOAT16, "FLOAT16"), (TensorProto.INT64, "none")])
def test_what_is_not_fp32_is_not_halved_again(kind: int, name: str) -> None:
    raw = _model([helper.make_node("Identity", ["x"], ["z"], name="same")], {}, kind=kind)
    if kind == TensorProto.FLOAT16:
        raw = _model(
            [helper.make_node("Add", ["x", "w"], ["z"], name="add")], {"w": np.ones(3, np.float16)}, kind=kind
        )
    with pytest.raises(PrecisionError, match="precision: fp16") as error:
        apply(raw, recipe("fp16"))
    assert "precision: fp32" in error.value.hint


# -- int8 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_onnxruntime_computes_with_integers(method: str) -> None:
    done = apply(digits_like(), recipe("int8", calibration=SET | {"method": method}))
    (before,), (after,) = (run(raw, {"image": IMAGES}) for raw in (digits_like(), done.model))
    assert 0 < np.abs(before - after).max() < 0.1
    assert [node["name"] for node in done.documents["precision.json"]["quantised"]] == [
        "conv1",
        "conv2",
        "fc",
    ]
    ranges = parse_ranges(canonical.encode(done.documents["calibration/ranges.json"]))
    assert (ranges.method, ranges.samples) == (method, 48)
    assert {z for t in ranges.tensors for z in t.zero_point} == {128}
    assert {z for w in ranges.weights for z in w.zero_point} == {0}
    assert [len(w.scale) for w in ranges.weights] == [8, 16, 10]
    for found in ranges.tensors:
        assert found.scale[0] == pytest.approx(max(map(abs, (*found.low, *found.high))) / 127, rel=1e-6)
    assert {t.name: t.nodes for t in ranges.tensors}["image"] == ("conv1",)


def test_the_ranges_are_those_of_the_data() -> None:
    done = apply(digits_like(), recipe("int8"))
    ranges = parse_ranges(canonical.encode(done.documents["calibration/ranges.json"]))
    image = next(t for t in ranges.tensors if t.name == "image")
    assert (image.low, image.high) == ((float(IMAGES.min()),), (float(IMAGES.max()),))
    weight = next(w for w in ranges.weights if w.name == "w1")
    given = next(numpy_helper.to_array(t) for t in graph_of(digits_like()).initializer if t.name == "w1")
    assert weight.low == tuple(float(v) for v in given.min(axis=(1, 2, 3)))


def test_tensorrt_gets_the_form_that_it_takes() -> None:
    done = apply(digits_like(), recipe("int8", **RTX))
    assert ops(done.model).count("QuantizeLinear") == 3  # what goes in; never what comes out of Conv and Gemm
    kinds = {t.name: t.data_type for t in graph_of(done.model).initializer}
    assert {kinds[name] for name in ("b1", "b2", "bf")} == {TensorProto.FLOAT}
    assert TensorProto.INT32 not in kinds.values()


def test_both_forms_have_the_same_scales() -> None:
    cpu, gpu = (
        apply(digits_like(), recipe("int8", **b)).documents["calibration/ranges.json"] for b in ({}, RTX)
    )
    there = {t["tensor"]: t["scale"] for t in cpu["tensors"]}
    assert {t["tensor"]: t["scale"] for t in gpu["tensors"]}.items() <= there.items()
    assert gpu["weights"] == cpu["weights"]
    assert {t["zero_point"] for t in gpu["tensors"]} == {0}


def test_two_operators_that_read_one_tensor_both_get_integer_kernels() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["y"], name="first"),
        helper.make_node("Gemm", ["y", "w", "b"], ["left"], name="left"),
        helper.make_node("Gemm", ["y", "v", "b"], ["right"], name="right"),
        helper.make_node("Max", ["left", "right"], ["z"], name="max"),
    ]
    draw = np.random.default_rng(5).standard_normal((2, 3, 3)).astype(np.float32)
    raw = _model(nodes, {"w": draw[0], "v": draw[1], "b": np.ones(3, np.float32)})
    done = apply(raw, recipe("int8", calibration={"data": "c.npz"}), npz(x=IMAGES[:, 0, 0, :3].copy()))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.add_session_config_entry("session.x64quantprecision", "1")
    with tempfile.TemporaryDirectory() as scratch:
        options.optimized_model_filepath = f"{scratch}/m.onnx"
        ort.InferenceSession(done.model, options, providers=["CPUExecutionProvider"])
        kernels = ops(Path(options.optimized_model_filepath).read_bytes())
    assert sorted(k for k in kernels if k.startswith("Q") and k != "QuantizeLinear") == [
        "QGemm", "QGemm", "QLinearMatMul",
    ]  # fmt: skip


def test_a_product_of_two_activations_stays_fp32() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="weighted"),
        helper.make_node("Transpose", ["x"], ["t"], name="turn"),
        helper.make_node("MatMul", ["t", "y"], ["m"], name="attention"),
        helper.make_node("MatMul", ["x", "m"], ["z"], name="again"),
    ]
    raw = _model(nodes, {"w": np.eye(3, dtype=np.float32)})
    done = apply(raw, recipe("int8", calibration={"data": "c.npz"}), npz(x=IMAGES[:, 0, 0, :3].copy()))
    assert [node["name"] for node in done.documents["precision.json"]["quantised"]] == ["weighted"]
    assert [t["tensor"] for t in done.documents["calibration/ranges.json"]["tensors"]] == ["x", "y"]


def test_percentile_and_entropy_cut_what_is_rare() -> None:
    rare = IMAGES.copy()
    rare[0, 0, 0, 0] = 1000
    data = npz(image=rare, light=LIGHT, seen=TIMES)
    top = {}
    for method in ("minmax", "percentile", "entropy"):
        said = recipe("int8", calibration=SET | {"method": method, "percentile": "99"})
        ranges = apply(digits_like(), said, data).documents["calibration/ranges.json"]
        top[method] = next(float(t["max"]) for t in ranges["tensors"] if t["tensor"] == "image")
    assert top["minmax"] == 1000
    assert top["percentile"] < 10
    assert top["entropy"] < 500


def test_the_manifest_says_which_rows_and_holds_none() -> None:
    said = recipe(
        "int8",
        calibration=SET | {
            "select": {"rule": "stratified", "count": 10, "seed": 4, "slice": "light"}, "source": "camera 7",
            "licence": "CC0",
        },
    )  # fmt: skip
    done = apply(digits_like(), said)
    found = parse_manifest(canonical.encode(done.documents["calibration/manifest.json"]))
    assert (found.data, found.rows, len(found.samples), found.source) == (sha256(DATA), 48, 10, "camera 7")
    (light,) = found.slices
    assert [(v["value"], v["rows"], v["selected"]) for v in light["values"]] == [
        ("day", 32, 5),
        ("night", 16, 5),
    ]
    assert found.times == {"from": "2026-02-28T00:00:00.000000000Z", "to": "2026-03-01T10:00:00.000000000Z"}
    first = found.samples[0]
    row = Tensor("image", "FP32", (1, 1, 8, 8), IMAGES[first.index].tobytes())
    assert first.digest == "sha256:" + row_digest([row]).hex()
    assert IMAGES[first.index].tobytes() not in b"".join(map(canonical.encode, done.documents.values()))


def test_the_rows_chosen_are_the_rows_run() -> None:
    wide = IMAGES.copy()
    wide[40] = 90.0  # not among the first
    data = npz(image=wide, light=LIGHT, seen=TIMES)
    said = recipe("int8", calibration=SET | {"select": {"rule": "first", "count": 16}})
    ranges = apply(digits_like(), said, data).documents["calibration/ranges.json"]
    assert all(float(t["max"]) < 90 for t in ranges["tensors"])


TWICE = """
import io, os, sys
import numpy as np
sys.path.insert(0, {here!r})
from test_precision import apply, digits_like, npz, recipe, RTX, SET
from pellucid.core.digest import sha256
for method in ("minmax", "entropy", "percentile"):
    for backend in ({{}}, RTX):
        done = apply(digits_like(), recipe("int8", calibration=SET | {{"method": method}}, **backend))
        print(sha256(done.model), sha256(repr(done.documents).encode()))
print(sha256(apply(digits_like(), recipe("fp16")).model))
print("left", os.listdir(os.environ["TMPDIR"]))
"""


def test_two_processes_give_the_same_bytes_and_leave_nothing(tmp_path: Path) -> None:
    code = TWICE.format(here=str(Path(__file__).parent))
    said = []
    for seed in ("1", "2"):  # sets of names come in another order
        env = os.environ | {"PYTHONHASHSEED": seed, "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.splitlines())
    assert said[0] == said[1]
    assert len(set(said[0])) == 8
    assert said[0][-1] == "left []"


def test_a_model_without_batch_axis_and_one_of_several_inputs() -> None:
    unbatched = recipe("int8", buckets=[], calibration={"data": "c.npz"})
    rows = np.random.default_rng(1).standard_normal((9, 6)).astype(np.float32)
    done = apply(MODELS["unbatched"](), unbatched, npz(signal=rows))
    assert run(done.model, {"signal": rows[0]})[0] == pytest.approx(
        run(MODELS["unbatched"](), {"signal": rows[0]})[0], abs=0.1
    )
    amounts, kinds = rows[:, :4].copy(), np.arange(9, dtype=np.int64) % 8
    two = recipe("int8", calibration={"data": "c.npz"})
    done = apply(MODELS["two_inputs"](), two, npz(amount=amounts, kind=kinds))
    found = parse_manifest(canonical.encode(done.documents["calibration/manifest.json"]))
    assert [i["name"] for i in found.inputs] == ["amount", "kind"]
    row = [
        Tensor("amount", "FP32", (1, 4), amounts[2].tobytes()),
        Tensor("kind", "INT64", (1,), kinds[2].tobytes()),
    ]
    assert found.samples[2].digest == "sha256:" + row_digest(row).hex()
    assert [t["tensor"] for t in done.documents["calibration/ranges.json"]["tensors"]] == [
        "amount", "score",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "changed", "kind", "words"),
    [
        (b"no such thing", {}, FormatError, "expected an .npz file"),
        (npz(other=IMAGES), {}, RecipeError, "input 'image': expected FP32"),
        (npz(image=IMAGES.astype(np.float64)), {}, RecipeError, "got float64"),
        (npz(image=IMAGES[:, 0]), {}, RecipeError, "input 'image'"),
        (npz(image=IMAGES[:0]), {}, RecipeError, "the same number of rows"),
        (npz(image=IMAGES * np.nan), {}, RecipeError, "finite numbers, got others in row 0"),
        (npz(image=IMAGES), {"slices": ["light"]}, RecipeError, "48 values of 'light'"),
        (npz(image=IMAGES, seen=LIGHT), {"times": "seen"}, RecipeError, "RFC 3339"),
        (npz(image=IMAGES, seen=NOBODYS), {"times": "seen"}, RecipeError, "RFC 3339"),
        (npz(image=np.full((4, 1, 8, 8), 3e38, np.float32)), {}, PrecisionError, "finite values"),
        (DATA, {"operators": ["LSTM"]}, PrecisionError, "operators of LSTM"),
    ],
)  # fmt: skip
def test_a_set_that_does_not_fit_is_refused(
    data: bytes, changed: dict[str, Any], kind: type[PellucidError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        apply(digits_like(), recipe("int8", calibration={"data": "c.npz"} | changed), data)


def test_times_may_be_seconds_or_dates_of_numpy() -> None:
    for times in (np.arange(48) + 1772000000, np.datetime64("2026-02-25T06:13:20") + np.arange(48)):
        data = npz(image=IMAGES, light=LIGHT, seen=times)
        found = apply(digits_like(), recipe("int8"), data).documents["calibration/manifest.json"]
        assert found["times"] == {
            "from": "2026-02-25T06:13:20.000000000Z", "to": "2026-02-25T06:14:07.000000000Z",
        }  # fmt: skip


def test_an_old_opset_says_how_to_raise_it() -> None:
    model = onnx.load_model_from_string(digits_like())
    model.opset_import[0].version = 12
    with pytest.raises(PrecisionError, match="opset 13 or later, got 12") as error:
        apply(model.SerializeToString(), recipe("int8"))
    assert "canonical: {opset: 17}" in error.value.hint


# -- an earlier artefact --------------------------------------------------------------------------


def test_an_artefact_stands_in_for_a_calibration() -> None:
    said = recipe("int8", calibration=SET | {"method": "percentile"})
    first = apply(digits_like(), said)
    raw = canonical.encode(first.documents["calibration/ranges.json"])
    reused = recipe("int8", calibration=SET | {"method": "percentile", "artefact": "r.json"})
    second = apply(digits_like(), reused, artefact=raw)
    assert (second.model, second.documents) == (first.model, first.documents)
    assert "with the ranges of an earlier package" in second.notes[0]


def edited(raw: bytes, change: Callable[[dict[str, Any]], None], *, honest: bool) -> bytes:
    document = canonical.decode(raw)
    change(document)
    if honest:
        content = {key: item for key, item in document.items() if key != "digest"}
        document["digest"] = sha256(canonical.encode(content))
    return canonical.encode(document)


def test_an_output_of_the_graph_has_its_range_in_the_artefact_too() -> None:
    """Where a quantised operator gives it: without it the artefact could not stand in for its own package."""
    proto = onnx.load_model_from_string(digits_like())
    last = proto.graph.node.pop()
    proto.graph.output[0].name = last.input[0]
    logits = proto.SerializeToString()
    first = apply(logits, recipe("int8", calibration=SET))
    document = first.documents["calibration/ranges.json"]
    assert last.input[0] in [tensor["tensor"] for tensor in document["tensors"]]
    reused = recipe("int8", calibration=SET | {"artefact": "r.json"})
    second = apply(logits, reused, artefact=canonical.encode(document))
    assert (second.model, second.documents) == (first.model, first.documents)


def test_an_artefact_for_something_else_is_refused_with_what_differs() -> None:
    raw = canonical.encode(apply(digits_like(), recipe("int8")).documents["calibration/ranges.json"])
    said = recipe("int8", calibration=SET | {"artefact": "r.json"})

    def refused(words: str, model: bytes = digits_like(), data: bytes = DATA, **given: Any) -> None:
        with pytest.raises(PrecisionError, match=words) as error:
            apply(model, given.pop("said", said), data, artefact=given.pop("artefact", raw))
        assert error.value.message.startswith("calibration.artefact")

    refused("graph sha256", model=with_initialiser("b1", lambda array: array + 1))
    refused("data file sha256.*chosen samples sha256", data=npz(image=IMAGES + 1, light=LIGHT, seen=TIMES))
    entropy = recipe("int8", calibration=SET | {"artefact": "r.json", "method": "entropy"})
    refused("method minmax there, entropy here", said=entropy)
    fewer = SET | {"artefact": "r.json", "select": {"rule": "first", "count": 9}, "per_channel": False}
    refused(
        r"chosen samples.*settings\.per_channel True there, False", said=recipe("int8", calibration=fewer)
    )
    refused(
        r"settings\.bias 'int32' there, 'fp32' here",
        said=recipe("int8", calibration=said["calibration"], **RTX),
    )
    refused("no such file", artefact=b"")
    refused("valid JSON", artefact=raw[:100])

    def version(document: dict[str, Any]) -> None:
        document["bound"]["versions"]["onnxruntime"] = "1.0.0"

    def scale(document: dict[str, Any]) -> None:
        document["tensors"][0]["scale"] = "0.5"

    def gone(document: dict[str, Any]) -> None:
        del document["tensors"][0]

    refused("digest of its content", artefact=edited(raw, scale, honest=False))
    refused(r"versions\.onnxruntime '1\.0\.0' there", artefact=edited(raw, version, honest=True))
    refused("follow from one another", artefact=edited(raw, scale, honest=True))
    with pytest.raises(PrecisionError):
        apply(digits_like(), said, artefact=edited(raw, gone, honest=True))


# -- models that came quantised -------------------------------------------------------------------


def qdq(zero: Any, *, say: bool = True) -> bytes:
    inputs = ["x", "s", "zero"] if say else ["x", "s"]
    nodes = [
        helper.make_node("QuantizeLinear", inputs, ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", *inputs[1:]], ["z"], name="dequantise"),
    ]
    return _model(nodes, {"s": np.float32(0.1), "zero": zero})


@pytest.mark.parametrize(
    ("model", "got", "hint"),
    [
        (qdq(np.uint8(0)), "got UINT8", "QuantType.QInt8"),
        (qdq(np.uint8(7)), "got UINT8", "QuantType.QInt8"),
        (qdq(np.uint8(0), say=False), "got UINT8", "QuantType.QInt8"),
        (qdq(np.int8(3)), "zero point of 0, got 3", "ActivationSymmetric"),
    ],
)
def test_tensorrt_is_not_given_what_it_computes_otherwise(model: bytes, got: str, hint: str) -> None:
    with pytest.raises(PrecisionError, match=got) as error:
        apply(model, recipe("fp32", **RTX))
    assert hint in error.value.hint
    assert apply(model, recipe("fp32")).notes == []  # onnxruntime takes it at its word
    assert apply(qdq(np.int8(0)), recipe("fp32", **RTX)).documents["precision.json"]["quantised"] == []


def quantised_by_default(tmp_path: Path, **options: Any) -> bytes:
    """What ONNX Runtime's own tool makes of the model, with the settings most people leave alone."""
    batches = iter([{"image": IMAGES}])
    reader = type("Reader", (CalibrationDataReader,), {"get_next": lambda self: next(batches, None)})
    (tmp_path / "model.onnx").write_bytes(digits_like())
    quantize_static(tmp_path / "model.onnx", tmp_path / "q.onnx", reader(), extra_options=options)
    return (tmp_path / "q.onnx").read_bytes()


def test_a_model_that_the_usual_tool_quantised_says_what_to_change(tmp_path: Path) -> None:
    raw = quantised_by_default(tmp_path, QuantizeBias=False)  # asymmetric
    with pytest.raises(PrecisionError, match=r"zero point of 0, got -?\d+: this builder") as error:
        apply(raw, recipe("fp32", **RTX))
    assert "ActivationSymmetric" in error.value.hint
    raw = quantised_by_default(tmp_path, ActivationSymmetric=True, WeightSymmetric=True)  # its bias is INT32
    with pytest.raises(PrecisionError, match="got INT32, as a quantised bias has it") as error:
        apply(raw, recipe("fp32", **RTX))
    assert "QuantizeBias=False" in error.value.hint
    assert "(and 2 other nodes like it)" in error.value.message
    asymmetric_too = quantised_by_default(tmp_path)
    with pytest.raises(PrecisionError, match=r"got INT32, .*; node .* zero point of 0, got -?\d+") as error:
        apply(asymmetric_too, recipe("fp32", **RTX))
    assert error.value.hint.startswith("quantise symmetrically to INT8")
    assert error.value.hint.count("give the FP32 model") == 1
    for kind in ("int8", "fp16"):
        with pytest.raises(PrecisionError, match="expected a model in FP32, got 26"):
            apply(raw, recipe(kind))
    kept = apply(raw, recipe("fp32"))
    assert kept.model == raw
    assert "came quantised with the model" in kept.notes[0]


def test_a_person_can_compute_a_sample_digest_as_the_specification_says(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "spec/calibration.md").read_text()
    (snippet,) = re.findall(r"(?ms)^```python\n(.*?)^```$", page)
    names: dict[str, Any] = {}
    exec(snippet, names)
    rows, kinds = IMAGES[:9, 0, 0, :4].copy(), np.arange(9, dtype=np.int64) % 8
    (tmp_path / "c.npz").write_bytes(npz(amount=rows, kind=kinds))
    done = apply(
        MODELS["two_inputs"](), recipe("int8", calibration={"data": "c.npz"}), npz(amount=rows, kind=kinds)
    )
    manifest = done.documents["calibration/manifest.json"]
    for sample in manifest["samples"]:
        computed = names["sample_digest"](tmp_path / "c.npz", sample["index"], manifest["inputs"])
        assert computed == sample["digest"]
