"""What every verb shares: ``--site``, ``--json``, and one way to print for people or machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

_GAP = 3  # columns between a name and its value
_INDENT = 2  # of a value below its name: the longest digest, hmac-sha256, still fits into 80 columns
_WIDE = 10_000  # columns: more than any table needs
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
    """Names and values, one a line; a digest too long for its column has a line of its own, unbroken."""
    return _Pairs(title, list(rows))


class _Pairs:
    def __init__(self, title: str, rows: list[tuple[str, Any]]) -> None:
        self._title = title
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if self._title:
            yield Text(self._title, "table.title")
        named = [(Text(name), _cell(value)) for name, value in self._rows]
        width = max((name.cell_len for name, _ in named), default=0)
        room = options.max_width - width - _GAP
        own = [" " not in value.plain and value.cell_len > room for _, value in named]
        for is_own, run in groupby(zip(named, own, strict=True), key=itemgetter(1)):
            if is_own:
                for (name, value), _ in run:
                    yield name
                    yield Padding(value, (0, 0, 0, _INDENT), expand=False)
                continue
            built = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=False)
            built.add_column(overflow="fold", min_width=min(width, options.max_width // 2))
            built.add_column(overflow="fold")
            for row, _ in run:
                built.add_row(*row)
            yield built
        yield Text("")


def _cell(value: Any) -> Text:
    from rich.text import Text

    return value if isinstance(value, Text) else Text("-" if value is None else str(value), overflow="fold")


def width_of(console: Console, built: Table) -> int:
    """Columns that a table would take if nothing in it were broken over lines."""
    return console.measure(built, options=console.options.update_width(_WIDE)).maximum


def show_next(console: Console, words: Iterable[str | Path], site_path: Path | None) -> None:
    """The command that usually follows, in one line that can be pasted as it stands."""
    import shlex

    site = ("--site", site_path) if site_path is not None else ()
    line = shlex.join(str(word) for word in ("pellucid", *words, *site))
    console.print(f"Next: {line}", markup=False, soft_wrap=True)
