"""``pellucid preflight MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, pairs, table, working

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from pellucid.build.preflight_child import Foreseen

STYLES = {"refused": "bold red", "risk": "yellow", "note": "dim"}


@click.command("preflight")
@click.argument("model", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--recipe", type=click.Path(path_type=Path, dir_okay=False), help="Judge by this recipe.")
@click.option("--backend", metavar="NAME", help="Judge by a default recipe of this backend.")
@click.option("--target", metavar="TARGET", help="GPU architecture (default: cpu, or sm89).")
@json_option
def command(
    model: Path, recipe: Path | None, backend: str | None, target: str | None, *, as_json: bool
) -> int:
    """Say all that would stand in the way of a build of MODEL, before anything is built.

    Without --recipe and --backend every installed backend is asked that needs no GPU. Exit code 0
    when one of those asked would take the model, 5 when none would.
    """
    from msgspec.structs import asdict

    from pellucid.app import preflight as app

    with working("reading the model", as_json=as_json):
        checks = app.preflight(model, recipe, backend, target)
    buildable = any(check.buildable for check in checks)
    value: dict[str, Any] = {
        "model": str(model), "buildable": buildable,
        "checks": [
            {
                "backend": check.backend, "target": check.target, "buildable": check.buildable,
                "findings": [asdict(finding) for finding in check.findings], "facts": check.facts,
            }
            for check in checks
        ],
    }  # fmt: skip
    emit(value, lambda out: _draw(out, model, checks), as_json=as_json)
    return 0 if buildable else 5


def _draw(out: Console, model: Path, checks: list[Foreseen]) -> None:
    facts = next((check.facts for check in checks if check.facts), {})
    rows: list[tuple[str, Any]] = [("digest", facts.get("digest")), ("bytes", f"{facts.get('bytes', 0):,}")]
    if "nodes" in facts:
        rows += [
            ("nodes", f"{facts['nodes']:,}, operator set {facts['operator_set']}"),
            *[(f"{kind[:-1]}", _spec(spec)) for kind in ("inputs", "outputs") for spec in facts[kind][:8]],
        ]
    out.print(pairs(model.name, rows))
    for check in checks:
        verdict = "would take it" if check.buildable else "would refuse it"
        title = f"{check.backend}, {check.target}: {verdict}"
        if not check.findings:
            out.print(f"{title}; nothing found\n", markup=False)
            continue
        columns = ["", "where", "what", "fix"]
        cells = [[_severity(f.severity), f.where, f.what, f.fix] for f in check.findings]
        out.print(table(title, columns, cells, whole=[""]))


def _spec(spec: dict[str, Any]) -> str:
    return f"{spec['name']} {spec['datatype']} [{', '.join(map(str, spec['shape']))}]"


def _severity(severity: str) -> Text:
    from rich.text import Text

    return Text(severity, style=STYLES[severity])
