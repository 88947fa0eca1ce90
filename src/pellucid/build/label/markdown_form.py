"""The label as Markdown: the same content as the HTML, without drawings and plots."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pellucid.build.drawing_text import seen
from pellucid.build.label.content import Command, Section, Table


def markdown(title: str, parts: Sequence[Section]) -> bytes:
    """The label as Markdown."""
    lines = [f"# {_inline(title)}", ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        if part.lead:
            lines += [_inline(part.lead), ""]
        lines += ["| | |", "|---|---|"]
        lines += [f"| {_inline(name)} | {_value(value)} |" for name, value in part.rows]
        lines.append("")
        for table in part.tables:
            lines += _table(table)
    return "\n".join(lines).encode()


def _table(table: Table) -> list[str]:
    marks = ["---:" if at in table.numeric else "---" for at in range(len(table.head))]
    lines = [f"**{_inline(table.caption)}**", "", f"| {' | '.join(table.head)} |", f"|{'|'.join(marks)}|"]
    lines += [f"| {' | '.join(_inline(cell) for cell in row)} |" for row in table.rows]
    return [*lines, "", *([_inline(table.rest), ""] if table.rest else [])]


def _value(text: str) -> str:
    return f"`{text}`" if isinstance(text, Command) else _inline(text)


def _inline(text: str) -> str:
    """One line of plain text: nothing in it can become structure."""
    flat = " ".join(re.sub(r"[\x00-\x1f\x7f\u0080-\u009f\u2028\u2029]", " ", text).split())
    return re.sub(r"([\\`*\[\]<>|#!~&])", r"\\\1", seen(flat))
