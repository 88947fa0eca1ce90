"""Outputs of a number of rows that the input does not decide: no bucket can promise anything about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.errors import PellucidError
from pellucid.testing.builds import build_toy

pytestmark = pytest.mark.e2e
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}


def constant() -> bytes:
    """A model that says that its output has a batch axis, and gives one row always."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    value = numpy_helper.from_array(np.ones((1, 4), np.float32))
    graph = helper.make_graph([helper.make_node("Constant", [], ["y"], value=value)], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("changes", [{}, RTX], ids=["onnxruntime", "tensorrt-rtx"])
def test_one_row_whatever_goes_in_is_no_batch(tmp_path: Path, changes: dict[str, Any]) -> None:
    if changes:
        pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    with pytest.raises(
        PellucidError, match=r"output 'y': expected .*(4 rows in|batch axis).* got shape \[1, 4\]"
    ):
        build_toy(tmp_path / "many", constant(), buckets=[1, 4], **changes)
    built = build_toy(tmp_path / "one", constant(), buckets=[1], **changes)
    assert built.folder.is_dir()


def test_text_is_a_datatype_that_tensorrt_has_not(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
    x, y = (helper.make_tensor_value_info(n, TensorProto.STRING, ["batch", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(PellucidError) as caught:
        build_toy(tmp_path, model.SerializeToString(), **RTX)
    assert "no such datatype" in caught.value.hint
