"""An engine's bytes do not follow from what its process had allocated before the builder began."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.build.child import measures
from pellucid.build.left import ENTRY
from pellucid.build.stages import Stages
from pellucid.core.digest import sha256
from pellucid.core.recipe import effective, parse_recipe
from pellucid.testing.builds import write_recipe
from pellucid.testing.models import digits_like

pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")

pytestmark = pytest.mark.e2e
REASON = {"choice": "precision", "reason": "to see its layers", "reviewer": "a test"}
RTX: dict[str, Any] = {
    "backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True,
    "precision": "int8", "reasons": [REASON],
    "calibration": {"data": "rows.npz", "method": "minmax"}, "validation": {"data": "rows.npz"},
}  # fmt: skip


def rows() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, image=np.random.default_rng(3).random((64, 1, 8, 8)).astype("<f4"))
    return stream.getvalue()


@pytest.mark.skipif(
    measures().report["fixed_addresses"] is not True,
    reason="NOT RUN fixed-addresses: addresses are drawn here",
)
def test_a_process_that_allocated_otherwise_gives_the_same_engine(tmp_path: Path) -> None:
    recipe = effective(parse_recipe(write_recipe(tmp_path, b"", **RTX).read_bytes()))
    with Stages(recipe, print) as stages:
        prepared = stages.run(
            "prepare",
            {"model": digits_like(), "model_folder": str(tmp_path), "files": {"calibration": rows()}},
        )
        graph = bytes(prepared.files["compiled"])
    engines = set()
    for number in (0, 1, 10, 100, 1000, 3000):
        before = f"junk = [bytes(600 + 37 * i % 5000) for i in range({number})]; del junk[::2]; "
        with Stages(recipe, print, before + ENTRY) as stages:
            engines.add(sha256(stages.run("compile", {"compiled": graph}).files["engine"]))
    assert len(engines) == 1
