"""Toy ONNX models: small, seeded, one for each behaviour that matters.

``MODELS`` maps a name to a function that gives ONNX bytes; the same bytes every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ONNX_TYPES: Final = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16, "INT32": TensorProto.INT32, "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16, "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE, "BYTES": TensorProto.STRING,
}  # fmt: skip


def _model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: dict[str, Any], **more: Any
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "toy",
        inputs,
        outputs,
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pellucid", **more
    )
    onnx.checker.check_model(model, full_check=True)
    raw: bytes = model.SerializeToString(deterministic=True)
    return raw


def _value(name: str, shape: Sequence[int | str], datatype: str = "FP32") -> Any:
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def _draw(seed: int, *shape: int, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def credit_like(*, nodes: Callable[[str], str] = str) -> bytes:
    """``features`` FP32 [N,20] -> ``probabilities`` FP32 [N,2]; ``nodes`` renames the nodes."""
    weights = {
        "w1": _draw(1, 20, 16, scale=0.4),
        "b1": _draw(2, 16),
        "w2": _draw(3, 16, 2),
        "b2": _draw(4, 2),
    }
    return _model(
        [
            helper.make_node("Gemm", ["features", "w1", "b1"], ["hidden"], name=nodes("hidden")),
            helper.make_node("Relu", ["hidden"], ["active"], name=nodes("active")),
            helper.make_node("Gemm", ["active", "w2", "b2"], ["scores"], name=nodes("score")),
            helper.make_node("Softmax", ["scores"], ["probabilities"], name=nodes("softmax"), axis=-1),
        ],
        [_value("features", ["N", 20])],
        [_value("probabilities", ["N", 2])],
        weights,
    )


def digits_like(*, nodes: Callable[[str], str] = str) -> bytes:
    """``image`` FP32 [N,1,8,8] -> ``probs`` FP32 [N,10]: two Conv+Relu that fuse, one Identity that goes."""
    weights = {
        "w1": _draw(5, 8, 1, 3, 3, scale=0.3), "b1": _draw(6, 8, scale=0.1),
        "w2": _draw(7, 16, 8, 3, 3, scale=0.1), "b2": _draw(8, 16, scale=0.1),
        "wf": _draw(9, 256, 10, scale=0.1), "bf": _draw(10, 10, scale=0.1),
    }  # fmt: skip
    return _model(
        [
            helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], pads=[1] * 4, name=nodes("conv1")),
            helper.make_node("Relu", ["c1"], ["r1"], name=nodes("relu1")),
            helper.make_node("Identity", ["r1"], ["i1"], name=nodes("same")),
            helper.make_node("Conv", ["i1", "w2", "b2"], ["c2"], pads=[1] * 4, name=nodes("conv2")),
            helper.make_node("Relu", ["c2"], ["r2"], name=nodes("relu2")),
            helper.make_node(
                "MaxPool", ["r2"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name=nodes("pool")
            ),
            helper.make_node("Flatten", ["p"], ["f"], name=nodes("flat")),
            helper.make_node("Gemm", ["f", "wf", "bf"], ["logits"], name=nodes("fc")),
            helper.make_node("Softmax", ["logits"], ["probs"], axis=-1, name=nodes("softmax")),
        ],
        [_value("image", ["N", 1, 8, 8])],
        [_value("probs", ["N", 10])],
        weights,
    )


def identity(datatype: str) -> bytes:
    """``x`` [N,3] -> ``y`` [N,3], the same bits, in any datatype of the protocol."""
    return _model(
        [helper.make_node("Identity", ["x"], ["y"], name="same")],
        [_value("x", ["N", 3], datatype)],
        [_value("y", ["N", 3], datatype)],
        {},
    )


def dynamically_quantised() -> bytes:
    """``x`` FP32 [N,16] -> ``y`` FP32 [N,4]; the scale is taken from the whole batch, so the
    neighbours change the bits: it must be labelled ``variant``."""
    weight = np.random.default_rng(11).integers(-100, 100, (16, 4)).astype(np.int8)
    return _model(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], name="quantise"),
            helper.make_node("MatMulInteger", ["q", "w", "zero"], ["sums"], name="matmul"),
            helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT, name="widen"),
            helper.make_node("Mul", ["wide", "scale"], ["scaled"], name="scale"),
            helper.make_node("Mul", ["scaled", "unit"], ["y"], name="unit"),
        ],
        [_value("x", ["N", 16])],
        [_value("y", ["N", 4])],
        {"w": weight, "unit": np.array([0.01], dtype=np.float32)},
    )


def two_inputs() -> bytes:
    """``amount`` FP32 [N,4] and ``kind`` INT64 [N] -> ``score`` FP32 [N,3] and ``total`` FP32 [N]."""
    return _model(
        [
            helper.make_node("MatMul", ["amount", "w"], ["seen"], name="see"),
            helper.make_node("Gather", ["table", "kind"], ["known"], name="look"),
            helper.make_node("Add", ["seen", "known"], ["score"], name="add"),
            helper.make_node("ReduceSum", ["score", "axis"], ["total"], keepdims=0, name="sum"),
        ],
        [_value("amount", ["N", 4]), _value("kind", ["N"], "INT64")],
        [_value("score", ["N", 3]), _value("total", ["N"])],
        {"w": _draw(12, 4, 3), "table": _draw(13, 8, 3), "axis": np.array([1], dtype=np.int64)},
    )


def unbatched() -> bytes:
    """``signal`` FP32 [6] -> ``level`` FP32 [2]: no batch axis at all."""
    return _model(
        [helper.make_node("MatMul", ["signal", "w"], ["level"], name="matmul")],
        [_value("signal", [6])],
        [_value("level", [2])],
        {"w": _draw(14, 6, 2)},
    )


def random_noise() -> bytes:
    """``x`` FP32 [N,3] -> ``y`` FP32 [N,3] with noise added: never the same twice."""
    return _model(
        [
            helper.make_node("RandomNormalLike", ["x"], ["noise"], name="noise"),
            helper.make_node("Add", ["x", "noise"], ["y"], name="add"),
        ],
        [_value("x", ["N", 3])],
        [_value("y", ["N", 3])],
        {},
    )


MODELS: Final[dict[str, Callable[[], bytes]]] = {
    "credit_like": credit_like,
    "digits_like": digits_like,
    "dynamically_quantised": dynamically_quantised,
    "two_inputs": two_inputs,
    "unbatched": unbatched,
    "random_noise": random_noise,
} | {f"identity_{name.lower()}": (lambda name=name: identity(name)) for name in ONNX_TYPES}
