"""What was measured: precision, error, accuracy, calibration. Absent documents say 'not measured'.

Documents come from the build's own stages; a key that is missing is not measured, never a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pellucid.build.label.composition import precisions
from pellucid.build.label.content import (
    NOT_MEASURED,
    PLOTTED_MAX,
    Figure,
    Section,
    Table,
    closeness,
    counted,
    cut,
    decimal_of,
    figure,
    group,
    in_words,
    listed,
    percent,
    told,
)  # fmt: skip
from pellucid.build.label.plots import Bar, bars

_DEVICE: Final = "on the device: not in this label, see attestations/"


def warnings(documents: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What measured documents warn of."""
    accurate, stands = documents.get("accuracy.json") or {}, documents.get("representativeness.json") or {}
    rows = [("Accuracy", str(finding)) for finding in accurate.get("findings") or ()]
    if accurate.get("first_past_bound"):
        rows.append(("Error", f"the first layer past the bound is {accurate['first_past_bound']}"))
    rows += [("Calibration", str(warning)) for warning in stands.get("warnings") or ()]
    lost = _sum(documents.get("precision.json") or {}, "overflow")
    if lost:
        rows.append(("Precision", f"{counted(lost, 'weight')} too large for the chosen precision"))
    return rows


def _sum(document: Mapping[str, Any], key: str) -> int:
    return sum(int(item.get(key) or 0) for item in listed(document, "initialisers"))


# -- precision ------------------------------------------------------------------------------------


def precision(recipe: Mapping[str, Any], facts: Mapping[str, Any], documents: Mapping[str, Any]) -> Section:
    """Datatypes, what they cost, and the error at each fused layer's boundary."""
    count = facts["quantized_ops_count"]
    given = recipe["precision"] != "int8"
    came = f"; {counted(count, 'engine layer')} quantised, as the source model is" if count and given else ""
    found, said = documents.get("accuracy.json") or {}, documents.get("precision.json") or {}
    rows = [
        (
            "Precision",
            recipe["precision"].upper() + (" with TF32" if recipe["tf32"] else ", TF32 off") + came,
        ),
        ("As built", precisions(facts, tf32=recipe["tf32"])),
    ]
    if said:
        kept = [str(name) for name in said.get("kept_fp32") or ()]
        shown, rest = cut(kept, "precision.json", 24)
        rows.append(("Kept in FP32", (", ".join(shown) or "nothing") + (f"; {rest}" if rest else "")))
        quantised = said.get("quantised")
        if quantised:
            rows.append(("Operators of the graph that are quantised", f"{len(quantised):,}"))
        scheme = said.get("scheme")
        if isinstance(scheme, Mapping):
            rows.append(("Scheme", in_words(scheme)))
        rows.append(("Weights too large for it", f"{_sum(said, 'overflow'):,}"))
        rows.append(("Weights below its normal range", f"{_sum(said, 'subnormal'):,}"))
        rows.append(("Weights that became 0", f"{_sum(said, 'flushed'):,}"))
    rows += [
        ("Error against the source", _largest(found)),
        ("First layer past the bound", _first(found)),
    ]
    losses = ("overflow", "subnormal", "flushed")
    lost = [item for item in listed(said, "initialisers") if any(item.get(key) for key in losses)]
    tables = [_initialisers(lost)] if lost else []
    edges = listed(found, "boundaries")
    figures = []
    if edges:
        figures.append(_boundary_plot(edges, found.get("first_past_bound")))
        tables.append(_boundary_table(edges))
    return Section("Precision and error", rows, figures=figures, tables=tables)


def _largest(found: Mapping[str, Any]) -> str:
    if not found:
        return f"{NOT_MEASURED} at the build; {_DEVICE}"
    return (
        f"at most {figure(found.get('error_max'))} in any output" if found.get("error_max") else NOT_MEASURED
    )


def _first(found: Mapping[str, Any]) -> str:
    if not listed(found, "boundaries"):
        return NOT_MEASURED
    return str(found.get("first_past_bound") or "none")


def _initialisers(lost: Sequence[Mapping[str, Any]]) -> Table:
    shown, rest = cut(lost, "precision.json")
    rows = [
        (told(i, "name"), figure(i.get("elements")), figure(i.get("overflow") or 0),
         figure(i.get("subnormal") or 0), figure(i.get("flushed") or 0), figure(i.get("max_abs")))
        for i in shown
    ]  # fmt: skip
    head = ("Weights", "Elements", "Too large", "Below normal range", "Became 0", "Largest")
    return Table("Weights that lose more than digits", head, rows, (1, 2, 3, 4, 5), rest)


def _boundary_plot(edges: Sequence[Mapping[str, Any]], first: Any) -> Figure:
    items = [
        Bar(
            told(e, "layer", "tensor"), value,
            text=figure(e.get("error_relative")), marked=first is not None and e.get("layer") == first,
        )
        for e in edges
        if (value := decimal_of(e.get("error_relative"))) is not None
    ]  # fmt: skip
    shown, words = _worst(items)
    title = "Relative error at the output of each fused layer, in the order of the engine"
    left = len(edges) - len(items)
    words += f"; {left:,} without a finite number stand in the table only" if left else ""
    mark = "; the first past the bound has stripes" if any(item.marked for item in shown) else ""
    return Figure(bars(title, shown, name="boundaries", logarithmic=True), f"{title}{mark}{words}")


