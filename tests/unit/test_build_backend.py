"""The ONNX Runtime backend: exact bits, every setting read back, no message lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.backends.onnxruntime import options
from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend
from pellucid.backends.onnxruntime.log import _classify
from pellucid.backends.reference import ReferenceBackend
from pellucid.build.golden import synthetic
from pellucid.core import canonical
from pellucid.core.tensor import DATATYPES, Tensor, TensorSpec, join_bytes_elements
from pellucid.errors import BuildError, ParseError, TensorError, UsageError
from pellucid.ports import LogLine
from pellucid.testing.models import MODELS, identity

RECIPE: dict[str, Any] = {"threads": 1, "serve_level": "portable"}
NATIVE = RECIPE | {"serve_level": "native"}


def built(name: str, recipe: dict[str, Any] = RECIPE, log: Any = lambda line: None) -> Any:
    return OnnxRuntimeBackend().build(recipe, MODELS[name](), log)


@pytest.mark.parametrize("kind", sorted(DATATYPES))
def test_every_datatype_comes_back_bit_for_bit(kind: str) -> None:
    session = OnnxRuntimeBackend().open(identity(kind), RECIPE)
    assert session.inputs == (TensorSpec("x", kind, (-1, 3)),)
    size = DATATYPES[kind].itemsize
    if kind == "BYTES":
        data = join_bytes_elements(["é\0".encode(), b"", b"x" * 70, b"a", b"b", b"c"])
    elif kind == "BOOL":
        data = bytes([0, 1, 1, 0, 1, 0])
    else:  # every byte pattern, NaN payloads and -0.0 included
        data = bytes((37 * i + 255) % 256 for i in range(6 * size))
    [output] = session.infer([Tensor("x", kind, (2, 3), data)])
    assert output == Tensor("y", kind, (2, 3), data)
    [empty] = session.infer([Tensor("x", kind, (0, 3), b"")])
    assert (empty.shape, bytes(empty.data)) == ((0, 3), b"")


def test_bytes_that_are_no_text_are_refused() -> None:
    session = OnnxRuntimeBackend().open(identity("BYTES"), RECIPE)
    with pytest.raises(TensorError, match="UTF-8"):
        session.infer([Tensor("x", "BYTES", (1, 3), join_bytes_elements([b"\xff", b"", b""]))])


def test_wrong_tensors_are_refused_and_a_closed_session_says_so() -> None:
    session = OnnxRuntimeBackend().open(MODELS["credit_like"](), RECIPE)
    for wrong in (
        [],
        [Tensor("other", "FP32", (1, 20), bytes(80))],
        [Tensor("features", "FP64", (1, 20), bytes(160))],
        [Tensor("features", "FP32", (1, 19), bytes(76))],
        [Tensor("features", "FP32", (20,), bytes(80))],
    ):
        with pytest.raises(TensorError):
            session.infer(wrong)
    session.close()
    with pytest.raises(TensorError, match="closed"):
        session.infer([Tensor("features", "FP32", (1, 20), bytes(80))])


def test_two_inputs_and_two_outputs_keep_the_models_order() -> None:
    session = OnnxRuntimeBackend().open(MODELS["two_inputs"](), RECIPE)
    generator = np.random.default_rng(0)
    outputs = session.infer([synthetic(spec, 4, generator) for spec in session.inputs])
    assert [(o.name, o.datatype, o.shape) for o in outputs] == [
        ("score", "FP32", (4, 3)),
        ("total", "FP32", (4,)),
    ]


@pytest.mark.parametrize("level", [RECIPE, NATIVE])
def test_the_engine_gives_the_bits_of_its_level(level: dict[str, Any]) -> None:
    engine = built("digits_like", level)
    generator = np.random.default_rng(1)
    batch = [synthetic(TensorSpec("image", "FP32", (-1, 1, 8, 8)), 4, generator)]
    first = OnnxRuntimeBackend().open(engine.engine, level).infer(batch)
    again = OnnxRuntimeBackend().open(engine.engine, level).infer(batch)
    source = ReferenceBackend().open(MODELS["digits_like"](), level).infer(batch)
    assert first == again
    close = np.frombuffer(source[0].data, "<f4") - np.frombuffer(first[0].data, "<f4")
    assert np.abs(close).max() < 1e-5


def test_facts_of_the_digits_model() -> None:
    lines: list[LogLine] = []
    facts = built("digits_like", log=lines.append).facts
    layers = {layer["name"]: layer for layer in facts["layers"]}
    assert layers["conv1"]["op"] == "com.microsoft:FusedConv"
    assert layers["conv1"]["nodes"] == ["conv1", "relu1"]
    assert layers["conv2"]["nodes"] == ["same", "conv2", "relu2"]
    assert {layer["placement"] for layer in layers.values()} == {"CPUExecutionProvider"}
    assert facts["fused_layers"] == 2
    assert facts["eliminated"] == ["same"]
    assert {"name": "ConvActivationFusion", "times": 1} in facts["transformers"]
    assert facts["log"]["messages"] == len(lines) > 100
    assert facts["log"]["unknown"] == 0
    assert facts["memory"]["weights_bytes"] > 10_000
    assert facts["fingerprint"].startswith("sha256:")
    canonical.encode(facts)


def test_the_fingerprint_sees_structure_and_not_names() -> None:
    from pellucid.testing.models import digits_like

    renamed = OnnxRuntimeBackend().build(
        RECIPE, digits_like(nodes=lambda name: f"n_{name}"), lambda line: None
    )
    assert renamed.facts["fingerprint"] == built("digits_like").facts["fingerprint"]
    assert renamed.engine != built("digits_like").engine
    assert built("credit_like").facts["fingerprint"] != built("digits_like").facts["fingerprint"]


def test_quantised_operations_are_counted() -> None:
    assert built("dynamically_quantised").facts["quantized_ops_count"] == 1


def test_settings_are_read_back_from_session_and_log() -> None:
    settings = built("credit_like", RECIPE | {"threads": 2}).options
    assert settings["intra_op_threads"] == 2
    assert settings["graph_optimization_level"] == 2
    assert {"name": "session.x64quantprecision", "value": "1"} in settings["config"]


def test_a_setting_that_does_not_hold_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = options.make_options

    def deaf(level: int, threads: int, **more: Any) -> Any:
        return honest(level, 3, **more)

    monkeypatch.setattr(options, "make_options", deaf)
    with pytest.raises(BuildError, match="intra_op_threads: expected 1, got 3"):
        built("credit_like")


def test_a_setting_that_the_log_does_not_show_fails_the_build() -> None:
    asked = options.wanted(2, 1)
    with pytest.raises(BuildError, match="mem_reuse: expected 1, got nothing"):
        options.verify_settings(asked, {k: v for k, v in asked.items() if k != "mem_reuse"}, "logged")


def test_a_logger_that_fails_fails_the_build() -> None:
    def full(line: LogLine) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(BuildError, match="every message to be kept, got OSError"):
        built("credit_like", log=full)


@pytest.mark.parametrize(
    ("location", "message", "kind"),
    [
        (
            "session_state.cc:1 F",
            " All nodes placed on [CPUExecutionProvider]. Number of nodes: 6",
            "placement",
        ),
        ("elsewhere.cc:1 F", " All nodes placed on [EvilExecutionProvider]. Number of nodes: 6", "unknown"),
        ("graph.cc:1 F", "Removing initializer 'x'. It is no longer used by any node.", "initializer"),
        ("graph.cc:1 F", "Removing initializer 'x'. It is no longer used by any node.\nmore", "unknown"),
        ("other.cc:1 F", "GraphTransformer Evil modified: 1 with status: OK", "unknown"),
    ],
)
def test_a_message_is_believed_by_its_place(location: str, message: str, kind: str) -> None:
    assert _classify(location, message)[0] == kind


def test_garbage_is_a_parse_error() -> None:
    with pytest.raises(ParseError):
        OnnxRuntimeBackend().open(b"garbage", RECIPE)
    with pytest.raises(ParseError):
        OnnxRuntimeBackend().build(RECIPE, b"garbage", lambda line: None)


def test_the_reference_builds_nothing() -> None:
    with pytest.raises(UsageError):
        ReferenceBackend().build(RECIPE, b"", lambda line: None)


def test_environment_names_what_bits_depend_on() -> None:
    found = OnnxRuntimeBackend().environment()
    canonical.encode(found)
    assert found["telemetry"] == "off"
    assert found["onnxruntime"]
    assert found["device"]["kind"] == "cpu"


def test_no_telemetry_leaves_the_process(tmp_path: Path) -> None:
    """An empty home and an empty TMPDIR stay empty, although nobody set the switch before."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    env = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "PATH": os.environ["PATH"]}
    code = (
        "from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend as B;"
        "from pellucid.testing.models import credit_like;"
        "B().open(credit_like(), {'threads': 1, 'serve_level': 'portable'}).close()"
    )
    subprocess.run([sys.executable, "-B", "-c", code], env=env, cwd=tmp_path, check=True, timeout=120)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_an_import_that_came_too_early_is_refused(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    code = (
        "import sys, types; sys.modules['onnxruntime'] = types.ModuleType('o'); "
        "import pellucid.backends.onnxruntime"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], env=env, capture_output=True, timeout=120, text=True
    )
    assert done.returncode != 0
    assert "ORT_DISABLE_TELEMETRY=1 before its first import" in done.stderr
