"""What every Python peer shares: one ONNX Runtime session per model, one thread, CPU only."""

import os
import pathlib

import numpy as np
import onnxruntime as ort

MODELS = pathlib.Path(os.environ["PEER_MODELS"])
NAMES = ("mlp30", "cnn32", "img224")


class OnnxSession:
    def __init__(self, name):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.name = name
        self.session = ort.InferenceSession(
            MODELS / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
        )
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name

    def run(self, array):
        return self.session.run(None, {self.input: array})[0]

    def infer(self, request):
        """Answer an Open Inference Protocol v2 request given as a dict (JSON tensors only)."""
        tensor = request["inputs"][0]
        array = np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])
        answer = self.run(array)
        return {
            "model_name": self.name,
            "outputs": [
                {
                    "name": self.output,
                    "shape": list(answer.shape),
                    "datatype": "FP32",
                    "data": answer.ravel().tolist(),
                }
            ],
        }
