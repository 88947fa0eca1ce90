"""The judge on real graphs: accuracy, boundaries and ranges, and every way they fail closed."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from pellucid.app.processes import backend_for
from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend
from pellucid.build.job import run_build
from pellucid.build.judge import Judged, judge, runs, scores
from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.metadata import parse_metadata
from pellucid.core.recipe import effective, parse_recipe
from pellucid.errors import BuildError, GateError, RecipeError
from pellucid.testing.builds import toy_job, write_recipe
from pellucid.testing.models import MODELS, digits_like

pytestmark = pytest.mark.e2e
BASE = {"name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "model.onnx"}
CALIBRATION = {"data": "c.npz", "method": "minmax"}
REASON = [{"choice": "precision", "reason": "a test", "reviewer": "nobody"}]
LIGHT = np.array(["day", "night"] * 20)


class Request:
    """What the worker would hand over, for graphs of our own making."""

    backend_for = staticmethod(backend_for)

    def __init__(self, source: bytes, compiled: bytes, files: Mapping[str, Any], **said: Any) -> None:
        documents, names = said.pop("documents", {}), said.pop("names", {"tensors": [], "nodes": []})
        meaning = said.pop("meaning", {})
        recipe = effective(parse_recipe(yaml.safe_dump(BASE | {"buckets": [1, 4]} | said).encode()))
        built = OnnxRuntimeBackend().build(recipe, compiled, lambda line: None)
        self.phases: list[str] = []
        self.request = {
            "recipe": recipe, "meaning": meaning, "source": source, "compiled": compiled, "names": names,
            "facts": built.facts, "documents": documents,
            "inputs": [[s.name, s.datatype, list(s.shape)] for s in built.inputs],
            "outputs": [[s.name, s.datatype, list(s.shape)] for s in built.outputs],
            "files": {role: npz(**arrays) for role, arrays in files.items()},
        }  # fmt: skip

    def phase(self, name: str) -> None:
        self.phases.append(name)


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def run(source: bytes, compiled: bytes, files: Mapping[str, Any], **said: Any) -> Judged:
    said |= {role: {"data": "d.npz"} | said.get(role, {}) for role in files}
    judged = judge(Request(source, compiled, files, **said))
    for document in judged.documents.values():
        canonical.encode(document)
        assert document["passed"] == (not document["findings"])
    return judged


def images(count: int = 40) -> Any:
    return np.random.default_rng(3).standard_normal((count, 1, 8, 8)).astype("<f4")


def with_weight(raw: bytes, name: str, change: Any) -> bytes:
    model = onnx.load_model_from_string(raw)
    for tensor in model.graph.initializer:
        if tensor.name == name:
            array = change(numpy_helper.to_array(tensor).copy()).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    return model.SerializeToString()


def ranges(**tensors: Any) -> dict[str, Any]:
    items = [
        {"tensor": name, "nodes": [], "min": str(low), "max": str(high), "scale": "1", "zero_point": 0}
        for name, (low, high) in tensors.items()
    ]
    return {"calibration/ranges.json": {"tensors": items, "weights": []}}


@pytest.fixture(scope="module")
def quantised() -> bytes:
    return quantise(digits_like(), "image", images(200))


def quantise(raw: bytes, name: str, rows: Any) -> bytes:
    """INT8 with Q/DQ, by ONNX Runtime's own quantiser."""
    from onnxruntime import quantization

    class Rows(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(rows)

        def get_next(self) -> Any:
            row = next(self.rows, None)
            return None if row is None else {name: row[np.newaxis]}

    made = io.BytesIO()
    quantization.quantize_static(
        onnx.load_model_from_string(raw), made, Rows(), per_channel=True,
        activation_type=quantization.QuantType.QInt8, weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["Conv", "Gemm"],
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    )  # fmt: skip
    return made.getvalue()


# -- accuracy -------------------------------------------------------------------------------------


def test_an_int8_graph_is_measured_and_every_layer_compared(quantised: bytes) -> None:
    judged = run(
        digits_like(), quantised, {"validation": {"image": images(), "light": LIGHT}},
        validation={"slices": ["light"]}, precision="int8", calibration=CALIBRATION, reasons=REASON,
    )  # fmt: skip
    found = judged.documents["accuracy.json"]
    assert (found["samples"], found["emulated"]) == (40, [])
    assert found["measured_on"].startswith("the graph that was compiled, by ONNX Runtime 1.")
    assert found["measured_on"].endswith(" on this CPU; not the engine as it is served")
    assert (found["source"], found["compiled"]) == (sha256(digits_like()), sha256(quantised))
    assert 20 < float(found["psnr_db"]) < 80
    assert 0.99 < float(found["cosine_min"]) <= float(found["cosine_mean"]) < 1
    assert [(s["value"], s["samples"]) for s in found["slices"]] == [("day", 20), ("night", 20)]
    compared = {item["layer"]: item for item in found["boundaries"] if item["reason"] is None}
    assert {item["tensor"] for item in compared.values()} >= {"r1", "r2", "logits", "probs"}
    assert all(0 < float(item["error_relative"]) < 0.1 for item in compared.values())
    assert found["boundary_rows"] == 40


def test_the_first_layer_past_the_bound_is_where_the_damage_is() -> None:
    broken = with_weight(digits_like(), "w2", lambda w: w * 1.3)
    judged = run(
        digits_like(), broken, {"validation": {"image": images()}},
        gate={"boundary_error_max": 0.01, "kl_mean_max": None, "flips_max": None},
    )  # fmt: skip
    found = judged.documents["accuracy.json"]
    assert found["first_past_bound"] == "conv2"
    before = found["boundaries"][0]
    assert (before["layer"], before["nodes"], before["error_relative"]) == ("conv1", ["conv1", "relu1"], "0")
    assert judged.findings[0].startswith("layer conv2: relative RMS error: expected at most 0.01, got 0.")


@pytest.mark.parametrize("name", ["credit_like", "two_inputs"])
def test_how_many_rows_run_at_once_decides_nothing(name: str) -> None:
    generator = np.random.default_rng(5)
    data = {
        "credit_like": {"features": generator.standard_normal((37, 20)).astype("<f4")},
        "two_inputs": {"amount": generator.standard_normal((37, 4)).astype("<f4"), "kind": np.arange(37) % 8},
    }[name]
    weight = {"credit_like": "w1", "two_inputs": "w"}[name]
    other = with_weight(MODELS[name](), weight, lambda w: w * 1.01)
    gate = {"kl_mean_max": None, "flips_max": None, "slice_flips_max": None}
    found = [
        run(MODELS[name](), other, {"validation": data}, buckets=buckets, gate=gate).documents[
            "accuracy.json"
        ]
        for buckets in ([1], [5], [1, 64])
    ]
    for key in ("error_max", "psnr_db", "cosine_min", "cosine_mean", "kl_mean", "kl_max", "flips"):
        values = [float(one[key]) for one in found]
        assert values[0] > 0 or key == "flips"
        assert values[1:] == pytest.approx([values[0]] * 2, rel=1e-3, abs=1e-6), key
    assert {one["samples"] for one in found} == {37}


def test_a_model_without_a_batch_axis_runs_row_by_row() -> None:
    rows = np.random.default_rng(0).standard_normal((9, 6)).astype("<f4")
    found = run(MODELS["unbatched"](), MODELS["unbatched"](), {"validation": {"signal": rows}}, buckets=[])
    document = found.documents["accuracy.json"]
    assert (document["samples"], document["psnr_db"], found.findings) == (9, "inf", [])


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_precision_that_loses_something_needs_rows(precision: str) -> None:
    calibration = CALIBRATION if precision == "int8" else None
    judged = run(
        digits_like(), digits_like(), {}, precision=precision, calibration=calibration, reasons=REASON
    )
    assert len(judged.findings) == 1
    assert judged.findings[0].startswith(f"samples: expected a validation set for {precision}")
    assert "validation: {data: FILE.npz}" in judged.findings[0]
    found = judged.documents["accuracy.json"]
    assert (found["passed"], found["samples"], found["validation"], found["top1"]) == (False, 0, None, None)


def test_nothing_changed_and_nothing_named_needs_nothing() -> None:
    assert run(digits_like(), digits_like(), {}) == Judged()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_number_that_is_not_finite_fails_closed(bad: float) -> None:
    def spoil(weight: Any) -> Any:
        weight[0, 0] = bad
        return weight

    judged = run(
        digits_like(), with_weight(digits_like(), "wf", spoil), {"validation": {"image": images()}},
        gate={"boundary_error_max": 1000},
    )  # fmt: skip
    found = judged.documents["accuracy.json"]
    assert judged.findings[0] == "compiled graph: expected finite scores, got 40 rows with NaN or infinity"
    assert (found["kl_mean"], found["psnr_db"], found["first_past_bound"]) == (None, None, "fc")


def test_sixteen_bits_are_measured_as_the_graph_says_not_as_the_cpu_would() -> None:
    model = onnx.load_model_from_string(digits_like())
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(model, keep_io_types=True).SerializeToString()
    judged = run(digits_like(), half, {"validation": {"image": images()}}, precision="fp16", reasons=REASON)
    found = judged.documents["accuracy.json"]
    assert judged.findings == []
    assert found["emulated"] == ["FP16"]
    assert "FP16 by rounding each operator's result" in found["measured_on"]
    assert 1e-5 < float(found["error_max"]) < 1e-2
    edges = {item["tensor"]: float(item["error_relative"]) for item in found["boundaries"] if item["tensor"]}
    assert all(1e-5 < edges[name] < 1e-2 for name in ("r1", "r2", "logits"))


def test_what_overflows_in_sixteen_bits_fails_closed() -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    large = with_weight(digits_like(), "wf", lambda w: w * 1e6)
    half = convert_float_to_float16(
        onnx.load_model_from_string(large), keep_io_types=True, max_finite_val=6e4
    ).SerializeToString()
    judged = run(large, half, {"validation": {"image": images()}}, precision="fp16", reasons=REASON)
    assert judged.findings[0].startswith("compiled graph: expected finite scores, got ")


def test_axes_that_the_recipe_fixed_may_vary_in_the_source() -> None:
    def model(length: int | str) -> bytes:
        shape = ["N", length, 2]
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="m"),
            helper.make_node("ReduceMean", ["m"], ["y"], axes=[1], keepdims=0, name="mean"),
        ]
        graph = helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
            [numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        raw: bytes = made.SerializeToString()
        return raw

    rows = np.random.default_rng(0).standard_normal((6, 4, 2)).astype("<f4")
    judged = run(model("S"), model(4), {"validation": {"x": rows}})
    assert (judged.findings, judged.documents["accuracy.json"]["error_max"]) == ([], "0")


def test_what_has_no_numbers_is_not_compared() -> None:
    """A sequence between two layers: no tensor at all."""
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="pack"),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=1, name="unpack"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )  # fmt: skip
    raw = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows = np.ones((3, 2), "<f4")
    model = raw.SerializeToString()
    found = run(model, model, {"validation": {"x": rows}}).documents["accuracy.json"]
    by_layer = {item["layer"]: item["reason"] for item in found["boundaries"]}
    assert by_layer["pack"].startswith("not comparable: ")
    assert by_layer["unpack"] is by_layer["relu"] is None


