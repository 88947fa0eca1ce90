"""``pellucid answer``: the regulator's four answers about a call, and its story."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, table

if TYPE_CHECKING:
    from rich.console import Console


@click.command("answer")
@click.argument("call")
@site_option
@json_option
def command(call: str, site_path: Path | None, as_json: bool) -> None:
    """Answer for CALL: image digest, precision, calibration, signature; and who did what, when."""
    from pellucid.app.evidence import answer
    from pellucid.app.site import open_site

    answered = answer(open_site(site_path), call)
    emit(answered, lambda console: _render(console, answered), as_json=as_json)


def _render(console: Console, answered: dict[str, Any]) -> None:
    from pellucid.evidence.report_html import answer_rows

    console.print(
        f"Call {answered['call']}, entry {answered['index']:,}: {answered['outcome']}", markup=False
    )
    if answered["four"] is None:
        console.print("It never reached a package, so there is nothing to answer for.", markup=False)
    else:
        console.print(pairs("The regulator's four", answer_rows(answered["four"])))
    told = [(f"{s['index']:,}", s["time"], s["text"]) for s in answered["story"]]
    console.print(table("What happened", ("entry", "time", "what"), told))
