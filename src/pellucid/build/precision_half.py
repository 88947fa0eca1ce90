"""FP16 and BF16: inner tensors in half the bits, inputs and outputs stay FP32 for those who call.

ONNX Runtime's converter places the casts and keeps operators without FP16 kernels in FP32; BF16 takes
its casts, with the other 16 bits. Numbers are rounded to nearest here, because the converter moves
what is too small to its smallest number and cuts what is too large. Too large is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from pellucid.build import precision_graph as graph
from pellucid.core.calibration_ranges import float32_text
from pellucid.errors import PrecisionError

_NAMED_MAX: Final = 5  # limit: tensors named in one error


class Half(msgspec.Struct, frozen=True):
    """A 16-bit form.

    Attributes:
        largest: Largest finite number; normal: smallest number of full precision.
        encode: Little-endian bits, rounded to nearest, of an FP32 array; and the values they mean.
        hint: What to change where the standard has an operator in FP32 only.
    """

    name: str
    kind: int
    largest: float
    normal: float
    encode: Callable[[Any], tuple[bytes, Any]]
    hint: str = ""


def _encode_fp16(array: Any) -> tuple[bytes, Any]:
    with np.errstate(over="ignore"):
        half = array.astype("<f2")
    return half.tobytes(), half.astype(np.float32)


def _encode_bf16(array: Any) -> tuple[bytes, Any]:
    bits = array.astype("<f4").view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    half = np.where(np.isnan(array), 0x7FC0, rounded).astype("<u2")
    return half.tobytes(), (half.astype("<u4") << 16).view("<f4")


FP16: Final = Half("fp16", TensorProto.FLOAT16, 65504.0, 2.0**-14, _encode_fp16)
BF16: Final = Half(
    "bf16", TensorProto.BFLOAT16, 3.3895313892515355e38, 2.0**-126, _encode_bf16,
    "canonical: {opset: 22} in the recipe: convolutions, pools and others know BF16 from there on",
)  # fmt: skip


class Halved(msgspec.Struct, frozen=True):
    """A graph in 16 bits, and what became of its numbers.

    Attributes:
        initialisers: ``{name, elements, max_abs, overflow, subnormal, flushed, nonfinite, kept_fp32}``.
        kept: Names of the nodes that compute in FP32.
    """

    model: onnx.ModelProto
    initialisers: list[dict[str, Any]]
    kept: list[str]


def halve(model: onnx.ModelProto, half: Half) -> Halved:
    """Convert a graph in FP32; what goes in and comes out keeps its types.

    Raises:
        PrecisionError: Nothing to convert, tensors that are 16-bit already, numbers that do not
            fit, or a graph that is not valid afterwards.
    """
    _verify_source(model, half)
    given = dict(_float_tensors(model))
    numbers = {name: numpy_helper.to_array(tensor).copy() for name, tensor in given.items()}
    converted = onnx.ModelProto()
    converted.CopyFrom(model)
    converted = convert_float_to_float16(converted, keep_io_types=True)
    changed = {name for name, tensor in _tensors(converted) if tensor.data_type == TensorProto.FLOAT16}
    found = [_numbers(name, array, half, kept=name not in changed) for name, array in numbers.items()]
    _verify_fits(found, half)
    _set_bits(converted, numbers, half)
    _set_types(converted, half)
    graph.sort_nodes(converted)
    graph.name_nodes(converted)
    graph.verify(converted, f"precision: {half.name}", half.hint)
    return Halved(converted, sorted(found, key=lambda item: str(item["name"])), _kept(model))


def _verify_source(model: onnx.ModelProto, half: Half) -> None:
    kinds = [t.data_type for _, t in _tensors(model)]
    kinds += [v.type.tensor_type.elem_type for each in graph.graphs(model.graph) for v in _values(each)]
    if TensorProto.FLOAT not in kinds:
        raise PrecisionError(
            f"precision: {half.name}: expected FP32 tensors to convert, got none",
            hint="say precision: fp32, which keeps the types of the model",
        )
    already = {TensorProto.FLOAT16, TensorProto.BFLOAT16} & set(kinds)
    if already:
        names = ", ".join(sorted(TensorProto.DataType.Name(kind) for kind in already))
        raise PrecisionError(
            f"precision: {half.name}: expected a model in FP32, got one that holds {names}",
            hint="say precision: fp32, which keeps the types of the model, or export it in FP32",
        )


def _values(each: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from [*each.input, *each.output, *each.value_info]


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Constants by name: initialisers, and tensors that stand in a node's attributes."""
    for each in graph.graphs(model.graph):
        for tensor in each.initializer:
            yield tensor.name, tensor
        for node in each.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield f"{node.name}.{attribute.name}", attribute.t


def _float_tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    return ((name, tensor) for name, tensor in _tensors(model) if tensor.data_type == TensorProto.FLOAT)


def _numbers(name: str, array: Any, half: Half, *, kept: bool) -> dict[str, Any]:
    finite = np.isfinite(array)
    magnitude = np.abs(array[finite])
    _, after = half.encode(array)
    after = np.abs(after.reshape(array.shape)[finite])
    return {
        "name": name,
        "elements": int(array.size),
        "max_abs": float32_text(float(magnitude.max())) if magnitude.size else "0.0",
        "overflow": 0 if kept else int((magnitude > half.largest).sum()),
        "subnormal": 0 if kept else int(((after > 0) & (after < half.normal)).sum()),
        "flushed": 0 if kept else int(((after == 0) & (magnitude > 0)).sum()),
        "nonfinite": int((~finite).sum()),
        "kept_fp32": kept,
    }


def _verify_fits(found: list[dict[str, Any]], half: Half) -> None:
    over = [item for item in found if item["overflow"]]
    if over:
        names = ", ".join(
            f"{i['name']!r:.60} ({i['overflow']:,} of {i['elements']:,}, largest {i['max_abs']})"
            for i in over[:_NAMED_MAX]
        )
        other = "bf16 on a GPU, or fp32" if half.kind == TensorProto.FLOAT16 else "fp32"
        raise PrecisionError(
            f"precision: {half.name}: expected numbers up to {half.largest:g}, got larger ones in "
            f"{len(over)}: {names}",
            hint=f"a mask of -1e38 can be -1e4 where it is exported; else take {other}",
        )


def _set_bits(model: onnx.ModelProto, numbers: dict[str, Any], half: Half) -> None:
    for name, tensor in _tensors(model):
        if tensor.data_type == TensorProto.FLOAT16:
            array = numbers[name] if name in numbers else numpy_helper.to_array(tensor).astype(np.float32)
            raw, _ = half.encode(array)
            tensor.ClearField("int32_data")
            tensor.data_type, tensor.raw_data = half.kind, raw


def _set_types(model: onnx.ModelProto, half: Half) -> None:
    """BF16 where the converter wrote FP16."""
    if half.kind == TensorProto.FLOAT16:
        return
    for each in graph.graphs(model.graph):
        for value in _values(each):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = half.kind
        for node in each.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                    attribute.i = half.kind


def _kept(model: onnx.ModelProto) -> list[str]:
    blocked = set(DEFAULT_OP_BLOCK_LIST)
    return [node.name for node in graph.nodes(model) if node.op_type in blocked]
