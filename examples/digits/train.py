"""Train the digits model in seconds; same bytes every time on one machine.

    python examples/digits/train.py --out DIR

A small CNN: two convolutions whose filters are drawn once from a seed, and a linear head that is
fitted on top of them. Writes into DIR: model.onnx, validation.npz, meaning.json, recipe.yaml.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

HERE = Path(__file__).resolve().parent
SEED = 20
HELD_OUT = 500


def images() -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, 1, 8, 8]`` FP32 in 0..1, and the digit each shows."""
    pixels, digits = load_digits(return_X_y=True)
    return (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8), digits.astype(np.int64)


def filters() -> dict[str, np.ndarray]:
    """Fixed random filters: what they see is fed to a head that learns."""
    draw = np.random.default_rng(SEED)
    return {
        "edges_w": draw.standard_normal((16, 1, 3, 3)) / 3,
        "edges_b": draw.standard_normal(16) * 0.1,
        "shapes_w": draw.standard_normal((32, 16, 3, 3)) / 12,
        "shapes_b": draw.standard_normal(32) * 0.1,
    }


def convolve(values: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3x3 convolution with a border of zeros, then Relu; ``[N, C, 8, 8]`` in and out."""
    padded = np.pad(values, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    summed = np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True)
    return np.maximum(summed + bias[None, :, None, None], 0)


def seen(values: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """What the head gets, ``[N, 512]``: both convolutions, 2x2 maximum, flat."""
    edges = convolve(values, weights["edges_w"], weights["edges_b"])
    shapes = convolve(edges, weights["shapes_w"], weights["shapes_b"])
    pooled = shapes.reshape(len(values), 32, 4, 2, 4, 2).max(axis=(3, 5))
    return pooled.reshape(len(values), -1)


def graph(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The same steps as an ONNX graph; batch axis N, opset 17."""
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "edges_w", "edges_b"], ["edges_raw"], name="edges", pads=[1, 1, 1, 1]),
        node("Relu", ["edges_raw"], ["edges_on"], name="edges_on"),
        node("Conv", ["edges_on", "shapes_w", "shapes_b"], ["shapes_raw"], name="shapes", pads=[1, 1, 1, 1]),
        node("Relu", ["shapes_raw"], ["shapes_on"], name="shapes_on"),
        node("MaxPool", ["shapes_on"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["pooled"], ["flat"], name="flat"),
        node("Gemm", ["flat", "head_w", "head_b"], ["scores"], name="head"),
        node("Softmax", ["scores"], ["probabilities"], name="probabilities", axis=-1),
    ]
    made = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    whole = helper.make_model(made, opset_imports=opset, ir_version=8, producer_name="digits-example")
    onnx.checker.check_model(whole)
    return whole


def meaning() -> dict[str, object]:
    labels = [str(digit) for digit in range(10)]
    return {
        "description": "Which digit an 8x8 grey image shows; pixels divided by 16",
        "features": [{"name": f"pixel row {r} column {c}"} for r in range(8) for c in range(8)],
        "decision": {"kind": "argmax", "output": "probabilities", "labels": labels},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits model.")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    values, digits = images()
    train, held_out, known, truth = train_test_split(
        values, digits, test_size=HELD_OUT, random_state=SEED, stratify=digits
    )
    weights = filters()
    with threadpool_limits(1):  # the order of sums is part of the bytes
        head = LogisticRegression(max_iter=300).fit(seen(train, weights), known)
        right = head.score(seen(held_out, weights), truth)
    weights |= {"head_w": head.coef_.T, "head_b": head.intercept_}
    (out / "model.onnx").write_bytes(graph(weights).SerializeToString(deterministic=True))
    ink = np.where(held_out.sum(axis=(1, 2, 3)) < np.median(held_out.sum(axis=(1, 2, 3))), "light", "heavy")
    np.savez(out / "validation.npz", image=held_out, labels=truth, ink=ink)
    (out / "meaning.json").write_text(json.dumps(meaning(), indent=1, sort_keys=True) + "\n")
    if out.resolve() != HERE:  # there it lies already
        shutil.copyfile(HERE / "recipe.yaml", out / "recipe.yaml")
    print(f"trained on {len(train)}, held out {len(held_out)}: {right:.1%} right")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
