"""The benchmark's model: mlp30, a small tabular classifier (FP32 [N,30] -> FP32 [N,2])."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import onnx
import onnx.parser

GRAPH: Final = """
<ir_version: 8, opset_import: ["" : 17]>
mlp30 (float[N, 30] input) => (float[N, 2] probs) {
    a1 = Gemm <transB = 1> (input, w1, b1)
    r1 = Relu (a1)
    a2 = Gemm <transB = 1> (r1, w2, b2)
    r2 = Relu (a2)
    a3 = Gemm <transB = 1> (r2, w3, b3)
    probs = Softmax <axis = 1> (a3)
}
"""
WEIGHTS: Final = {"w1": (64, 30), "w2": (32, 64), "w3": (2, 32)}
MEANING: Final[dict[str, Any]] = {
    "decision": {
        "kind": "threshold",
        "output": "probs",
        "column": 1,
        "threshold": "0.5",
        "labels": ["no", "yes"],
    },
    "description": "benchmark",
    "features": [{"name": f"f{n}"} for n in range(30)],
}


def model() -> bytes:
    """The ONNX bytes; seed 0."""
    graph = onnx.parser.parse_model(GRAPH)
    generator = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        values = generator.standard_normal(shape) / np.sqrt(shape[1])
        graph.graph.initializer.append(_tensor(name, values))
    for name, (size, _) in WEIGHTS.items():
        graph.graph.initializer.append(_tensor(name.replace("w", "b"), np.zeros(size)))
    onnx.checker.check_model(graph, full_check=True)
    return graph.SerializeToString(deterministic=True)


def _tensor(name: str, values: Any) -> Any:
    raw = values.astype("<f4").tobytes()
    return onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=values.shape, raw_data=raw)


def samples(count: int) -> Any:
    return np.random.default_rng(1).standard_normal((count, 30)).astype(np.float32)


def request() -> bytes:
    """One request of one row, as a client writes it: every digit."""
    row = [float(value) for value in np.random.default_rng(2).standard_normal(30)]
    item = {"name": "input", "shape": [1, 30], "datatype": "FP32", "data": row}
    return json.dumps({"inputs": [item]}).encode()
