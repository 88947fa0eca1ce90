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

import msgspec

if TYPE_CHECKING:
    import onnx

    from pellucid.core.digest import Data

_PACKAGE: Final = "onnx"
_LARGE: Final = 2**20  # below, reading all costs less than looking for what to leave out
_WEIGHT_MIN: Final = 2**16
_WEIGHTS: Final = (7, 5, 9)  # ModelProto.graph, GraphProto.initializer, TensorProto.raw_data
_LENGTH: Final = 2
_NUMBER_MAX: Final = 10  # bytes of a number, and of a field's tag or size: protobuf refuses longer ones
_HEAD_MAX: Final = 5
_FIXED: Final = {1: 8, 5: 4}  # wire type -> bytes


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


def parse(raw: Data) -> onnx.ModelProto:
    """Message of an ONNX file's bytes.

    Raises:
        google.protobuf.message.DecodeError: They are none.
    """
    model: onnx.ModelProto = ModelProto.FromString(raw)
    return model


class Weight(msgspec.Struct, frozen=True):
    """Where an initializer's raw data lies.

    Attributes:
        number: Which of the graph's initializers it belongs to.
        start, size: Its first byte in the file, and how many there are.
    """

    number: int
    start: int
    size: int


class Structure(msgspec.Struct, frozen=True):
    """An ONNX file without its large weights.

    Attributes:
        dropped: Bytes that those take in the file, their fields' heads among them.
    """

    model: onnx.ModelProto
    weights: tuple[Weight, ...] = ()
    dropped: int = 0


def parse_structure(raw: Data) -> Structure:
    """Message of an ONNX file's bytes without its large weights, and where those lie.

    Weights are nearly all of a large file, and a reader of its structure would copy them for nothing.

    Raises:
        google.protobuf.message.DecodeError: They are none.
    """
    if len(raw) < _LARGE:
        return Structure(parse(raw))
    whole = memoryview(raw)
    cut = _Cut(whole)
    try:
        light, dropped = cut.without(0, len(whole), _WEIGHTS)
    except (ValueError, LookupError):  # not as protobuf writes it: the library says what is wrong
        return Structure(parse(raw))
    return Structure(parse(light), tuple(cut.weights), dropped)


class _Cut:
    """Leaves out the large fields at the end of a path of field numbers."""

    def __init__(self, whole: memoryview) -> None:
        self._whole = whole
        self._number = -1  # of the message that the last field of the path stands in
        self.weights: list[Weight] = []

    def without(self, begin: int, end: int, path: tuple[int, ...]) -> tuple[bytes, int]:
        """The message from ``begin`` to ``end`` without them, and how many bytes they took."""
        message = self._whole[:end]
        pieces: list[bytes | memoryview] = []
        kept, dropped, at = begin, 0, begin
        while at < end:
            start = at
            tag, at = _varint(message, at, _HEAD_MAX)
            kind = tag & 7
            if kind == _LENGTH:
                size, at = _varint(message, at, _HEAD_MAX)
                inner, at = at, at + size
                if at > end:
                    raise ValueError("protobuf: expected a field inside its message, got a longer one")
                if tag >> 3 != path[0]:
                    continue
                self._number += len(path) == 2
                if size < _WEIGHT_MIN and len(path) < len(_WEIGHTS):  # a graph in parts is counted through
                    continue
                if len(path) == 1:
                    self.weights.append(Weight(self._number, inner, size))
                    pieces.append(message[kept:start])
                    kept, dropped = at, dropped + at - start
                    continue
                rest, gone = self.without(inner, at, path[1:])
                if gone:
                    pieces += [message[kept:start], _as_varint(tag), _as_varint(len(rest)), rest]
                    kept, dropped = at, dropped + gone
            elif kind == 0:
                _, at = _varint(message, at)
            else:
                at += _FIXED[kind]
        pieces.append(message[kept:])
        return b"".join(pieces), dropped


def _varint(message: memoryview, at: int, bytes_max: int = _NUMBER_MAX) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 7 * bytes_max:
            raise ValueError(f"protobuf: expected a number of at most {bytes_max} bytes, got a longer one")


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


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
