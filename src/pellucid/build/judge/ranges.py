"""Reference activations of the source graph against the ranges that calibration found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from pellucid.build.judge import graphs
from pellucid.build.judge.runs import Rows, walk
from pellucid.build.judge.sums import outside
from pellucid.core.representativeness import Held, Slice
from pellucid.ports import Backend


def measure(
    backend: Backend,
    runs: onnx.ModelProto,
    source: graphs.Wiring,
    origin: Callable[[str], str | None],
    ranges: Sequence[Mapping[str, Any]],
    rows: Rows,
) -> list[Held]:
    """Every calibrated tensor, in the order of ``ranges``, with counts over all reference rows.

    Args:
        runs: The source as it runs here; its tensors are looked at.
        origin: Gives the source's tensor that a compiled one stands for.
        ranges: ``tensors`` of ``calibration/ranges.json``: ``tensor``, ``min``, ``max``.
    """
    held, wanted = [], []
    for item in ranges:
        one, there = _held(item, source, origin)
        held.append(one)
        wanted.append(there)
    positions = [i for i, one in enumerate(held) if not one.reason]
    groups = _groups(rows)

    def visit(position: int, batch: Sequence[int], arrays: list[Any]) -> None:
        one, values = held[positions[position]], arrays[0]
        one.add(int(values.size), outside(values, one.low, one.high), groups[batch[0]])

    by_slices: dict[tuple[Slice, ...], list[int]] = {}
    for row, slices in enumerate(groups):
        by_slices.setdefault(slices, []).append(row)
    # a batch holds rows of the same slices only, so that any layout of a tensor can be attributed
    failed = walk(backend, [runs], [[wanted[i] for i in positions]], rows, list(by_slices.values()), visit)
    for position, reason in failed.items():
        held[positions[position]].reason = f"not measured: {reason}"
    return held


def _groups(rows: Rows) -> list[tuple[Slice, ...]]:
    """The slices that each row is in."""
    return [
        tuple((name, values[row]) for name, values in sorted(rows.data.slices.items()))
        for row in range(rows.data.count)
    ]


def _held(
    item: Mapping[str, Any], source: graphs.Wiring, origin: Callable[[str], str | None]
) -> tuple[Held, str]:
    tensor, low, high = item["tensor"], float(item["min"]), float(item["max"])
    there = origin(tensor)
    layer = _maker(there, source) if there is not None else tensor
    held = Held(tensor, layer, low, high)
    if there is None:
        held.reason = "not measured: the source has no such tensor"
    return held, there or ""


def _maker(tensor: str, source: graphs.Wiring) -> str:
    """The node that makes a tensor, as its author called it; else the tensor."""
    node = source.producers.get(tensor)
    return node.name if node is not None and node.name else tensor
