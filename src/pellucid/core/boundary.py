"""Error at the edge of each fused layer, and the first layer past the bound.

Source: requirement B8; spec/accuracy.md, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pellucid.core.accuracy import decimal
from pellucid.core.gap import Gap


class Edge(msgspec.Struct, frozen=True):
    """One tensor that leaves a layer.

    Attributes:
        tensor, compiled_tensor: Its name in the source, and in the graph that was compiled.
        gap: All rows added, or ``None``.
        reason: Why nothing was measured, or ``""``.
    """

    tensor: str
    compiled_tensor: str
    gap: Gap | None = None
    reason: str = ""


class Boundary(msgspec.Struct, frozen=True):
    """A layer, the nodes behind it and what leaves it; ``reason``: why there is nothing to compare."""

    layer: str
    nodes: Sequence[str] = ()
    edges: Sequence[Edge] = ()
    reason: str = ""


def describe(boundaries: Sequence[Boundary], limit: str | None) -> dict[str, Any]:
    """``boundaries`` in execution order, ``first_past_bound`` (a layer's name) and ``findings``.

    With a limit, nothing comparable at all is a finding, too.
    """
    described = [_describe(boundary, limit) for boundary in boundaries]
    past = [item for item in described if item["past_bound"]]
    measured = [item for item in described if item["reason"] is None]
    findings = []
    if limit is not None and not measured:
        findings.append(f"boundaries: expected errors of at most {limit}, got no boundary that was measured")
    if past:
        first = past[0]
        findings.append(
            f"layer {first['layer']}: relative RMS error: expected at most {limit}, "
            f"got {float(first['error_relative']):.3g} "
            f"({len(past)} of {len(measured)} layers past the bound)"
        )
    return {
        "boundaries": described,
        "first_past_bound": past[0]["layer"] if past else None,
        "findings": findings,
    }


_MEASURES: Final = ("error_max", "error_rms", "error_relative", "cosine")


def _describe(boundary: Boundary, limit: str | None) -> dict[str, Any]:
    """A boundary is as good as its worst tensor, whose measures stand for it."""
    tensors = [_edge(edge) for edge in boundary.edges]
    measured = [item for item in tensors if item["error_relative"] is not None]
    worst = max(measured, key=lambda item: float(item["error_relative"]), default=None)
    why = boundary.reason or "; ".join(edge.reason for edge in boundary.edges)
    past = None
    if worst is not None and limit is not None:
        past = float(worst["error_relative"]) > float(limit)
    return {
        "layer": boundary.layer,
        "nodes": list(boundary.nodes),
        "tensor": None if worst is None else worst["tensor"],
        **{key: None if worst is None else worst[key] for key in _MEASURES},
        "past_bound": past,
        "tensors": tensors,
        "reason": f"not comparable: {why}" if worst is None else None,
    }


def _edge(edge: Edge) -> dict[str, Any]:
    gap = edge.gap
    values = (gap.largest, gap.rms, gap.relative_rms, gap.cosine) if gap else (None,) * len(_MEASURES)
    texts = [None if value is None else decimal(value) for value in values]
    return {
        "tensor": edge.tensor,
        "compiled_tensor": edge.compiled_tensor,
        "elements": gap.elements if gap else 0,
        **dict(zip(_MEASURES, texts, strict=True)),
        "reason": edge.reason or None,
    }
