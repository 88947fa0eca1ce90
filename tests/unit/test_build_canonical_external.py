"""Weights in files beside the model: hashed and put inside, and no other file is ever read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.build.canonical_graph import canonicalise
from pellucid.core.digest import sha256
from pellucid.errors import ParseError
from pellucid.testing.models import credit_like

RECIPE: dict[str, Any] = {"buckets": [1, 4]}


def outside(folder: Path, **change: Any) -> bytes:
    """``credit_like`` with w1 in ``data/w.bin`` at offset 64; ``change`` spoils what the model says."""
    proto = onnx.load_model_from_string(credit_like())
    tensor = next(t for t in proto.graph.initializer if t.name == "w1")
    data = tensor.raw_data
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data/w.bin").write_bytes(b"\0" * 64 + data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    said = {"location": "data/w.bin", "offset": "64", "length": str(len(data))} | change
    for key, text in said.items():
        if text is not None:
            tensor.external_data.add(key=key, value=text)
    raw: bytes = proto.SerializeToString()
    return raw


def test_weights_beside_the_model_are_hashed_and_put_inside(tmp_path: Path) -> None:
    raw = outside(tmp_path)
    done = canonicalise(raw, RECIPE, tmp_path)
    digest = sha256((tmp_path / "data/w.bin").read_bytes())
    assert done.external == {"data/w.bin": digest}
    assert done.compiled == done.source == credit_like()
    (step,) = done.steps
    assert (step["step"], step["before"], step["after"]) == ("external", sha256(raw), sha256(done.source))
    size = (tmp_path / "data/w.bin").stat().st_size
    assert step["detail"] == {
        "files": [{"name": "data/w.bin", "digest": digest, "bytes": size, "tensors": 1}]
    }


def test_weights_that_a_constant_node_keeps_outside_are_found(tmp_path: Path) -> None:
    held = numpy_helper.from_array(np.ones(2, np.float32), "k")
    held.ClearField("raw_data")
    held.data_location = TensorProto.EXTERNAL
    held.external_data.add(key="location", value="k.bin")
    (tmp_path / "k.bin").write_bytes(np.ones(2, np.float32).tobytes())
    nodes = [
        helper.make_node("Constant", [], ["k"], value=held, name="c"),
        helper.make_node("Add", ["x", "k"], ["y"], name="a"),
    ]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    raw = made.SerializeToString()
    assert list(canonicalise(raw, RECIPE, tmp_path).external) == ["k.bin"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"location": "../w.bin"}, "at or below the model's own folder"),
        ({"location": "/etc/passwd"}, "at or below the model's own folder"),
        ({"location": "data/./w.bin"}, "at or below the model's own folder"),
        ({"location": "data\\w.bin"}, "at or below the model's own folder"),
        ({"location": ""}, "at or below the model's own folder"),
        ({"location": "gone.bin"}, "'gone.bin': expected a file beside the model, got No such file"),
        ({"location": "link.bin"}, "expected a file beside the model"),
        ({"location": "linked/w.bin"}, "expected a file beside the model"),
        ({"location": "pipe"}, "expected a plain file"),
        ({"location": "data"}, "expected a plain file|Is a directory"),
        ({"length": "4"}, "expected 1,280 bytes as its shape says, got length '4'"),
        ({"offset": "-1"}, "at offset '-1'"),
        ({"offset": "65"}, "at 65, got a file of 1,344"),
        ({"offset": "9" * 14}, "got a file of 1,344"),
    ],
)
def test_a_file_that_is_not_the_model_s_own_is_not_read(tmp_path: Path, change: Any, words: str) -> None:
    inner = tmp_path / "model"
    raw = outside(inner, **change)
    (tmp_path / "w.bin").write_bytes(b"\0" * 4096)
    (inner / "link.bin").symlink_to(inner / "data/w.bin")
    (inner / "linked").symlink_to(inner / "data")
    os.mkfifo(inner / "pipe")
    with pytest.raises(ParseError, match=words):
        canonicalise(raw, RECIPE, inner)


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    proto = onnx.load_model_from_string(outside(tmp_path, location="a.bin"))
    proto.graph.initializer[1].CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[1].name, proto.graph.initializer[1].external_data[0].value = "w2", "b.bin"
    with pytest.raises(ParseError, match=r"a\.bin.*b\.bin"):
        canonicalise(proto.SerializeToString(), RECIPE, tmp_path)


def test_without_a_folder_nothing_outside_is_read() -> None:
    proto = onnx.load_model_from_string(credit_like())
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ParseError, match="inside the file, got them outside"):
        canonicalise(proto.SerializeToString(), RECIPE)
