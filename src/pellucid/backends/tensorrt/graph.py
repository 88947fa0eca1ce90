"""What the library would change without a word: types of the model against types of the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pellucid import onnx_light
from pellucid.core.tensor import TensorSpec
from pellucid.errors import ParseError, PrecisionError
from pellucid.onnx_light import TensorProto

if TYPE_CHECKING:
    import onnx

TYPES: Final = {  # the library's word -> the protocol's
    "BOOL": "BOOL", "UINT8": "UINT8", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64", "HALF": "FP16",
    "BF16": "BF16", "FLOAT": "FP32",
}  # fmt: skip
_ONNX: Final = {
    "BOOL": "BOOL", "UINT8": "UINT8", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64", "FLOAT16": "FP16",
    "BFLOAT16": "BF16", "FLOAT": "FP32", "DOUBLE": "FP64",
}  # fmt: skip
_DOUBLE: Final = TensorProto.DOUBLE
SHAPES_HINT: Final = "make them constants at export, or build with onnxruntime"
DOUBLE_HINT: Final = "TensorRT computes FP64 as FP32 without a word: export the model in FP32"


def read(model: bytes, *, weights: bool = True) -> onnx.ModelProto:
    """Graph of ONNX bytes; the library itself takes an empty file for a model.

    Args:
        weights: Large ones too; a builder's facts need none.

    Raises:
        ParseError: Empty, or not ONNX.
    """
    if not model:
        raise ParseError(
            "model: expected ONNX, got an empty file", hint="the export or the copy failed: do it again"
        )
    try:
        return onnx_light.parse(model) if weights else onnx_light.parse_structure(model).model
    except DecodeError as error:
        raise ParseError(f"model: expected ONNX, got {error!s:.200}") from error


def nodes_of(top: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, inner graphs' too, an outer one before its own."""
    for node in top.node:
        yield node
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from nodes_of(inner)


def verify_no_double(model: onnx.ModelProto) -> None:
    """Refuse FP64, which the library turns into FP32 silently.

    Raises:
        PrecisionError: Names the first tensors.
    """
    names = doubles(model)
    if names:
        raise PrecisionError(
            f"model: expected no FP64, got it in {len(names)}: {', '.join(names[:5])}", hint=DOUBLE_HINT
        )


def doubles(model: onnx.ModelProto) -> list[str]:
    """Everything in FP64, in words: weights, tensors, and nodes that hold or make it."""
    graph = model.graph
    names = [f"tensor {t.name}" for t in graph.initializer if t.data_type == _DOUBLE]
    names += [
        f"tensor {v.name}"
        for v in [*graph.input, *graph.output, *graph.value_info]
        if v.type.tensor_type.elem_type == _DOUBLE
    ]
    for node in graph.node:
        for a in node.attribute:
            casts = node.op_type == "Cast" and a.name == "to" and a.i == _DOUBLE
            if casts or (a.HasField("t") and a.t.data_type == _DOUBLE):
                names.append(f"node {node.name} ({node.op_type})")
    return list(dict.fromkeys(names))


def shape_inputs(network: Any) -> list[str]:
    """Inputs whose values decide the shape of another tensor."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    return [tensor.name for tensor in inputs if tensor.is_shape_tensor]


def verify_no_shape_inputs(network: Any) -> None:
    """Refuse inputs whose values decide shapes: no profile can be made of buckets for them.

    Raises:
        ParseError: Names them.
    """
    names = shape_inputs(network)
    if names:
        raise ParseError(
            f"model: expected inputs that hold data, got {len(names)} whose values decide shapes: "
            f"{', '.join(names[:5])}",
            hint=SHAPES_HINT,
        )


def interface(
    trt: Any, model: onnx.ModelProto, network: Any
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of the network, in the model's order and of the model's types.

    Raises:
        PrecisionError: The library took another type than the model says.
        ParseError: It took other tensors.
    """
    constants = {t.name for t in model.graph.initializer}
    given = [v for v in model.graph.input if v.name not in constants]
    return (
        _specs(trt, given, [network.get_input(i) for i in range(network.num_inputs)], "inputs"),
        _specs(
            trt, model.graph.output, [network.get_output(i) for i in range(network.num_outputs)], "outputs"
        ),
    )


def _specs(trt: Any, values: Any, tensors: list[Any], kind: str) -> tuple[TensorSpec, ...]:
    names, by_name = [v.name for v in values], {t.name: t for t in tensors}
    if sorted(names) != sorted(by_name):
        raise ParseError(
            f"{kind}: expected {names!s:.200} as the model has them, got {list(by_name)!s:.200}",
            hint="an input that is an output as it came in gets another name: leave it out at export",
        )
    specs = []
    for value in values:
        tensor = by_name[value.name]
        number = value.type.tensor_type.elem_type
        expected = _ONNX.get(TensorProto.DataType.Name(number), "another type")
        got = TYPES.get(trt.DataType(tensor.dtype).name, "another type")
        if got != expected:
            raise PrecisionError(f"{kind}: {value.name!r:.80}: expected {expected}, got {got}")
        specs.append(TensorSpec(value.name, got, tuple(int(d) for d in tensor.shape)))
    return tuple(specs)
