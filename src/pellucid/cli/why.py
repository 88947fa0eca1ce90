"""``pellucid why``: what made a model slow at a moment, or where one call's time went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, site_option, table

if TYPE_CHECKING:
    from rich.console import Console


@click.command("why")
@click.argument("target")
@click.option("--at", default=None, help="The moment, RFC 3339 in UTC (2026-11-30T03:00:00Z); default: now.")
@click.option("--span", type=click.FloatRange(1), default=24.0, show_default=True, help="Hours to look back.")
@site_option
@json_option
def command(target: str, at: str | None, span: float, site_path: Path | None, as_json: bool) -> None:
    """Say what changed before TARGET, a model, was slow; or, for a call's key, what took its time.

    The first line names the most likely cause; the numbers that it rests on follow.
    """
    from pellucid.app.site import open_site
    from pellucid.app.why import why, why_call
    from pellucid.core.times import parse_time

    site = open_site(site_path)
    if "/" in target:
        told = why_call(site, target)
        emit(told, lambda console: _render_call(console, told), as_json=as_json)
        return
    at_ns = parse_time(at) if at else None
    told = why(site, target, at_ns=at_ns, span_s=span * 3_600)
    emit(told, lambda console: _render(console, told), as_json=as_json)


def _render_call(console: Console, told: dict[str, Any]) -> None:
    console.print(f"{told['part']}: {told['text']}", markup=False, highlight=False)


def _render(console: Console, told: dict[str, Any]) -> None:
    console.print(told["cause"], markup=False, highlight=False, soft_wrap=True)
    rows = []
    for change in told["changes"]:
        before, after = change["before"], change["after"]
        rows.append((
            change["time"], "; ".join([change["what"], *change["more"]]),
            f"{before['calls']} / {after['calls']}",
            _pair(before, after, "queue"), _pair(before, after, "compute"), _pair(before, after, "total"),
        ))  # fmt: skip
    if rows:
        head = ("time", "what", "calls", "queue p99 ms", "compute p99 ms", "total p99 ms")
        console.print(table(f"Changes before {told['at']}, newest first", head, rows))


def _pair(before: dict[str, Any], after: dict[str, Any], stage: str) -> str:
    return f"{before['p99'][stage] / 1e6:.3g} / {after['p99'][stage] / 1e6:.3g}"
