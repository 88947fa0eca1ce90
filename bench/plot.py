"""Small charts as SVG: lines over a logarithmic axis, and latency percentiles. No library is needed.

Colours differ in lightness too, every series has its own mark, and every chart is readable without colour.
Light and dark pages: lines and words take the page's text colour where they carry no series.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH, HEIGHT = 790, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 42, 48
COLOURS: Final = (
    "#0b6e4f", "#1f9d76", "#7fc8a9", "#b5179e", "#d95f02", "#e8a33d", "#2b6cb0", "#7b8fd6", "#8c564b",
    "#6b7280",
)  # fmt: skip
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
Point = tuple[float, float]

STYLE: Final = (
    "<style>text{font:12px sans-serif;fill:#1f2937}.title{font-size:14px;font-weight:600}"
    ".grid{stroke:#9ca3af;stroke-opacity:.35}.axis{stroke:#6b7280}"
    "@media(prefers-color-scheme:dark){text{fill:#e5e7eb}}</style>"
)


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_names: Mapping[float, str] | None = None,
    is_x_log: bool = True,
    is_y_log: bool = False,
) -> str:
    """One chart with a line and marks for each series."""
    points = [point for line in series.values() for point in line]
    xs = sorted({x for x, _ in points})
    low, high, ticks = _scale([y for _, y in points], is_log=is_y_log)

    def across(x: float) -> float:
        first, last, at = (math.log2(v) if is_x_log else v for v in (xs[0], xs[-1], x))
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - first) / (last - first) if last > first else 0.5)

    def up(y: float) -> float:
        first, last, at = (math.log10(v) if is_y_log else v for v in (low, high, y))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (at - first) / (last - first)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{html.escape(title)}</title>{STYLE}",
        f'<text class="title" x="{LEFT}" y="22">{html.escape(title)}</text>',
    ]
    edge = WIDTH - RIGHT
    for tick in ticks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{edge}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    for x in xs:
        name = (x_names or {}).get(x, f"{x:g}")
        place = f'x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
        out.append(f"<text {place}>{html.escape(name)}</text>")
    out.append(f'<line class="axis" x1="{LEFT}" x2="{edge}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    out.append(
        f'<text x="{(LEFT + edge) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        f"{html.escape(y_label)}</text>"
    )
    for number, (name, line) in enumerate(series.items()):
        placed = [(across(x), up(y)) for x, y in line]
        out += _series(number, name, placed)
    return "\n".join([*out, "</svg>", ""])


def _series(number: int, name: str, placed: Sequence[Point]) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)] if number >= len(COLOURS) else DASHES[number % 3]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    key = TOP + 10 + 22 * number
    left = WIDTH - RIGHT + 14
    style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
    return [
        f'<polyline points="{path}" {style}/>',
        *(_mark(number, x, y, colour) for x, y in placed),
        f'<line x1="{left}" x2="{left + 26}" y1="{key}" y2="{key}" {style}/>',
        _mark(number, left + 13, key, colour),
        f'<text x="{left + 32}" y="{key + 4}">{html.escape(name)}</text>',
    ]


def _mark(number: int, x: float, y: float, colour: str) -> str:
    if number % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    if number % 3 == 1:
        return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{colour}"/>'
    return f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z" fill="{colour}"/>'


def _scale(values: Sequence[float], *, is_log: bool) -> tuple[float, float, list[float]]:
    """Ends of an axis and its ticks."""
    top = max(values, default=1.0) or 1.0
    if is_log:
        least = min((v for v in values if v > 0), default=1.0)
        first, last = math.floor(math.log10(least)), math.ceil(math.log10(top))
        last = max(last, first + 1)
        return 10.0**first, 10.0**last, [10.0**power for power in range(first, last + 1)]
    step = 10.0 ** math.floor(math.log10(top))
    step = next(s for s in (step / 5, step / 2, step, step * 2) if top / s <= 6)
    count = math.ceil(top / step)
    return 0.0, step * count, [step * n for n in range(count + 1)]
