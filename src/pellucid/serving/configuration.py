"""A model's configuration in the words of Triton's ``ModelConfig``, read off what is served.

Dimensions stand without the batch where there is one, as stock clients expect it.
"""

from __future__ import annotations

from typing import Any, Final

from pellucid.core.tensor import TensorSpec
from pellucid.serving.limits import Limits
from pellucid.serving.model import Model

_BACKENDS: Final = {"onnx_onnxv1": "onnxruntime", "tensorrt_plan": "tensorrt"}
_GPU: Final = ("tensorrt_plan",)


def model_configuration(model: Model, limits: Limits) -> dict[str, Any]:
    """The protocol's ``ModelConfig`` of a model version."""
    signature = model.signature
    config: dict[str, Any] = {
        "name": model.name,
        "platform": model.platform,
        "backend": _BACKENDS.get(model.platform, model.platform),
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": signature.rows_max if signature.batched else 0,
        "input": [_tensor(spec, signature.batched) | {"format": "FORMAT_NONE"} for spec in signature.inputs],
        "output": [_tensor(spec, signature.batched) | {"label_filename": ""} for spec in signature.outputs],
        "instance_group": [
            {
                "name": f"{model.name}_0",
                "kind": "KIND_GPU" if model.platform in _GPU else "KIND_CPU",
                "count": 1,
            }
        ],
        "parameters": {
            "version": {"string_value": model.version},
            "label_variance": {"string_value": model.label_variance},
        },
    }
    if model.shares:
        config["dynamic_batching"] = {
            "preferred_batch_size": list(model.buckets),
            "max_queue_delay_microseconds": model.delay_us(limits.batch_delay_us),
        }
    return config


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    dims = spec.shape[1:] if batched else spec.shape
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(dims)}
