"""How well a calibration set stands for what the model will see: activations outside the ranges.

Pure arithmetic over counts. Shares weigh every element alike; NaN is outside. What was not measured
says why. Source: requirement B7; spec/accuracy.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from pellucid.core.accuracy import decimal

WARN_SHARE: Final = 0.01  # below one in a hundred a tail is what calibration is expected to cut

Slice = tuple[str, str]  # name and value


@dataclass(slots=True)
class Count:
    """Elements seen, and how many of them lay outside."""

    elements: int = 0
    outside: int = 0

    def add(self, elements: int, outside: int) -> None:
        self.elements += elements
        self.outside += outside

    @property
    def share(self) -> float:
        """0 where nothing was seen."""
        return self.outside / self.elements if self.elements else 0.0


@dataclass(slots=True)
class Held:
    """One calibrated tensor held against the reference set.

    Attributes:
        tensor: Its name in the graph that was compiled.
        layer: The node that makes it, or the tensor itself where it is an input.
        low, high: Its calibrated range.
        reason: Why it was not measured, or ``""``.
    """

    tensor: str
    layer: str
    low: float
    high: float
    whole: Count = field(default_factory=Count)
    slices: dict[Slice, Count] = field(default_factory=dict)
    reason: str = ""

    def add(self, elements: int, outside: int, slices: Iterable[Slice]) -> None:
        """Count elements of rows that are all in ``slices``."""
        self.whole.add(elements, outside)
        for name in slices:
            self.slices.setdefault(name, Count()).add(elements, outside)

    @property
    def worst(self) -> tuple[Slice | None, float]:
        """The slice with the largest share, and that share; without slices the whole."""
        if not self.slices:
            return None, self.whole.share
        name = max(sorted(self.slices), key=lambda key: self.slices[key].share)
        return name, self.slices[name].share

    @property
    def peak(self) -> float:
        """The largest share of all: of the whole, or of any slice."""
        return max(self.whole.share, self.worst[1])


def describe(held: Sequence[Held], limit: str | None) -> dict[str, Any]:
    """``tensors``, ``layers``, ``warnings`` and ``findings``, worst first where order is ours.

    With a limit, a set that measured nothing is a finding.
    """
    measured = [item for item in held if item.whole.elements]
    ordered = sorted(measured, key=lambda item: (-item.peak, item.tensor))
    findings = [finding for item in ordered for finding in _findings(item, limit)]
    if limit is not None and not measured:
        findings.append(f"ranges: expected at most {limit} out of range, got no tensor that was measured")
    return {
        "tensors": [_tensor(item) for item in held],
        "layers": _layers(measured),
        "warnings": [sentence(item) for item in ordered if item.peak >= WARN_SHARE],
        "findings": findings,
    }


def sentence(held: Held) -> str:
    """``embed_3: 37 % of reference activations out of range (slice users=rare: 81 %)``."""
    name, share = held.worst
    where = f" (slice {name[0]}={name[1]}: {percent(share)})" if name is not None else ""
    return f"{held.layer}: {percent(held.whole.share)} of reference activations out of range{where}"


def percent(share: float) -> str:
    """A share for people: whole percents, or the digits that a small one needs."""
    value = 100 * share
    if value and value < 0.01:
        return "under 0.01 %"
    return f"{value:.0f} %" if value >= 1 or not value else f"{value:.2g} %"


def _findings(held: Held, limit: str | None) -> list[str]:
    if limit is None:
        return []
    counts: list[tuple[str, Count]] = [
        (f"slice {name}={value}: ", count)
        for (name, value), count in sorted(held.slices.items(), key=lambda pair: (-pair[1].share, pair[0]))
    ]
    return [
        f"{held.layer}: {where}reference activations out of range: "
        f"expected at most {100 * float(limit):.3g} %, got {100 * count.share:.3g} %"
        for where, count in (counts or [("", held.whole)])
        if Decimal(count.outside) > Decimal(limit) * count.elements
    ]


def _tensor(held: Held) -> dict[str, Any]:
    return {
        "tensor": held.tensor,
        "layer": held.layer,
        "min": decimal(held.low),
        "max": decimal(held.high),
        "elements": held.whole.elements,
        "outside": held.whole.outside,
        "share_outside": decimal(held.whole.share) if held.whole.elements else None,
        "slices": _slices(held.slices),
        "reason": held.reason or None,
    }


def _slices(slices: dict[Slice, Count]) -> list[dict[str, Any]]:
    return [
        {"slice": name, "value": value, "elements": count.elements, "outside": count.outside,
         "share_outside": decimal(count.share)}
        for (name, value), count in sorted(slices.items())
    ]  # fmt: skip


def _layers(measured: Sequence[Held]) -> list[dict[str, Any]]:
    """Tensors of one layer together, every element weighing the same."""
    layers: dict[str, Held] = {}
    for item in measured:
        layer = layers.setdefault(item.layer, Held("", item.layer, 0.0, 0.0))
        layer.whole.add(item.whole.elements, item.whole.outside)
        for name, count in item.slices.items():
            layer.slices.setdefault(name, Count()).add(count.elements, count.outside)
    return [
        {"layer": layer.layer, "elements": layer.whole.elements, "outside": layer.whole.outside,
         "share_outside": decimal(layer.whole.share), "slices": _slices(layer.slices)}
        for layer in layers.values()
    ]  # fmt: skip
