"""KServe SDK model server around ONNX Runtime sessions.

KServe 0.21 hard-codes 0.0.0.0 for HTTP and [::] for gRPC; both are turned to loopback here.
"""

import os
import uuid

import grpc.aio
import uvicorn

_uvicorn_init = uvicorn.Config.__init__
_grpc_server = grpc.aio.server


def _loopback_config(self, *args, **kwargs):
    kwargs["host"] = "127.0.0.1"
    _uvicorn_init(self, *args, **kwargs)


def _loopback_server(*args, **kwargs):
    server = _grpc_server(*args, **kwargs)
    add_port = server.add_insecure_port
    server.add_insecure_port = lambda address: add_port("127.0.0.1:" + address.rsplit(":", 1)[1])
    return server


uvicorn.Config.__init__ = _loopback_config
grpc.aio.server = _loopback_server

from kserve import InferOutput, InferResponse, Model, ModelServer  # noqa: E402  (after the two patches)
from onnx_session import NAMES, OnnxSession  # noqa: E402


class OnnxModel(Model):
    def __init__(self, name):
        super().__init__(name)
        self.load()

    def load(self):
        self.onnx = OnnxSession(self.name)
        self.ready = True
        return True

    async def predict(self, payload, headers=None, response_headers=None):
        answer = self.onnx.run(payload.inputs[0].as_numpy())
        output = InferOutput(self.onnx.output, list(answer.shape), "FP32")
        output.set_data_from_numpy(answer, binary_data=False)
        return InferResponse(
            response_id=payload.id or uuid.uuid4().hex, model_name=self.name, infer_outputs=[output]
        )


if __name__ == "__main__":
    port = int(os.environ["PEER_PORT"])
    ModelServer(
        http_port=port, grpc_port=port + 1, workers=1, enable_docs_url=False, access_log_format=None
    ).start([OnnxModel(name) for name in NAMES])
