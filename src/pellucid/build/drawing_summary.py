"""A half that is too large to draw, as operators with their counts and precisions."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from pellucid.build.drawing_cells import Half

OPERATORS_MAX: Final = 24  # lines of the table; the rest is one line


class Line(msgspec.Struct, frozen=True):
    """One operator: how often, of which precisions, how many were removed."""

    op: str
    count: int
    precisions: tuple[tuple[str, int], ...]
    gone: int


class Summary(msgspec.Struct, frozen=True):
    lines: tuple[Line, ...]
    most: int


def summary_of(half: Half) -> Summary:
    """Operators of a half, the most frequent first."""
    rows = [row for cell in half.cells if cell.kind in ("node", "layer") for row in cell.rows]
    counts = Counter(row.op for row in rows)
    order = sorted(counts, key=lambda op: (-counts[op], op))
    shown, rest = order[:OPERATORS_MAX], set(order[OPERATORS_MAX:])
    lines = []
    for op in shown:
        mine = [row for row in rows if row.op == op]
        kinds = Counter(row.precision for row in mine if not row.gone)
        lines.append(Line(op, len(mine), tuple(sorted(kinds.items())), sum(row.gone for row in mine)))
    if rest:
        mine = [row for row in rows if row.op in rest]
        kinds = Counter(row.precision for row in mine if not row.gone)
        name = f"{len(rest)} further operators"
        lines.append(Line(name, len(mine), tuple(sorted(kinds.items())), sum(row.gone for row in mine)))
    return Summary(tuple(lines), max((line.count for line in lines), default=1))
