"""ONNX Runtime alone: the models of the comparison with no server around them, one row after the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import measure
import numpy as np
import onnxruntime as ort

from pellucid.app.load import verify
from pellucid.app.site import Site

ASKED: Final = ("mlp30", "cnn32", "cnn96")  # with pictures of 600 kB it is the bytes that are measured
LEVELS: Final = {"same": "as pellucid serves it", "default": "its default level"}


def alone(made: Site, models: Path, wanted: list[str], seconds: float) -> list[dict[str, Any]]:
    """Rows a second of each of these models: the engine as it is served, and the source by default."""
    told = []
    for name in (name for name in ASKED if name in wanted):
        source = json.loads((models / f"{name}.json").read_bytes())["inputs"][0]["name"]
        feed = {source: np.load(models / f"{name}.npy")}
        (archive,) = (a for a in made.packages_folder.glob("*.tar.gz") if re.match(rf"{name}-v", a.name))
        engines = {
            "same": (verify(made, archive).package.engine, ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
            "default": ((models / f"{name}.onnx").read_bytes(), ort.GraphOptimizationLevel.ORT_ENABLE_ALL),
        }
        for level, (engine, asked) in engines.items():
            result = measure.bare(engine, asked, feed, seconds)
            told.append({"model": name, "level": level} | {k: round(v, 2) for k, v in result.items()})
    return told
