"""What a label is made of, before it has a form: sections of rows, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

NOT_MEASURED: Final = "not measured"
ROWS_MAX: Final = 150  # limit: rows of one table; the documents hold the rest
PLOTTED_MAX: Final = 40  # limit: rows of one plot


class Command(str):
    """A value that is pasted as it stands, into a shell; words of ours only, never of a model."""

    __slots__ = ()


class Table(msgspec.Struct, frozen=True):
    """Rows under named columns.

    Attributes:
        numeric: Positions of columns that hold numbers.
        rest: What the table leaves out and where it stands; ``""`` when it is whole.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    rest: str = ""


class Figure(msgspec.Struct, frozen=True):
    """An SVG element made here, never one from outside; what it shows stands in a table as well."""

    svg: str
    caption: str
    wide: bool = False


class Section(msgspec.Struct, frozen=True):
    """A heading and what stands under it.

    Attributes:
        rows: Pairs of name and value.
        tone: ``glance`` (the summary at the top), ``warning``, ``calm`` (warnings, none), or ``""``.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    lead: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    tone: str = ""


def cut(rows: Sequence[Any], where: str, limit: int = ROWS_MAX) -> tuple[Sequence[Any], str]:
    """At most ``limit`` rows, and words for the rest."""
    more = len(rows) - limit
    return rows[:limit], f"{more:,} more: {where}" if more > 0 else ""


def size(count: int | None) -> str:
    if count is None:
        return "not said"
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count:,} bytes"


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def decimal_of(value: Any) -> float | None:
    """A decimal as text, or nothing where it is absent or no finite number."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return float(number) if value is not None and number.is_finite() else None


def figure(value: Any) -> str:
    """A measured number with four significant digits; ``not measured`` where there is none."""
    if value is None:
        return NOT_MEASURED
    number = decimal_of(value)
    if number is None:
        return str(value)
    if number == int(number) and abs(number) < 10**6:
        return f"{int(number):,}"
    return f"{number:.4g}"


def closeness(value: Any) -> str:
    """A similarity whole: rounded, nearly one would read as one."""
    return NOT_MEASURED if value is None else str(value)


def percent(value: Any) -> str:
    """A share as percent, ``not measured`` where there is none."""
    number = decimal_of(value)
    if number is None:
        return NOT_MEASURED if value is None else str(value)
    text = f"{number * 100:.3g}"
    return f"{text if text != '100' or number == 1 else f'{number * 100:.8g}'} %"


def listed(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Mappings under a key; nothing where the document has another shape."""
    value = document.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def told(item: Mapping[str, Any], *keys: str) -> str:
    """The first of these keys that is there, as text; ``not told`` where none is."""
    return next((str(item[key]) for key in keys if item.get(key) not in (None, "")), "not told")


def group(item: Mapping[str, Any]) -> str:
    """Name and value of a slice."""
    return f"{told(item, 'slice')}: {told(item, 'value')}"


def in_words(value: Any, *, inside: bool = False) -> str:
    """A small document in one line, whatever its shape."""
    if isinstance(value, Mapping):
        parts = [f"{str(k).replace('_', ' ')}{' ' if inside else ': '}{in_words(v, inside=True)}"
                 for k, v in value.items() if v not in (None, "", [])]  # fmt: skip
        return f"({', '.join(parts)})" if inside else "; ".join(parts)
    if isinstance(value, list | tuple):
        text = ", ".join(in_words(item, inside=True) for item in value[:12])
        return text + (f" and {len(value) - 12} more" if len(value) > 12 else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
