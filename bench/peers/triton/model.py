"""Triton Python-backend model: one ONNX Runtime run per dynamic batch."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from onnx_session import OnnxSession


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.input = config["input"][0]["name"]
        self.output = config["output"][0]["name"]
        self.session = OnnxSession(args["model_name"])

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, self.input).as_numpy() for r in requests]
        answers = self.session.run(np.concatenate(arrays) if len(arrays) > 1 else arrays[0])
        responses, start = [], 0
        for array in arrays:
            part = answers[start : start + len(array)]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(self.output, part)]))
            start += len(array)
        return responses
