"""Engines on a GPU, as far as a machine without one can tell: our steps against strict stand-ins."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from pellucid.backends.tensorrt import cuda, session
from pellucid.backends.tensorrt.adapter import TensorRtBackend
from pellucid.backends.tensorrt.facts import read_facts
from pellucid.backends.tensorrt.library import Library, features_of, library_of
from pellucid.core.digest import sha256
from pellucid.core.tensor import Tensor
from pellucid.core.tensorrt_classic import FORM
from pellucid.errors import (
    BuildCancelledError,
    BuildError,
    DeviceUnavailableError,
    MissingExtraError,
    PrecisionError,
    TensorError,
)
from pellucid.ports import LogLine, Step
from pellucid.schemes import load
from pellucid.testing import tensorrt_fake as fake
from pellucid.testing.cuda_fake import OUT_OF_MEMORY, DriverFake
from pellucid.testing.models import digits_like

RECIPE: dict[str, Any] = {
    "target": "sm89", "tf32": False, "workspace_bytes": 2**32, "buckets": [1, 8, 32], "pinned_bucket": None,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "name": "pellucid:0",
    "inputs": [["x", "FLOAT", [-1, 2]], ["n", "INT64", [-1]]],
    "outputs": [["y", "FLOAT", [-1, 2]], ["m", "INT64", [-1]]],
    "profiles": [
        {"x": [[1, 2], [1, 2], [4, 2]], "n": [[1], [1], [4]]},
        {"x": [[1, 2], [8, 2], [32, 2]], "n": [[1], [8], [32]]},
    ],
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> DriverFake:
    driver = DriverFake()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(fake.IExecutionContext, "copy", driver.copy, raising=False)
    monkeypatch.setattr(fake.IExecutionContext, "profiles", [])
    return driver


@pytest.fixture
def library() -> Library:
    return library_of("tensorrt", fake)


def batch(rows: int, fill: int = 7) -> list[Tensor]:
    data = bytes((fill + i) % 251 for i in range(8 * rows))
    return [Tensor("x", "FP32", (rows, 2), data), Tensor("n", "INT64", (rows,), data)]


def opened(library: Library, **changes: Any) -> Any:
    return TensorRtBackend(library).open(json.dumps(PLAN | changes).encode(), RECIPE)


def test_what_goes_in_comes_out_bit_for_bit(driver: DriverFake, library: Library) -> None:
    running = opened(library)
    assert [(s.name, s.datatype, s.shape) for s in running.inputs] == [
        ("x", "FP32", (-1, 2)),
        ("n", "INT64", (-1,)),
    ]
    assert [s.name for s in running.outputs] == ["y", "m"]
    for rows in (1, 4, 32, 2, 1):
        outputs = running.infer(batch(rows, rows))
        assert [(t.name, t.datatype, t.shape) for t in outputs] == [
            ("y", "FP32", (rows, 2)), ("m", "INT64", (rows,)),
        ]  # fmt: skip
        assert [t.data for t in outputs] == [t.data for t in batch(rows, rows)]
    assert len(driver.memory) == 4  # one place a tensor, grown and kept
    running.close()
    running.close()
    assert (driver.memory, driver.retained, driver.streams) == ({}, 0, 0)
    with pytest.raises(TensorError, match="got a closed one"):
        running.infer(batch(1))


def test_the_profile_is_the_one_tuned_for_the_shape(driver: DriverFake, library: Library) -> None:
    running = opened(library)
    for rows in (1, 2, 8, 8, 1):
        running.infer(batch(rows))
    assert fake.IExecutionContext.profiles == [1, 0]  # 1 and 2 are the first's; 8 is what the second is for
    with pytest.raises(TensorError, match="expected shapes that a profile takes"):
        running.infer(batch(33))
    assert running.infer(batch(1))  # refused, not broken
    running.close()


def test_a_description_says_what_runs_where(driver: DriverFake, library: Library) -> None:
    running = opened(library)
    said = running.describe()
    assert said["device"] == {
        "kind": "gpu", "name": "NVIDIA Stand-in", "architecture": "sm89", "isa": [], "driver_api": 13000,
    }  # fmt: skip
    assert (said["tensorrt"], said["engine_name"], said["kernels"]) == ("11.0.0", "pellucid:0", "eager")
    assert (said["working_bytes"], said["weights_bytes"]) == (4096, 1234)
    assert said["profiles"][1]["x"] == {"min": [1, 2], "opt": [8, 2], "max": [32, 2]}
    running.close()


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        batch(1)[:1],
        batch(1)[::-1],
        [batch(1)[0], Tensor("n", "INT32", (1,), bytes(4))],
        [batch(1)[0], Tensor("n", "INT64", (1,), bytes(7))],
    ],
)
def test_tensors_that_are_not_the_models_are_refused(
    driver: DriverFake, library: Library, tensors: list[Tensor]
) -> None:
    running = opened(library)
    with pytest.raises(TensorError):
        running.infer(tensors)
    running.close()


def test_engines_that_cannot_be_served_leave_nothing_behind(driver: DriverFake, library: Library) -> None:
    refused: list[tuple[bytes, str]] = [
        (b"nothing", "got none: Serialization assertion failed"),
        (json.dumps(PLAN | {"inputs": [["x", "FP8", [-1, 2]]]}).encode(), "got FP8"),
        (json.dumps(PLAN | {"inputs": [["host_x", "INT32", [2]]]}).encode(), "on the GPU"),
    ]
    for engine, words in refused:
        with pytest.raises(BuildError, match=words):
            TensorRtBackend(library).open(engine, RECIPE)
    assert (driver.memory, driver.retained, driver.streams) == ({}, 0, 0)


@pytest.mark.parametrize(
    ("method", "answer"),
    [("set_input_shape", False), ("set_tensor_address", False), ("execute_async_v3", False),
     ("set_optimization_profile_async", False), ("infer_shapes", ["x"]), ("get_tensor_shape", (-1, 2))],
)  # fmt: skip
def test_every_answer_of_the_library_is_looked_at(
    driver: DriverFake, library: Library, monkeypatch: pytest.MonkeyPatch, method: str, answer: Any
) -> None:
    running = opened(library)
    monkeypatch.setattr(fake.IExecutionContext, method, lambda self, *arguments: answer)
    with pytest.raises(TensorError):
        running.infer(batch(8))
    running.close()
    assert driver.memory == {}


def test_the_drivers_own_error_is_named(driver: DriverFake, library: Library) -> None:
    running = opened(library)
    driver.fails = {"cuMemAlloc_v2": OUT_OF_MEMORY}
    with pytest.raises(DeviceUnavailableError, match=r"cuMemAlloc_v2: .* got CUDA_ERROR_OUT_OF_MEMORY"):
        running.infer(batch(1))
    driver.fails = {"cuStreamSynchronize": 700}
    with pytest.raises(DeviceUnavailableError, match=r"cuStreamSynchronize: .* got status 700"):
        running.infer(batch(1))
    driver.fails = {}
    assert running.infer(batch(1))
    running.close()
    assert driver.memory == {}


def test_no_driver_another_library_or_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    with pytest.raises(DeviceUnavailableError, match="got another library"):
        cuda.load()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: DriverFake(count=0))
    with pytest.raises(DeviceUnavailableError, match="shows no GPU"):
        cuda.load()


def test_without_the_feature_nothing_of_it_is_touched(
    driver: DriverFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in tensorrt 10.0.1: no run-time settings, no statistics, another name of the memory."""
    plain = SimpleNamespace(**{name: getattr(fake, name) for name in dir(fake) if name[0] != "_"})
    plain.__version__ = "10.0.1"
    del plain.DynamicShapesKernelSpecializationStrategy, plain.EngineStat, plain.IProgressMonitor
    monkeypatch.delattr(fake.ICudaEngine, "create_runtime_config")
    monkeypatch.delattr(fake.ICudaEngine, "get_engine_stat")
    monkeypatch.delattr(fake.ICudaEngine, "device_memory_size_v2")
    monkeypatch.setattr(fake.ICudaEngine, "device_memory_size", 2048)
    running = session.open_session(library_of("tensorrt", plain), json.dumps(PLAN).encode())
    said = running.describe()
    assert "kernels" not in said
    assert "weights_bytes" not in said
    assert said["working_bytes"] == 2048
    assert running.infer(batch(3))
    running.close()


