"""Graphs that have nothing to fold are told without the library, and a step never changes a precision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from pellucid.build import canonical_graph
from pellucid.build.canonical_fold import fold
from pellucid.build.canonical_foldable import nothing_to_fold
from pellucid.build.canonical_graph import canonicalise
from pellucid.build.precision_half import FP16, halve
from pellucid.core.digest import sha256
from pellucid.errors import PellucidError
from pellucid.testing.backend_models import model_paths, recipe_for
from pellucid.testing.models import digits_like

FOLDED: dict[str, Any] = {"buckets": [1, 4], "canonical": {"opset": 17, "fold": True}}
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def plain() -> bytes:
    """The digits without the Identity that they carry for folding's sake."""
    model = onnx.load_model_from_string(digits_like())
    same = next(node for node in model.graph.node if node.op_type == "Identity")
    for node in model.graph.node:
        node.input[:] = [same.input[0] if name == same.output[0] else name for name in node.input]
    model.graph.node.remove(same)
    return bytes(model.SerializeToString(deterministic=True))


def test_the_shortcut_gives_the_bytes_that_folding_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's own models: wherever nothing is said to be there to fold, the library agrees."""
    skipped, agreed = 0, 0
    paths = model_paths(["pytorch-converted", "pytorch-operator"])
    for name, raw in [*((name, path.read_bytes()) for name, path in paths), ("digits", plain())]:
        recipe = (recipe_for("onnxruntime", raw) if name != "digits" else FOLDED) | {
            "canonical": {"opset": 17, "fold": True}
        }
        asked: list[bool] = []

        def told(model: onnx.ModelProto, asked: list[bool] = asked) -> bool:
            asked.append(nothing_to_fold(model))
            return asked[-1]

        with monkeypatch.context() as patch:
            patch.setattr(canonical_graph, "nothing_to_fold", told)
            short = canonicalise(raw, recipe)
            patch.setattr(canonical_graph, "nothing_to_fold", lambda model: False)
            whole = canonicalise(raw, recipe)
        assert (short.compiled, short.steps) == (whole.compiled, whole.steps), name
        digests = [sha256(raw), *(step["after"] for step in short.steps)]
        assert [step["before"] for step in short.steps] == digests[:-1], name
        assert digests[-1] == sha256(short.compiled), name  # no step changed anything without a word
        skipped += asked[0]
        agreed += 1
    assert agreed == len(paths) + 1
    assert skipped > 40  # else nothing was tried


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_large_models_have_something_to_fold_until_it_is_done(path: Path) -> None:
    model = onnx.load(path)
    assert not nothing_to_fold(model)


def test_a_graph_with_nothing_to_fold_loads_no_builder() -> None:
    code = (
        "import sys; from pellucid.build.canonical_graph import canonicalise\n"
        f"done = canonicalise(sys.stdin.buffer.read(), {FOLDED!r})\n"
        "assert 'onnxruntime' not in sys.modules, 'loaded'; assert not done.steps, done.steps"
    )
    subprocess.run([sys.executable, "-c", code], input=plain(), check=True)


def test_an_fp16_model_stays_fp16() -> None:
    """The library computes FP16 in FP32 where it has no kernel, and saves the graph so."""
    half = halve(onnx.load_model_from_string(digits_like()), FP16).model
    done = canonicalise(half.SerializeToString(deterministic=True), FOLDED)
    kept = onnx.load_model_from_string(done.compiled)
    assert {t.data_type for t in kept.graph.initializer} == {onnx.TensorProto.FLOAT16}
    assert [n.op_type for n in kept.graph.node] == [n.op_type for n in half.graph.node]
    assert any("compute in another" in note for note in done.notes)
    with pytest.raises(PellucidError, match="model's precision"):
        fold(half)
