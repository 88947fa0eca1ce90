"""An engine's file opened without copying its weights again and again, for the few answers of a build.

Given an engine's bytes the library copies its weights three times before it repacks what it computes with,
and bringing in the pages for that is most of what opening a large engine costs. Here it is given the graph
without its weights, which names the engine's file, and where in it, for each of them. Either the library
reads them there, wherever they lie; or they are read once to where it would have laid them itself, aligned
as its own, and handed over. A sum may begin at a boundary of memory: answers of the second kind are the
ones that are recorded, and those of the first show that they do not depend on it.

Not for serving: weights that it was handed the library cannot let go once it has repacked them, and a
package's engine is verified bytes, not a file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from pellucid import onnx_light
from pellucid.backends.onnxruntime import options
from pellucid.onnx_light import TensorProto, Weight

if TYPE_CHECKING:
    import onnx

    from pellucid.core.digest import Data

WEIGHTS_MIN: Final = 2**22  # fewer bytes of weights are copied soon enough
ALIGNMENT: Final = 256  # of each weight, as the library lays it (kAllocAlignment)
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_DTYPES: Final = {
    TensorProto.FLOAT: "<f4", TensorProto.DOUBLE: "<f8", TensorProto.FLOAT16: "<f2", TensorProto.BOOL: "?",
    TensorProto.UINT8: "u1", TensorProto.UINT16: "<u2", TensorProto.UINT32: "<u4", TensorProto.UINT64: "<u8",
    TensorProto.INT8: "i1", TensorProto.INT16: "<i2", TensorProto.INT32: "<i4", TensorProto.INT64: "<i8",
}  # fmt: skip
_VALUES: Final = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


class Light(NamedTuple):
    """A session, and the weights that it was handed, which have to live as long."""

    session: ort.InferenceSession
    weights: list[ort.OrtValue]


def contents(path: Path) -> Data:
    """Bytes of a file that nobody writes to any more; a large one is read as it is needed."""
    with path.open("rb") as file:
        if path.stat().st_size < WEIGHTS_MIN:
            return file.read()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def open_light(engine: Path, raw: Data, made: ort.SessionOptions, *, copied: bool) -> Light | None:
    """A session of an engine's file; ``None`` where its weights are few, or not plain arrays.

    Args:
        raw: What is in it.
        made: Options of the session, at a level that looks at no weight; they are changed.
        copied: Whether weights are laid out in memory, or read where they lie in the file.

    Raises:
        DecodeError: It is no ONNX.
        Exception: The library's own, where it does not take the graph so.
    """
    structure = onnx_light.parse_structure(raw)
    graph, weights = structure.model.graph, structure.weights
    if sum(weight.size for weight in weights) < WEIGHTS_MIN or not _all_plain(graph, weights, raw):
        return None
    values = _values(engine, graph, weights) if copied else []
    for weight, value in zip(weights, values, strict=False):
        made.add_initializer(graph.initializer[weight.number].name, value)
    for weight in weights:
        _stand_in(graph.initializer[weight.number], engine.name, weight)
    made.add_session_config_entry(_FOLDER, str(engine.parent))
    graph_only = structure.model.SerializeToString()
    return Light(ort.InferenceSession(graph_only, made, providers=options.PROVIDERS), values)


def _all_plain(graph: onnx.GraphProto, weights: Sequence[Weight], raw: Data) -> bool:
    """Whether each weight is the whole of one constant, of a type that an array has."""
    tensors = [graph.initializer[weight.number] for weight in weights]
    names = [tensor.name for tensor in graph.initializer]
    given = {value.name for value in graph.input}
    return (
        len({weight.number for weight in weights}) == len(weights)
        and len(set(names)) == len(names)
        and all(_is_plain(tensor, weight, raw) for tensor, weight in zip(tensors, weights, strict=True))
        and not any(not tensor.name or tensor.name in given for tensor in tensors)
    )


def _is_plain(tensor: onnx.TensorProto, weight: Weight, raw: Data) -> bool:
    dtype = _DTYPES.get(tensor.data_type)
    return (
        dtype is not None
        and weight.size == prod(tensor.dims) * np.dtype(dtype).itemsize
        and tensor.data_location == TensorProto.DEFAULT
        and not tensor.HasField("raw_data")
        and not tensor.HasField("segment")
        and not any(getattr(tensor, name) for name in _VALUES)
        # copying, the library makes 1 of every truth but 0; in place it would compute with what is there
        and (tensor.data_type != TensorProto.BOOL or _max(raw, weight) <= 1)
    )


def _max(raw: Data, weight: Weight) -> int:
    return int(np.frombuffer(raw, np.uint8, weight.size, weight.start).max())


def _values(engine: Path, graph: onnx.GraphProto, weights: Sequence[Weight]) -> list[ort.OrtValue]:
    """The weights in memory, one behind the other, each where the library's alignment lets it begin."""
    room = sum(-(-weight.size // ALIGNMENT) * ALIGNMENT for weight in weights)
    whole = np.empty(room + ALIGNMENT, np.uint8)
    at = -whole.ctypes.data % ALIGNMENT
    values = []
    with engine.open("rb", buffering=0) as file:
        for weight in weights:
            part = whole[at : at + weight.size]
            _read_into(file.fileno(), part, weight.start)
            tensor = graph.initializer[weight.number]
            array = part.view(_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))
            values.append(ort.OrtValue.ortvalue_from_numpy(array))
            at += -(-weight.size // ALIGNMENT) * ALIGNMENT
    return values


def _read_into(descriptor: int, part: Any, start: int) -> None:
    done = 0
    while done < len(part):
        got = os.preadv(descriptor, [memoryview(part)[done:]], start + done)
        if not got:
            raise OSError(f"engine: expected {len(part)} bytes from byte {start}, got {done}")
        done += got


def _stand_in(tensor: onnx.TensorProto, name: str, weight: Weight) -> None:
    """Have a tensor of the graph say where in the engine's file its values lie."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", str(weight.start)), ("length", str(weight.size))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
