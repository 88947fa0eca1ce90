"""The label as one HTML file: no script, nothing loaded, readable in light, dark, small and printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pellucid.build.drawing_text import escape
from pellucid.build.label.content import Figure, Section, Table, counted

_LONG = 1.9  # height by width: smaller than two thirds, letters on paper could not be read
_OPEN_MAX = 12  # rows of a table that stands open; a longer one unfolds on request, and in print


@cache
def _style() -> str:
    return Path(__file__).with_name("label.css").read_text()


def page(title: str, parts: Sequence[Section]) -> bytes:
    """The label as one HTML file."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}: label</title><style>{_style()}</style>"
    )
    body = [f'<header><p class="kind">Engine label</p><h1>{escape(title)}</h1></header>']
    number = 0
    for part in parts:
        number += part.tone != "glance"
        body.append(_section(part, number))
    inner = f"<main>{''.join(body)}</main>"
    whole = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{inner}</body></html>\n'
    return whole.encode()


def _section(part: Section, number: int) -> str:
    if part.tone == "glance":
        tiles = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in part.rows)
        return f'<section aria-label="{escape(part.title)}"><dl class="tiles">{tiles}</dl></section>'
    anchor = f"part-{number}"
    heading = f'<h2 id="{anchor}"><span class="no">{number}</span> {escape(part.title)}</h2>'
    lead = f'<p class="lead">{escape(part.lead)}</p>' if part.lead else ""
    inner = _rows(part) + "".join(map(_figure, part.figures)) + "".join(map(_table, part.tables))
    tone = f' class="{part.tone}"' if part.tone else ""
    return f'<section{tone} aria-labelledby="{anchor}">{heading}{lead}{inner}</section>'


def _rows(part: Section) -> str:
    if part.tone == "calm":
        return ""
    rows = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in part.rows)
    return f'<dl class="rows">{rows}</dl>' if rows else ""


def _figure(figure: Figure) -> str:
    kind = f' class="{_shape(figure.svg)}"' if figure.wide else ""
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
    return (
        f'<figure{kind}>{caption}<div class="scroll" role="group" tabindex="0" '
        f'aria-label="{escape(figure.caption[:80])}">{figure.svg}</div></figure>'
    )


def _shape(svg: str) -> str:
    """``page``: it fits a printed page when made a little smaller; ``long``: it runs over several."""
    box = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', svg)
    return "long" if box and float(box[2]) > _LONG * float(box[1]) else "page"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_number(at, table)}>{escape(text)}</th>' for at, text in enumerate(table.head)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_number(at, table)}>{escape(cell)}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in table.rows
    )
    caption = f"{table.caption}. {table.rest}" if table.rest else table.caption
    folded = len(table.rows) > _OPEN_MAX
    shown = "" if folded else f"<caption>{escape(caption)}</caption>"
    inner = (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{escape(table.caption)}">'
        f"<table>{shown}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    if not folded:
        return inner
    return (
        f"<details><summary>{escape(caption)} ({counted(len(table.rows), 'row')})</summary>{inner}</details>"
    )


def _number(at: int, table: Table) -> str:
    return ' class="num"' if at in table.numeric else ""
