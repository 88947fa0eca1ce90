"""How well a calibration set stands for what the model will see: activations outside the ranges.

Pure arithmetic over counts. Shares weigh every element alike; NaN is outside. What was not measured
says why. Source: requirement B7; spec/accuracy.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from pellucid.core.accuracy import decimal

_NAMED_MAX: Final = 5  # limit: tensors named in one sentence; all stand in the list
WARN_SHARE: Final = 0.01  # below one in a hundred a tail is what calibration is expected to cut

Slice = tuple[str, str]  # name and value


class Count(msgspec.Struct):
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


class Held(msgspec.Struct):
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
    whole: Count = msgspec.field(default_factory=Count)
    slices: dict[Slice, Count] = msgspec.field(default_factory=dict)
    reason: str = ""

    def add(self, elements: int, outside: int, slices: Iterable[Slice]) -> None:
        """Count elements of rows that are all in ``slices``."""
        self.whole.add(elements, outside)
        for name in slices:
            self.slices.setdefault(name, Count()).add(elements, outside)

    @property
    def missing(self) -> str:
        """Why it was not measured over the whole set, or ``""``."""
        return self.reason or ("" if self.whole.elements else "not measured: it had no elements")

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


def describe(held: Sequence[Held], limit: str | None, unmeasured_max: str = "0") -> dict[str, Any]:
    """``tensors``, ``unmeasured``, ``layers``, ``warnings``, ``findings``; worst first where order is ours.

    Args:
        limit: Largest share out of range, or ``None``.
        unmeasured_max: With a limit, the share of tensors that may be left unmeasured; a set that
            measured nothing is a finding whatever it says.
    """
    measured = [item for item in held if item.whole.elements]
    ordered = sorted(measured, key=lambda item: (-item.peak, item.tensor))
    findings = [finding for item in ordered for finding in _findings(item, limit)]
    unmeasured = [item for item in held if item.missing]
    if limit is not None and not measured:
        findings.append(f"ranges: expected at most {limit} out of range, got no tensor that was measured")
    elif limit is not None and Decimal(len(unmeasured)) > Decimal(unmeasured_max) * len(held):
        share = f"at most {100 * float(unmeasured_max):.3g} %" if Decimal(unmeasured_max) else "none"
        findings.append(
            f"ranges: expected {share} of the activations unmeasured, got {_named(unmeasured, held)}"
        )
    warnings = [sentence(item) for item in ordered if item.peak >= WARN_SHARE]
    if unmeasured:
        warnings.append(f"activations that no reference data was held against: {_named(unmeasured, held)}")
    return {
        "tensors": [_tensor(item) for item in held],
        "unmeasured": len(unmeasured),
        "layers": _layers(measured),
        "warnings": warnings,
        "findings": findings,
    }


def sentence(held: Held) -> str:
    """``embed_3: 37 % of reference activations out of range (slice users=rare: 81 %)``."""
    name, share = held.worst
    where = f" (slice {name[0]}={name[1]}: {percent(share)})" if name is not None else ""
    return f"{held.layer}: {percent(held.whole.share)} of reference activations out of range{where}"


def _named(some: Sequence[Held], of: Sequence[Held]) -> str:
    """``2 of 40: conv1_out (why), conv2_out (why)``."""
    names = [f"{item.tensor} ({item.missing.removeprefix('not measured: ')})" for item in some[:_NAMED_MAX]]
    more = f" and {len(some) - _NAMED_MAX:,} more" if len(some) > _NAMED_MAX else ""
    return f"{len(some):,} of {len(of):,}: {', '.join(names)}{more}"


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
        "reason": held.missing or None,
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
