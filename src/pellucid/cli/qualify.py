"""``pellucid qualify PACKAGE``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import console, emit, json_option, pairs, site_option, table

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.build import Qualified

STEPS = {
    "variance": "following the bits through buckets, slots and neighbours",
    "accuracy": "comparing with the source on the validation set",
    "latency": "timing every bucket",
}
FAILED = 5  # as a build whose gate fails


@click.command("qualify")
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path, dir_okay=False), help="Validation file of the recipe."
)
@site_option
@json_option
def command(package: Path, data: Path | None, site_path: Path | None, *, as_json: bool) -> int:
    """Measure PACKAGE on this device and put the signed result beside it.

    Exit code 5 when the recipe's accuracy gate fails; the result is attached and recorded either way.
    """
    from pellucid.app import build as app
    from pellucid.app.site import open_site

    site = open_site(site_path)
    if as_json:
        outcome = app.qualify(site, package, data)
    else:
        with console(err=True).status("starting") as status:
            outcome = app.qualify(site, package, data, lambda step: status.update(STEPS.get(step, step)))
    value = {
        "package": outcome.package.digest,
        "folder": outcome.package.folder,
        "member": outcome.member,
        "attestation": outcome.attestation,
        "entry": outcome.entry,
        "passed": outcome.passed,
        "qualification": outcome.predicate,
    }
    emit(value, lambda out: _render(out, outcome), as_json=as_json)
    return 0 if outcome.passed else FAILED


def _render(out: Console, outcome: Qualified) -> None:
    accuracy, variance = outcome.predicate["accuracy"], outcome.predicate["variance"]
    rows: list[tuple[str, Any]] = [
        ("device", _device(outcome.predicate["device"])),
        ("accuracy gate", "passed" if outcome.passed else "FAILED"),
        *[("finding", finding) for finding in accuracy["findings"]],
        ("samples", f"{accuracy['samples']:,}"),
        ("top-1", f"{_share(accuracy['top1'])} (source {_share(accuracy['top1_source'])})"),
        ("KL mean, p99.9, max", ", ".join(_known(accuracy[k]) for k in ("kl_mean", "kl_p999", "kl_max"))),
        ("largest error", _known(accuracy["error_max"])),
        ("flipped decisions", f"{_known(accuracy['flips'])} (upper bound {_share(accuracy['flips_upper'])})"),
        ("variance", variance["label"]),
        ("between buckets", _between(variance)),
        ("memory", f"{outcome.predicate['memory']['peak_rss_bytes'] / 2**20:,.0f} MiB"),
        ("attestation", f"{outcome.member}, {outcome.attestation}"),
        ("ledger entry", outcome.entry),
    ]  # fmt: skip
    out.print(pairs(f"qualified {outcome.package.folder}", rows))
    slices = [
        (s["slice"], s["value"], f"{s['samples']:,}", _share(s["top1"]), s["flips"], _share(s["flips_upper"]))
        for s in accuracy["slices"]
    ]
    if slices:
        out.print(table("slices", ("slice", "value", "samples", "top-1", "flips", "upper bound"), slices))
    speeds = [
        (one["bucket"] or "alone", f"{one['p50_ns'] / 1e6:.3f} ms", f"{one['p99_ns'] / 1e6:.3f} ms",
         f"{float(one['rows_per_s']):,.0f}")
        for one in outcome.predicate["latency"]
    ]  # fmt: skip
    out.print(table("speed", ("bucket", "p50", "p99", "rows/s"), speeds))


def _between(variance: dict[str, Any]) -> str:
    flips = variance["flips_between_buckets"]
    decisions = "decisions not measured" if flips is None else f"{flips:,} decisions flip"
    return f"{decisions}, bits at most {variance['bound']['ulp']:,} ulp apart"


def _device(device: dict[str, Any]) -> str:
    return f"{device['name']}, {device['threads']} of {device['logical_processors']} processors"


def _share(value: Any) -> str:
    """A share as people read it; the attestation keeps every digit."""
    return "not measured" if value is None else f"{float(value):.2%}"


def _known(value: Any) -> str:
    return "not measured" if value is None else str(value)
