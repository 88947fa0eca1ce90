"""``pellucid approve``: a signed yes of a person in a role, for exactly one package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pellucid.cli.output import emit, json_option, pairs, site_option

if TYPE_CHECKING:
    from rich.console import Console


@click.command("approve")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--kind", type=click.Choice(["release", "rollback"]), default="release", show_default=True)
@click.option("--role", required=True, help="Role in which you approve, for example ml-engineer.")
@click.option("--reason", required=True, help="Why; it is signed and stays with the package.")
@click.option("--expires", default=None, help="RFC 3339 time in UTC after which it no longer counts.")
@site_option
@json_option
def command(
    path: Path, kind: str, role: str, reason: str, expires: str | None, site_path: Path | None, as_json: bool
) -> None:
    """Approve the package at PATH: signs with the approver's key, attaches and records it."""
    from pellucid.app.sign import approve
    from pellucid.app.site import open_site

    done = approve(open_site(site_path), path, kind=kind, role=role, reason=reason, expires=expires)
    approval = done.approval
    value = {
        "kind": kind, "name": approval.name, "version": approval.version, "package": approval.package,
        "role": role, "approved": approval.approved, "expires": expires,
        "rolls_back_from": approval.rolls_back_from, "attestation": done.member, "entry": done.entry,
    }  # fmt: skip

    def render(console: Console) -> None:
        console.print(pairs(f"Approved {approval.name}:{approval.version}", list(value.items())))

    emit(value, render, as_json=as_json)
