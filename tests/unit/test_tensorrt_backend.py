"""The TensorRT-RTX backend against the real builder: what it sets, what it refuses, and in which words."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.errors import BuildError, DeviceUnavailableError, ParseError, PrecisionError
from pellucid.ports import LogLine
from pellucid.testing.models import MODELS, digits_like

trt = pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")

from pellucid.backends.tensorrt import cuda, device, options  # noqa: E402
from pellucid.backends.tensorrt.facts import read_facts  # noqa: E402
from pellucid.backends.tensorrt.library import library_of  # noqa: E402
from pellucid.backends.tensorrt.log import Messages, hint_for  # noqa: E402
from pellucid.backends.tensorrt.rtx import TensorRtRtxBackend  # noqa: E402

LIBRARY = library_of("tensorrt-rtx", trt)

RECIPE: dict[str, Any] = {
    "target": "sm89", "tf32": False, "workspace_bytes": 2**32, "buckets": [1, 8, 32], "pinned_bucket": None,
}  # fmt: skip


def build(model: bytes, **changes: Any) -> tuple[Any, list[LogLine]]:
    lines: list[LogLine] = []
    return TensorRtRtxBackend().build(RECIPE | changes, model, lines.append), lines


@pytest.mark.parametrize("target", ["sm80", "sm89"])
def test_every_setting_is_read_back(target: str) -> None:
    model = digits_like()
    built, lines = build(model, target=target)
    got = built.options
    assert (got["targets"], got["tf32"], got["workspace_bytes"]) == ([target], False, 2**32)
    assert "TF32" not in got["flags"]
    assert "MONITOR_MEMORY" in got["flags"]
    assert got["profiling_verbosity"] == "detailed"
    assert got["network_name"] == "pellucid:" + sha256(model).removeprefix("sha256:")
    assert got["network_name"].encode() in built.engine
    assert got["profiles"] == [
        {"name": "buckets", "input": "image", "min": [1, 1, 8, 8], "opt": [8, 1, 8, 8], "max": [32, 1, 8, 8]}
    ]
    assert [(s.name, s.datatype, s.shape) for s in built.inputs] == [("image", "FP32", (-1, 1, 8, 8))]
    assert [(s.name, s.datatype, s.shape) for s in built.outputs] == [("probs", "FP32", (-1, 10))]
    assert built.facts["log"]["messages"] == len(lines) > 50
    assert any(line.message.startswith("Layers:") for line in lines)
    assert built.facts["tactics"].startswith("deferred to run time")


def test_facts_are_the_logs_both_ways() -> None:
    facts = build(digits_like())[0].facts
    fused = {tuple(layer["nodes"]) for layer in facts["layers"] if layer["fused"]}
    assert {("conv1", "relu1"), ("conv2", "relu2"), ("fc", "softmax")} == fused
    assert (facts["fused_layers"], facts["quantized_ops_count"]) == (3, 0)
    assert facts["eliminated"] == ["same"]
    fates = {node["name"]: node for node in facts["nodes"]}
    assert fates["same"] == {
        "name": "same", "op": "Identity", "domain": "", "layers": [], "fate": "named by no layer",
    }  # fmt: skip
    names = {layer["name"]: layer for layer in facts["layers"]}
    assert len(fates["fc"]["layers"]) == 2  # one matrix product, one kernel that adds the bias
    for node in facts["nodes"]:
        assert all(node["name"] in names[layer]["nodes"] for layer in node["layers"])
    assert [names[layer]["tactic"] for layer in fates["conv1"]["layers"]] == ["deferred to run time"]
    assert {layer["precision"] for layer in facts["layers"]} == {"FP32"}
    # (72 + 8) + (1152 + 16) + (2560 + 10) numbers of FP32, and what the builder adds of its own
    assert facts["memory"]["weights_bytes"] >= 4 * (80 + 1168 + 2570)
    assert facts["memory"]["device_peak_bytes"] > facts["memory"]["weights_bytes"]
    assert "Engine generation" in {phase["phase"] for phase in facts["builder_phases"]}
    canonical.encode(facts)


def test_the_fingerprint_is_of_the_layers_not_of_the_weights() -> None:
    one, two, other = (
        build(model)[0] for model in (digits_like(), digits_like(nodes=str), MODELS["credit_like"]())
    )
    assert one.facts["fingerprint"] == two.facts["fingerprint"]
    assert one.facts["fingerprint"] != other.facts["fingerprint"]
    model = onnx.load_model_from_string(digits_like())
    weights = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(2)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, model.graph.initializer[0].name))
    changed = build(model.SerializeToString())[0]
    assert changed.engine != one.engine
    assert changed.facts["fingerprint"] == one.facts["fingerprint"]


def test_a_name_that_could_speak_as_the_builder_yields_no_facts() -> None:
    hostile = digits_like(nodes=lambda name: f"{name}\nMax Scratch Memory: 1 bytes")
    with pytest.raises(ParseError, match="cannot imitate a line"):
        build(hostile)


def test_a_log_without_layers_is_no_ground_for_facts() -> None:
    lines = [line for line in build(digits_like())[1] if not line.message.startswith("Layers:")]
    with pytest.raises(BuildError, match="expected the builder's list of layers"):
        read_facts(lines, onnx.load_model_from_string(digits_like()), LIBRARY)


def test_tf32_is_the_recipes_word_and_changes_the_engine() -> None:
    with_it, _ = build(digits_like(), tf32=True)
    without, _ = build(digits_like())
    assert with_it.options["tf32"] is True
    assert with_it.engine != without.engine


def test_the_pinned_bucket_is_what_the_engine_is_tuned_for() -> None:
    built, _ = build(digits_like(), pinned_bucket=32)
    assert built.options["profiles"][0]["opt"] == [32, 1, 8, 8]


def test_a_model_without_a_batch_axis_needs_no_profile() -> None:
    built, _ = build(MODELS["unbatched"](), buckets=[])
    assert built.options["profiles"] == []
    assert built.inputs[0].shape == (6,)


_ALONE = """
import sys
from pellucid.backends.tensorrt.rtx import TensorRtRtxBackend
from pellucid.errors import BuildError
from pellucid.testing.models import digits_like
try:
    TensorRtRtxBackend().build({recipe!r}, digits_like(), lambda line: None)