def test_limits_on_what_is_held_in_memory_change_no_number(
    quantised: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"precision": "int8", "calibration": CALIBRATION, "reasons": REASON}
    files, known = {"validation": {"image": images()}}, ranges(image=(-1, 1), r1=(0, 1), r2=(0, 0.5))
    free = run(digits_like(), quantised, files, documents=known, **said).documents
    monkeypatch.setattr(runs, "TENSORS_AT_ONCE", 2)
    monkeypatch.setattr(runs, "BATCH_BYTES", 1)
    tight = run(digits_like(), quantised, files, documents=known, **said).documents
    counts = [[t["outside"] for t in d["representativeness.json"]["tensors"]] for d in (free, tight)]
    assert counts[0] == counts[1]
    assert min(counts[0]) > 0
    for a, b in zip(*(d["accuracy.json"]["boundaries"] for d in (free, tight)), strict=True):
        assert (a["tensor"], a["reason"]) == (b["tensor"], b["reason"])
        assert float(a["error_rms"] or 0) == pytest.approx(float(b["error_rms"] or 0), rel=1e-3)


def test_more_scores_than_are_kept_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SCORES_MAX", 399)
    with pytest.raises(BuildError, match="output 'probs': expected at most 399 scores") as caught:
        run(digits_like(), digits_like(), {"validation": {"image": images()}})
    assert "fewer validation rows" in caught.value.hint


