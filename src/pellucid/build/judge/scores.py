"""Outputs of the graph that was compiled against the source's, over the validation rows."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from pellucid.build.judge.runs import Graph, Rows
from pellucid.build.judge.sums import add_arrays
from pellucid.core.accuracy import Samples, text_label
from pellucid.core.decision import decide
from pellucid.core.gap import Gap
from pellucid.core.tensor import Tensor
from pellucid.errors import BuildError

SCORES_MAX: Final = 2**27  # limit: numbers of the deciding output that are kept, 1 GiB a side


class Side(msgspec.Struct):
    """One graph's answers as far as they are kept."""

    scores: list[Sequence[float]] = msgspec.field(default_factory=list)
    labels: list[str | None] = msgspec.field(default_factory=list)


def compare(source: Graph, compiled: Graph, rows: Rows, meaning: Mapping[str, Any]) -> Samples:
    """Run all rows through both graphs.

    Raises:
        BuildError: Outputs of other names or shapes, or more scores than are kept.
    """
    if set(source.names) != set(compiled.names):
        raise BuildError(f"outputs: expected {source.names!s:.200}, got {compiled.names!s:.200}")
    decision = meaning.get("decision") or {}
    deciding = decision.get("output", compiled.names[0])
    sides, error = (Side(), Side()), 0.0
    gaps: dict[str, Gap] = {}
    for start in range(0, rows.data.count, rows.at_once):
        batch = list(range(start, min(start + rows.at_once, rows.data.count)))
        arrays = rows.batch(batch)
        here, there = (dict(zip(graph.names, graph.run(arrays), strict=True)) for graph in (source, compiled))
        for name in compiled.names:
            a, b = (_rows(name, side[name], len(batch), rows) for side in (here, there))
            if a.shape != b.shape:
                raise BuildError(f"output {name!r:.80}: expected {a.shape}, got {b.shape}")
            error = max(error, _add(gaps, name, a, b))
            if name == deciding:
                for side, values in zip(sides, (a, b), strict=True):
                    _keep(side, name, values, decision)
    return Samples(
        source=sides[0].scores, engine=sides[1].scores, source_labels=sides[0].labels,
        engine_labels=sides[1].labels, truth=rows.data.truth, slices=rows.data.slices, error=error,
        gaps=list(gaps.values()), subject="compiled graph",
    )  # fmt: skip


def _rows(name: str, values: Any, count: int, rows: Rows) -> Any:
    if not rows.is_batched:
        return values[np.newaxis]
    if values.ndim == 0 or len(values) != count:
        raise BuildError(f"output {name!r:.80}: expected {count} rows, got {list(values.shape)}")
    return values


def _add(gaps: dict[str, Gap], name: str, source: Any, measured: Any) -> float:
    """Add to the output's gap if it holds floats; else its largest difference."""
    if source.dtype.kind == "f":
        add_arrays(gaps.setdefault(name, Gap()), source, measured)
        return 0.0
    if source.dtype.kind in "OSb":
        return float(bool((source != measured).any()))
    if not source.size:
        return 0.0
    return float(np.abs(source.astype(np.float64) - measured.astype(np.float64)).max())


def _keep(side: Side, name: str, values: Any, decision: Mapping[str, Any]) -> None:
    flat = values.reshape(len(values), -1)
    if flat.dtype.kind not in "OS" and (len(side.scores) + len(flat)) * flat.shape[1] > SCORES_MAX:
        raise BuildError(
            f"output {name!r:.80}: expected at most {SCORES_MAX:,} scores over all rows, got more",
            hint="fewer validation rows, or a decision over a smaller output in meaning.json",
        )
    for row in flat:
        scores = array("d") if row.dtype.kind in "OS" else array("d", row.astype(np.float64).tobytes())
        side.scores.append(scores)
        side.labels.append(_decide(name, row, scores, decision))


def _decide(name: str, row: Any, scores: Sequence[float], decision: Mapping[str, Any]) -> str | None:
    """Label of a row; without a decision its text, its whole number, or the position of its largest score."""
    if row.dtype.kind in "OS":
        return text_label(row.tolist())
    if decision:
        values = row.astype(np.float64)
        return decide(decision, [Tensor(name, "FP64", values.shape, values.tobytes())])[0]
    if len(scores) == 1 and row.dtype.kind in "iub":
        return str(int(row[0]))  # the model gives the label itself
    if len(scores) < 2 or not all(map(math.isfinite, scores)):
        return None
    return str(int(np.argmax(row)))