# -- building for the GPU at hand -----------------------------------------------------------------


def build(library: Library, **changes: Any) -> tuple[Any, list[LogLine]]:
    lines: list[LogLine] = []
    return TensorRtBackend(library).build(RECIPE | changes, digits_like(), lines.append), lines


def test_the_classic_library_builds_for_the_gpu_at_hand_only(driver: DriverFake, library: Library) -> None:
    built, lines = build(library)
    assert built.options["network_name"] == "pellucid:" + sha256(digits_like()).removeprefix("sha256:")
    assert (built.options["hardware_compatibility"], built.options["flags"]) == ("none", ["MONITOR_MEMORY"])
    assert built.options["timing_cache"] == {"digest": sha256(b"measured kernels"), "bytes": 16}
    assert "targets" not in built.options
    assert built.facts["fused_layers"] is built.facts["quantized_ops_count"] is None
    assert {node["fate"] for node in built.facts["nodes"]} == {"not told"}
    assert built.facts["layers_reason"].startswith("the log of tensorrt 11.0.0 lists its layers in no form")
    assert {line.location for line in lines} == {"tensorrt"}
    running = TensorRtBackend(library).open(built.engine, RECIPE)
    image = Tensor("image", "FP32", (8, 1, 8, 8), bytes(range(256)) * 8)
    assert running.infer([image])[0].data == image.data
    running.close()
    with pytest.raises(DeviceUnavailableError, match=r"expected a GPU of sm90, since tensorrt builds for"):
        build(library, target="sm90")
    driver.count = 0
    with pytest.raises(DeviceUnavailableError, match="got the NVIDIA driver shows no GPU"):
        build(library)


