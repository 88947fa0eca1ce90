"""A transformer of our own making: the shape of a small sentence encoder, its weights drawn from a seed.

Six layers, 384 wide, 12 heads, 32 tokens: what MiniLM-class encoders compute, and nothing that they
know. For build times and for the layers that a builder makes of it, not for answers.

    python bench/transformer.py MODEL.onnx
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS: Final = 6
WIDTH: Final = 384
HEADS: Final = 12
TOKENS: Final = 32
INNER: Final = 4 * WIDTH
WORDS: Final = 2048  # of some 30,000: a table decides no layer
SEED: Final = 6
_EPSILON: Final = 1e-12


@dataclass
class _Graph:
    generator: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add an operation of one output; gives the output's name."""
        self.nodes.append(helper.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def hold(self, name: str, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def draw(self, name: str, *shape: int) -> str:
        return self.hold(name, self.generator.normal(0, 0.02, shape).astype(np.float32))

    def dense(self, name: str, value: str, rows: int, columns: int) -> str:
        product = self.op("MatMul", f"{name}_product", value, self.draw(f"{name}_w", rows, columns))
        return self.op("Add", f"{name}_sum", product, self.draw(f"{name}_b", columns))

    def norm(self, name: str, value: str) -> str:
        scale = self.hold(f"{name}_scale", np.ones(WIDTH, np.float32))
        shift = self.hold(f"{name}_shift", np.zeros(WIDTH, np.float32))
        return self.op("LayerNormalization", name, value, scale, shift, axis=-1, epsilon=_EPSILON)


def _embedded(g: _Graph) -> str:
    words = g.op("Gather", "words", g.draw("words_table", WORDS, WIDTH), "input_ids")
    placed = g.op("Add", "placed", words, g.draw("places_table", TOKENS, WIDTH))
    return g.norm("embedded", placed)


def _bias(g: _Graph) -> str:
    """0 where a token counts, a large negative number where it is padding."""
    mask = g.op("Cast", "mask_float", "attention_mask", to=TensorProto.FLOAT)
    wide = g.op("Unsqueeze", "mask_wide", mask, g.hold("mask_axes", np.array([1, 2], np.int64)))
    absent = g.op("Sub", "absent", g.hold("one", np.float32(1)), wide)
    return g.op("Mul", "bias", absent, g.hold("low", np.float32(-10000)))


def _heads(g: _Graph, name: str, value: str, order: list[int]) -> str:
    parts = g.op("Reshape", f"{name}_parts", g.dense(name, value, WIDTH, WIDTH), "head_shape")
    return g.op("Transpose", f"{name}_heads", parts, perm=order)


def _layer(g: _Graph, name: str, value: str, bias: str) -> str:
    query = _heads(g, f"{name}_query", value, [0, 2, 1, 3])
    key = _heads(g, f"{name}_key", value, [0, 2, 3, 1])
    held = _heads(g, f"{name}_value", value, [0, 2, 1, 3])
    scores = g.op("Mul", f"{name}_scaled", g.op("MatMul", f"{name}_scores", query, key), "scale")
    weights = g.op("Softmax", f"{name}_weights", g.op("Add", f"{name}_masked", scores, bias), axis=-1)
    mixed = g.op("MatMul", f"{name}_mixed", weights, held)
    joined = g.op("Transpose", f"{name}_joined", mixed, perm=[0, 2, 1, 3])
    flat = g.op("Reshape", f"{name}_flat", joined, "flat_shape")
    attended = g.dense(f"{name}_attended", flat, WIDTH, WIDTH)
    first = g.norm(f"{name}_norm1", g.op("Add", f"{name}_residual1", attended, value))
    inner = g.dense(f"{name}_inner", first, WIDTH, INNER)
    # GELU as exporters wrote it before it was an operator
    erf = g.op("Erf", f"{name}_erf", g.op("Div", f"{name}_root", inner, "root_two"))
    half = g.op("Mul", f"{name}_half", g.op("Mul", f"{name}_gate", inner, "half"),
                g.op("Add", f"{name}_plus", erf, "one"))  # fmt: skip
    outer = g.dense(f"{name}_outer", half, INNER, WIDTH)
    return g.norm(f"{name}_norm2", g.op("Add", f"{name}_residual2", outer, first))


def _pooled(g: _Graph, value: str) -> str:
    """Mean over the tokens that count."""
    mask = g.op("Unsqueeze", "pool_mask", "mask_float_out", g.hold("last_axis", np.array([-1], np.int64)))
    axes = g.hold("token_axis", np.array([1], np.int64))
    total = g.op("ReduceSum", "pool_sum", g.op("Mul", "pool_kept", value, mask), axes, keepdims=0)
    count = g.op("ReduceSum", "pool_count", mask, axes, keepdims=0)
    least = g.op("Max", "pool_least", count, g.hold("tiny", np.float32(1e-9)))
    return g.op("Div", "embedding", total, least)


def transformer() -> bytes:
    """The model's ONNX bytes; the same ones each time."""
    g = _Graph(np.random.default_rng(SEED))
    g.hold("head_shape", np.array([0, TOKENS, HEADS, WIDTH // HEADS], np.int64))
    g.hold("flat_shape", np.array([0, TOKENS, WIDTH], np.int64))
    g.hold("scale", np.float32((WIDTH // HEADS) ** -0.5))
    g.hold("root_two", np.float32(2**0.5))
    g.hold("half", np.float32(0.5))
    value, bias = _embedded(g), _bias(g)
    for number in range(LAYERS):
        value = _layer(g, f"layer{number}", value, bias)
    given = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["N", TOKENS])
        for name in ("input_ids", "attention_mask")
    ]
    made = helper.make_tensor_value_info(_pooled(g, value), TensorProto.FLOAT, ["N", WIDTH])
    graph = helper.make_graph(g.nodes, "transformer", given, [made], g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    raw: bytes = model.SerializeToString(deterministic=True)
    return raw


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(transformer())
