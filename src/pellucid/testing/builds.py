"""Builds of toy models for tests: a recipe folder, a job that remembers its entries, a package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pellucid.app.clock import SystemClock
from pellucid.build.job import BuildOutcome, Job, run_build
from pellucid.core import canonical
from pellucid.testing.models import MODELS


class EventList:
    """``ports.EventRecorder`` that keeps what it was told, checked as a ledger would."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        canonical.encode(data)
        self.events.append((kind, data))
        return f"toy/1/0/e{len(self.events)}"


def write_recipe(
    folder: Path, model: bytes | str, *, meaning: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """A recipe folder with a model (bytes, or a name of ``MODELS``); gives the recipe's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(MODELS[model]() if isinstance(model, str) else model)
    recipe: dict[str, Any] = {
        "name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "model.onnx",
        "buckets": [] if model == "unbatched" else [1, 4],
    }  # fmt: skip
    if meaning is not None:
        (folder / "meaning.json").write_text(json.dumps(meaning))
        recipe["meaning"] = "meaning.json"
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe | changes))
    return path


def toy_job(out: Path, **changes: Any) -> tuple[Job, EventList]:
    """A job that writes packages into ``out``, and the entries it will record."""
    recorder = EventList()
    given: dict[str, Any] = {
        "out": out, "recorder": recorder, "clock": SystemClock(),
    }  # fmt: skip
    return Job(**(given | changes)), recorder


def build_toy(folder: Path, model: bytes | str, **changes: Any) -> BuildOutcome:
    """Build a toy for real; recipe in ``folder/recipe``, package in ``folder/packages``."""
    job, _ = toy_job(folder / "packages")
    return run_build(write_recipe(folder / "recipe", model, **changes), job)
