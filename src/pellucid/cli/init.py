"""``pellucid init``: a site in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pellucid.cli.output import emit, json_option, pairs

if TYPE_CHECKING:
    from rich.console import Console


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", default=None, help="Name of this machine in every call key.")
@click.option("--origin", default=None, help="Name of the log, for example bank.example/credit.")
@json_option
def command(folder: Path, node: str | None, origin: str | None, as_json: bool) -> None:
    """Make a site: keys, trust, configuration, policy and folders."""
    from pellucid.app.site import create_site

    site = create_site(folder, node=node, origin=origin)
    value = {
        "site": str(site.root),
        "node": site.config.site.node,
        "origin": site.config.ledger.origin,
        "log_vkey": (site.trust_folder / "log.vkey").read_text().strip(),
        "config": site.config_digest,
    }

    def render(console: Console) -> None:
        console.print(pairs(f"New site in {folder}", list(value.items())))
        console.print("Give trust/ to your auditors now: what they check later stands or falls with it.")

    emit(value, render, as_json=as_json)