# -- representativeness ---------------------------------------------------------------------------


def test_shares_are_those_of_numpy_by_slice() -> None:
    rows = images()
    rows[1::2] *= 3  # the night is loud
    judged = run(
        digits_like(), digits_like(), {"reference": {"image": rows, "light": LIGHT}},
        reference={"slices": ["light"]}, documents=ranges(image=(-2, 2), r1=(0, 1e9), gone=(0, 1)),
        gate={"out_of_range_max": 0.1},
    )  # fmt: skip
    found = judged.documents["representativeness.json"]
    tensors = {item["tensor"]: item for item in found["tensors"]}
    image = tensors["image"]
    assert image["outside"] == int((np.abs(rows) > 2).sum())
    night, day = (np.abs(rows[start::2]) > 2 for start in (1, 0))
    by_value = {s["value"]: s for s in image["slices"]}
    assert (by_value["night"]["outside"], by_value["day"]["outside"]) == (int(night.sum()), int(day.sum()))
    assert by_value["night"]["elements"] == night.size
    assert (tensors["r1"]["layer"], tensors["r1"]["share_outside"]) == ("relu1", "0")
    assert tensors["gone"]["reason"] == "not measured: the source has no such tensor"
    assert len(judged.findings) == 2
    assert judged.findings[1].endswith("got 1 of 3: gone (the source has no such tensor)")
    assert judged.findings[0].startswith("image: slice light=night: reference activations out of range: ")
    assert judged.notes == found["warnings"]
    assert "(slice light=night: " in found["warnings"][0]
    assert found["reference_is"] == "the recipe's reference set"
    assert "accuracy.json" not in judged.documents