def test_profiles_of_the_recipe_are_the_engines(driver: DriverFake, library: Library) -> None:
    shapes = {"image": {"min": [1, 1, 8, 8], "opt": [2, 1, 8, 8], "max": [4, 1, 8, 8]}}
    larger = {"image": {"min": [4, 1, 8, 8], "opt": [16, 1, 8, 8], "max": [64, 1, 8, 8]}}
    profiles = [{"name": "small", "inputs": shapes}, {"name": "large", "inputs": larger}]
    built, _ = build(library, profiles=profiles)
    assert [(row["name"], row["opt"]) for row in built.options["profiles"]] == [
        ("small", [2, 1, 8, 8]), ("large", [16, 1, 8, 8]),
    ]  # fmt: skip
    with pytest.raises(BuildError, match=r"profile small: expected shapes of exactly \['image'\]"):
        build(library, profiles=[{"name": "small", "inputs": {"picture": shapes["image"]}}])


def test_steps_are_told_and_a_stop_is_heard(driver: DriverFake, library: Library) -> None:
    steps: list[Step] = []

    def goes_on(step: Step) -> bool:
        steps.append(step)
        return True

    backend = TensorRtBackend(library)
    backend.build(RECIPE, digits_like(), lambda line: None, goes_on)
    assert steps == [Step("Building engine", 1, 2), Step("Building engine", 2, 2)]
    with pytest.raises(BuildCancelledError, match="request to stop in 'Building engine'"):
        backend.build(RECIPE, digits_like(), lambda line: None, lambda step: False)

    def fails(step: Step) -> bool:
        raise OSError("the pipe is gone")

    with pytest.raises(BuildError, match="got OSError: the pipe is gone"):
        backend.build(RECIPE, digits_like(), lambda line: None, fails)


def test_a_setting_that_the_library_refuses_fails_the_build(
    driver: DriverFake, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake.IBuilderConfig, "set_timing_cache", lambda self, cache, ignore: False)
    with pytest.raises(BuildError, match="empty timing cache"):
        build(library)
    monkeypatch.setattr(fake.IBuilderConfig, "clear_flag", lambda self, flag: None)
    with pytest.raises(PrecisionError, match="tf32: expected False, got True"):
        build(library)


def test_a_library_without_typed_networks_is_refused(driver: DriverFake) -> None:
    old = SimpleNamespace(**{name: getattr(fake, name) for name in dir(fake) if name[0] != "_"})
    old.__version__ = "8.6.1"
    del old.NetworkDefinitionCreationFlag
    assert not features_of(old).strongly_typed
    with pytest.raises(BuildError, match=r"expected strongly typed networks, got 8\.6\.1"):
        build(library_of("tensorrt", old))


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.delitem(sys.modules, "pellucid.backends.tensorrt.classic", raising=False)
    with pytest.raises(MissingExtraError, match="needs the library 'tensorrt'") as error:
        load("backend", "tensorrt")
    assert error.value.hint == "pip install 'pellucid[tensorrt-classic]'"
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    assert load("backend", "tensorrt")().environment()["tensorrt"] == "11.0.0"
    monkeypatch.delitem(sys.modules, "pellucid.backends.tensorrt.classic")


def test_tactics_of_a_classic_log_are_facts_of_their_own_and_no_list_of_layers(library: Library) -> None:
    """The lines are written by hand; the fact says that no real log confirmed their form."""
    path = Path(__file__).resolve().parents[1] / "e2e/data/classic-fast.jsonl"
    raw = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [LogLine(item["severity"], 0, item["message"], "tensorrt") for item in raw]
    model = onnx.load_model_from_string(digits_like())
    facts = read_facts(lines, model, library)
    classic = facts["classic"]
    assert (classic["form"], classic["library"]) == (FORM, "tensorrt 11.0.0")
    conv = next(layer for layer in classic["layers"] if layer["name"] == "conv2 + relu2")
    assert (conv["nodes"], conv["tactic"], conv["time_ms"]) == (
        ["conv2", "relu2"], "0x5555555555555555", "0.187",
    )  # fmt: skip
    assert classic["strangers"] == []
    assert facts["layers"] == []
    assert facts["layers_reason"]
    assert "classic" not in read_facts(
        [line for line in lines if " Time: " not in line.message], model, library
    )
