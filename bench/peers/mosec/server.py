"""Mosec around ONNX Runtime sessions; the routes are chosen to look like the protocol."""

from mosec import Server, Worker
from onnx_session import NAMES, OnnxSession


def worker(model):
    class OnnxWorker(Worker):
        def __init__(self):
            self.onnx = OnnxSession(model)

        def forward(self, data):
            return self.onnx.infer(data)

    OnnxWorker.__name__ = OnnxWorker.__qualname__ = f"OnnxWorker_{model}"
    globals()[OnnxWorker.__name__] = OnnxWorker  # found again by the spawned worker process
    return OnnxWorker


WORKERS = {name: worker(name) for name in NAMES}

if __name__ == "__main__":
    server = Server()
    for name, cls in WORKERS.items():
        server.append_worker(cls, num=1, route=f"/v2/models/{name}/infer")
    server.run()
