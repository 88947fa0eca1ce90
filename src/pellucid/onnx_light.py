"""Parts of onnx: its messages, its checker, its shape inference, without the start of the whole package.

That loads NumPy and readers of other formats, and costs more than many a build. The parts are known
under their own names, so that a later ``import onnx`` finds these very ones; where the package is laid
out in another way, or is there already, they are taken from it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import onnx

_PACKAGE: Final = "onnx"


def _part(name: str, suffixes: list[str]) -> ModuleType:
    whole = f"{_PACKAGE}.{name}"
    if whole in sys.modules or _PACKAGE in sys.modules:
        return importlib.import_module(whole)
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        for suffix in suffixes:
            path = Path(folder) / f"{name}{suffix}"
            spec = importlib.util.spec_from_file_location(whole, path) if path.is_file() else None
            if spec and spec.loader:
                module = importlib.util.module_from_spec(spec)
                sys.modules[whole] = module
                spec.loader.exec_module(module)
                return module
    return importlib.import_module(whole)  # another layout: the whole package


_messages: Final[Any] = _part("onnx_ml_pb2", [".py"])
_library: Final[Any] = _part("onnx_cpp2py_export", EXTENSION_SUFFIXES)

ModelProto: Final[Any] = _messages.ModelProto
NodeProto: Final[Any] = _messages.NodeProto
TensorProto: Final[Any] = _messages.TensorProto
ValidationError: Final[type[Exception]] = _library.checker.ValidationError
InferenceError: Final[type[Exception]] = _library.shape_inference.InferenceError


def parse(raw: bytes) -> onnx.ModelProto:
    """Message of an ONNX file's bytes.

    Raises:
        google.protobuf.message.DecodeError: They are none.
    """
    model: onnx.ModelProto = ModelProto.FromString(raw)
    return model


def check(model: onnx.ModelProto) -> None:
    """``onnx.checker.check_model`` with ``full_check``.

    Raises:
        ValidationError, InferenceError, ValueError: In the library's words.
    """
    _library.checker.check_model(model.SerializeToString(), True, False, False)


def infer_shapes(
    model: onnx.ModelProto, *, check_type: bool = False, strict_mode: bool = False, data_prop: bool = False
) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``.

    Raises:
        InferenceError, ValueError: In the library's words.
    """
    inferred = _library.shape_inference.infer_shapes(
        model.SerializeToString(), check_type, strict_mode, data_prop
    )
    return parse(inferred)


def opset_version() -> int:
    """``onnx.defs.onnx_opset_version``: the newest standard operator set."""
    return int(_library.defs.schema_version_map()[""][1])
