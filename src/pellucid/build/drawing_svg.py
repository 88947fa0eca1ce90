"""Boxes, lines, tags and the legend of a drawing as SVG text; nothing is loaded, every name is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from pellucid.build.drawing_cells import ROWS_MAX, Cell, Half, Row
from pellucid.build.drawing_layout import Layout
from pellucid.build.drawing_style import CSS, KINDS, kind_of
from pellucid.build.drawing_summary import Summary
from pellucid.build.drawing_text import escape, fit, number, width_of

Part = list[str]


class Style(msgspec.Struct, frozen=True):
    """Sizes of boxes and letters.

    Attributes:
        named: Boxes show names beside operators.
        pad: Between a fused box's outline and its rows; lines between rows bend there.
    """

    css: str
    width: float
    row: float
    step: float
    pad: float
    gap: float
    size: float
    chip: float
    named: bool


FULL: Final = Style("", 212.0, 23.0, 7.0, 9.0, 20.0, 11.5, 34.0, True)
DENSE: Final = Style(" dense", 140.0, 16.0, 4.0, 5.0, 12.0, 9.5, 16.0, False)
NARROW: Final = replace(DENSE, width=104.0)
_SHORT: Final = (
    ("BatchNormalization", "BN"), ("Normalization", "Norm"), ("Average", "Avg"), ("Global", "Gl"),
    ("Quantize", "Quant"), ("Linear", ""),
)  # fmt: skip
_HEAD: Final = 46.0
_MARGIN: Final = 8.0
_NARROWEST: Final = 620.0  # room for the legend


def size_of(cell: Cell, style: Style) -> tuple[float, float]:
    """Width and height of a box."""
    if cell.kind == "join":
        return 8.0, 8.0
    rows = min(len(cell.rows), ROWS_MAX)
    pad = style.pad * 2 if len(cell.rows) > 1 else 0.0
    return style.width, rows * style.row + (rows - 1) * style.step + pad


def _row_top(cell: Cell, row: int, style: Style) -> float:
    shown = min(row, ROWS_MAX - 1)
    return (style.pad if len(cell.rows) > 1 else 0.0) + shown * (style.row + style.step)


def half(drawn: Half, placed: Layout, sizes: Sequence[tuple[float, float]], style: Style) -> Part:
    """Lines first, so that boxes lie over them."""
    letters = _letters(placed.tagged)
    out: Part = []
    for a, row, b, to in drawn.edges:
        if (a, b) in placed.routes:
            out.append(_line(drawn, placed, sizes, style, (a, row, b, to)))
    for at, cell in enumerate(drawn.cells):
        out += _box(cell, placed.x[at], placed.y[at], sizes[at], style)
    return out + _tags(placed, sizes, letters)


# -- lines ----------------------------------------------------------------------------------------


def _line(
    drawn: Half,
    placed: Layout,
    sizes: Sequence[tuple[float, float]],
    style: Style,
    edge: tuple[int, int, int, int],
) -> str:
    """From a box's bottom to another's top; a row inside a fused box is left and met at its side."""
    a, row, b, to = edge
    route = placed.routes[a, b]
    ahead = route[0][0] if route else placed.x[b] + sizes[b][0] / 2
    behind = route[-1][0] if route else placed.x[a] + sizes[a][0] / 2
    points, start = _leave(drawn.cells[a], row, (placed.x[a], placed.y[a]), sizes[a], style, ahead)
    path = [start]
    for x, top, bottom in route:
        path += [_bend(points, (x, top)), f"V{number(bottom)}"]
        points = (x, bottom)
    enter, finish = _meet(drawn.cells[b], to, (placed.x[b], placed.y[b]), sizes[b], style, behind)
    return f'<path class="l" d="{"".join(path)}{_bend(points, enter)}{finish}"/>'


def _bend(start: tuple[float, float], end: tuple[float, float]) -> str:
    if abs(start[0] - end[0]) < 0.5:
        return f"V{number(end[1])}"
    middle = (start[1] + end[1]) / 2
    a, m, b = number(start[0]), number(middle), number(end[0])
    return f"C{a} {m} {b} {m} {b} {number(end[1])}"


def _side(x: float, width: float, other: float) -> tuple[float, float]:
    """The side of a box that looks to ``other``: its edge, and the lane beside it."""
    return (x, x - 8) if other < x + width / 2 - 1 else (x + width, x + width + 8)


def _leave(
    cell: Cell, row: int, at: tuple[float, float], size: tuple[float, float], style: Style, other: float
) -> tuple[tuple[float, float], str]:
    x, y = at
    bottom = y + size[1]
    if row >= min(len(cell.rows), ROWS_MAX) - 1:
        middle = x + size[0] / 2
        return (middle, bottom), f"M{number(middle)} {number(bottom)}"
    edge, lane = _side(x, size[0], other)
    mid = y + _row_top(cell, row, style) + style.row / 2
    return (lane, bottom), f"M{number(edge)} {number(mid)}H{number(lane)}V{number(bottom)}"


def _meet(
    cell: Cell, row: int, at: tuple[float, float], size: tuple[float, float], style: Style, other: float
) -> tuple[tuple[float, float], str]:
    x, y = at
    if row == 0:
        return (x + size[0] / 2, y), ""
    edge, lane = _side(x, size[0], other)
    mid = y + _row_top(cell, row, style) + style.row / 2
    return (lane, y), f"V{number(mid)}H{number(edge)}"


def _letters(tagged: Iterable[tuple[int, int]]) -> dict[int, str]:
    """A name for each box that sends lines elsewhere: a to z, then a1 to z1, and so on."""
    letters: dict[int, str] = {}
    for source, _ in tagged:
        if source not in letters:
            turn, at = divmod(len(letters), 26)
            letters[source] = "abcdefghijklmnopqrstuvwxyz"[at] + (str(turn) if turn else "")
    return letters


def _tags(placed: Layout, sizes: Sequence[tuple[float, float]], letters: dict[int, str]) -> Part:
    sent: dict[int, list[int]] = {}
    got: dict[int, list[int]] = {}
    for a, b in placed.tagged:
        sent.setdefault(a, []).append(b)
        got.setdefault(b, []).append(a)
    out: Part = []
    for box in sorted(sent):
        x, y = placed.x[box] + sizes[box][0] - 4, placed.y[box] + sizes[box][1] + 13
        said = f"goes on where a further {letters[box]} stands"
        out.append(_tag(x, y, f"\u2198{letters[box]}", said, "end"))
    for box in sorted(got):
        names = [letters[a] for a in got[box]]
        text = " ".join(f"\u2198{name}" for name in names[:4]) + ("\u2026" if len(names) > 4 else "")
        said = "comes from " + ", ".join(names)
        out.append(_tag(placed.x[box] + 4, placed.y[box] - 5, text, said, "start"))
    return out


def _tag(x: float, y: float, text: str, said: str, anchor: str) -> str:
    return (
        f'<text class="t" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">'
        f"{escape(text)}<title>{escape(said)}</title></text>"
    )


# -- boxes ----------------------------------------------------------------------------------------


def _box(cell: Cell, x: float, y: float, size: tuple[float, float], style: Style) -> Part:
    if cell.kind == "join":
        title = f"<title>{escape(cell.rows[0].title)}</title>"
        return [f'<circle class="j" cx="{number(x + 4)}" cy="{number(y + 4)}" r="4">{title}</circle>']
    if cell.kind in ("in", "out"):
        return [_pill(cell.rows[0], x, y, size, style)]
    out: Part = []
    if len(cell.rows) > 1:
        out.append(_rect("f", x, y, size[0], size[1], 7))
        out += _inner(cell, x, y, size, style)
    inset = style.pad if len(cell.rows) > 1 else 0.0
    shown = cell.rows if len(cell.rows) <= ROWS_MAX else cell.rows[: ROWS_MAX - 1]
    for at, row in enumerate(shown):
        outline = cell.fused and len(cell.rows) == 1
        out.append(
            _row(row, x + inset, y + _row_top(cell, at, style), size[0] - 2 * inset, style, outline=outline)
        )
    if len(shown) < len(cell.rows):
        top = y + _row_top(cell, ROWS_MAX - 1, style)
        text = f"and {len(cell.rows) - len(shown)} further operations"
        out.append(
            f'<text class="s" x="{number(x + inset + 4)}" y="{number(top + style.row * 0.68)}">'
            f"{fit(text, size[0] - 2 * inset - 8, style.size)}</text>"
        )
    return out


def _rect(css: str, x: float, y: float, width: float, height: float, round_: float) -> str:
    return (
        f'<rect class="{css}" x="{number(x)}" y="{number(y)}" width="{number(width)}" '
        f'height="{number(height)}" rx="{number(round_)}"/>'
    )


def _inner(cell: Cell, x: float, y: float, size: tuple[float, float], style: Style) -> Part:
    """Lines inside a fused box: straight to the next row, around the others at the left."""
    out: Part = []
    for a, b in sorted(set(cell.inner)):
        if max(a, b) >= ROWS_MAX - (len(cell.rows) > ROWS_MAX):
            continue
        if b == a + 1:
            top = y + _row_top(cell, a, style) + style.row
            out.append(f'<path class="l" d="M{number(x + size[0] / 2)} {number(top)}v{number(style.step)}"/>')
            continue
        edge = x + style.pad
        start, end = (y + _row_top(cell, r, style) + style.row / 2 for r in (a, b))
        lane = number(x + style.pad / 2 - 1)
        out.append(
            f'<path class="l" d="M{number(edge)} {number(start)}H{lane}V{number(end)}H{number(edge)}"/>'
        )
    return out


def _row(row: Row, x: float, y: float, width: float, style: Style, *, outline: bool) -> str:
    letters, css = kind_of(row.precision)
    state = "gone" if row.gone else ("b fused" if outline else "b")
    parts = [f"<g><title>{escape(row.title)}</title>", _rect(f"{state} {css}", x, y, width, style.row, 4)]
    base, left, right = y + style.row * 0.68, x + 6, x + width - 5
    if row.badge:
        size = style.size * 0.9
        wide = max(style.row - 3, width_of(row.badge, size, bold=True) + 6)
        parts.append(_rect("n", x + 3, y + 3, wide, style.row - 6, 3))
        parts.append(_text("nt", x + 3 + wide / 2, base - 0.5, row.badge, "middle"))
        left = x + wide + 8
    if row.precision and not row.gone:
        text = letters if style.named else KINDS[css][1]
        parts.append(_rect(f"c {css}", right - style.chip + 2, y + 4, style.chip, style.row - 8, 3))
        parts.append(_text(f"ct {css}", right - style.chip / 2 + 2, base - 0.5, text, "middle"))
        right -= style.chip + 3
    return "".join([*parts, _words(row, left, base, right - left, style), "</g>"])


def _words(row: Row, x: float, y: float, room: float, style: Style) -> str:
    op = fit(row.op if style.named else _short(row.op), room, style.size, bold=True)
    left = room - width_of(op, style.size, bold=True) - 6
    name = fit(row.name, left, style.size) if style.named and left > 24 else ""
    tail = f'<tspan class="s" dx="5">{escape(name)}</tspan>' if len(name) > 7 or name == row.name else ""
    return f'<text class="o" x="{number(x)}" y="{number(y)}">{escape(op)}{tail}</text>'


def _short(op: str) -> str:
    """Long words of operators as engineers write them; the title has the whole."""
    for word, short in _SHORT:
        op = op.replace(word, short)
    return op


def _text(css: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{css}" x="{number(x)}" y="{number(y)}"{where}>{escape(text)}</text>'


def _pill(row: Row, x: float, y: float, size: tuple[float, float], style: Style) -> str:
    room = size[0] - 20
    name = fit(row.op, room, style.size, bold=True)
    left = room - width_of(name, style.size, bold=True) - 6
    said = fit(row.name, left, style.size) if left > 30 else ""
    words = f'{escape(name)}<tspan class="s" dx="5">{escape(said)}</tspan>'
    middle, base = number(x + size[0] / 2), number(y + style.row * 0.68)
    return (
        f"<g><title>{escape(row.title)}</title>{_rect('e', x, y, size[0], style.row, style.row / 2)}"
        f'<text class="o" x="{middle}" y="{base}" text-anchor="middle">{words}</text></g>'
    )


# -- the rest -------------------------------------------------------------------------------------


def summary_height(told: Summary) -> float:
    return len(told.lines) * 22.0 + 8


def summary(told: Summary, width: float) -> Part:
    """Bars of operators: count, precisions in letters, removed ones."""
    out: Part = []
    label, words = 170.0, 200.0
    for at, line in enumerate(told.lines):
        y = at * 22.0 + 4
        room = max(width - label - words - 20, 40.0)
        kinds = ", ".join(f"{count:,} {kind or 'not told'}" for kind, count in line.precisions)
        gone = f"{line.gone:,} removed" if line.gone else ""
        said = "; ".join(filter(None, [kinds, gone]))
        css = kind_of(max(line.precisions, key=lambda p: p[1])[0])[1] if line.precisions else "other"
        out.append(f"<g><title>{escape(f'{line.op}: {line.count:,} ({said})')}</title>")
        out.append(_text("o", 0, y + 13, fit(line.op, label - 8, 11.5, bold=True)))
        out.append(_rect(f"c {css}", label, y + 2, max(2.0, room * line.count / told.most), 14, 2))
        text = fit(f"{line.count:,}: {said}", words + 10, 11.5)
        out.append(_text("s", label + room + 8, y + 13, text) + "</g>")
    return out


def document(
    sides: Sequence[tuple[Part, float, float]],
    halves: Sequence[Half],
    style: Style,
    *,
    beside: bool,
    width: float,
    gap: float,
    title: str,
) -> str:
    """Both halves with headings and legend."""
    words = _headings(halves)
    room = [max(side[1], width_of(said, 11.5)) for side, (_, said) in zip(sides, words, strict=True)]
    second = (room[0] + gap * 1.5, 0.0) if beside else (0.0, _HEAD + sides[0][2] + gap)
    wide = max(second[0] + room[1], _NARROWEST) if beside else max(width, *room)
    tall = max(sides[0][2], sides[1][2]) + _HEAD if beside else second[1] + _HEAD + sides[1][2]
    body: Part = []
    for (part, _, _), (x, y), (head, said) in zip(sides, ((0.0, 0.0), second), words, strict=True):
        body.append(f'<g transform="translate({number(x)} {number(y)})">')
        body += [_text("h", 0, 15, head), _text("s", 0, 31, said)]
        body.append(f'<g transform="translate(0 {number(_HEAD - 12)})">' + "".join(part) + "</g></g>")
    legend, legend_height = _legend(halves, sides, style, wide, tall + 14)
    body += legend
    height = tall + 14 + legend_height
    name, told = _spoken(halves, title)
    box = f"{number(-_MARGIN)} {number(-_MARGIN)} {number(wide + 2 * _MARGIN)} {number(height + 2 * _MARGIN)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pd{style.css}" viewBox="{box}" '
        f'width="{number(wide + 2 * _MARGIN)}" height="{number(height + 2 * _MARGIN)}" role="img" '
        f'aria-labelledby="drawing-title drawing-text"><title id="drawing-title">{escape(name)}</title>'
        f'<desc id="drawing-text">{escape(told)}</desc><style>{CSS}</style>{"".join(body)}</svg>\n'
    )


def _headings(halves: Sequence[Half]) -> list[tuple[str, str]]:
    first, second = halves
    hidden = f"; {first.hidden:,} that only prepare constants are not drawn" if first.hidden else ""
    fused = sum(cell.fused for cell in second.cells)
    return [
        ("Before", f"{_count(first.count, 'operation')} of the graph the builder got{hidden}"),
        ("After", f"{_count(second.count, 'layer')} of the engine, {fused:,} of them fused"),
    ]


def _count(number_: int, word: str) -> str:
    return f"{number_:,} {word}{'' if number_ == 1 else 's'}"


def _spoken(halves: Sequence[Half], title: str) -> tuple[str, str]:
    words = [f"{name}: {text}." for name, text in _headings(halves)]
    name = f"{title}: the graph before and after fusion" if title else "The graph before and after fusion"
    return name, " ".join([*words, "The label's tables say the same in words."])


def _legend(
    halves: Sequence[Half],
    sides: Sequence[tuple[Part, float, float]],
    style: Style,
    width: float,
    top: float,
) -> tuple[Part, float]:
    rows = [row for half_ in halves for cell in half_.cells for row in cell.rows]
    joined = any(cell.kind == "join" for half_ in halves for cell in half_.cells)
    used = {kind_of(row.precision)[1] for row in rows if row.precision and not row.gone}
    items = [
        (f"c {css}", words[2][:4] if style.named else words[1], f"ct {css}", words[2])
        for css, words in KINDS.items()
        if css in used
    ]
    items.append(("n", "4", "nt", "number of the engine's layer, the same in both"))
    if any(cell.fused for half_ in halves for cell in half_.cells):
        items.append(("b fused", "", "", "fused: several operations, one layer"))
    if any(row.gone for row in rows):
        items.append(("gone", "", "", "removed, folded, or named by no layer"))
    if any('class="t"' in text for part, _, _ in sides for text in part):
        items.append(("", "\u2198a", "t", "goes on where the same letter stands"))
    if joined:
        items.append(("", "\u25cf", "t", "one tensor, written by several layers"))
    out, x, y = [f'<path class="r" d="M0 {number(top)}H{number(width)}"/>'], 0.0, top + 14
    for css, mark, mark_css, words in items:
        need = 41 + width_of(words, 11) + 18
        if x and x + need > width:
            x, y = 0.0, y + 22
        if css:
            out.append(_rect(css, x, y, 34, 15, 3))
        if mark:
            out.append(_text(mark_css, x + 17, y + 11, mark, "middle"))
        out.append(_text("s k", x + 41, y + 11.5, words))
        x += need
    return out, y + 18 - top
