"""``pellucid diff A B``: what differs between two builds, what matters most first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pellucid.cli.output import emit, json_option, site_option, table

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.app.compare import Compared
    from pellucid.core.package_diff import Comparison
    from pellucid.core.package_diff_layers import Difference

_SHOWN_MAX = 20  # limit: rows of one section on a screen; --json has them all


@click.command("diff")
@click.argument("a")
@click.argument("b")
@click.option("--logs", "are_logs", is_flag=True,
              help="A and B are build logs (JSON lines: severity, message), not packages.")  # fmt: skip
@click.option("--trust", "trust_path", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Folder with the keys to believe (default: the site's).")  # fmt: skip
@site_option
@json_option
def command(
    a: str, b: str, trust_path: Path | None, site_path: Path | None, *, are_logs: bool, as_json: bool
) -> None:
    """Compare two packages: archive, folder, NAME:VERSION or package digest.

    The first line names the most consequential difference and its likely reason, or says that the
    reason is not in the logs. Signed packages are verified first. Exit 0 whether or not they differ.
    """
    compared = _logs(a, b) if are_logs else _packages(a, b, trust_path, site_path)
    emit(_value(compared), lambda console: _render(console, compared), as_json=as_json)


def _logs(a: str, b: str) -> Compared:
    from pellucid.app.compare import compare_logs

    return compare_logs(Path(a), Path(b))


def _packages(a: str, b: str, trust_path: Path | None, site_path: Path | None) -> Compared:
    from pellucid.app.compare import compare_packages
    from pellucid.app.site import open_site, read_trust

    site = open_site(site_path) if trust_path is None or site_path is not None else None
    if trust_path is not None:
        return compare_packages(site, read_trust(trust_path), a, b)
    assert site is not None
    return compare_packages(site, site.trust(), a, b)


def _value(compared: Compared) -> dict[str, Any]:
    sides = {
        name: {"title": side.title, "trust": how, **side.digests, "fingerprint": side.fingerprint}
        for name, side, how in zip("ab", (compared.a, compared.b), compared.trust, strict=True)
    }
    found = compared.comparison
    return {
        "first": found.first, **sides, "notes": list(compared.notes),
        "differences": [difference.record() for difference in found.differences],
        "same": list(found.same), "not_compared": dict(found.not_compared),
        "backends": found.builders.record() if found.builders else None,
    }  # fmt: skip


def _render(console: Console, compared: Compared) -> None:
    from rich.text import Text

    found = compared.comparison
    console.print(Text(found.first, "bold"), soft_wrap=True)
    for name, side, how in zip("AB", (compared.a, compared.b), compared.trust, strict=True):
        console.print(f"{name}: {side.title} ({how})", markup=False)
    for note in compared.notes:
        console.print(f"note: {note}", markup=False)
    if found.builders:
        console.print(table("Builders", ("what", "A", "B"), found.builders.rows))
        console.print(f"note: {found.builders.options_in_words}; --json lists them all", markup=False)
    elif found.causes and found.causes not in found.first:
        console.print(f"What went in differs: {found.causes}.", markup=False)
    for section in dict.fromkeys(difference.section for difference in found.differences):
        _section(console, section, found)
    if found.same:
        console.print(f"Same in both: {', '.join(found.same)}.", markup=False)
    for section, why in found.not_compared.items():
        console.print(f"Not compared: {section}: {why}.", markup=False)


def _section(console: Console, section: str, found: Comparison) -> None:
    """One table; of two backends without what is told of them above, and without reasons: they are it."""
    listed = [d for d in found.differences if d.section == section and not _is_told(d, found)]
    both = [d for d in listed if found.builders is None or (d.a and d.b)]
    columns = ("what", "A", "B", "reason")[: 3 if found.builders else 4]
    rows = [
        (d.subject, *values_of(d.subject, d.a, d.b), _reason(d, found))[: len(columns)]
        for d in both[:_SHOWN_MAX]
    ]
    if rows:
        console.print(table(section.capitalize(), columns, rows))
    if len(both) > len(rows):
        console.print(f"... and {len(both) - len(rows)} more: --json lists them all")
    if len(listed) > len(both):
        console.print(
            f"{section.capitalize()} that one side alone says: {len(listed) - len(both)}; see --json"
        )


def values_of(subject: str, *values: str) -> tuple[str, ...]:
    """The two values on a screen: a dash for none, counts of bytes with separators."""
    is_size = subject.endswith("_bytes")
    return tuple(f"{int(value):,}" if is_size and value.isdecimal() else value or "-" for value in values)


def _is_told(difference: Difference, found: Comparison) -> bool:
    """Whether the table of builders, or the sentence below it, says it."""
    if found.builders is None:
        return False
    from pellucid.core.package_diff import is_option

    return is_option(difference) or difference.subject in found.builders.told


def _reason(difference: Difference, found: Comparison) -> str:
    """Without what went into the two builds: that is said once, above."""
    from pellucid.core.package_diff import WENT_IN

    return difference.reason.removesuffix(WENT_IN + found.causes) or "-"
