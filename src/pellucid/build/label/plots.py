"""Plots as inline SVG: one row an item, names left, numbers right, so that no text meets another.

A mark never depends on colour alone: a bound is a line with an end, what is marked has stripes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from pellucid.build.drawing_text import escape, fit, number, width_of

WIDTH: Final = 720.0
_NAME: Final = 210.0  # room for names
_TEXT: Final = 150.0  # room for numbers
_ROW: Final = 24.0
_TOP: Final = 24.0
_SIZE: Final = 12.0
_TINY: Final = 1e-30  # smaller numbers are drawn as zero
_DECADES_MAX: Final = 9  # of a logarithmic axis: what is smaller lies at its left end

Scale = Callable[[float], float]


class Bar(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        upper: End of a line from the value on, for example an upper bound.
        marked: It has stripes.
    """

    name: str
    value: float
    upper: float | None = None
    text: str = ""
    marked: bool = False


def bars(
    title: str, items: Sequence[Bar], *, name: str, logarithmic: bool = False, share: bool = False
) -> str:
    """Bars from zero, or from the left end of a logarithmic axis.

    Args:
        name: Of the plot; makes its ids unique on a page.
        share: Values are shares of one, ticks are percent.
    """
    values = [v for i in items for v in (i.value, i.upper) if v is not None and v > _TINY]
    scale, ticks = _decades(values) if logarithmic else _linear(values, percent=share)
    out = _axis(ticks, len(items), grid=share or logarithmic)
    for at, item in enumerate(items):
        y = _TOP + at * _ROW
        end = scale(item.value)
        css = "pb pm" if item.marked else "pb"
        fill = f' fill="url(#{name}-stripes)"' if item.marked else ""
        out.append(
            f'<rect class="{css}"{fill} x="{number(_NAME)}" y="{number(y + 5)}" '
            f'width="{number(max(end - _NAME, 1.5))}" height="{number(_ROW - 10)}" rx="2"/>'
        )
        if item.upper is not None:
            out.append(_whisker(end, scale(item.upper), y + _ROW / 2))
        out += _words(item.name, item.text, y)
    stripes = (
        f'<pattern id="{name}-stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="pb" width="6" height="6"/>'
        '<path class="ps" d="M1.5 0V6"/></pattern>'
    )
    return _svg(title, name, len(items), out, stripes if any(i.marked for i in items) else "")


def spans(title: str, items: Sequence[tuple[str, float, float]], *, name: str) -> str:
    """Bars from a smallest to a largest value on an axis that shows small and large ones alike."""
    scale, ticks = _both_sides([abs(v) for _, low, high in items for v in (low, high)])
    out = _axis(ticks, len(items), grid=True)
    for at, (label, low, high) in enumerate(items):
        y = _TOP + at * _ROW
        start, end = scale(low), scale(high)
        out.append(
            f'<rect class="pb" x="{number(start)}" y="{number(y + 7)}" '
            f'width="{number(max(end - start, 1.5))}" height="{number(_ROW - 14)}" rx="2"/>'
        )
        out += _words(label, f"{low + 0.0:.3g} to {high + 0.0:.3g}", y)
    return _svg(title, name, len(items), out, "")


# -- axes -----------------------------------------------------------------------------------------

_LEFT: Final = _NAME
_RIGHT: Final = WIDTH - _TEXT


def _place(share: float) -> float:
    return round(_LEFT + (_RIGHT - _LEFT - 8) * min(max(share, 0.0), 1.0), 1)


def _linear(values: Sequence[float], *, percent: bool) -> tuple[Scale, list[tuple[float, str]]]:
    most = max(values, default=0.0) or 1.0
    step = _nice(most / 3)
    end = max(most, step)

    def scale(value: float) -> float:
        return _place(value / end)

    marks = [step * k for k in range(int(end / step + 1e-9) + 1)]
    return scale, [(scale(v), f"{v * 100:.3g} %" if percent else f"{v:.3g}") for v in marks]


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    base = 10.0 ** math.floor(math.log10(value))
    return next(base * k for k in (1, 2, 5, 10) if base * k >= value * (1 - 1e-9))


def _decades(values: Sequence[float]) -> tuple[Scale, list[tuple[float, str]]]:
    high = math.ceil(math.log10(max(values)) - 1e-9) if values else 0
    low = math.floor(math.log10(min(values)) + 1e-9) if values else -1
    low = max(min(low, high - 1), high - _DECADES_MAX)

    def scale(value: float) -> float:
        return _place((math.log10(value) - low) / (high - low) if value > _TINY else 0.0)

    step = 1 if high - low <= 5 else 2
    return scale, [(scale(10.0**k), f"{10.0**k:g}") for k in range(low, high + 1, step)]


def _both_sides(sizes: Sequence[float]) -> tuple[Scale, list[tuple[float, str]]]:
    """Linear around zero, logarithmic outside: asinh."""
    found = [size for size in sizes if size > _TINY]
    high = math.ceil(math.log10(max(found)) - 1e-9) if found else 0
    low = math.floor(math.log10(min(found)) + 1e-9) if found else -1
    low = max(min(low, high - 1), high - 3)
    bend, most = 10.0**low, 10.0**high
    full = math.asinh(most / bend)

    def scale(value: float) -> float:
        return _place(0.5 + math.asinh(value / bend) / full / 2)

    tens = [10.0**k for k in range(low, high + 1)]
    marks = [*(-t for t in reversed(tens)), 0.0, *tens]
    return scale, [(scale(v), f"{v:g}") for v in marks]


def _axis(ticks: Sequence[tuple[float, str]], rows: int, *, grid: bool) -> list[str]:
    bottom = number(_TOP + rows * _ROW)
    out = [f'<path class="pg" d="M{number(x)} {number(_TOP)}V{bottom}"/>' for x, _ in ticks if grid]
    taken = 0.0
    for x, text in ticks if grid else ():
        half = width_of(text, 11) / 2
        if x - half >= taken and x + half <= WIDTH:
            out.append(f'<text class="pt" x="{number(x)}" y="15" text-anchor="middle">{escape(text)}</text>')
            taken = x + half + 8
    return [*out, f'<path class="pa" d="M{number(_LEFT)} {number(_TOP)}V{bottom}"/>']


# -- parts ----------------------------------------------------------------------------------------


def _whisker(start: float, end: float, y: float) -> str:
    return (
        f'<path class="pw" d="M{number(start)} {number(y)}H{number(end)}M{number(end)} {number(y - 5)}v10"/>'
    )


def _words(name: str, text: str, y: float) -> list[str]:
    base = number(y + _ROW / 2 + 4)
    label = fit(name, _NAME - 12, _SIZE)
    title = f"<title>{escape(name)}</title>" if label != name else ""
    return [
        f'<text class="pn" x="{number(_NAME - 10)}" y="{base}" text-anchor="end">'
        f"{escape(label)}{title}</text>",
        f'<text class="pv" x="{number(WIDTH)}" y="{base}" text-anchor="end">'
        f"{escape(fit(text, _TEXT - 12, _SIZE))}</text>",
    ]


def _svg(title: str, name: str, rows: int, parts: Sequence[str], defs: str) -> str:
    height = _TOP + rows * _ROW + 6
    return (
        f'<svg class="plot" viewBox="0 0 {number(WIDTH)} {number(height)}" width="{number(WIDTH)}" '
        f'height="{number(height)}" role="img" aria-labelledby="{name}-title">'
        f'<title id="{name}-title">{escape(title)}; the table says the same</title>'
        f"{f'<defs>{defs}</defs>' if defs else ''}{''.join(parts)}</svg>"
    )
