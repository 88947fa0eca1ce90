"""MLServer runtime around an ONNX Runtime session."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from onnx_session import OnnxSession


class OnnxModel(MLModel):
    async def load(self) -> bool:
        self.onnx = OnnxSession(self.name)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        array = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32, copy=False)
        output = NumpyCodec.encode_output(self.onnx.output, self.onnx.run(array))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])
