"""``pellucid build RECIPE``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pellucid.cli.output import console, emit, json_option, pairs, site_option

PHASES = {
    "prepare": "checking the model",
    "precision": "giving it its precision",
    "load": "loading the builder",
    "judge": "measuring what the graph lost",
    "accuracy": "measuring what the graph lost",
    "build": "building the engine",
    "write": "writing the engine",
    "end": "closing the log",
    "golden": "recording golden outputs",
}


@click.command("build")
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@site_option
@json_option
def command(recipe: Path, site_path: Path | None, *, as_json: bool) -> None:
    """Build an engine from RECIPE into a package folder of the site, with its whole log.

    The engine is built in a fresh process without network. Nothing is signed yet: see `pellucid sign`.
    """
    from pellucid.app import build as app
    from pellucid.app.site import open_site

    site = open_site(site_path)
    if as_json:
        outcome = app.build(site, recipe)
    else:
        with console(err=True).status("starting") as status:
            outcome = app.build(site, recipe, lambda phase: status.update(PHASES.get(phase, phase)))
    facts = outcome.facts
    value: dict[str, Any] = {
        "name": outcome.name,
        "version": outcome.version,
        "folder": str(outcome.folder),
        "package": outcome.package,
        "engine": outcome.engine,
        "log": outcome.log,
        "entry": outcome.entry,
        "layers": len(facts["layers"]),
        "fused_layers": facts["fused_layers"],
        "warnings": sum(warning["count"] for warning in facts["warnings"]),
        "notes": facts["notes"],
    }
    rows = [
        ("package", outcome.folder.name),
        ("folder", outcome.folder),
        ("package digest", outcome.package),
        ("engine", outcome.engine),
        ("build log", f"{outcome.log} ({facts['log']['messages']:,} messages)"),
        (
            "layers",
            f"{len(facts['nodes'])} operations became {len(facts['layers'])}, {facts['fused_layers']} fused",
        ),
        ("ledger entry", outcome.entry),
        *[("note", note) for note in facts["notes"]],
        ("next", f"pellucid sign {outcome.folder}"),
    ]
    emit(
        value, lambda out: out.print(pairs(f"built {outcome.name} {outcome.version}", rows)), as_json=as_json
    )
