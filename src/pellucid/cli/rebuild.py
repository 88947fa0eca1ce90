"""``pellucid rebuild PACKAGE``: the engine again, from its package alone, and whether it is the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.diff import values_of
from pellucid.cli.output import emit, json_option, pairs, site_option, table, working

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.rebuild import Outcome

DIFFERENT_EXIT = 3  # as other evidence that does not hold
_SHOWN_MAX = 20  # limit: differences on a screen; --json has them all


@click.command("rebuild")
@click.argument("package")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="New folder for the rebuilt engine, its log and what differs.")  # fmt: skip
@site_option
@json_option
def command(package: str, keep: Path | None, site_path: Path | None, *, as_json: bool) -> int:
    """Build the engine of PACKAGE again, from the package alone, and compare.

    PACKAGE is an archive, a folder, NAME:VERSION or a package digest; it is verified before anything
    runs. Needed are the recorded libraries, and no file of the recipe's folder.

    Exit 0 same bytes, or same layers where the environment explains other bytes; 3 different.
    """
    from pellucid.app.rebuild import rebuild
    from pellucid.app.site import open_site
    from pellucid.build.rebuild import DIFFERENT

    site = open_site(site_path)
    with working("building it again", as_json=as_json):
        outcome = rebuild(site, package, keep)
    emit(_value(outcome, keep), lambda console: _render(console, outcome, keep), as_json=as_json)
    return DIFFERENT_EXIT if outcome.rebuilt.outcome == DIFFERENT else 0


def _value(outcome: Outcome, keep: Path | None) -> dict[str, Any]:
    rebuilt = outcome.rebuilt
    return {
        "outcome": rebuilt.outcome, "package": outcome.package.digest, "folder": outcome.package.folder,
        "engine": rebuilt.recorded, "rebuilt": rebuilt.digest, "bytes": rebuilt.bytes_differ or None,
        "fingerprint": rebuilt.facts.get("fingerprint"),
        "recorded_fingerprint": outcome.package.facts.get("fingerprint"), "why": rebuilt.why,
        "missing_measures": rebuilt.missing, "install": rebuilt.install or None,
        "differences": [difference.record() for difference in rebuilt.comparison.differences],
        "kept": str(keep) if keep is not None else None, "entry": outcome.entry,
    }  # fmt: skip


def _render(console: Console, outcome: Outcome, keep: Path | None) -> None:
    from rich.text import Text

    from pellucid.build.rebuild import DIFFERENT

    rebuilt = outcome.rebuilt
    style = "bold red" if rebuilt.outcome == DIFFERENT else "green"
    console.print(Text(f"{outcome.package.folder}: {rebuilt.outcome}", style))
    rows: list[tuple[str, Any]] = [("recorded", rebuilt.recorded), ("rebuilt", rebuilt.digest)]
    if rebuilt.bytes_differ:
        rows.append(("bytes", rebuilt.bytes_differ))
    rows += [("why", words) for words in rebuilt.why]
    rows += [("hermetic", words) for words in rebuilt.missing if words not in rebuilt.why]
    if rebuilt.install:
        rows.append(("as it was", rebuilt.install))
    if keep is not None:
        rows.append(("kept in", keep))
    console.print(pairs("", [*rows, ("ledger entry", outcome.entry)]))
    shown = rebuilt.comparison.differences[:_SHOWN_MAX]
    if shown:
        listed = [(d.section, d.subject, *values_of(d.subject, d.a, d.b)) for d in shown]
        console.print(table("Package (A) and rebuild (B)", ("section", "what", "A", "B"), listed))