def test_rows_are_told_apart_in_any_layout() -> None:
    """A tensor whose first axis is not the batch: its numbers still belong to their rows' slices."""
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
            helper.make_node("Transpose", ["t"], ["y"], name="back", perm=[1, 0]),
        ],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows = np.zeros((40, 3), "<f4")
    rows[1::2] = [5, 0, np.nan]
    judged = run(
        made.SerializeToString(), made.SerializeToString(), {"reference": {"x": rows, "light": LIGHT}},
        reference={"slices": ["light"]}, documents=ranges(t=(-1, 1)),
    )  # fmt: skip
    (item,) = judged.documents["representativeness.json"]["tensors"]
    shares = {s["value"]: s["share_outside"] for s in item["slices"]}
    assert shares == {"day": "0", "night": "0.666666667"}, "NaN is outside"


def test_the_validation_set_stands_in_and_says_so(quantised: bytes) -> None:
    judged = run(
        digits_like(), quantised, {"validation": {"image": images()}}, documents=ranges(image=(-9, 9)),
        precision="int8", calibration=CALIBRATION, reasons=REASON,
    )  # fmt: skip
    found = judged.documents["representativeness.json"]
    assert found["reference_is"] == "the recipe's validation set: it names no reference set"
    assert (found["reference"], found["samples"]) == (judged.documents["accuracy.json"]["validation"], 40)


def test_a_set_that_does_not_fit_is_named_by_its_role() -> None:
    with pytest.raises(RecipeError, match=r"^reference: input 'image': expected FP32"):
        run(digits_like(), digits_like(), {"reference": {"image": np.zeros((2, 3))}})


# -- in a build -----------------------------------------------------------------------------------


def recipe_with_rows(folder: Path, **said: Any) -> Path:
    folder.mkdir(parents=True)
    data = {"image": images(), "digit": np.arange(40) % 10, "light": LIGHT}
    (folder / "rows.npz").write_bytes(npz(**data))
    validation = {"data": "rows.npz", "labels": "digit", "slices": ["light"]}
    return write_recipe(folder, "digits_like", validation=validation, **said)


def test_a_package_holds_what_was_measured(tmp_path: Path) -> None:
    job, _ = toy_job(tmp_path / "packages")
    folder = run_build(recipe_with_rows(tmp_path / "recipe"), job).folder
    found = canonical.decode((folder / "accuracy.json").read_bytes())
    metadata = parse_metadata((folder / "metadata.json").read_bytes())
    assert found["validation"] == sha256((tmp_path / "recipe" / "rows.npz").read_bytes())
    assert metadata["accuracy_metrics"] == {"top1_acc": found["top1"], "psnr_db": "inf"}
    facts = canonical.decode((folder / "facts.json").read_bytes())
    assert facts["accuracy_measured_on"] == found["measured_on"]


def test_a_gate_that_fails_keeps_what_was_measured_beside_the_log(tmp_path: Path) -> None:
    job, events = toy_job(tmp_path / "packages")
    with pytest.raises(GateError, match="samples: expected at least 1,000, got 40") as caught:
        run_build(recipe_with_rows(tmp_path / "recipe", gate={"samples_min": 1000}), job)
    (kept,) = (tmp_path / "packages" / "failed").iterdir()
    assert "accuracy.json" in caught.value.hint
    assert json.loads((kept / "accuracy.json").read_bytes())["samples"] == 40
    assert (kept / "build.log.jsonl").read_bytes()
    assert [data["outcome"] for _, data in events.events] == ["build_gate"]
    assert [p.name for p in (tmp_path / "packages").iterdir()] == ["failed"]


