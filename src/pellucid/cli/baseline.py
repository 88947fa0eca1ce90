"""``pellucid baseline``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pellucid.cli.output import json_option, site_option

if TYPE_CHECKING:
    from pellucid.app.baseline import Found


@click.group()
def command() -> None:
    """Show and freeze what a model's computation usually takes.

    A server makes a baseline of the first executions of each bucket where there is none. Each call
    beyond two standard deviations of compute time is marked in its entry.
    """


@command.command()
@site_option
@click.argument("model")
@json_option
def show(site_path: Path | None, model: str, *, as_json: bool) -> None:
    """Show the baselines of MODEL, newest first."""
    from pellucid.app.baseline import baselines
    from pellucid.app.site import open_site

    _print(baselines(open_site(site_path), model), as_json=as_json)


@command.command()
@site_option
@click.argument("model")
@click.option(
    "--skip", type=click.IntRange(0), default=200, show_default=True, help="Executions that warm up."
)
@json_option
def freeze(site_path: Path | None, model: str, skip: int, *, as_json: bool) -> None:
    """Freeze baselines of MODEL from what the ledger holds since its newest load.

    They are entries, and a server that runs goes by them within a second.
    """
    from pellucid.app.baseline import freeze as freeze_now
    from pellucid.app.site import open_site

    _print(freeze_now(open_site(site_path), model, skip=skip), as_json=as_json)


def _print(found: list[Found], *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"baselines": [each.record() for each in found]}))
        return
    for each in found:
        b = each.baseline
        near = f"{100 * b.near_median / b.executions:.1f} % within 3 ms of the median"
        click.echo(
            f"{each.model}:{each.version} bucket {each.bucket}: mean {b.mean_ns / 1e6:.3f} ms, two sigma "
            f"{2 * b.std_ns / 1e6:.3f} ms, median {b.median_ns / 1e6:.3f} ms, {near}, {b.executions:,} "
            f"executions, {each.time} {b.key}"
        )
    if not found:
        click.echo("no baseline")
