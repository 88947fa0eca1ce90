"""Whether a canonical graph still computes what the model computes: both are run once on drawn inputs.

No proof, a net: it caught what a converter changed without a word. Runs without optimisation, on one
thread. Where one of both cannot be run, it says so and judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import onnx

from pellucid.build.canonical_fold import refusals
from pellucid.build.canonical_interface import inputs_of
from pellucid.build.canonical_names import dimensions_of
from pellucid.errors import ParseError

_FREE: Final = 2  # rows, and size of every other axis that is free
_ELEMENTS_MAX: Final = 2**24  # limit: inputs larger than this are not drawn
_RELATIVE: Final = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-3}  # of the largest output
_SEED: Final = 1


class Compared(msgspec.Struct, frozen=True):
    """What a comparison gave.

    Attributes:
        reason: Why there was none, or ``""``.
    """

    reason: str = ""


def compare(before: onnx.ModelProto, after: onnx.ModelProto) -> Compared:
    """Run both on the same drawn inputs.

    Raises:
        ParseError: An output differs; names the first.
    """
    try:
        feeds = _draw(before)
    except _CannotDrawError as error:
        return Compared(str(error))
    results = []
    for name, model in (("as given", before), ("canonical", after)):
        try:
            results.append(_run(model, feeds))
        except refusals() as error:
            return Compared(f"onnxruntime does not run it {name}: {' '.join(str(error).split())[:160]}")
    for value, old, new in zip(before.graph.output, *results, strict=True):
        _verify_same(value.name, old, new)
    return Compared()


class _CannotDrawError(Exception):
    pass


def _draw(model: onnx.ModelProto) -> dict[str, Any]:
    generator = np.random.default_rng(_SEED)
    return {value.name: _array(value, generator) for value in inputs_of(model)}


def _array(value: onnx.ValueInfoProto, generator: np.random.Generator) -> Any:
    tensor = value.type.tensor_type
    shape = [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else _FREE for d in dimensions_of(value)
    ]
    if not tensor.HasField("shape") or np.prod(shape, dtype=float) > _ELEMENTS_MAX:
        raise _CannotDrawError(f"no input drawn for {value.name!r:.80}: no shape, or too large")
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if tensor.elem_type == onnx.TensorProto.STRING:
        return np.full(shape, "a", dtype=object)
    if kind.name in _RELATIVE:
        return generator.standard_normal(shape).astype(kind)
    if kind.kind in "iub":
        return generator.integers(0, 2, shape).astype(kind)  # often positions in a table
    raise _CannotDrawError(f"no input drawn for {value.name!r:.80}: type {kind.name}")


def _run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    raw = model.SerializeToString(deterministic=True)
    outputs: list[Any] = ort.InferenceSession(raw, options, providers=["CPUExecutionProvider"]).run(
        None, dict(feeds)
    )
    return outputs


def _verify_same(name: str, old: Any, new: Any) -> None:
    if isinstance(old, list) or isinstance(new, list):
        return  # a sequence: its tensors are seen where they come out as outputs
    subject = f"model: output {name!r:.80}: expected the canonical graph to compute what the model computes"
    hint = "a step changed it: canonical: {opset: null, fold: false} builds the graph as it is"
    if old.shape != new.shape or old.dtype != new.dtype:
        raise ParseError(
            f"{subject}, got {new.dtype}{list(new.shape)} for {old.dtype}{list(old.shape)}", hint=hint
        )
    if old.dtype.name not in _RELATIVE:
        if not np.array_equal(old, new):
            raise ParseError(f"{subject}, got other values", hint=hint)
        return
    wide, other = (array.astype(np.float64) for array in (old, new))
    finite = np.isfinite(wide) & np.isfinite(other)
    same = np.array_equal(wide[~finite], other[~finite], equal_nan=True)
    error = float(np.abs(wide[finite] - other[finite]).max(initial=0.0))
    if not same or error > _RELATIVE[old.dtype.name] * max(
        float(np.abs(wide[finite]).max(initial=0.0)), 1e-6
    ):
        raise ParseError(f"{subject}, got an error of {error:.3g}", hint=hint)
