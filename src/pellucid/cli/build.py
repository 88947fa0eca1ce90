"""``pellucid build RECIPE``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pellucid.cli.output import console, emit, json_option, pairs, show_next, site_option
from pellucid.core.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.site import Site

PHASES = {
    "prepare": "checking the model",
    "precision": "giving it its precision",
    "load": "loading the builder",
    "judge": "measuring what the graph lost",
    "accuracy": "measuring what the graph lost",
    "build": "building the engine",
    "write": "writing the engine",
    "facts": "reading what became of the graph",
    "end": "closing the log",
    "golden": "recording golden outputs",
}
_STEP: Final = re.compile(r"build: (?P<name>.*), (?P<done>\d+) of (?P<total>\d+)", re.DOTALL)


@click.command("build")
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@site_option
@json_option
def command(recipe: Path, site_path: Path | None, *, as_json: bool) -> None:
    """Build an engine from RECIPE into a package folder of the site, with its whole log.

    The engine is built in a fresh process without network. Nothing is signed yet: see `pellucid sign`.
    """
    from pellucid.app import build as app

    with _told(as_json=as_json) as progress:
        outcome = app.build(lambda: _opened(site_path), recipe, progress)
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
        ("layers", _layers(facts)),
        *_measured(outcome.folder),
        ("ledger entry", outcome.entry),
        *[("note", note) for note in facts["notes"]],
        ("label", outcome.folder / "label.html"),
    ]

    def render(out: Console) -> None:
        out.print(pairs(f"built {outcome.name} {outcome.version}", rows))
        show_next(out, ("sign", outcome.folder), site_path)

    emit(value, render, as_json=as_json)


def _opened(site_path: Path | None) -> Site:
    from pellucid.app.site import open_site

    return open_site(site_path)


def _layers(facts: dict[str, Any]) -> str:
    if facts.get("layers_reason"):
        return f"not known: {facts['layers_reason']}"
    operators, layers = counted(len(facts["nodes"]), "operator"), counted(len(facts["layers"]), "layer")
    inner = facts.get("inner_nodes")
    more = f"; {counted(inner, 'operator')} inside branches and loops are not told apart" if inner else ""
    return f"{operators} became {layers}, {facts['fused_layers']} fused{more}"


def _measured(folder: Path) -> list[tuple[str, str]]:
    """What the build measured of the graph's accuracy, in a line."""
    try:
        found = json.loads((folder / "accuracy.json").read_bytes())
    except FileNotFoundError:
        return []
    words = [f"{found['samples']:,} rows within the gate"]
    for key, name in (("top1", "top-1"), ("kl_mean", "KL mean"), ("psnr_db", "PSNR dB"), ("flips", "flips")):
        if found.get(key) is not None:
            words.append(f"{name} {found[key]}")
    return [("accuracy", ", ".join(words)), ("measured on", found["measured_on"])]


@contextmanager
def _told(*, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Tells the phases of a build on a terminal's standard error, and the builder's own steps as a bar."""
    if as_json or not sys.stderr.isatty():
        yield lambda phase: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def tell(phase: str) -> None:
            step = _STEP.fullmatch(phase)
            if step is None:
                bar.update(task, description=PHASES.get(phase, phase), total=None)
            else:
                done, total = int(step["done"]), int(step["total"])
                bar.update(task, description=f"building: {step['name']}", completed=done, total=total)

        yield tell
