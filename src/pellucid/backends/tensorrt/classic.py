"""TensorRT 10 and 11: builds for the very GPU it runs on.

Nobody has run this backend yet: its names and signatures are held against the real modules, its
steps against a stand-in. Source: spec/recipe.md, section 5.
"""

from __future__ import annotations

import tensorrt

from pellucid.backends.tensorrt.adapter import TensorRtBackend
from pellucid.backends.tensorrt.library import library_of


class TensorRtClassicBackend(TensorRtBackend):
    """Builds where the engine will run: kernels are measured on the GPU at hand."""

    name = "tensorrt"

    def __init__(self) -> None:
        super().__init__(library_of(self.name, tensorrt))
