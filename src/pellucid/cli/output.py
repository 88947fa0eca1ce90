"""What every verb shares: ``--site``, ``--json``, and one way to print for people or machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Function = TypeVar("Function", bound=Callable[..., Any])


def site_option(function: Function) -> Function:
    """Adds ``--site DIR`` as ``site_path``."""
    return click.option(
        "--site",
        "site_path",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Site folder (default: $PELLUCID_SITE, or the nearest parent with pellucid.toml).",
    )(function)


def json_option(function: Function) -> Function:
    """Adds ``--json`` as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(function)


def console(*, err: bool = False) -> Console:
    """A console that is plain when piped and never wraps words away."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            """The reader left: the one place that ends the process decides."""
            raise BrokenPipeError

    stream = sys.stderr if err else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else int(columns) if columns.isdecimal() and columns != "0" else 100
    return Quiet(file=stream, highlight=False, soft_wrap=False, width=width)


@contextmanager
def working(doing: str, *, as_json: bool) -> Iterator[None]:
    """Says on a terminal's standard error what takes a while, and that it goes on."""
    if as_json or not sys.stderr.isatty():
        yield
        return
    with console(err=True).status(doing):
        yield


def emit(value: Any, render: Callable[[Console], None], *, as_json: bool) -> None:
    """Print ``value`` as JSON, or let ``render`` draw it for people."""
    if as_json:
        click.echo(json.dumps(value, ensure_ascii=False, indent=None, default=str))
        return
    render(console())


def table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]], *, whole: Collection[str] = ()
) -> Table:
    """A calm table: no borders inside, cells as plain text (markup in data stays text).

    Args:
        whole: Columns that are never broken over lines.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = list(columns)
    built = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in columns:
        built.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in rows:
        built.add_row(*[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row])
    return built


def pairs(title: str, rows: Iterable[tuple[str, Any]]) -> RenderableType:
    """Names and values, one a line; a full digest beside a long name fits into 96 columns."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    built = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 3, 0, 0),
        show_header=False,
    )  # fmt: skip
    for _ in range(2):
        built.add_column(overflow="fold")
    for name, value in rows:
        built.add_row(
            Text(name), value if isinstance(value, Text) else Text("-" if value is None else str(value))
        )
    return Padding(built, (0, 0, 1, 0))


def show_next(console: Console, words: Iterable[str | Path], site_path: Path | None) -> None:
    """The command that usually follows, in one line that can be pasted as it stands."""
    import shlex

    site = ("--site", site_path) if site_path is not None else ()
    line = shlex.join(str(word) for word in ("pellucid", *words, *site))
    console.print(f"Next: {line}", markup=False, soft_wrap=True)
