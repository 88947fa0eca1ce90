"""``pellucid recalibrate PACKAGE``: the same model and recipe, calibrated with new data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pellucid.cli.build import PHASES
from pellucid.cli.output import console, emit, json_option, pairs, show_next, site_option
from pellucid.core.words import counted

if TYPE_CHECKING:
    from rich.console import Console


@click.command("recalibrate")
@click.argument("package")
@click.option("--data", required=True, type=click.Path(path_type=Path, dir_okay=False),
              help="New calibration set (.npz).")  # fmt: skip
@click.option("--version", required=True, help="Version of the new package, after the old one's.")
@click.option("--source", default=None, help="Where the new data come from.")
@click.option("--licence", default=None, help="Under which licence they are used.")
@site_option
@json_option
def command(
    package: str,
    data: Path,
    version: str,
    source: str | None,
    licence: str | None,
    site_path: Path | None,
    *,
    as_json: bool,
) -> None:
    """Build PACKAGE again from its own source and recipe, with new calibration data, and say what moved.

    PACKAGE is an archive, a folder, NAME:VERSION or a package digest. The new package is not signed
    yet: see `pellucid sign`. Run it from cron or a pipeline to recalibrate on a schedule.
    """
    from pellucid.app.quant import recalibrate
    from pellucid.app.site import open_site
    from pellucid.cli.quant import change_value, show_changes

    site = open_site(site_path)
    if as_json:
        done = recalibrate(site, package, data, version, source=source, licence=licence)
    else:
        with console(err=True).status("starting") as status:
            done = recalibrate(
                site, package, data, version, source=source, licence=licence,
                progress=lambda phase: status.update(PHASES.get(phase, phase)),
            )  # fmt: skip
    outcome, old = done.outcome, done.old.package
    value = {
        "name": outcome.name, "version": outcome.version, "previous": old.version,
        "folder": str(outcome.folder), "package": outcome.package, "previous_package": old.digest,
        "data": done.calibration.data, "samples": len(done.calibration.samples), "recipe": str(done.recipe),
        "changed": list(map(change_value, done.changed)), "build": outcome.entry, "entry": done.entry,
    }  # fmt: skip
    rows = [
        ("package", outcome.folder.name), ("package digest", outcome.package), ("follows", old.folder),
        ("data", f"{done.calibration.data} ({counted(len(done.calibration.samples), 'sample')})"),
        ("recipe", done.recipe), ("ledger entry", done.entry),
    ]  # fmt: skip

    def render(out: Console) -> None:
        out.print(pairs(f"recalibrated {outcome.name} {outcome.version}", rows))
        show_changes(out, "Ranges that moved", done.changed)
        show_next(out, ("sign", outcome.folder), site_path)

    emit(value, render, as_json=as_json)