def test_layers_of_a_gpu_engine_are_compared_without_its_gpu(tmp_path: Path) -> None:
    """The layers are those of the builder's log; the numbers are this CPU's, and say so."""
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    recipe = recipe_with_rows(
        tmp_path / "recipe", backend="tensorrt-rtx", target="sm89", licence_ack=True, precision="int8",
        reasons=REASON, calibration={"data": "c.npz"}, reference={"data": "c.npz"},
        gate={"boundary_error_max": 0.1, "flips_max": 0.1, "slice_flips_max": 0.1, "top1_drop_max": 0.1},
    )  # fmt: skip
    (tmp_path / "recipe" / "c.npz").write_bytes(npz(image=images(100)))
    job, _ = toy_job(tmp_path / "packages")
    folder = run_build(recipe, job).folder
    found = canonical.decode((folder / "accuracy.json").read_bytes())
    facts = canonical.decode((folder / "facts.json").read_bytes())
    assert found["measured_on"].endswith(" on this CPU; not the engine on its GPU")
    assert [item["layer"] for item in found["boundaries"]] == [item["name"] for item in facts["layers"]]
    measured = [item for item in found["boundaries"] if item["reason"] is None]
    assert {item["tensor"] for item in measured} >= {"logits", "probs"}
    assert all(0 < float(item["error_relative"]) < 0.1 for item in measured)
    held = canonical.decode((folder / "representativeness.json").read_bytes())
    assert held["passed"]
    assert {(item["reason"], item["outside"]) for item in held["tensors"]} == {(None, 0)}, "its own rows"


LOOSE = {"kl_mean_max": None, "flips_max": None, "out_of_range_max": None}

# -- what one number says -------------------------------------------------------------------------


def regression(weight: float, *, kind: int = TensorProto.FLOAT) -> bytes:
    """``y`` is a weighted sum, or that sum as a whole number."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", kind, ["batch", 1])
    w = numpy_helper.from_array(np.full((2, 1), weight, np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["sum"], name="product")]
    nodes.append(helper.make_node("Cast", ["sum"], ["y"], name="cast", to=kind))
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("gate", "words"),
    [({}, "a limit that can be measured"), ({"error_max": 1}, "largest error"), ({"error_max": 99}, "")],
)
def test_a_lossy_graph_of_one_number_passes_only_by_a_limit_that_was_measured(
    gate: dict[str, Any], words: str
) -> None:
    rows = np.linspace(-9, 9, 40, dtype="<f4").reshape(20, 2)
    judged = run(
        regression(1), regression(-1), {"validation": {"x": rows}}, precision="fp16", reasons=REASON,
        gate=gate,
    )  # fmt: skip
    assert [words in finding for finding in judged.findings] == ([True] if words else [])
    assert judged.documents["accuracy.json"]["flips"] is None


def test_a_graph_that_gives_labels_as_whole_numbers_is_judged_by_them() -> None:
    rows = np.linspace(0, 9, 40, dtype="<f4").reshape(20, 2)
    source = regression(1, kind=TensorProto.INT64)
    truth = rows.sum(axis=1).astype(np.int64)
    judged = run(
        source, regression(2, kind=TensorProto.INT64), {"validation": {"x": rows, "truth": truth}},
        validation={"labels": "truth"},
    )  # fmt: skip
    report = judged.documents["accuracy.json"]
    assert (report["top1_source"], report["flips"]) == ("1", 20 - int((truth == 0).sum()))
    assert any("flipped decisions" in finding for finding in judged.findings)


def test_rows_that_the_graph_was_calibrated_with_are_counted_and_noted(tmp_path: Path) -> None:
    rows = images()
    job, _ = toy_job(tmp_path / "packages")
    recipe = write_recipe(
        tmp_path / "recipe", "digits_like", precision="int8", calibration={"data": "c.npz"}, reasons=REASON,
        validation={"data": "v.npz"}, reference={"data": "r.npz"}, gate=LOOSE,
    )  # fmt: skip
    for name, part in (("c", rows[:20]), ("v", rows[10:]), ("r", rows[20:])):
        (recipe.parent / f"{name}.npz").write_bytes(npz(image=part))
    folder = run_build(recipe, job).folder
    found = [json.loads((folder / f"{n}.json").read_bytes()) for n in ("accuracy", "representativeness")]
    assert [document["calibration_rows"] for document in found] == [10, 0]
    notes = json.loads((folder / "facts.json").read_bytes())["notes"]
    assert [note for note in notes if "calibrated with" in note] == [
        "validation: 10 of 30 rows are rows that it was calibrated with, which fit better than others will"
    ]
