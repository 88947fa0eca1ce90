"""The three models every server serves, one request for each, and what bare ONNX Runtime answers.

Small rows, small pictures, and a picture as large as the ones people send: 600 kB of values and little
to compute, so that what is measured is the server and not the model. Weights and samples have fixed seeds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

SEED: Final = 0
CNN32: Final = """
<ir_version: 8, opset_import: ["" : 17]>
cnn32 (float[N, 3, 32, 32] image) => (float[N, 10] logits) {
    x1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, c1, d1)
    x2 = Relu (x1)
    x3 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x2)
    x4 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x3, c2, d2)
    x5 = Relu (x4)
    x6 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x5)
    x7 = GlobalAveragePool (x6)
    x8 = Flatten (x7)
    logits = Gemm <transB = 1> (x8, f, fb)
}
"""
MLP30: Final = """
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
IMG224: Final = """
<ir_version: 8, opset_import: ["" : 17]>
img224 (float[N, 3, 224, 224] image) => (float[N, 10] logits) {
    x1 = Conv <kernel_shape = [4, 4], strides = [4, 4]> (image, c1, d1)
    x2 = Relu (x1)
    x3 = GlobalAveragePool (x2)
    x4 = Flatten (x3)
    logits = Gemm <transB = 1> (x4, f, fb)
}
"""
CNN96: Final = """
<ir_version: 8, opset_import: ["" : 17]>
cnn96 (float[N, 3, 96, 96] image) => (float[N, 10] logits) {
    x1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (image, c1, d1)
    x2 = Relu (x1)
    x3 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x2, c2, d2)
    x4 = Relu (x3)
    x5 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x4)
    x6 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x5, c3, d3)
    x7 = Relu (x6)
    x8 = GlobalAveragePool (x7)
    x9 = Flatten (x8)
    logits = Gemm <transB = 1> (x9, f, fb)
}
"""
OWN: Final = (
    "cnn96",
)  # that no peer serves: for the question what a server takes of the library's own speed
_LOGITS: Final[dict[str, Any]] = {
    "decision": {"kind": "argmax", "output": "logits", "labels": [f"class {n}" for n in range(10)]},
    "description": "benchmark",
}


@dataclass(frozen=True, slots=True)
class Model:
    """One model: graph, weights (drawn in this order), biases (zero), how many decimals a client sends."""

    name: str
    graph: str
    weights: dict[str, tuple[int, ...]]
    biases: dict[str, int]
    decimals: int
    meaning: dict[str, Any]

    def onnx(self) -> bytes:
        """The model's bytes."""
        built, generator = onnx.parser.parse_model(self.graph), np.random.default_rng(SEED)
        for name, shape in self.weights.items():
            values = generator.standard_normal(shape) / np.sqrt(int(np.prod(shape[1:])))
            built.graph.initializer.append(_tensor(name, values))
        for name, size in self.biases.items():
            built.graph.initializer.append(_tensor(name, np.zeros(size)))
        onnx.checker.check_model(built, full_check=True)
        written: bytes = built.SerializeToString(deterministic=True)
        return written


MODELS: Final = {
    m.name: m
    for m in (
        Model(
            "mlp30", MLP30, {"w1": (64, 30), "w2": (32, 64), "w3": (2, 32)}, {"b1": 64, "b2": 32, "b3": 2},
            15,
            {"decision": {"kind": "threshold", "output": "probs", "column": 1, "threshold": "0.5",
                          "labels": ["no", "yes"]},
             "description": "benchmark", "features": [{"name": f"f{n}"} for n in range(30)]},
        ),
        Model(
            "cnn32", CNN32, {"c1": (16, 3, 3, 3), "c2": (32, 16, 3, 3), "f": (10, 32)},
            {"d1": 16, "d2": 32, "fb": 10}, 4, _LOGITS,
        ),
        Model(
            "cnn96", CNN96,
            {"c1": (32, 3, 3, 3), "c2": (64, 32, 3, 3), "c3": (128, 64, 3, 3), "f": (10, 128)},
            {"d1": 32, "d2": 64, "d3": 128, "fb": 10}, 4, _LOGITS,
        ),
        Model("img224", IMG224, {"c1": (8, 3, 4, 4), "f": (10, 8)}, {"d1": 8, "fb": 10}, 3, _LOGITS),
    )
}  # fmt: skip


def write(folder: Path) -> None:
    """Per model: MODEL.onnx, MODEL.npy (one sample), MODEL.json (a request), MODEL.expected.npy."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        path = folder / f"{name}.onnx"
        path.write_bytes(model.onnx())
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        source = session.get_inputs()[0]
        shape = [1, *source.shape[1:]]
        sample = np.round(np.random.default_rng(SEED).random(shape), model.decimals)
        item = {"name": source.name, "shape": shape, "datatype": "FP32", "data": sample.ravel().tolist()}
        request = {"id": "bench", "inputs": [item]}
        (folder / f"{name}.json").write_text(json.dumps(request, separators=(",", ":")))
        values = sample.astype("<f4")
        np.save(folder / f"{name}.npy", values)
        np.save(folder / f"{name}.expected.npy", session.run(None, {source.name: values})[0])


def _tensor(name: str, values: Any) -> Any:
    raw = values.astype("<f4").tobytes()
    return onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=values.shape, raw_data=raw)
