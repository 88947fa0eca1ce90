"""``pellucid config``: the configuration in force."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option

if TYPE_CHECKING:
    from rich.console import Console


@click.group("config")
def command() -> None:
    """Show and check the configuration in force."""


@command.command("show")
@site_option
@json_option
def show(site_path: Path | None, as_json: bool) -> None:
    """Every value in force, defaults included, and the digest that entries carry."""
    from pellucid.app.site import open_site
    from pellucid.config import effective

    site = open_site(site_path)
    value = {"digest": site.config_digest, "root": str(site.root), **effective(site.config)}

    def render(console: Console) -> None:
        console.print(pairs(f"Configuration of {site.root}", _flat(value)))

    emit(value, render, as_json=as_json)


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, item in value.items():
        if isinstance(item, dict):
            rows += _flat(item, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, item))
    return rows


@command.command("check")
@site_option
@json_option
def check(site_path: Path | None, as_json: bool) -> None:
    """Check configuration, policy, keys and trust without starting anything."""
    from pellucid.app.site import open_site
    from pellucid.config import ROLES
    from pellucid.core.policy import parse_policy

    site = open_site(site_path)
    parse_policy(site.policy_bytes())
    trust = site.trust()
    rows: list[tuple[str, Any]] = [("configuration", "ok"), ("policy", "ok")]
    for role in ROLES:
        pem = site.signer(role).public_pem()
        known = role == "log" or pem in trust.keys.get(role, ())
        rows.append((f"key {role}", "ok" if known else "not in trust/"))
    value = {name.replace(" ", "_"): state for name, state in rows}
    emit(value, lambda console: console.print(pairs("Checked", rows)), as_json=as_json)
