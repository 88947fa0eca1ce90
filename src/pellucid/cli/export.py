"""``pellucid export``: an evidence bundle that a stranger can check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, site_option, working

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.evidence import Exported

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("export")
@click.argument("call", required=False)
@click.option("--from", "since", default=None, help="Export a period: its first moment (RFC 3339, UTC).")
@click.option("--to", "until", default=None, help="Export a period: its last moment (RFC 3339, UTC).")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("bundle.zip"),
              show_default=True, help="File to write; nothing existing is replaced.")  # fmt: skip
@click.option("--seen", type=_FILE, default=None,
              help="Checkpoint the recipient saw before; the bundle then proves to continue it.")  # fmt: skip
@click.option("--input", "input_path", type=_FILE, default=None,
              help="Original input of the call, to be shown to match.")  # fmt: skip
@click.option("--narrow", "is_narrow", is_flag=True,
              help="A period without the rest of the epochs that cross its edges.")  # fmt: skip
@click.option("--reason", default="", help="Why it is exported; stands in the ledger.")
@site_option
@json_option
def command(
    call: str | None,
    since: str | None,
    until: str | None,
    out: Path,
    seen: Path | None,
    input_path: Path | None,
    is_narrow: bool,
    reason: str,
    site_path: Path | None,
    as_json: bool,
) -> None:
    """Write the evidence bundle of CALL, or of a period with --from and --to."""
    from pellucid.app.evidence import export, export_time
    from pellucid.app.site import open_site
    from pellucid.core.times import parse_time
    from pellucid.errors import UsageError

    period = [name for name, value in (("--from", since), ("--to", until)) if value is not None]
    if len(period) != (2 if call is None else 0):
        got = " and ".join(([] if call is None else ["a call"]) + period) or "neither"
        raise UsageError(f"export: expected a call, or --from and --to, got {got}")
    site, before = open_site(site_path), seen.read_bytes() if seen is not None else None
    with working("gathering proofs, and checking the bundle as its reader will", as_json=as_json):
        if call is not None:
            original = input_path.read_bytes() if input_path is not None else None
            exported = export(site, call, out, reason=reason, seen=before, original=original)
        else:
            first, last = parse_time(since or ""), parse_time(until or "")
            exported = export_time(site, first, last, out, reason=reason, seen=before, is_narrow=is_narrow)
    emit(_value(exported), lambda console: _render(console, exported), as_json=as_json)


def _value(exported: Exported) -> dict[str, Any]:
    return {
        "path": str(exported.path),
        "digest": exported.digest,
        "entries": exported.entries,
        "entry_key": exported.entry,
    }


def _render(console: Console, exported: Exported) -> None:
    rows = [("bundle", exported.path), ("digest", exported.digest), ("entries", exported.entries)]
    console.print(pairs("Exported", rows))
    console.print("Anyone can check it with Python alone, with keys they got on another way:", markup=False)
    console.print(f"  python3 -I verify.py {exported.path} --trust DIR", markup=False)
