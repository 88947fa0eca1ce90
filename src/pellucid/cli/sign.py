"""``pellucid sign``: sign a package folder and pack it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pellucid.cli.output import emit, json_option, pairs, site_option

if TYPE_CHECKING:
    from rich.console import Console


@click.command("sign")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@site_option
@json_option
def command(folder: Path, site_path: Path | None, as_json: bool) -> None:
    """Sign a package FOLDER with the builder's key, pack it, and record it."""
    from pellucid.app.sign import sign_folder
    from pellucid.app.site import open_site

    signed = sign_folder(open_site(site_path), folder)
    package = signed.package
    value = {
        "archive": str(signed.archive), "package": package.digest, "name": package.name,
        "version": package.version, "engine": package.engine_digest, "signer": package.signer,
        "entry": signed.entry,
    }  # fmt: skip

    def render(console: Console) -> None:
        console.print(pairs(f"Signed {package.folder}", list(value.items())))
        console.print("Next: pellucid qualify, then pellucid verify.")

    emit(value, render, as_json=as_json)
