"""``pellucid keys``: which keys a site has and believes; new ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.site import Site


@click.group("keys")
def command() -> None:
    """List, show and make keys. Private keys are never printed."""


@command.command("list")
@site_option
@json_option
def list_keys(site_path: Path | None, as_json: bool) -> None:
    """List the site's keys by role, and whether its own trust believes them."""
    from pellucid.app.site import open_site

    site = open_site(site_path)
    rows = [_row(site, role, uri) for role, uri in site.config.keys.items()]

    def render(console: Console) -> None:
        columns = ("role", "key id", "algorithm", "uri", "trusted")
        cells = [(r["role"], r["key_id"][:16], r["algorithm"], r["uri"], r["trusted"]) for r in rows]
        console.print(table("", columns, cells))

    emit(rows, render, as_json=as_json)


def _row(site: Site, role: str, uri: str) -> dict[str, Any]:
    from pellucid.core.note import parse_vkey
    from pellucid.core.signature import key_id, raw_ed25519
    from pellucid.errors import PellucidError

    row: dict[str, Any] = {"role": role, "uri": uri, "key_id": "", "algorithm": "", "trusted": ""}
    try:
        signer = site.signer(role)
        pem, trust = signer.public_pem(), site.trust()
        row |= {"key_id": key_id(pem), "algorithm": signer.algorithm}
        if role == "log":
            believed = bool(trust.log_vkey) and parse_vkey(trust.log_vkey).public == raw_ed25519(pem)
        else:
            believed = key_id(pem) in {key_id(other) for other in trust.of(role)}
        row["trusted"] = "yes" if believed else "no"
    except PellucidError as error:
        # one key that cannot be opened must not hide the others
        row["trusted"] = f"cannot open: {error.message}"
    return row


@command.command("show")
@click.argument("role")
@site_option
@json_option
def show_key(role: str, site_path: Path | None, as_json: bool) -> None:
    """Show the public part of the key of ROLE."""
    from pellucid.app.site import open_site
    from pellucid.core.signature import key_id

    site = open_site(site_path)
    signer = site.signer(role)
    pem = signer.public_pem()
    value = {
        "role": role, "uri": site.config.keys[role], "algorithm": signer.algorithm, "key_id": key_id(pem),
        "public": pem.decode(),
    }  # fmt: skip
    if role == "log":
        value["vkey"] = site.trust().log_vkey

    def render(console: Console) -> None:
        console.print(pairs(f"Key of {role}", list(value.items())))

    emit(value, render, as_json=as_json)


@command.command("new")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--algorithm", type=click.Choice(["ecdsa-p256", "ed25519"]), default="ecdsa-p256",
              help="Logs sign with ed25519, everyone else with ecdsa-p256.")  # fmt: skip
@json_option
def new_key(path: Path, algorithm: str, as_json: bool) -> None:
    """Make a new key file at PATH (mode 0600) and its public part beside it as PATH.pem."""
    from pellucid.core.signature import key_id
    from pellucid.errors import UsageError
    from pellucid.schemes import load

    public = path.with_name(path.name + ".pem")
    for file in (path, public):
        if file.exists():
            raise UsageError(f"key: expected no file at {file}, got one", hint="keys are never overwritten")
    key = load("key", "file").generate(path, algorithm)
    public.write_bytes(key.public_pem())
    value = {
        "uri": f"file:{path}", "algorithm": algorithm, "key_id": key_id(key.public_pem()),
        "public": str(public),
    }  # fmt: skip

    def render(console: Console) -> None:
        console.print(pairs("New key", list(value.items())))
        console.print("Believe it by copying the public part to trust/ROLE.NAME.pem.")

    emit(value, render, as_json=as_json)
