"""ONNX's message types alone: the package's own start loads NumPy and costs more than many a build.

The module is known under its own name, so that a later ``import onnx`` finds this very one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_PACKAGE: Final = "onnx"
_MODULE: Final = "onnx.onnx_ml_pb2"


def _load() -> ModuleType:
    if _MODULE in sys.modules or _PACKAGE in sys.modules:
        return importlib.import_module(_MODULE)
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        path = Path(folder) / "onnx_ml_pb2.py"
        spec = importlib.util.spec_from_file_location(_MODULE, path) if path.is_file() else None
        if spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[_MODULE] = module
            return module
    return importlib.import_module(_MODULE)  # another layout: the whole package


_messages: Final[Any] = _load()
ModelProto: Final[Any] = _messages.ModelProto
TensorProto: Final[Any] = _messages.TensorProto
