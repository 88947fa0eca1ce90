"""A package of `tensorrt` from recipe to golden cases, the library and the driver being stand-ins."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from pellucid.build.job import run_build
from pellucid.build.left import ENTRY
from pellucid.core.digest import sha256
from pellucid.core.metadata import parse_metadata, value_of
from pellucid.errors import DeviceUnavailableError
from pellucid.testing.builds import toy_job, write_recipe

pytestmark = pytest.mark.e2e
CLASSIC: dict[str, Any] = {"backend": "tensorrt", "target": "sm89", "licence_ack": True}
STANDS_IN = """
import ctypes, sys
from pellucid.testing import tensorrt_fake
from pellucid.testing.cuda_fake import DriverFake
driver, load = DriverFake(), ctypes.CDLL
ctypes.CDLL = lambda name, *more, **named: driver if name == "libcuda.so.1" else load(name, *more, **named)
tensorrt_fake.IExecutionContext.copy = staticmethod(driver.copy)
sys.modules["tensorrt"] = tensorrt_fake
"""


def passes_on() -> bytes:
    """A model that gives its input back, as the stand-in's engines do."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="same")]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 4])
    graph = helper.make_graph(nodes, "toy", [x], [y], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    raw: bytes = model.SerializeToString()
    return raw


def document(folder: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / name).read_bytes())
    return value


def build(tmp_path: Path, **changes: Any) -> Any:
    job, recorder = toy_job(tmp_path / "packages", entry=STANDS_IN + ENTRY)
    built = run_build(write_recipe(tmp_path / "recipe", passes_on(), **CLASSIC | changes), job)
    assert [data["outcome"] for _, data in recorder.events] == ["built"]
    return built


def test_where_the_gpu_is_golden_cases_are_recorded_and_what_nobody_knows_is_said(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert built.folder.name == "toy-v1.0.0-tensorrt11.0-sm89"
    golden = document(built.folder, "golden/golden.json")
    assert [case["bucket"] for case in golden["cases"]] == [1, 4]
    for case in golden["cases"]:
        assert [t["data"] for t in case["inputs"]] == [t["data"] for t in case["outputs"]]
        assert len(base64.b64decode(case["inputs"][0]["data"])) == 16 * case["bucket"]
    environment = document(built.folder, "environment.json")
    assert (environment["gpu"], environment["tensorrt"]) == ("NVIDIA Stand-in", "11.0.0")
    facts = document(built.folder, "facts.json")
    assert facts["options"]["timing_cache"]["digest"] == sha256(b"measured kernels")
    assert facts["layers_reason"].startswith("the log of tensorrt 11.0.0 lists its layers in no form")
    metadata = parse_metadata((built.folder / "metadata.json").read_bytes())
    assert value_of(metadata, "fused_layers") is value_of(metadata, "quantized_ops_count") is None
    label = (built.folder / "label.md").read_text()
    assert "lists its layers in no form that is known here" in label
    assert "| Fused layers" not in label


def test_another_gpu_is_refused_before_the_build(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="expected a GPU of sm90, since tensorrt builds for the"):
        build(tmp_path, target="sm90")
