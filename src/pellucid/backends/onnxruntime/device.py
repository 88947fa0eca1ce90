"""Which library, which processor: what a bit-exact answer depends on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

# instruction sets that the kernels of this backend choose by
ISA: Final = ("sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq",
              "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16",
              "asimd", "asimddp", "i8mm", "sve", "bf16")  # fmt: skip


def environment() -> dict[str, Any]:
    """Versions as loaded and the device; canonical profile."""
    return {
        "backend": "onnxruntime",
        "onnxruntime": ort.__version__,
        "onnxruntime_build": ort.get_build_info()[:300],
        "numpy": np.__version__,
        "python": platform.python_version(),
        "telemetry": "off" if os.environ.get("ORT_DISABLE_TELEMETRY") == "1" else "on",
        "device": device(),
    }


def device() -> dict[str, Any]:
    """The processor: name, instruction sets, logical processors this process may use."""
    facts = _processor(Path("/proc/cpuinfo"))
    return {
        "kind": "cpu",
        "name": facts.get("model name") or facts.get("CPU part") or platform.processor() or "unknown",
        "architecture": platform.machine(),
        "isa": [flag for flag in ISA if flag in facts.get("flags", facts.get("Features", "")).split()],
        "logical_processors": len(os.sched_getaffinity(0)),
        "byte_order": sys.byteorder,
    }


def _processor(path: Path) -> dict[str, str]:
    """First processor's facts; ``{}`` where the kernel shows none."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    lines = text.split("\n\n", 1)[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
