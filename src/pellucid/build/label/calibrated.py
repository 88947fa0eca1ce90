"""The calibration set, the ranges it gave, and whether it stands for the reference data.

Source: spec/calibration.md, sections 3 and 5; spec/accuracy.md, section 5; requirements B6, B7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.build.label.content import (
    NOT_MEASURED,
    PLOTTED_MAX,
    Figure,
    Section,
    Table,
    cut,
    decimal_of,
    figure,
    group,
    listed,
    percent,
    told,
)
from pellucid.build.label.plots import Bar, bars, spans


def calibration(recipe: Mapping[str, Any], documents: Mapping[str, Any]) -> list[Section]:
    """The calibration set, its ranges, and whether it stands for the reference data; INT8 only."""
    ranges = documents.get("calibration/ranges.json") or {}
    stands = documents.get("representativeness.json") or {}
    made = documents.get("calibration/manifest.json") or {}
    if not (ranges or stands or made):
        if recipe["precision"] != "int8":
            return []
        return [Section("What it was calibrated on", [("Calibration", NOT_MEASURED)])]
    rows = [*_set_rows(recipe.get("calibration") or {}, made, ranges), *_standing(stands)]
    tensors, outside = listed(ranges, "tensors"), listed(stands, "tensors")
    weights = listed(ranges, "weights")
    figures, tables = [], []
    if tensors:
        figures.append(_range_plot(tensors))
        tables.append(_range_table(tensors))
    if weights:
        tables.append(_weight_table(weights))
    if outside:
        ordered = sorted(outside, key=lambda t: -(decimal_of(t.get("share_outside")) or 0.0))
        figures += _outside_plot(ordered)
        tables.append(_outside_table(ordered))
    return [Section("What it was calibrated on", rows, figures=figures, tables=tables)]


def _set_rows(
    asked: Mapping[str, Any], made: Mapping[str, Any], ranges: Mapping[str, Any]
) -> list[tuple[str, str]]:
    select = made.get("select") or asked.get("select") or {}
    chosen, of = ranges.get("samples"), made.get("rows")
    text = figure(chosen) if isinstance(chosen, int) else "not said"
    rows = [
        ("Method", told({"method": ranges.get("method") or asked.get("method")}, "method")),
        ("Samples", f"{text} of {of:,} in the file" if isinstance(of, int) else text),
    ]
    if select.get("rule"):
        seed = f", seed {select['seed']}" if select.get("seed") is not None else ""
        by = f", by {select['slice']}" if select.get("slice") else ""
        rows.append(("Selection", f"{select['rule']}{by}{seed}"))
    for key, words in (("source", "Source"), ("licence", "Licence")):
        rows.append((words, told({key: made.get(key) or asked.get(key)}, key)))
    times = made.get("times")
    if isinstance(times, Mapping):
        rows.append(("Times", f"{told(times, 'from')} to {told(times, 'to')}"))
    for key, words in (("data", "Data file"), ("samples_digest", "Chosen samples")):
        if made.get(key):
            rows.append((words, str(made[key])))
    if ranges.get("digest"):
        rows.append(("Ranges", str(ranges["digest"])))
    return rows


def _standing(stands: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not stands:
        return [("Stands for the reference data", f"{NOT_MEASURED}: the recipe names no reference set")]
    samples = stands.get("samples")
    which = stands.get("reference_is") or "a reference set"
    rows = [("Compared with", f"{figure(samples)} samples of {which}, {told(stands, 'reference')}")]
    shares = [(share, t) for t in listed(stands, "tensors")
              if (share := decimal_of(t.get("share_outside"))) is not None]  # fmt: skip
    if shares:
        share, worst = max(shares, key=lambda pair: pair[0])
        where = f"tensor {told(worst, 'tensor')}" + (
            f" of layer {worst['layer']}" if worst.get("layer") else ""
        )
        rows.append(("Values outside the range", f"at most {percent(share)}, at {where}"))
    else:
        rows.append(("Values outside the range", NOT_MEASURED))
    return rows


def _range_plot(tensors: Sequence[Mapping[str, Any]]) -> Figure:
    found = []
    for t in tensors:
        low, high = decimal_of(t.get("min")), decimal_of(t.get("max"))
        if low is not None and high is not None and low <= high:
            found.append((told(t, "tensor"), low, high))
    rest = len(found) - PLOTTED_MAX
    words = "Calibrated range of each tensor, smallest to largest value kept"
    caption = words + (f"; the first {PLOTTED_MAX} of {len(found):,}" if rest > 0 else "")
    return Figure(spans(words, found[:PLOTTED_MAX], name="ranges"), caption)


def _range_table(tensors: Sequence[Mapping[str, Any]]) -> Table:
    shown, rest = cut(tensors, "calibration/ranges.json")
    rows = [
        (told(t, "tensor"), _where(t), figure(t.get("min")), figure(t.get("max")),
         _many(t.get("scale")), _many(t.get("zero_point")))
        for t in shown
    ]  # fmt: skip
    head = ("Tensor", "At", "Smallest", "Largest", "Scale", "Zero point")
    return Table("Ranges, scales and zero points", head, rows, (2, 3, 4, 5), rest)


def _where(item: Mapping[str, Any]) -> str:
    """The layer, or the operations around a tensor."""
    nodes = item.get("nodes")
    if item.get("layer") or not isinstance(nodes, list | tuple):
        return told(item, "layer")
    return ", ".join(map(str, nodes[:4])) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")


def _weight_table(weights: Sequence[Mapping[str, Any]]) -> Table:
    shown, rest = cut(weights, "calibration/ranges.json")
    rows = []
    for w in shown:
        scales = [s for item in w.get("scale") or () if (s := decimal_of(item)) is not None]
        span = f"{figure(min(scales))} to {figure(max(scales))}" if scales else "not told"
        axis = "whole" if w.get("axis") is None else f"axis {w['axis']}"
        rows.append((told(w, "tensor"), _where(w), axis, f"{len(scales):,}", span))
    head = ("Weights", "At", "Scaled by", "Scales", "Smallest to largest scale")
    return Table("Scales of weights", head, rows, (3,), rest)


def _many(value: Any) -> str:
    """One value, or the first of one a channel."""
    if isinstance(value, list | tuple):
        return (
            f"{figure(value[0])} and {len(value) - 1:,} more"
            if len(value) > 1
            else figure(*value[:1] or [None])
        )
    return figure(value)


def _outside_plot(ordered: Sequence[Mapping[str, Any]]) -> list[Figure]:
    items = []
    for t in ordered[:PLOTTED_MAX]:
        share = decimal_of(t.get("share_outside"))
        if share is not None:
            slices = [decimal_of(s.get("share_outside")) for s in listed(t, "slices")]
            worst = max((s for s in slices if s is not None), default=None)
            items.append(Bar(told(t, "tensor"), share, upper=worst, text=percent(share)))
    if not items:
        return []
    words = "Share of reference values outside the calibrated range, by tensor"
    more = "; the line ends at the worst group" if any(item.upper is not None for item in items) else ""
    rest = f"; the {len(items)} largest of {len(ordered):,}" if len(ordered) > PLOTTED_MAX else ""
    return [Figure(bars(words, items, name="outside", share=True), words + more + rest)]


def _outside_table(ordered: Sequence[Mapping[str, Any]]) -> Table:
    shown, rest = cut(ordered, "representativeness.json")
    rows = []
    for t in shown:
        groups = sorted(listed(t, "slices"), key=lambda s: -(decimal_of(s.get("share_outside")) or 0.0))
        worst = groups[0] if groups else None
        text = f"{group(worst)}, {percent(worst.get('share_outside'))}" if worst else ""
        rows.append((told(t, "tensor"), _where(t), percent(t.get("share_outside")), text))
    return Table(
        "Values outside the calibrated range", ("Tensor", "Layer", "Outside", "Worst group"), rows, (2,), rest
    )
