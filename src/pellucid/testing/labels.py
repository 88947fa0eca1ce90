"""Facts and documents of a toy digits model, written by hand, for tests of labels; nothing was measured."""

from __future__ import annotations

from typing import Any, Final

DIGESTS: Final = {
    name: "sha256:" + byte * 32
    for name, byte in (
        ("source", "5a"),
        ("compiled", "cc"),
        ("engine", "ee"),
        ("log", "10"),
        ("stderr", "0e"),
    )
}
ENVIRONMENT: Final[dict[str, Any]] = {
    "backend": "onnxruntime", "onnxruntime": "1.32.0", "commit": None, "dirty": None, "image": None,
    "device": {"kind": "cpu", "name": "A processor", "architecture": "x86_64", "isa": ["avx2", "fma"]},
}  # fmt: skip
_NODES: Final = (
    ("conv1", "Conv", "image", "c1"), ("relu1", "Relu", "c1", "r1"), ("same", "Identity", "r1", "s"),
    ("conv2", "Conv", "s", "c2"), ("relu2", "Relu", "c2", "r2"), ("pool", "MaxPool", "r2", "p"),
    ("flat", "Flatten", "p", "f"), ("fc", "Gemm", "f", "logits"), ("softmax", "Softmax", "logits", "probs"),
)  # fmt: skip
_LAYERS: Final = (
    ("conv1", "com.microsoft:FusedConv", ["conv1", "relu1"], "image", "r1"),
    ("conv2", "com.microsoft:FusedConv", ["same", "conv2", "relu2"], "r1", "r2"),
    ("pool", "MaxPool", ["pool"], "r2", "p"), ("flat", "Flatten", ["flat"], "p", "f"),
    ("fc", "Gemm", ["fc"], "f", "logits"), ("softmax", "Softmax", ["softmax"], "logits", "probs"),
)  # fmt: skip
FACTS: Final[dict[str, Any]] = {
    "nodes": [{"name": name, "op": op, "domain": "", "layers": [], "fate": ""} for name, op, _, _ in _NODES],
    "layers": [
        {
            "name": name, "op": op, "nodes": nodes, "fused": len(nodes) > 1, "mapped": True,
            "inputs": [{"name": taken, "datatype": "FP32"}], "outputs": [{"name": given, "datatype": "FP32"}],
        }
        for name, op, nodes, taken, given in _LAYERS
    ],
    "fused_layers": 2, "eliminated": ["same"], "quantized_ops_count": 0, "warnings": [], "notes": [],
    "tactics": "chosen at run time", "memory": {"weights_bytes": 15356, "peak_rss_bytes": 83120128},
}  # fmt: skip


def measured_documents() -> dict[str, Any]:
    """Every document a label reads, with every key it knows; numbers are invented."""
    layers = [(layer["name"], layer["outputs"][0]["name"], layer["nodes"]) for layer in FACTS["layers"]]
    return {
        "accuracy.json": _accuracy(layers),
        "representativeness.json": {
            "reference": "sha256:" + "ab" * 32,
            "samples": 300, "reference_is": "the recipe's reference set",
            "tensors": [
                {
                    "tensor": tensor, "layer": layer,
                    "share_outside": "0.012" if tensor == "r2" else "0.0004",
                    "slices": [{"slice": "light", "value": "night", "share_outside": "0.02"}],
                }
                for layer, tensor, _ in layers
            ],
            "warnings": ["layer conv2: 2 % of the values of light night lie outside the calibrated range"],
        },
        "precision.json": {
            "precision": "int8",
            "initialisers": [
                {"name": "w1", "elements": 4096, "overflow": 7, "subnormal": 12, "max_abs": "70000"}
            ],
            "kept_fp32": ["softmax"],
            "quantised": [{"name": "conv1", "op": "Conv"}],
            "scheme": {"activations": "INT8", "weights": "INT8", "bias": "INT32", "outputs_quantised": True},
        },
        "calibration/ranges.json": {
            "method": "minmax", "samples": 128, "digest": "sha256:" + "7a" * 32,
            "weights": [
                {"tensor": "w1", "nodes": ["conv1"], "axis": 0, "min": ["-1", "-2"], "max": ["1", "2"],
                 "scale": ["0.00787", "0.0157"], "zero_point": [0, 0]}
            ],
            "tensors": [
                {
                    "tensor": tensor, "nodes": [layer], "min": "-1.5" if at % 2 else "0", "max": f"{10**at}",
                    "scale": "0.0123", "zero_point": 0,
                }
                for at, (layer, tensor, _) in enumerate(layers)
            ],
        },
        "calibration/manifest.json": {
            "data": "sha256:" + "da" * 32, "rows": 900, "samples_digest": "sha256:" + "5e" * 32,
            "select": {"rule": "stratified", "count": 128, "seed": 7, "slice": "light"},
            "source": "digits of the training half", "licence": "CC BY 4.0",
            "times": {"from": "1998-07-01T00:00:00Z", "to": "1998-07-31T00:00:00Z"},
        },
        "model/steps.json": {
            "steps": [
                {"step": "fold", "before": DIGESTS["source"], "after": DIGESTS["compiled"],
                 "detail": {"nodes": 12}}
            ]
        },
    }  # fmt: skip


def _accuracy(layers: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    groups = (("day", 600, 1, "0.0079"), ("night", 299, 2, "0.0209"))
    return {
        "measured_on": "the compiled graph through ONNX Runtime on a CPU",
        "samples": 899, "confidence": "0.95",
        "top1": "0.972", "top1_source": "0.9733", "psnr_db": "41.27", "cosine_min": "0.99931",
        "kl_mean": "0.00034", "kl_p999": "0.0121", "kl_max": "0.0312", "error_max": "0.0421",
        "flips": 3, "flips_upper": "0.0086",
        "slices": [
            {"slice": "light", "value": value, "samples": samples, "flips": flips, "flips_upper": upper,
             "top1": "0.97"}
            for value, samples, flips, upper in groups
        ],
        "boundaries": [
            {
                "layer": layer, "tensor": tensor, "nodes": nodes, "error_max": f"{4**at}e-5",
                "error_rms": f"{4**at}e-6", "error_relative": f"{3**at}e-6", "cosine": "0.9999",
            }
            for at, (layer, tensor, nodes) in enumerate(layers)
        ],
        "first_past_bound": "softmax", "passed": True, "findings": [],
    }  # fmt: skip
