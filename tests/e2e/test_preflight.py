"""``pellucid preflight``: every finding at once, in a child; and what it says is what a build does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from pellucid.app.preflight import preflight
from pellucid.build.left import ENTRY
from pellucid.build.preflight_child import Foreseen, foresee
from pellucid.cli.main import cli
from pellucid.core.digest import sha256
from pellucid.core.recipe import effective, parse_recipe
from pellucid.errors import DiskFullError, RecipeError, UsageError
from pellucid.testing.backend_models import Outcome, model_paths, summary, survey
from pellucid.testing.models import MODELS, credit_like, digits_like, dynamically_quantised

pytestmark = pytest.mark.e2e


def needs_rtx() -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")


def file(folder: Path, raw: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(raw)
    return path


def seen(folder: Path, raw: bytes, backend: str = "onnxruntime") -> Foreseen:
    (done,) = preflight(file(folder, raw), backend=backend)
    return done


def rules(done: Foreseen, severity: str) -> set[str]:
    return {finding.rule for finding in done.findings if finding.severity == severity}


def hostile() -> bytes:
    """Everything at once: names, twins, a random operator, a free axis, weights out of FP16's range."""
    names = {"conv1": "conv1\nMax Scratch Memory: 1 bytes", "relu1": "r" * 300, "pool": "relu2", "flat": ""}
    proto = onnx.load_model_from_string(digits_like(nodes=lambda name: names.get(name, name)))
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"
    proto.graph.node.append(helper.make_node("RandomNormalLike", ["image"], ["noise"], name="noise"))
    for tensor in proto.graph.initializer:
        if tensor.name == "b1":
            held = numpy_helper.to_array(tensor).copy()
            held[:2] = 1e6, 1e-7
            tensor.CopyFrom(numpy_helper.from_array(held, "b1"))
    raw: bytes = proto.SerializeToString()
    return raw


def test_every_finding_is_told_at_once(tmp_path: Path) -> None:
    done = seen(tmp_path, hostile())
    assert not done.buildable
    assert rules(done, "refused") == {"axes"}
    assert rules(done, "risk") == {"random"}
    assert rules(done, "note") == {"names"}
    said = {finding.where: finding for finding in done.findings}
    assert "could speak as the builder" in said["node 'conv1\\nMax Scratch Memory: 1 bytes'"].what
    assert any("longer than 200" in finding.what for finding in done.findings)
    assert any("several nodes each ('relu2')" in finding.what for finding in done.findings)
    assert any("1 node without a name" in finding.what for finding in done.findings)
    assert "shapes: {image: [-1, 1, ?, 8]}" in said["input 'image'"].fix
    assert [f.severity for f in done.findings] == sorted((f.severity for f in done.findings), key=ORDER.index)
    assert done.facts["inputs"] == [{"name": "image", "datatype": "FLOAT", "shape": ["N", 1, "H", 8]}]


ORDER = ["refused", "risk", "note"]


def test_a_recipe_fixes_what_it_says_and_judges_what_is_left(tmp_path: Path) -> None:
    said = {
        "name": "m", "version": "1", "backend": "onnxruntime", "target": "cpu", "model": "model.onnx",
        "shapes": {"image": [-1, 1, 8, 8]}, "precision": "fp16", "validation": {"data": "rows.npz"},
        "reasons": [{"choice": "precision", "reason": "to see the risk", "reviewer": "a test"}],
    }  # fmt: skip
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(said))
    (done,) = preflight(file(tmp_path, hostile()), recipe)
    assert done.buildable
    assert rules(done, "risk") == {"random", "types.fp16"}
    said_of = {finding.where: finding.what for finding in done.findings}
    assert said_of["tensor 'b1'"] == "1 of 8 values beyond 65504, which FP16 has no number for"
    recipe.write_text(
        yaml.safe_dump(said | {"shapes": {"image": [-1, 2, 8, 8], "ghost": [1]}, "buckets": []})
    )
    (done,) = preflight(file(tmp_path, hostile()), recipe)
    assert rules(done, "refused") == {"shapes", "axes", "buckets"}