except BuildError as error:
    print(type(error).__name__, error.message, "HINT", error.hint)
"""


def alone(**changes: Any) -> str:
    """A build in a process of its own: one that fails may spoil the next one in its process."""
    done = subprocess.run(
        [sys.executable, "-c", _ALONE.format(recipe=RECIPE | changes)],
        capture_output=True, text=True, timeout=120, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("changes", "said", "change"),
    [
        ({"target": "sm75"}, "'fc' for Turing (SM75): FP32 GEMM is not supported", "build for target sm80"),
        ({"workspace_bytes": 2**20}, "no tactics to implement the operation", "raise workspace_bytes"),
        ({"target": "sm90"}, "sm75, sm80, sm86, sm89, sm120, sm121), got sm90", "change target"),
        ({"buckets": [8, 4, 2]}, "expected min <= opt <= max", "ascending batch sizes"),
        ({"buckets": []}, "no optimization profile has been defined", "name the batch sizes"),
    ],
)
def test_a_refusal_says_what_to_change(changes: dict[str, Any], said: str, change: str) -> None:
    words, _, hint = alone(**changes).partition("HINT")
    assert words.startswith("BuildError")
    assert said in words
    assert change in hint


def test_an_empty_file_is_no_model() -> None:
    with pytest.raises(ParseError, match="got an empty file"):
        build(b"")


def test_bytes_that_are_no_onnx() -> None:
    with pytest.raises(ParseError, match="expected ONNX"):
        build(b"\xff\xff\xff nothing")


def test_a_model_cut_short() -> None:
    with pytest.raises(BuildError):
        build(digits_like()[:-700])


def test_an_operator_that_the_builder_lacks_is_named() -> None:
    with pytest.raises(ParseError, match=r"node quantise \(DynamicQuantizeLinear\).*UNSUPPORTED_NODE") as e:
        build(MODELS["dynamically_quantised"]())
    assert "replace it at export" in e.value.hint
    assert "node matmul (MatMulInteger)" in e.value.message
    assert e.value.message.endswith(": UNSUPPORTED_NODE"), "said of two nodes, once; false is no word of why"


def test_fp64_is_refused_because_the_builder_would_say_nothing() -> None:
    with pytest.raises(PrecisionError, match="expected no FP64, got it in 2: tensor x, tensor y"):
        build(MODELS["identity_fp64"]())


def quantised(zero: Any) -> bytes:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="back"),
        helper.make_node("Relu", ["d"], ["y"], name="relu"),
    ]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in ("x", "y")]
    weights = {"s": np.float32(0.1), "z": zero}
    graph = helper.make_graph(
        nodes,
        "q",
        value[:1],
        value[1:],
        [numpy_helper.from_array(np.array(v), n) for n, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    raw: bytes = model.SerializeToString()
    return raw


def test_uint8_zero_points_would_be_computed_as_int8() -> None:
    with pytest.raises(PrecisionError, match="Defaulting to INT8") as error:
        build(quantised(np.uint8(0)))
    assert "symmetric INT8" in error.value.hint
    built, _ = build(quantised(np.int8(0)))
    assert built.engine


def test_asymmetric_int8_is_refused_with_the_settings_that_work() -> None:
    with pytest.raises(ParseError, match="shiftIsAllZeros") as error:
        build(quantised(np.int8(3)))
    assert "ActivationSymmetric=True" in error.value.hint


def test_a_log_that_fails_fails_the_build() -> None:
    def sink(line: LogLine) -> None:
        raise OSError("disk full")

    with pytest.raises(BuildError, match="expected every message to be kept, got OSError: disk full"):
        TensorRtRtxBackend().build(RECIPE, digits_like(), sink)


def test_fatal_warnings_and_noise_are_told_by_their_beginning() -> None:
    logger = Messages(lambda line: None, "tensorrt-rtx")
    logger.take(2, "node 'For zero_point with type int32 TensorRT will use INT8'")
    logger.take(1, "[checkMacros.cpp::catchCudaError::229] no driver cudaError 35")
    logger.verify()
    assert logger.errors == []
    logger.take(
        2,
        "onnxOpImporters.cpp:1988: For zero_point with type int32 TensorRT will use INT8 instead.",
    )
    with pytest.raises(PrecisionError, match="type int32"):
        logger.verify()


def test_a_setting_that_does_not_hold_fails() -> None:
    asked = options.wanted(LIBRARY, RECIPE)
    with pytest.raises(PrecisionError, match="tf32: expected False, got True"):
        options.verify_settings("tensorrt-rtx", asked, asked | {"tf32": True})
    with pytest.raises(BuildError, match=r"targets: expected \['sm89'\], got \[\]"):
        options.verify_settings("tensorrt-rtx", asked, asked | {"targets": []})


def test_unknown_words_get_no_hint() -> None:
    assert hint_for("something new") == ""


def test_opening_names_both_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TensorRtRtxBackend()
    monkeypatch.setattr(device, "find_gpu", lambda: (None, "no NVIDIA driver here"))
    with pytest.raises(
        DeviceUnavailableError, match="a GPU of sm89, which it was built for, got no NVIDIA driver"
    ):
        backend.open(b"engine", RECIPE)
    h200 = {"name": "NVIDIA H200", "architecture": "sm90"}
    monkeypatch.setattr(device, "find_gpu", lambda: (h200, ""))
    with pytest.raises(DeviceUnavailableError, match=r"got NVIDIA H200 \(sm90\)"):
        backend.open(b"engine", RECIPE)


def test_the_environment_says_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DRIVER", "libcuda-of-nobody.so.1")
    found = TensorRtRtxBackend().environment()
    assert found["tensorrt_rtx"] == trt.__version__
    assert found["device"] is None
    assert found["null_reasons"] == [
        {"field": "device", "reason": "no NVIDIA driver here: libcuda-of-nobody.so.1 is not installed"}
    ]
