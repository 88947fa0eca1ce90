"""A running engine: tensors in and out as exact bits."""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from pellucid.core.digest import Data, sha256
from pellucid.core.tensor import Buffer, Tensor, TensorSpec, join_bytes_elements, split_bytes_elements
from pellucid.errors import BuildError, ConfigError, TensorError
from pellucid.ports import LayerTime

_TYPES: Final = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32", "tensor(uint64)": "UINT64", "tensor(int8)": "INT8",
    "tensor(int16)": "INT16", "tensor(int32)": "INT32", "tensor(int64)": "INT64",
    "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(float)": "FP32",
    "tensor(double)": "FP64", "tensor(string)": "BYTES",
}  # fmt: skip
_NUMPY: Final = {
    "BOOL": np.dtype(np.bool_), "UINT8": np.dtype("u1"), "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"), "UINT64": np.dtype("<u8"), "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
}  # fmt: skip
_binding: Final = ort.capi.onnxruntime_pybind11_state
REFUSALS: Final = (  # the binding's classes share no parent of their own
    RuntimeError, ValueError, TypeError,
    *(getattr(_binding, name) for name in (
        "EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel",
        "NoSuchFile", "NotImplemented", "RuntimeException",
    )),
)  # fmt: skip
_BFLOAT16: Final = 16  # onnx.TensorProto.BFLOAT16


def spec_of(value: Any) -> TensorSpec:
    """Declaration of one input or output; every named or unknown dimension is ``-1``.

    Raises:
        BuildError: A type that is no tensor of the protocol (sequence, map, FP8, ...).
    """
    if value.type not in _TYPES:
        raise BuildError(
            f"tensor {value.name!r:.80}: expected a tensor of the protocol, got {value.type:.60}"
        )
    shape = tuple(d if type(d) is int and d >= 0 else -1 for d in value.shape)
    return TensorSpec(value.name, _TYPES[value.type], shape)


if sys.byteorder != "little":
    raise ConfigError("onnxruntime: expected a little-endian machine, got another")


class OrtSession:
    """One engine on the CPU. ``infer`` is called by one thread at a time.

    Args:
        engine: What the session was made of; let go as soon as somebody asks for its digest.
        held: What has to live as long as the session.
    """

    def __init__(
        self, session: ort.InferenceSession, facts: dict[str, Any], engine: Data, held: object = None
    ) -> None:
        self._session: ort.InferenceSession | None = session
        self._facts, self._engine, self._held = facts, engine, held
        self._inputs = tuple(spec_of(value) for value in session.get_inputs())
        self._outputs = tuple(spec_of(value) for value in session.get_outputs())
        self._names = [spec.name for spec in self._outputs]
        self._has_bfloat16 = any(s.datatype == "BF16" for s in self._inputs + self._outputs)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    def infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Outputs in the model's order.

        Raises:
            TensorError: The tensors are not the model's inputs in order, the library refuses
                them, or the session is closed.
        """
        if self._session is None:
            raise TensorError("session: expected an open session, got a closed one")
        self._verify_inputs(tensors)
        try:
            if self._has_bfloat16:
                return self._infer_values(tensors)
            feed = {tensor.name: to_array(tensor) for tensor in tensors}
            arrays = self._session.run(self._names, feed)
        except REFUSALS as error:
            raise TensorError(f"onnxruntime: expected tensors the model takes, got {error!s:.300}") from error
        return [from_array(spec, array) for spec, array in zip(self._outputs, arrays, strict=True)]

    def _verify_inputs(self, tensors: Sequence[Tensor]) -> None:
        if len(tensors) == len(self._inputs) and all(
            t.name == s.name and t.datatype == s.datatype for t, s in zip(tensors, self._inputs, strict=True)
        ):
            return
        got = [(t.name, t.datatype) for t in tensors]
        expected = [(s.name, s.datatype) for s in self._inputs]
        raise TensorError(f"inputs: expected {expected!s:.200}, got {got!s:.200}")

    def _infer_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        assert self._session is not None
        feed = {tensor.name: _to_value(tensor) for tensor in tensors}
        values = self._session.run_with_ort_values(self._names, feed)
        return [_from_value(spec, value) for spec, value in zip(self._outputs, values, strict=True)]

    def describe(self) -> dict[str, Any]:
        if self._engine:  # hashed for who asks: a session that only runs needs no digest
            self._facts, self._engine = self._facts | {"engine": sha256(self._engine)}, b""
        return dict(self._facts)

    def close(self) -> None:
        self._session = self._held = None


class ProfiledOrtSession(OrtSession):
    """``ports.ProfiledSession``: the library's own profiler, whose file holds names, shapes and times.

    Args:
        folder: Where the library writes that file; removed with the session.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        facts: dict[str, Any],
        engine: bytes,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        super().__init__(session, facts, engine)
        self._folder = folder

    def layers(self) -> list[LayerTime]:
        """Times of all layers so far, the slowest first.

        Raises:
            TensorError: The session is closed.
        """
        if self._session is None:
            raise TensorError("session: expected an open session, got a closed one")
        return read_profile(Path(self._session.end_profiling()).read_bytes())

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def read_profile(raw: bytes) -> list[LayerTime]:
    """Layer times of the library's profile: events of category ``Node`` that end in ``_kernel_time``."""
    found: dict[str, tuple[str, int, int]] = {}
    for event in json.loads(raw):
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        name = name.removesuffix("_kernel_time")
        op, runs, took = found.get(name, ("", 0, 0))
        op = op or str(event.get("args", {}).get("op_name", ""))
        found[name] = (op, runs + 1, took + int(event.get("dur", 0)) * 1000)  # microseconds
    times = [LayerTime(name, op, runs, took) for name, (op, runs, took) in found.items()]
    return sorted(times, key=lambda layer: layer.ns, reverse=True)


def to_array(tensor: Tensor) -> Any:
    """NumPy view of a tensor's bits; BYTES must be UTF-8, since the library keeps strings.

    Raises:
        TensorError: BYTES that are not UTF-8.
    """
    if tensor.datatype != "BYTES":
        return np.frombuffer(tensor.data, _NUMPY[tensor.datatype]).reshape(tensor.shape)
    count = int(np.prod(tensor.shape, dtype=np.int64))
    array = np.empty(count, dtype=object)
    for position, element in enumerate(split_bytes_elements(tensor.data, count, subject=tensor.name)):
        try:
            array[position] = element.decode()
        except UnicodeDecodeError as error:
            raise TensorError(
                f"input {tensor.name!r:.80}: expected UTF-8 text in element {position}, got other bytes"
            ) from error
    return array.reshape(tensor.shape)


def from_array(spec: TensorSpec, array: Any) -> Tensor:
    """Tensor of an output array: its exact bits, row-major, little-endian."""
    if spec.datatype == "BYTES":
        data: Buffer = join_bytes_elements([str(item).encode() for item in array.reshape(-1)])
    else:
        data = array.tobytes()
    return Tensor(spec.name, spec.datatype, array.shape, data)


def _to_value(tensor: Tensor) -> ort.OrtValue:
    array = np.ascontiguousarray(to_array(tensor))
    if tensor.datatype == "BF16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _from_value(spec: TensorSpec, value: ort.OrtValue) -> Tensor:
    if spec.datatype != "BF16":
        return from_array(spec, value.numpy())
    # NumPy has no bfloat16: read the bits where they lie
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return Tensor(spec.name, spec.datatype, tuple(value.shape()), data)