def test_a_profile_covers_its_axes_or_says_what_it_lacks(tmp_path: Path) -> None:
    needs_rtx()
    shapes = {"min": [1, 1, 8, 8], "opt": [4, 1, 8, 8], "max": [8, 1, 8, 8]}
    said: dict[str, Any] = {
        "name": "m", "version": "1", "backend": "tensorrt-rtx", "target": "sm89", "model": "m.onnx",
        "licence_ack": True, "buckets": [1, 8], "profiles": [{"name": "wide", "inputs": {"image": shapes}}],
        "reasons": [{"choice": "profiles", "reason": "to see it", "reviewer": "a test"}],
    }  # fmt: skip
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(said))
    (done,) = preflight(file(tmp_path, digits_like()), recipe)
    assert done.buildable
    recipe.write_text(yaml.safe_dump(said | {"buckets": [1, 16]}))
    (done,) = preflight(file(tmp_path, digits_like()), recipe)
    assert rules(done, "refused") == {"profiles"}
    recipe.write_text(yaml.safe_dump(said).replace("- 4\n", "- 9\n", 1))
    with pytest.raises(RecipeError, match="min <= opt <= max"):
        preflight(file(tmp_path, digits_like()), recipe)


@pytest.mark.parametrize(
    ("raw", "rule", "words"),
    [
        (b"", "format", "empty file"),
        (b"no model at all", "format", "expected"),
        (credit_like()[:-40], "format", "expected ONNX"),
        (credit_like().replace(b"Gemm", b"Gemn"), "valid", "valid ONNX"),
    ],
)
def test_a_file_that_is_no_model_is_a_finding(tmp_path: Path, raw: bytes, rule: str, words: str) -> None:
    done = seen(tmp_path, raw)
    found = [finding for finding in done.findings if finding.rule == rule]
    assert words in found[0].what
    assert not done.buildable


