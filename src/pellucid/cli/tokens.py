"""``pellucid tokens``: who may call with an API token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table

if TYPE_CHECKING:
    from rich.console import Console

_UNITS: Final = {"h": 3_600, "d": 86_400}


@click.group("tokens")
def command() -> None:
    """Give out, list and take back API tokens. A token is shown once; only its salted hash is kept."""


@command.command("add")
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, required=True, help="What they may; several times for several."
)
@click.option("--expires", default="90d", show_default=True, help="How long it is valid: 12h, 90d, never.")
@site_option
@json_option
def add(name: str, roles: tuple[str, ...], expires: str, site_path: Path | None, as_json: bool) -> None:
    """Make a token for NAME and print it, this once."""
    from pellucid.app.clock import SystemClock
    from pellucid.app.site import open_site
    from pellucid.app.tokens import issue

    site, now_ns = open_site(site_path), SystemClock().now_ns()
    until_ns = 0 if expires == "never" else now_ns + _duration_s(expires) * 10**9
    token = issue(site, name, roles, now_ns=now_ns, expires_ns=until_ns)
    value = {"name": name, "roles": list(roles), "expires": _time(until_ns), "token": token}
    emit(value, lambda console: console.print(token, soft_wrap=True, markup=False), as_json=as_json)


@command.command("list")
@site_option
@json_option
def list_tokens(site_path: Path | None, as_json: bool) -> None:
    """List tokens by name: roles and times; never a token."""
    from pellucid.app.site import open_site
    from pellucid.app.tokens import read_book, tokens_path

    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            "roles": list(row.roles),
            "created": _time(row.created_ns),
            "expires": _time(row.expires_ns),
        }
        for row in read_book(tokens_path(open_site(site_path))).tokens
    ]

    def render(console: Console) -> None:
        cells = [(r["name"], " ".join(r["roles"]), r["created"], r["expires"] or "never") for r in rows]
        console.print(table("", ("name", "roles", "created", "expires"), cells))

    emit(rows, render, as_json=as_json)


@command.command("revoke")
@click.argument("name")
@site_option
@json_option
def revoke(name: str, site_path: Path | None, as_json: bool) -> None:
    """Take the token of NAME back; servers that run hear of it within a second."""
    from pellucid.app.site import open_site
    from pellucid.app.tokens import withdraw

    withdraw(open_site(site_path), name)
    value: dict[str, Any] = {"revoked": name}
    emit(value, lambda console: console.print(pairs("", value.items())), as_json=as_json)


def _duration_s(text: str) -> int:
    from pellucid.errors import UsageError

    match = re.fullmatch(r"([1-9][0-9]{0,4})([hd])", text)
    if match is None:
        raise UsageError(f"--expires: expected hours or days like 12h or 90d, or never, got {text!r:.40}")
    return int(match[1]) * _UNITS[match[2]]


def _time(ns: int) -> str | None:
    from pellucid.core.times import format_time

    return format_time(ns) if ns else None
