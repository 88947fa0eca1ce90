"""Train the credit model in seconds; same bytes every time on one machine.

    python examples/credit/train.py --out DIR

writes into DIR: model.onnx, validation.npz, meaning.json, preprocess.py, recipe.yaml: everything
that ``pellucid build DIR/recipe.yaml`` reads; and applicants.csv, the applications kept apart.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import preprocess  # noqa: E402

SEED = 20
HELD_OUT = 400  # the applicants of the demo: the model has never seen them
HIDDEN = 16
THRESHOLD = "0.40"  # of the probability that the loan goes bad; at or above: refused


def applicants() -> list[dict[str, str]]:
    """All applications, with their outcome in ``creditability``."""
    with (HERE / "german-credit.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def split(rows: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Training rows and held-out rows, the same on every machine."""
    outcomes = [row["creditability"] for row in rows]
    train, held_out = train_test_split(rows, test_size=HELD_OUT, random_state=SEED, stratify=outcomes)
    return train, held_out


def table(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Features ``[N, F]`` FP32 and outcomes ``[N]``: 1 = the loan went bad."""
    values = np.array([preprocess.features(row) for row in rows], dtype=np.float32)
    return values, np.array([row["creditability"] == "bad" for row in rows], dtype=np.int64)


def fit(values: np.ndarray, bad: np.ndarray) -> MLPClassifier:
    """One hidden layer; one thread, because the order of sums is part of the bytes."""
    model = MLPClassifier((HIDDEN,), solver="lbfgs", alpha=10.0, max_iter=5000, random_state=SEED)
    with threadpool_limits(1):
        return model.fit(values.astype(np.float64), bad)


def graph(model: MLPClassifier) -> onnx.ModelProto:
    """Gemm, Relu, Gemm, Softmax over (good, bad); batch axis N, opset 17."""
    (hidden, last), (hidden_bias, last_bias) = model.coefs_, model.intercepts_
    half = np.hstack([-last / 2, last / 2])  # softmax of (-z/2, z/2) is (1 - sigmoid(z), sigmoid(z))
    weights = {
        "hidden_w": hidden,
        "hidden_b": hidden_bias,
        "score_w": half,
        "score_b": np.hstack([-last_bias / 2, last_bias / 2]),
    }
    nodes = [
        helper.make_node("Gemm", ["features", "hidden_w", "hidden_b"], ["hidden"], name="hidden"),
        helper.make_node("Relu", ["hidden"], ["active"], name="active"),
        helper.make_node("Gemm", ["active", "score_w", "score_b"], ["scores"], name="score"),
        helper.make_node("Softmax", ["scores"], ["probabilities"], name="probabilities", axis=-1),
    ]
    made = helper.make_graph(
        nodes,
        "credit",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", len(preprocess.FEATURES)])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    whole = helper.make_model(made, opset_imports=opset, ir_version=8, producer_name="credit-example")
    onnx.checker.check_model(whole)
    return whole


def meaning() -> dict[str, object]:
    """What goes in and what comes out, in the words of the people concerned."""
    code = (HERE / "preprocess.py").read_bytes()
    return {
        "description": "Probability that a loan goes bad; trained on Statlog (German Credit Data)",
        "features": [{"name": name} for name in preprocess.FEATURES],
        "decision": {
            "kind": "threshold",
            "output": "probabilities",
            "column": 1,
            "threshold": THRESHOLD,
            "labels": ["granted", "refused"],
        },
        "preprocessing": {"digest": f"sha256:{hashlib.sha256(code).hexdigest()}", "file": "preprocess.py"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the credit model.")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    train, held_out = split(applicants())
    model = fit(*table(train))
    values, bad = table(held_out)
    (out / "model.onnx").write_bytes(graph(model).SerializeToString(deterministic=True))
    aside = [preprocess.slices(row) for row in held_out]
    slices = {name: np.array([row[name] for row in aside]) for name in aside[0]}
    np.savez(out / "validation.npz", features=values, labels=bad, **slices)
    with (out / "applicants.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(held_out[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(held_out)
    (out / "meaning.json").write_text(json.dumps(meaning(), indent=1, sort_keys=True) + "\n")
    if out.resolve() != HERE:  # there they lie already
        for name in ("preprocess.py", "recipe.yaml"):
            shutil.copyfile(HERE / name, out / name)
    refused = model.predict_proba(values.astype(np.float64))[:, 1] >= float(THRESHOLD)
    right = f"{(refused == bad).mean():.1%} right at {THRESHOLD}"
    print(f"trained on {len(train)}, held out {len(held_out)}: {right}")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
