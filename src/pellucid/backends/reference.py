"""The yardstick of accuracy: the source graph, unoptimised, on one thread.

It runs the ONNX as the trainer wrote it (ONNX Runtime, level DISABLE_ALL), so that what
optimisation changed can be measured. It builds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pellucid.backends.onnxruntime.adapter import open_at
from pellucid.backends.onnxruntime.device import environment
from pellucid.backends.onnxruntime.session import OrtSession
from pellucid.errors import UsageError
from pellucid.ports import BuildLog, BuildProgress, Built, EngineMade, unawaited, unwatched


class ReferenceBackend:
    """Opens a source ONNX where other backends open an engine."""

    name = "reference"

    def load(self) -> None:
        """Nothing: it builds nothing."""

    def build(
        self,
        recipe: Mapping[str, Any],
        model: bytes,
        log: BuildLog,
        progress: BuildProgress = unwatched,
        made: EngineMade = unawaited,
    ) -> Built:
        raise UsageError(
            "backend 'reference': expected a backend that builds, got the accuracy reference",
            hint="backend: onnxruntime",
        )

    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> OrtSession:
        return open_at(engine, 0, 1)

    def open_made(self, engine: Path, recipe: Mapping[str, Any]) -> OrtSession:
        return self.open(engine.read_bytes(), recipe)

    def environment(self) -> dict[str, Any]:
        return environment() | {"backend": "reference"}
