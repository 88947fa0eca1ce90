"""Ranges of activations: the graph runs over the chosen rows, twice where a histogram is wanted.

``minmax`` takes what was seen. ``percentile`` takes the magnitude below which that share of all
values lies, of 2048 equal steps. ``entropy`` takes the magnitude whose clipped and 128-level
histogram loses least information against the whole one (after the search of S. Migacz, GTC 2017, over
2048 steps). ONNX Runtime's own search has 128 steps for 128 levels, so that it has one candidate
and gives the extremes; that is why it is not used. Both histograms have the range of the first run,
so that how rows were split over runs decides nothing. Source: spec/calibration.md, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import onnx
import onnxruntime as ort

from pellucid.build.calibration_data import Chosen
from pellucid.errors import PrecisionError

BINS: Final = 2048
LEVELS: Final = 128
ROWS_PER_RUN: Final = 32  # limit: activations of this many rows are in memory at once,
BYTES_PER_RUN: Final = 2**28  # and of fewer where they are larger than this
_HALF: Final = 0.5  # how many values an empty step counts as
_REFUSALS: Final = (RuntimeError, ValueError)


class Range(msgspec.Struct, frozen=True):
    """Smallest and largest value that a tensor's integers shall stand for, as binary32."""

    low: Any
    high: Any


def calibrate(
    model: onnx.ModelProto, tensors: Sequence[str], chosen: Chosen, section: Mapping[str, Any]
) -> dict[str, Range]:
    """Range of every tensor over the chosen rows.

    Args:
        model: Graph with the types of its inner tensors (shape inference done).
        tensors: Names of FP32 tensors, none a constant.
        section: ``calibration`` of the recipe.

    Raises:
        PrecisionError: The graph does not run over a row, or a tensor is not finite there.
    """
    names = sorted(tensors)
    session = _session(model, names)
    step = _rows_per_run(model, names) if chosen.batched else 1
    seen = _extremes(_runs(session, names, chosen, step))
    if section["method"] == "minmax":
        return seen
    histograms = _histograms(_runs(session, names, chosen, step), seen)
    if section["method"] == "entropy":
        reach: Callable[[Any], int] = entropy_bin
    else:
        share = float(section["percentile"]) / 100
        reach = partial(percentile_bin, share=share)
    return {name: _clipped(seen[name], *histograms[name], reach) for name in names}


def _session(model: onnx.ModelProto, names: Sequence[str]) -> ort.InferenceSession:
    """A session of the graph as it is, one thread, with the tensors as outputs."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    for name in names:
        whole.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except _REFUSALS as error:
        raise PrecisionError(
            f"calibration: expected a graph that onnxruntime runs, got {error!s:.300}"
        ) from error


def _rows_per_run(model: onnx.ModelProto, names: Sequence[str]) -> int:
    values = {v.name: v for v in [*model.graph.input, *model.graph.value_info, *model.graph.output]}
    row_bytes: int = sum(
        4 * math.prod(max(d.dim_value, 1) for d in values[name].type.tensor_type.shape.dim)
        for name in names
        if name in values
    )
    return max(1, min(ROWS_PER_RUN, BYTES_PER_RUN // max(row_bytes, 1)))


def _runs(
    session: ort.InferenceSession, names: Sequence[str], chosen: Chosen, step: int
) -> Iterator[dict[str, Any]]:
    """Values of the tensors, run by run; a graph without a batch axis takes one row a run."""
    for start in range(0, chosen.count, step):
        feed = {
            name: array[start : start + step] if chosen.batched else array[start]
            for name, array in chosen.arrays.items()
        }
        try:
            values = session.run(list(names), feed)
        except _REFUSALS as error:
            rows = [sample.index for sample in chosen.described.samples[start : start + step]]
            raise PrecisionError(
                f"calibration: expected rows that the model runs, got {error!s:.200} at rows {rows}"[:400]
            ) from error
        yield dict(zip(names, values, strict=True))


def _extremes(runs: Iterator[dict[str, Any]]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for values in runs:
        for name, array in values.items():
            low, high = (array.min(), array.max()) if array.size else (np.float32(0), np.float32(0))
            if not (np.isfinite(low) and np.isfinite(high)):
                raise PrecisionError(
                    f"calibration: tensor {name!r:.80}: expected finite values, got others",
                    hint="a row of the set overflows this graph: take it out, or look for what it holds",
                )
            known = found.get(name)
            found[name] = Range(min(low, known.low), max(high, known.high)) if known else Range(low, high)
    return found


def _histograms(runs: Iterator[dict[str, Any]], seen: Mapping[str, Range]) -> dict[str, tuple[Any, Any]]:
    """Counts and edges of each tensor's magnitudes, from the smallest to the largest possible."""
    found: dict[str, tuple[Any, Any]] = {}
    for values in runs:
        for name, array in values.items():
            top = max(abs(seen[name].low), abs(seen[name].high))
            counts, edges = np.histogram(np.abs(array), bins=BINS, range=(0, top or 1))
            known = found.get(name)
            found[name] = (counts if known is None else known[0] + counts, edges.astype(np.float32))
    return found


def _clipped(seen: Range, counts: Any, edges: Any, reach: Callable[[Any], int]) -> Range:
    top = edges[reach(counts)]
    return Range(max(seen.low, -top), min(seen.high, top))


def percentile_bin(counts: Any, share: float) -> int:
    """Index of the first edge below which at least that share of all values lies."""
    if not counts[1:].any():
        return len(counts)
    below = np.cumsum(counts) / counts.sum()
    return min(int(np.searchsorted(below, share)) + 1, len(counts))


def entropy_bin(counts: Any) -> int:
    """Index of the edge at which to clip, so that the least information is lost.

    The zeros that a Relu leaves would outweigh everything: the first step counts as the second.
    """
    if not counts[1:].any():
        return len(counts)
    counts = np.concatenate([counts[1:2], counts[1:]])
    last = int(np.max(np.nonzero(counts)[0])) + 1
    ends = range(LEVELS, max(last, LEVELS) + 1)
    losses = [_loss(counts, end) for end in ends]
    return ends[int(np.argmin(losses))]


def _loss(counts: Any, end: int) -> float:
    """What the 128-level form of a histogram clipped at ``end`` loses.

    KL divergence, but the clipped form is no distribution of its own: values beyond the end are lost
    to it. Were it one, a set with few different values would look lossless when cut to one of them.
    """
    whole = counts[:end].astype(np.float64)
    starts = (np.arange(LEVELS) * end) // LEVELS
    filled = whole > 0
    sums = np.add.reduceat(whole, starts)
    kept = np.add.reduceat(filled.astype(np.float64), starts)
    got = np.repeat(sums / np.maximum(kept, 1), np.diff(np.append(starts, end)))
    if not filled[-1] and counts[end:].any():
        filled[-1], got[-1] = True, _HALF  # clipped values move into a step that held none
    whole[-1] += counts[end:].sum()
    wanted, got = whole[filled], got[filled]
    return float(np.sum(wanted * np.log(wanted / got)) / counts.sum())