def test_files_beside_the_model_are_listed_with_their_digests(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = onnx.load_model_from_string(credit_like())
    onnx.save(proto, str(path), save_as_external_data=True, location="w.bin", size_threshold=100)
    (done,) = preflight(path, backend="onnxruntime")
    digest = sha256((tmp_path / "w.bin").read_bytes())
    assert done.buildable
    assert [(row["name"], row["digest"]) for row in done.facts["external"]] == [("w.bin", digest)]
    assert digest in next(f.what for f in done.findings if f.rule == "external")
    (tmp_path / "w.bin").unlink()
    (done,) = preflight(path, backend="onnxruntime")
    assert next(f.rule for f in done.findings if f.severity == "refused") == "external"


ON_CPU = effective(
    parse_recipe(b'{"name": "m", "version": "1", "backend": "onnxruntime", "target": "cpu", "model": "m"}')
)


def test_a_crash_of_the_reader_is_a_finding_and_loses_none_before_it(tmp_path: Path) -> None:
    entry = (
        "import os, signal, pellucid.backends.onnxruntime.adapter as adapter; "
        "adapter.OnnxRuntimeBackend.preflight = lambda *a: os.kill(os.getpid(), signal.SIGSEGV); " + ENTRY
    )
    done = foresee(ON_CPU, MODELS["random_noise"](), tmp_path, fit_buckets=True, entry=entry)
    assert [(f.severity, f.rule) for f in done.findings] == [("refused", "crash"), ("risk", "random")]
    assert done.findings[0].what == "the process that read it ended by signal SIGSEGV in phase backend"


@pytest.mark.parametrize(
    "message", ["[1]", "{'finding': {'severity': 5}}", "{'finding': dict.fromkeys(KEYS, 'strange')}"]
)
def test_a_message_that_nobody_understands_is_a_crash(tmp_path: Path, message: str) -> None:
    entry = (
        "import pellucid.backends.onnxruntime.adapter as adapter, pellucid.build.preflight as preflight; "
        "KEYS = ('severity', 'rule', 'where', 'what', 'fix'); from pellucid.build.task import Task; "
        "write, phase = preflight.write_frame, Task.phase; "
        f"Task.phase = lambda self, name: (write(self.frames, {message}), phase(self, name)); {ENTRY}"
    )
    (found,) = foresee(ON_CPU, credit_like(), tmp_path, fit_buckets=True, entry=entry).findings
    assert (found.severity, found.rule) == ("refused", "crash")
    assert "ended by a message that nobody understands" in found.what


def test_a_full_temporary_folder_is_told_in_words_and_is_no_finding(tmp_path: Path) -> None:
    entry = (
        "import os, pellucid.build.worker as worker; "
        "worker.write_file = lambda *a: os.write(os.open('/dev/full', os.O_WRONLY), bytes(1)); " + ENTRY
    )
    with pytest.raises(DiskFullError, match="preflight: expected room for what it makes") as error:
        foresee(ON_CPU, credit_like(), tmp_path, fit_buckets=True, entry=entry)
    assert "TMPDIR" in error.value.hint


def narrowed() -> bytes:
    """FP64, a wide INT64, an operator of another domain, one without a kernel, an odd zero point."""
    held = {
        "wide": np.array([2**40, 1, 2]), "d": np.ones(3), "s": np.float32(0.1), "z": np.uint8(3),
        "start": np.array([0]), "end": np.array([2**63 - 1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("NonZero", ["x"], ["nz"], name="nz"),
        helper.make_node("Det", ["square"], ["det"], name="det"),
        helper.make_node("Scaler", ["x"], ["sc"], domain="ai.onnx.ml", offset=[0.0], scale=[1.0], name="sc"),
        helper.make_node("Add", ["k", "wide"], ["ki"], name="add"),
        helper.make_node("Slice", ["x", "start", "end"], ["sl"], name="cut"),
        helper.make_node("Cast", ["x"], ["xd"], to=TensorProto.DOUBLE, name="widen"),
        helper.make_node("Mul", ["xd", "d"], ["y"], name="mul"),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", 1, [3]), value("square", 1, [2, 2]), value("k", TensorProto.INT64, [3])]
    outputs = [value("y", TensorProto.DOUBLE, [3]), value("ki", TensorProto.INT64, [3]), value("q", 2, [3])]
    outputs += [value("nz", TensorProto.INT64, [1, None]), value("det", 1, []), value("sl", 1, [3])]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "g", inputs, [*outputs, value("sc", 1, [3])], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    raw: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return raw


def test_what_tensorrt_would_refuse_or_narrow_is_named_all_at_once(tmp_path: Path) -> None:
    needs_rtx()
    done = seen(tmp_path, narrowed(), "tensorrt-rtx")
    refused = {f.where: f for f in done.findings if f.severity == "refused"}
    for where in ("node nz (NonZero)", "node det (Det)", "node sc (Scaler)"):
        assert refused[where].rule == "operator"
        assert refused[where].fix
    assert {"tensor d", "tensor y", "node widen (Cast)"} <= {
        where for where, finding in refused.items() if finding.rule == "types.fp64"
    }
    wide = [f for f in done.findings if f.rule == "types.int64"]
    assert [(f.severity, f.where) for f in wide] == [("risk", "tensor wide")]
    assert "1 of 3 values beyond INT32, for example 1099511627776" in wide[0].what


def test_zero_points_that_tensorrt_computes_otherwise_are_refused_once_a_kind(tmp_path: Path) -> None:
    needs_rtx()
    for kind, point, words in (("uint8", 0, "got UINT8"), ("int8", 3, "expected a zero point of 0, got 3")):
        done = seen(tmp_path, quantised(kind, point), "tensorrt-rtx")
        ours = [f for f in done.findings if f.severity == "refused"]  # the library says it in its own words
        assert [(f.rule, f.where) for f in ours] == [("types.quantised", "node quantise (QuantizeLinear)")]
        assert words in ours[0].what
        assert "(and 1 other node like it)" in ours[0].what
        assert "quantise symmetrically to INT8" in ours[0].fix
    assert not [f for f in seen(tmp_path, quantised("int8", 0), "tensorrt-rtx").findings if f.fix]


def test_a_graph_that_came_quantised_gets_no_other_precision(tmp_path: Path) -> None:
    needs_rtx()
    raw = quantised("int8", 0)
    done = for_rtx(tmp_path, raw, precision="fp16", validation={"data": "rows.npz"})
    (found,) = [f for f in done.findings if f.severity == "refused"]
    assert found.rule == "types.quantised"
    assert "expected a model in FP32, got 2 quantising operators" in found.what
    done = for_rtx(tmp_path, quantised("uint8", 0), precision="fp16", validation={"data": "rows.npz"})
    refused = [f.what for f in done.findings if f.severity == "refused"]
    assert len(refused) == 2
    assert "UINT8 zero_point" in refused[1]  # which would be left if the recipe said fp32


def quantised(kind: str, point: int) -> bytes:
    """``x`` quantised and dequantised with this zero point."""
    scale = numpy_helper.from_array(np.asarray(np.float32(0.1)), "s")
    zero = numpy_helper.from_array(np.asarray(point, dtype=kind), "z")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="back"),
    ]
    shapes = [helper.make_tensor_value_info(name, 1, ["N", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], [scale, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    raw: bytes = model.SerializeToString()
    return raw


def test_the_command_tells_people_and_machines_and_its_exit_says_whether(tmp_path: Path) -> None:
    needs_rtx()
    path = str(file(tmp_path, dynamically_quantised()))
    done = CliRunner().invoke(cli, ["preflight", path, "--json"], standalone_mode=False)
    value = json.loads(done.output)
    assert done.return_value == 0
    assert {check["backend"]: check["buildable"] for check in value["checks"]} == {
        "onnxruntime": True, "tensorrt-rtx": False,
    }  # fmt: skip
    one = [*["preflight", path, "--backend", "tensorrt-rtx", "--target", "sm80"]]
    done = CliRunner().invoke(cli, one, standalone_mode=False)
    assert done.return_value == 5
    assert "tensorrt-rtx, sm80: would refuse it" in done.output
    assert "DynamicQuantizeLinear" in done.output


def test_a_recipe_and_a_backend_at_once_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, credit_like())
    for changes in ({"recipe": path, "backend": "onnxruntime"}, {"target": "sm89"}):
        with pytest.raises(UsageError, match="preflight: expected"):
            preflight(path, **changes)


# -- ONNX's own models ----------------------------------------------------------------------------


def explained(outcomes: list[Outcome]) -> None:
    """Every model built and was foreseen to, or was refused, foreseen, with place, reason and fix."""
    odd = [o for o in outcomes if o.stage == "crash" or o.built == bool(o.foreseen)]
    assert odd == []
    refused = [o for o in outcomes if not o.built]
    assert [o for o in refused if not o.hint or not all(fix for _, _, fix in o.foreseen)] == []
    places = [[where for where, _, _ in o.foreseen if where != "model"] for o in refused]
    assert all(places)


RAISED = {"canonical": {"opset": 17, "fold": True}}


@pytest.mark.parametrize(
    ("backend", "changes", "built"),
    [("onnxruntime", {}, 99), ("onnxruntime", RAISED, 133), ("tensorrt-rtx", {}, 113)],
)
def test_the_140_models_of_onnx_build_or_say_why_not(
    backend: str, changes: dict[str, Any], built: int
) -> None:
    if backend == "tensorrt-rtx":
        needs_rtx()
    models = model_paths()
    assert len(models) == 140
    outcomes = survey(backend, models, changes=changes)
    assert [o.model for o in outcomes] == [name for name, _ in models]
    explained(outcomes)
    assert sum(o.built for o in outcomes) >= built
    assert sum(models for _, models, _, _ in summary(outcomes)) == 140


def test_a_model_that_kills_its_reader_is_an_outcome_and_the_rest_goes_on(tmp_path: Path) -> None:
    entry = (
        "import os, pellucid.testing.backend_models as m; tried = m._tried; "
        "m._tried = lambda *a: os._exit(9) if a[2] == 'x/b' else tried(*a); m.survey_main()"
    )
    path = file(tmp_path, credit_like())
    outcomes = survey("onnxruntime", [("x/a", path), ("x/b", path), ("x/c", path)], entry=entry)
    assert [(o.model, o.built, o.stage, o.reason) for o in outcomes] == [
        ("x/a", True, "", ""), ("x/b", False, "crash", "exit 9"), ("x/c", True, "", ""),
    ]  # fmt: skip


# -- what pellucid knows of its builders ----------------------------------------------------------


def for_rtx(folder: Path, raw: bytes, **changes: Any) -> Foreseen:
    """Judged by a recipe of TensorRT-RTX."""
    said = {
        "name": "m", "version": "1", "backend": "tensorrt-rtx", "target": "sm89", "model": "m.onnx",
        "licence_ack": True, "buckets": [1, 4],
        "reasons": [
            {"choice": choice, "reason": "to see it", "reviewer": "a test"}
            for choice in ("precision", "workspace_bytes")
        ],
    }  # fmt: skip
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(said | changes))
    (done,) = preflight(file(folder, raw), recipe)
    return done


def test_fp32_matrix_products_are_refused_for_sm75_and_taken_in_fp16(tmp_path: Path) -> None:
    needs_rtx()
    done = for_rtx(tmp_path, digits_like(), target="sm75")
    found = [finding for finding in done.findings if finding.rule == "target"]
    assert {finding.severity for finding in found} == {"refused"}
    assert all(
        "FP32 matrix product" in finding.what and "precision: fp16" in finding.fix for finding in found
    )
    assert not done.buildable
    half = for_rtx(tmp_path, digits_like(), target="sm75", precision="fp16", validation={"data": "rows.npz"})
    assert half.buildable
    (built,) = survey("tensorrt-rtx", [("digits", tmp_path / "model.onnx")], changes={"target": "sm75"})
    assert built.foreseen
    assert not built.built
    assert "FP32 GEMM" in built.reason


def test_a_small_workspace_is_a_risk(tmp_path: Path) -> None:
    needs_rtx()
    assert rules(for_rtx(tmp_path, digits_like(), workspace_bytes=2**20), "risk") == {"workspace"}
    assert rules(for_rtx(tmp_path, digits_like(), workspace_bytes=2**24), "risk") == set()


def test_a_precision_that_changes_numbers_is_refused_without_a_validation_set(tmp_path: Path) -> None:
    said = {
        "name": "m", "version": "1", "backend": "onnxruntime", "target": "cpu", "model": "m.onnx",
        "precision": "fp16", "reasons": [{"choice": "precision", "reason": "to see", "reviewer": "a test"}],
    }  # fmt: skip
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(said))
    (done,) = preflight(file(tmp_path, digits_like()), recipe)
    assert rules(done, "refused") == {"validation"}
    assert "validation: {data:" in done.findings[0].fix


def test_many_names_that_are_renamed_are_one_finding(tmp_path: Path) -> None:
    done = seen(tmp_path, digits_like(nodes=lambda name: f"{name} (of the exporter)"))
    (found,) = [finding for finding in done.findings if finding.rule == "names"]
    count = sum(1 for _ in onnx.load_model_from_string(digits_like()).graph.node)
    assert f"{count} names of nodes will be renamed, for example 'conv1 (of the exporter)'" in found.what


def test_the_batch_axis_is_not_named_among_those_that_are_too_many(tmp_path: Path) -> None:
    (found,) = [f for f in seen(tmp_path, hostile()).findings if f.rule == "axes"]
    assert "got axis 2" in found.what
