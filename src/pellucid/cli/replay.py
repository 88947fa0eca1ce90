"""``pellucid replay``: run a past call again and say whether it answers the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table, working

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.evidence import Replayed

DIFFERS = 6


@click.command("replay")
@click.argument("call")
@click.option("--input", "input_path", required=True,
              type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Original input: the request as sent (JSON), or its bare values.")  # fmt: skip
@click.option("--row", type=int, default=None, help="Replay one row of the call, by its number.")
@click.option("--tolerance", type=click.FloatRange(min=0), default=0.0, show_default=True,
              help="Declared addition to the bound that qualification measured.")  # fmt: skip
@site_option
@json_option
def command(
    call: str, input_path: Path, row: int | None, tolerance: float, site_path: Path | None, as_json: bool
) -> int:
    """Run CALL again from its original input, isolated, in its recorded bucket and slot.

    Exit 0 bit-exact, 6 not bit-exact, wrong input, or erased.
    """
    from pellucid.app.evidence import replay
    from pellucid.app.site import open_site

    with working("running it again in a process of its own", as_json=as_json):
        replayed = replay(open_site(site_path), call, input_path.read_bytes(), row=row, tolerance=tolerance)
    emit(_value(replayed), lambda console: _render(console, replayed), as_json=as_json)
    return 0 if replayed.result.verdict == "bit-exact" else DIFFERS


def _value(replayed: Replayed) -> dict[str, Any]:
    return {
        **replayed.predicate,
        "entry_key": replayed.entry,
        "report": str(replayed.path),
        "page": str(replayed.page),
    }


def _render(console: Console, replayed: Replayed) -> None:
    result = replayed.result
    style = {"bit-exact": "bold green", "within bound": "bold yellow"}.get(result.verdict, "bold red")
    console.print(f"[{style}]{result.verdict}[/]", f"call {result.call}", markup=True)
    rows = [
        (
            r.row,
            f"{r.label} ({r.confidence})",
            f"{r.replayed_label} ({r.replayed_confidence})",
            r.verdict,
            r.reason,
        )
        for r in result.rows
    ]
    console.print(table("", ("row", "recorded", "replayed", "verdict", "why"), rows))
    if result.changes:
        changed = [(c.what, c.recorded, c.now) for c in result.changes]
        console.print(table("What differs here", ("what", "recorded", "now"), changed))
    if result.cause:
        tried = [(c.factor, c.recorded, c.tried, c.effect) for c in result.causes]
        console.print(table("What was tried", ("factor", "recorded", "tried", "effect"), tried))
        console.print(f"Cause: {result.cause}", markup=False)
    where = f"{result.bucket} rows, first slot {result.slot}"
    console.print(pairs("", [("bucket", where), ("report", replayed.path), ("page", replayed.page)]))
