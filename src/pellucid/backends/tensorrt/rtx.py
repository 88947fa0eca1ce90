"""TensorRT-RTX: builds for a named GPU architecture, on any machine."""

from __future__ import annotations

import tensorrt_rtx

from pellucid.backends.tensorrt.adapter import TensorRtBackend
from pellucid.backends.tensorrt.library import library_of


class TensorRtRtxBackend(TensorRtBackend):
    """Ahead-of-time builds; the GPU picks its library kernels when it loads the engine."""

    name = "tensorrt-rtx"

    def __init__(self) -> None:
        super().__init__(library_of(self.name, tensorrt_rtx))