def _worst(items: list[Bar]) -> tuple[list[Bar], str]:
    """The largest ones, in their order, and words for it where some are left out."""
    if len(items) <= PLOTTED_MAX:
        return items, ""
    order = sorted(range(len(items)), key=lambda at: (not items[at].marked, -items[at].value, at))
    kept = sorted(order[:PLOTTED_MAX])
    return [items[at] for at in kept], f"; the {PLOTTED_MAX} largest of {len(items):,}"


def _boundary_table(edges: Sequence[Mapping[str, Any]]) -> Table:
    shown, rest = cut(edges, "accuracy.json")
    keys = ("error_max", "error_rms", "error_relative")
    rows = [
        (
            told(edge, "layer"),
            " + ".join(map(str, edge.get("nodes") or ())) or told(edge, "tensor"),
            *(figure(edge.get(key)) for key in keys),
            closeness(edge.get("cosine")),
        )
        for edge in shown
    ]
    head = ("Layer", "Up to", "Largest", "RMS", "Relative", "Cosine")
    return Table("Error at the output of each fused layer", head, rows, (2, 3, 4, 5), rest)


# -- accuracy -------------------------------------------------------------------------------------


def accuracy(recipe: Mapping[str, Any], documents: Mapping[str, Any]) -> Section:
    """How the built graph decides against its source."""
    title, found = "How well it agrees with its source", documents.get("accuracy.json") or {}
    if not found:
        why = "" if recipe.get("validation") else "; the recipe names no validation set"
        return Section(title, [("Accuracy", f"{NOT_MEASURED} at the build{why}; {_DEVICE}")])
    confidence = percent(found.get("confidence") or recipe["gate"].get("confidence"))
    rows = [
        ("Measured", f"{_samples(found)}, {found.get('measured_on') or 'it is not said where'}"),
        ("Verdict", _verdict(found)),
        ("Decisions", _decisions(found, confidence)),
        ("Right answers (top-1)", _top1(found)),
        ("Largest error", figure(found.get("error_max"))),
        ("Signal to noise (PSNR)", _unit(found.get("psnr_db"), " dB")),
        ("Smallest cosine similarity", closeness(found.get("cosine_min"))),
        ("KL divergence", _divergence(found)),
    ]
    slices = listed(found, "slices")
    if not slices:
        return Section(title, [*rows, ("By group", NOT_MEASURED)])
    return Section(title, rows, figures=_slice_plot(found, slices, confidence), tables=[_slice_table(slices)])


def _samples(found: Mapping[str, Any]) -> str:
    count = found.get("samples")
    return "samples not counted" if count is None else counted(count, "sample")


def _verdict(found: Mapping[str, Any]) -> str:
    passed, findings = found.get("passed"), [str(f) for f in found.get("findings") or ()]
    if passed is None:
        return "not judged"
    return "inside every bound of the recipe" if passed else "outside: " + "; ".join(findings)


def _decisions(found: Mapping[str, Any], confidence: str) -> str:
    flips, samples = found.get("flips"), found.get("samples")
    if flips is None or not samples:
        return NOT_MEASURED
    text = f"{flips:,} of {samples:,} differ from the source's ({percent(flips / samples)})"
    upper = found.get("flips_upper")
    return text if upper is None else f"{text}; with {confidence} confidence at most {percent(upper)} do"


def _top1(found: Mapping[str, Any]) -> str:
    if found.get("top1") is None:
        return f"{NOT_MEASURED}: true answers are not known"
    return f"{percent(found['top1'])}; the source gives {percent(found.get('top1_source'))}"


def _unit(value: Any, unit: str) -> str:
    if value == "inf":
        return "no difference at all"
    return figure(value) + ("" if value is None or decimal_of(value) is None else unit)


def _divergence(found: Mapping[str, Any]) -> str:
    keys = (("kl_mean", "mean"), ("kl_p999", "99.9 % below"), ("kl_max", "largest"))
    if all(found.get(key) is None for key, _ in keys):
        return NOT_MEASURED
    return ", ".join(f"{words} {figure(found.get(key))}" for key, words in keys)


def _slice_plot(
    found: Mapping[str, Any], slices: Sequence[Mapping[str, Any]], confidence: str
) -> list[Figure]:
    groups = [(group(s), s) for s in slices]
    items = []
    for name, one in [("all", found), *groups]:
        flips, samples = one.get("flips"), one.get("samples")
        if flips is not None and samples:
            upper = decimal_of(one.get("flips_upper"))
            bound = "" if upper is None else f"; {percent(upper)}"
            items.append(Bar(name, flips / samples, upper=upper, text=f"{percent(flips / samples)}{bound}"))
    if not items:
        return []
    shown, rest = items[:PLOTTED_MAX], len(items) - PLOTTED_MAX
    words = f"Share of decisions that differ, and its upper bound at {confidence} confidence, by group"
    caption = words + (f"; {rest:,} more groups are in accuracy.json" if rest > 0 else "")
    return [Figure(bars(words, shown, name="slices", share=True), caption)]


def _slice_table(slices: Sequence[Mapping[str, Any]]) -> Table:
    shown, rest = cut(slices, "accuracy.json")
    rows = [
        (group(s), figure(s.get("samples")), figure(s.get("flips")),
         percent(s.get("flips_upper")), percent(s.get("top1")))
        for s in shown
    ]  # fmt: skip
    head = ("Group", "Samples", "Decisions changed", "At most", "Top-1")
    return Table("Decisions by group", head, rows, (1, 2, 3, 4), rest)
