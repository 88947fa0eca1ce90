"""``pellucid demo``: the whole chain, in a checkout that holds ``examples/``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from pellucid.errors import NotFoundError


@click.command("demo", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--folder DIR]")
def command(arguments: tuple[str, ...]) -> None:
    """Walk the whole chain on real data: build, qualify, serve, record, replay, prove, tamper.

    Makes a site in DIR (default .demo), and leaves everything there to look at.
    """
    script = _script()
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def _script() -> Path:
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        if (folder / "examples" / "demo.py").is_file():
            return folder / "examples" / "demo.py"
    raise NotFoundError(
        "demo: expected examples/demo.py, got none here", hint="run it from a checkout of the project"
    )
