"""The engine drawn before and after fusion, as one SVG: pure, the same bytes for the same facts.

Left or above the operations the builder got, right or below the layers it made. A layer's number,
and the thick outline of a fused one, are the same in both. Precision is told by letters and by
colour (Okabe and Ito's palette). Beyond ``DRAWN_MAX`` boxes a half is a table of operators.
Source: requirement B14; spec/package.md, section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from pellucid.build import drawing_svg as svg
from pellucid.build.drawing_cells import Half, after, before
from pellucid.build.drawing_graph import Graph
from pellucid.build.drawing_layout import TRACK, Layout, Sheet, lay_out
from pellucid.build.drawing_summary import Summary, summary_of

DRAWN_MAX: Final = 700  # boxes' lines of one half; measured: still readable as columns, under a second
DENSE_FROM: Final = 90  # lines of one half from which on boxes are small and names are left to titles
BESIDE_MAX: Final = 160  # lines of one half beyond which both never fit beside each other
WIDTH: Final = 960.0  # an A4 page's print at two thirds of a screen's size
HEIGHT: Final = 1000.0  # of a column, so that one band fits such a page
NARROW_GAIN: Final = 0.8  # narrow boxes cut names, so they must save a fifth of the height
HALVES_GAP: Final = 44.0

Drawn = tuple[Callable[[], svg.Part], float, float]  # draws it; its width and height are known before


def draw(
    graph: Graph,
    layers: Sequence[Mapping[str, Any]],
    *,
    eliminated: Collection[str] = (),
    tf32: bool = False,
    title: str = "",
) -> str:
    """An SVG element of the graph and of the engine's layers.

    Args:
        graph: What the builder got.
        layers: ``layers`` of facts.json; keys that are missing are not told.
        eliminated: Names of operations that were folded or removed.
        tf32: The builder may round FP32 products to TF32.
        title: Of the model, for readers that do not see the drawing.
    """
    gone = frozenset(eliminated)
    halves = (before(graph, layers, gone), after(graph, layers, gone, tf32=tf32))
    lines = [sum(len(cell.rows) for cell in half.cells) for half in halves]
    style = svg.DENSE if max(lines) >= DENSE_FROM else svg.FULL
    sides: list[Drawn] = []
    beside = max(lines) <= BESIDE_MAX
    if beside:
        sides = _sides(halves, style, WIDTH / 2 - HALVES_GAP / 2)
        fits = sum(width for _, width, _ in sides) + HALVES_GAP <= WIDTH
        beside = fits and max(height for _, _, height in sides) <= HEIGHT * 1.3
    if not beside:
        sides = _sides(halves, style, WIDTH)
    drawn = [(draws(), width, height) for draws, width, height in sides]
    return svg.document(drawn, halves, style, beside=beside, width=WIDTH, gap=HALVES_GAP, title=title)


def _sides(halves: Sequence[Half], style: svg.Style, width: float) -> list[Drawn]:
    return [_half(half, style, width) for half in halves]


def _half(half: Half, style: svg.Style, width: float) -> Drawn:
    if half.count - half.hidden > DRAWN_MAX:
        summary: Summary = summary_of(half)
        return lambda: svg.summary(summary, width), width, svg.summary_height(summary)
    drawn = _placed(half, style, width)
    if style is not svg.DENSE:
        return drawn
    narrow = _placed(half, svg.NARROW, width)
    return narrow if narrow[2] < drawn[2] * NARROW_GAIN or drawn[1] > width else drawn


def _placed(half: Half, style: svg.Style, width: float) -> Drawn:
    sizes = [svg.size_of(cell, style) for cell in half.cells]
    edges = [(a, b) for a, _, b, _ in half.edges]
    row_max = max(1, int((width - TRACK) // (style.width + style.gap)))
    placed: Layout = lay_out(sizes, edges, Sheet(width, HEIGHT, row_max, style.gap))
    return lambda: svg.half(half, placed, sizes, style), placed.width, placed.height
