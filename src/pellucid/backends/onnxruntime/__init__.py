"""ONNX Runtime, the embedded default.

The official wheel phones home by default, and the switch counts only before the first import, so
importing this package is what switches it off. A library that someone imported earlier without the
switch is refused: what it has queued can no longer be recalled.
"""

from __future__ import annotations

import os
import sys

from pellucid.errors import ConfigError

_SWITCH = "ORT_DISABLE_TELEMETRY"


def _silence() -> None:
    off = os.environ.get(_SWITCH, "").lower() in ("1", "true")
    if not off and "onnxruntime" in sys.modules:
        raise ConfigError(
            f"onnxruntime: expected {_SWITCH}=1 before its first import, got an import without it",
            hint=f"start the process with {_SWITCH}=1",
        )
    os.environ[_SWITCH] = "1"


_silence()
