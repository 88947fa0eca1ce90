"""``pellucid quant``: how a model was quantised over its versions, and what a sample stands behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table, working
from pellucid.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from pellucid.app.quant import Dependent, Dependents, Quantised, Step
    from pellucid.core.calibration_ranges import RangeChange, TensorRange
    from pellucid.core.trust import TrustedPackage

_SHOWN_MAX = 20  # limit: rows on a screen; --json has them all


@click.group("quant")
def command() -> None:
    """Show how a model was quantised, and what a sample stands behind."""


# -- history --------------------------------------------------------------------------------------


@command.command("history", short_help="Show every package of a model, by version.")
@click.argument("model")
@site_option
@json_option
def history_(model: str, site_path: Path | None, *, as_json: bool) -> None:
    """Show every signed package of MODEL by version: its precision, its data, and what moved most."""
    from pellucid.app.quant import history
    from pellucid.app.site import open_site

    with working("verifying packages", as_json=as_json):
        steps, kept = history(open_site(site_path), model)
    value = {
        "model": model,
        "packages": [about(s.quantised) | {"changed": list(map(change_value, s.changed))} for s in steps],
        "refused": [{"file": name, "reason": reason} for name, reason in kept.refused],
    }

    def render(console: Console) -> None:
        console.print(f"{model}: {counted(len(steps), 'package')}\n", markup=False)
        for step in steps:
            console.print(pairs(f"version {step.quantised.package.version}", _step(step)))
        for name, reason in kept.refused:
            console.print(f"not believed  {name}: {reason}", style="yellow", markup=False)

    emit(value, render, as_json=as_json)


def _step(step: Step) -> list[tuple[str, str]]:
    from pellucid.app.quant import share_text

    package, found = step.quantised.package, step.quantised.calibration
    rows = [("package", package.folder), ("precision", package.precision)]
    if found is None or step.quantised.ranges is None:
        return [*rows, ("calibration", "none: this precision needs no data")]
    moved = [f"{c.name} {share_text(c.share)}" for c in step.changed[:2]]
    return [
        *rows, ("method", step.quantised.ranges.method), ("data", found.data),
        ("samples", f"{len(found.samples):,} of {found.rows:,} rows"), ("times", _times(found.times)),
        ("source", found.source or "not said"), ("moved most", ", ".join(moved) or "-"),
    ]  # fmt: skip


def about(found: Quantised) -> dict[str, Any]:
    """A package and its calibration set, for machines."""
    package, calibration, ranges = found.package, found.calibration, found.ranges
    value: dict[str, Any] = {
        "package": package.digest, "folder": package.folder, "name": package.name,
        "version": package.version, "previous": package.manifest.previous, "precision": package.precision,
        "quantized_ops_count": package.facts.get("quantized_ops_count"), "method": None, "calibration": None,
    }  # fmt: skip
    if calibration is not None and ranges is not None:
        value |= {
            "method": ranges.method,
            "calibration": {
                "data": calibration.data, "rows": calibration.rows, "samples": len(calibration.samples),
                "samples_digest": calibration.digest, "select": calibration.select,
                "slices": list(calibration.slices), "times": calibration.times,
                "source": calibration.source, "licence": calibration.licence,
            },
        }  # fmt: skip
    return value


def change_value(change: RangeChange) -> dict[str, Any]:
    """How one range moved, for machines."""
    from pellucid.app.quant import share_text
    from pellucid.core.calibration_ranges import float32_text

    def ends(pair: tuple[float, float] | None) -> list[str] | None:
        return None if pair is None else [float32_text(value) for value in pair]

    return {
        "tensor": change.name, "kind": change.kind, "nodes": list(change.nodes), "old": ends(change.old),
        "new": ends(change.new), "change": share_text(change.share),
    }  # fmt: skip


def show_changes(console: Console, title: str, changed: Sequence[RangeChange]) -> None:
    """A table of ranges that moved, largest first."""
    if not changed:
        console.print(f"{title}: none.", markup=False)
        return
    rows = []
    for each in map(change_value, changed[:_SHOWN_MAX]):
        old, new = (" to ".join(ends) if ends else "-" for ends in (each["old"], each["new"]))
        rows.append((each["tensor"], each["kind"], old, new, each["change"], ", ".join(each["nodes"][:3])))
    columns = ("tensor", "kind", "before", "now", "change", "at")
    console.print(table(title, columns, rows, whole=("kind", "change")))
    if len(changed) > _SHOWN_MAX:
        console.print(f"... and {len(changed) - _SHOWN_MAX:,} more; --json has them all")


def _times(times: dict[str, str] | None) -> str:
    return f"{times['from'][:19]} to {times['to'][:19]}" if times else "not said"


# -- show -----------------------------------------------------------------------------------------


@command.command("show", short_help="Show how a package was quantised.")
@click.argument("package")
@site_option
@json_option
def show_(package: str, site_path: Path | None, *, as_json: bool) -> None:
    """Show the calibration set and the ranges of PACKAGE: an archive, a folder, NAME:VERSION or a digest."""
    from pellucid.app.quant import show
    from pellucid.app.site import open_site

    found = show(open_site(site_path), package)
    tensors = [*found.ranges.tensors, *found.ranges.weights] if found.ranges else []
    value = about(found) | {
        "bound": found.ranges.bound if found.ranges else None,
        "tensors": [_tensor(tensor) for tensor in tensors],
        "digests": [s.digest for s in found.calibration.samples] if found.calibration else [],
    }

    def render(console: Console) -> None:
        console.print(pairs(found.package.folder, _rows(found)))
        if tensors:
            columns = ("tensor", "min", "max", "scale", "zero point", "at")
            console.print(table("Ranges", columns, map(_tensor_row, tensors[:_SHOWN_MAX])))

    emit(value, render, as_json=as_json)


def _rows(found: Quantised) -> list[tuple[str, Any]]:
    package, calibration, ranges = found.package, found.calibration, found.ranges
    rows: list[tuple[str, Any]] = [
        ("package", package.digest), ("precision", package.precision),
        ("quantised operators of the graph", _operators(package)),
        ("engine layers that compute quantised", package.facts.get("quantized_ops_count")),
    ]  # fmt: skip
    if calibration is None or ranges is None:
        return [*rows, ("calibration", "none: this precision needs no data")]
    rows += [
        ("method", ranges.method), ("data", calibration.data),
        ("samples", calibration.selection),
        ("samples digest", calibration.digest), ("times", _times(calibration.times)),
        ("source", calibration.source or "not said"), ("licence", calibration.licence or "not said"),
    ]  # fmt: skip
    for each in calibration.slices:
        shares = ", ".join(f"{v['value']} {v['selected']:,} of {v['rows']:,}" for v in each["values"])
        rows.append((f"slice {each['name']}", shares))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(ranges.bound["versions"].items()))
    return [*rows, ("graph", ranges.bound["model"]), ("made with", versions)]


def _operators(package: TrustedPackage) -> int | None:
    import json

    raw = package.files.get("precision.json")
    return len(json.loads(raw).get("quantised") or ()) if raw is not None else None


def _tensor(tensor: TensorRange) -> dict[str, Any]:
    from pellucid.core.calibration_ranges import float32_text

    return {
        "tensor": tensor.name, "axis": tensor.axis, "channels": len(tensor.scale),
        "min": float32_text(min(tensor.low)), "max": float32_text(max(tensor.high)),
        "scale": [float32_text(scale) for scale in tensor.scale], "zero_point": list(tensor.zero_point),
        "nodes": list(tensor.nodes),
    }  # fmt: skip


def _tensor_row(tensor: TensorRange) -> tuple[str, ...]:
    value = _tensor(tensor)
    more = f" and {value['channels'] - 1:,} more" if value["channels"] > 1 else ""
    zero = sorted(set(value["zero_point"]))
    return (
        value["tensor"], value["min"], value["max"], value["scale"][0] + more, ", ".join(map(str, zero)),
        ", ".join(value["nodes"][:3]),
    )  # fmt: skip


# -- dependents -----------------------------------------------------------------------------------


@command.command("dependents", short_help="Show what was calibrated with a sample.")
@click.argument("sample")
@click.option("--row", type=click.IntRange(0), default=None, help="One row of the file (default: every row).")
@site_option
@json_option
def dependents_(sample: str, row: int | None, site_path: Path | None, *, as_json: bool) -> None:
    """Show every package calibrated with SAMPLE and every recorded call that such a package answered.

    SAMPLE is a digest (sha256:...) or an .npz file with one array an input. Asking is recorded.
    """
    from pellucid.app.quant import dependents
    from pellucid.app.site import open_site

    with working("verifying packages", as_json=as_json):
        answer = dependents(open_site(site_path), sample, row)
    asked = sample if row is None else f"row {row} of {sample}"
    emit(_dependents_value(answer), lambda console: _render(console, asked, answer), as_json=as_json)


def _dependents_value(answer: Dependents) -> dict[str, Any]:
    from pellucid.core.times import format_time

    def value(each: Dependent) -> dict[str, Any]:
        return about(each.quantised) | {
            "samples": [{"index": index, "digest": digest} for index, digest in each.samples],
            "calls": [
                {"call": c.key, "index": c.index, "time": format_time(c.time_ns), "outcome": c.outcome}
                for c in each.calls
            ],
        }

    return {
        "packages": [value(each) for each in answer.found],
        "refused": [{"file": name, "reason": reason} for name, reason in answer.refused],
        "entry": answer.entry,
    }


def _render(console: Console, asked: str, answer: Dependents) -> None:
    from pellucid.core.times import format_time

    if not answer.found:
        console.print(f"No package here was calibrated with {asked}.", markup=False)
    for each in answer.found:
        package = each.quantised.package
        console.print(pairs(package.folder, [
            ("package", package.digest), ("rows of its set", ", ".join(str(i) for i, _ in each.samples[:20])),
            ("calls recorded", f"{len(each.calls):,}"),
        ]))  # fmt: skip
        rows = [(c.key, format_time(c.time_ns)[:19], c.outcome) for c in each.calls[:_SHOWN_MAX]]
        if rows:
            console.print(table("", ("call", "time", "outcome"), rows, whole=("call", "time")))
        if len(each.calls) > _SHOWN_MAX:
            console.print(f"... and {len(each.calls) - _SHOWN_MAX:,} more; --json has them all")
    for name, reason in answer.refused:
        console.print(f"not believed  {name}: {reason}", style="yellow", markup=False)
    console.print(f"Recorded as {answer.entry}.", markup=False)
