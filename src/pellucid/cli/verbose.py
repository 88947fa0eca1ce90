"""``pellucid verbose``."""

from __future__ import annotations

from pathlib import Path

import click

from pellucid.cli.output import json_option, site_option


@click.command("verbose")
@click.argument("model")
@click.option(
    "--for", "seconds", type=click.IntRange(1, 3_600), default=60, show_default=True, help="Seconds."
)
@click.option("--reason", required=True, help="Why; it stands in the ledger.")
@site_option
@json_option
def command(model: str, seconds: int, reason: str, site_path: Path | None, as_json: bool) -> None:
    """Time the layers of MODEL while it serves, for a while.

    The wish is an entry. When the time is over, each serving process writes one line of JSON to its
    standard error: layers, the slowest first, with operator, runs and nanoseconds; never a value.
    Calls that run meanwhile are slower, have the same bits, and are judged by no baseline.
    """
    from pellucid.app.site import open_site
    from pellucid.app.verbose import ask_verbose
    from pellucid.core.times import format_time

    wish = ask_verbose(open_site(site_path), model, seconds, reason)
    until = format_time(wish.until_ns)
    if as_json:
        import json

        click.echo(json.dumps({"model": model, "until": until, "entry": wish.entry}))
    else:
        click.echo(f"verbose for {model} until {until}: {wish.entry}")
