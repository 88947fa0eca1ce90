"""Where boxes and lines of a drawing lie: layered top-down, folded into columns and bands like a newspaper.

Boxes go to rows by longest path (Sugiyama's first step, at most ``row_max`` to a row), rows are cut
into columns where few lines cross, boxes of a column are ordered by barycentres, and lines that
would leave their column, or run long, become tags: a letter at both ends. Work grows about linearly
with boxes and lines. Numbers are only added, multiplied and divided, so that every machine draws
the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

GAP: Final = 18.0  # between rows: room for a line's bend
TAG: Final = 15.0  # further room for a row of tags
TRACK: Final = 10.0  # width of a line that passes a row
BAND: Final = 34.0  # between columns, and between bands
SPAN_MAX: Final = 9  # rows a line may run; a longer one would be lost among others
TRACKS_MAX: Final = 6  # lines that may pass one row
PULL: Final = 0.12  # towards a column's middle, for columns that drift aside beyond the sheet
SWEEPS: Final = 4  # precedent: orders hardly improve after four


class Sheet(msgspec.Struct, frozen=True):
    """Room there is.

    Attributes:
        width: Of a band; a row that needs more makes the drawing wider.
        height: Wanted for a column.
        row_max: Boxes in one row.
        side: Between boxes of a row: room for a line that enters a box from the side.
    """

    width: float
    height: float
    row_max: int
    side: float


class Layout(msgspec.Struct):
    """Where everything lies.

    Attributes:
        x, y: Upper left corner of each box.
        routes: Edge -> points ``(x, top, bottom)`` of the rows it passes, from source to target.
        tagged: Edges that are drawn as a tag at both ends.
    """

    width: float
    height: float
    x: list[float]
    y: list[float]
    routes: dict[tuple[int, int], list[tuple[float, float, float]]]
    tagged: list[tuple[int, int]]


class _Column(msgspec.Struct):
    """A run of rows with its own order: items are boxes, or, from ``len(sizes)`` on, tracks."""

    rows: list[list[int]]
    links: list[tuple[int, int]] = msgspec.field(default_factory=list)
    tracks: dict[tuple[int, int], int] = msgspec.field(default_factory=dict)
    x: dict[int, float] = msgspec.field(default_factory=dict)
    width: float = 0.0


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], sheet: Sheet) -> Layout:
    """Place boxes of these sizes (width, height); an edge that closes a cycle becomes a tag."""
    edges = list(dict.fromkeys(edge for edge in edges if edge[0] != edge[1]))
    rank = _ranks(len(sizes), edges, sheet.row_max)
    rows: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for box, row in enumerate(rank):
        rows[row].append(box)
    heights = [max((sizes[box][1] for box in row), default=0.0) for row in rows]
    cuts = _cuts(rank, edges, heights, _columns(rows, sizes, heights, sheet))
    column_of = _column_numbers(cuts, len(rows))
    near, tagged = _split(rank, edges, column_of)
    near, more = _thin(rank, near, len(rows))
    tagged = sorted(tagged + more)
    columns = [
        _arrange(rows[a:b], a, rank, near, sizes, sheet)
        for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)
        if b > a
    ]
    gaps = _gaps(rank, tagged, len(rows))
    return _pack(columns, sizes, heights, gaps, rank, near, tagged, sheet)


def _ranks(count: int, edges: Sequence[tuple[int, int]], row_max: int) -> list[int]:
    """Row of each box: one below its lowest predecessor, in the first row with room."""
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for a, b in edges:
        after[a].append(b)
        waits[b] += 1
    free = [not waits[box] for box in range(count)]
    rank, placed, used = [0] * count, [False] * count, [0] * (count + 1)
    ready = [box for box in range(count) if not waits[box]]
    for start in range(count + 1):  # beyond the first: only where a cycle left none ready
        for box in ready:
            if placed[box]:
                continue
            placed[box] = True
            while used[rank[box]] >= row_max:
                rank[box] += 1
            used[rank[box]] += 1
            for target in after[box]:
                rank[target] = max(rank[target], rank[box] + 1) if not placed[target] else rank[target]
                waits[target] -= 1
                if waits[target] == 0:
                    ready.append(target)
        ready = [] if start >= count or placed[start] else [start]
    _sink(rank, used, after, free, row_max)
    return rank


def _sink(rank: list[int], used: list[int], after: list[list[int]], free: list[bool], row_max: int) -> None:
    """What nothing precedes stands just above the first that takes it."""
    for box, targets in enumerate(after):
        if free[box] and targets:
            wanted = min(rank[target] for target in targets) - 1
            if wanted > rank[box] and used[wanted] < row_max:
                used[rank[box]] -= 1
                used[wanted] += 1
                rank[box] = wanted


def _columns(
    rows: list[list[int]], sizes: Sequence[tuple[float, float]], heights: list[float], sheet: Sheet
) -> int:
    """How many columns the rows are cut into; one where a second would not fit beside it."""
    widest = max((sum(sizes[b][0] + sheet.side for b in row) for row in rows), default=0.0) - sheet.side
    total = sum(heights) + GAP * 1.4 * len(heights)
    fit = int((sheet.width + BAND) // (widest + BAND)) if widest > 0 else 1
    if fit < 2 or total <= sheet.height * 1.15:
        return 1
    bands = -(-total // (fit * sheet.height * 1.2))
    return int(min(fit, -(-total // sheet.height)) if bands == 1 else bands * fit)


def _cuts(rank: list[int], edges: Sequence[tuple[int, int]], heights: list[float], count: int) -> list[int]:
    """Rows that begin a further column: near equal heights, where the fewest boxes send lines across."""
    if count < 2:
        return []
    crossing = [0] * (len(heights) + 1)
    reach: dict[int, int] = {}
    for a, b in edges:
        reach[a] = max(reach.get(a, 0), rank[b])
    for a, far in reach.items():
        crossing[rank[a] + 1] += 1
        crossing[min(far + 1, len(heights))] -= 1
    tops, sent, total, running = [], [], 0.0, 0
    for row, height in enumerate(heights):
        running += crossing[row]
        tops.append(total)
        sent.append(running)
        total += height + GAP
    cuts: list[int] = []
    for number in range(1, count):
        wanted, slack = total * number / count, total / count * 0.22
        first = cuts[-1] + 1 if cuts else 1
        near = [r for r in range(first, len(heights)) if abs(tops[r] - wanted) <= slack]
        if near:
            cuts.append(min(near, key=lambda r: (sent[r] * total / count / 8 + abs(tops[r] - wanted), r)))
    return cuts


def _column_numbers(cuts: list[int], rows: int) -> list[int]:
    numbers, at = [], 0
    for row in range(rows):
        at += at < len(cuts) and cuts[at] == row
        numbers.append(at)
    return numbers


def _split(
    rank: list[int], edges: Sequence[tuple[int, int]], column_of: list[int]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    near: list[tuple[int, int]] = []
    far: list[tuple[int, int]] = []
    for a, b in edges:
        runs = column_of[rank[a]] == column_of[rank[b]] and 0 < rank[b] - rank[a] <= SPAN_MAX
        (near if runs else far).append((a, b))
    return near, far


def _thin(
    rank: list[int], near: list[tuple[int, int]], rows: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Keep at most ``TRACKS_MAX`` passing lines a row; the longest give way."""
    kept, given, passing = [], [], [0] * rows
    seen: set[tuple[int, int]] = set()
    for a, b in sorted(near, key=lambda e: (rank[e[1]] - rank[e[0]], e)):
        fresh = [row for row in range(rank[a] + 1, rank[b]) if (a, row) not in seen]
        if any(passing[row] >= TRACKS_MAX for row in fresh):
            given.append((a, b))
            continue
        kept.append((a, b))
        for row in fresh:
            passing[row] += 1
            seen.add((a, row))
    return sorted(kept), given


def _arrange(
    rows: list[list[int]],
    first: int,
    rank: list[int],
    near: list[tuple[int, int]],
    sizes: Sequence[tuple[float, float]],
    sheet: Sheet,
) -> _Column:
    column = _Column([list(row) for row in rows])
    item = len(sizes)
    for a, b in near:
        if not first <= rank[a] < first + len(rows):
            continue
        before = a
        for row in range(rank[a] + 1, rank[b]):
            if (a, row) not in column.tracks:  # lines from one box share their track
                column.tracks[a, row] = item
                column.rows[row - first].append(item)
                column.links.append((before, item))
                item += 1
            before = column.tracks[a, row]
        column.links.append((before, b))
    _order(column)
    _spread(column, sizes, sheet.side, pull=0.0)
    if column.width > sheet.width:
        _spread(column, sizes, sheet.side, pull=PULL)
    return column


def _neighbours(column: _Column) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    above: dict[int, list[int]] = {item: [] for row in column.rows for item in row}
    below: dict[int, list[int]] = {item: [] for item in above}
    for a, b in dict.fromkeys(column.links):
        below[a].append(b)
        above[b].append(a)
    return above, below


def _order(column: _Column) -> None:
    above, below = _neighbours(column)
    place = {item: float(at) for row in column.rows for at, item in enumerate(row)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        fixed = above if down else below
        for row in column.rows if down else reversed(column.rows):
            key = {
                item: sum(place[o] for o in fixed[item]) / len(fixed[item]) if fixed[item] else place[item]
                for item in row
            }
            row.sort(key=lambda item: (key[item], place[item]))
            for at, item in enumerate(row):
                place[item] = at - (len(row) - 1) / 2


def _spread(column: _Column, sizes: Sequence[tuple[float, float]], side: float, *, pull: float) -> None:
    """Centres: each box towards its neighbours' mean, none nearer to the next than it may be."""
    above, below = _neighbours(column)
    wide = {i: sizes[i][0] if i < len(sizes) else TRACK for row in column.rows for i in row}
    x = column.x
    for row in column.rows:
        left = -sum(wide[i] + side for i in row) / 2
        for item in row:
            x[item] = left + (wide[item] + side) / 2
            left += wide[item] + side
    for sweep in range(SWEEPS + 4):
        down = sweep % 2 == 0
        for row in column.rows if down else reversed(column.rows):
            _settle(row, above if down else below, x, wide, side, pull)
    if x:
        low = min(x[i] - wide[i] / 2 for i in x)
        for item in x:
            x[item] = round(x[item] - low, 1)
        column.width = max(x[i] + wide[i] / 2 for i in x)


def _settle(
    row: list[int],
    fixed: dict[int, list[int]],
    x: dict[int, float],
    wide: dict[int, float],
    side: float,
    pull: float,
) -> None:
    wanted = [sum(x[o] for o in fixed[i]) / (len(fixed[i]) + pull) if fixed[i] else x[i] for i in row]
    need = [(wide[a] + wide[b]) / 2 + side for a, b in itertools.pairwise(row)]
    right, left = list(wanted), list(wanted)
    for at, room in enumerate(need):
        right[at + 1] = max(right[at + 1], right[at] + room)
    for at in range(len(need) - 1, -1, -1):
        left[at] = min(left[at], left[at + 1] - need[at])
    for at, item in enumerate(row):
        x[item] = (right[at] + left[at]) / 2


def _gaps(rank: list[int], tagged: list[tuple[int, int]], rows: int) -> list[float]:
    """Room above each row, and below the last one: tags need some."""
    gaps = [GAP] * (rows + 1)
    for row in {rank[a] for a, _ in tagged}:
        gaps[row + 1] += TAG
    for row in {rank[b] for _, b in tagged}:
        gaps[row] += TAG
    return gaps


def _pack(
    columns: list[_Column],
    sizes: Sequence[tuple[float, float]],
    heights: list[float],
    gaps: list[float],
    rank: list[int],
    near: list[tuple[int, int]],
    tagged: list[tuple[int, int]],
    sheet: Sheet,
) -> Layout:
    """Columns side by side until the band is full, then the next band."""
    made = Layout(0.0, 0.0, [0.0] * len(sizes), [0.0] * len(sizes), {}, tagged)
    left = top = deep = 0.0
    row = 0
    origin: dict[int, tuple[float, _Column]] = {}
    tops: list[float] = []
    for column in columns:
        if left and left + column.width > sheet.width:
            left, top = 0.0, deep + BAND
        y = top
        for items in column.rows:
            y += gaps[row]
            tops.append(y)
            origin[row] = (left, column)
            for item in items:
                if item < len(sizes):
                    made.x[item] = round(left + column.x[item] - sizes[item][0] / 2, 1)
                    made.y[item] = round(y, 1)
            y += heights[row]
            row += 1
        deep = max(deep, y + gaps[row])
        made.width = max(made.width, left + column.width)
        left += column.width + BAND
    made.height = deep
    for a, b in near:
        shift, column = origin[rank[a]]
        made.routes[a, b] = [
            (
                round(shift + column.x[column.tracks[a, r]], 1),
                round(tops[r], 1),
                round(tops[r] + heights[r], 1),
            )
            for r in range(rank[a] + 1, rank[b])
        ]
    return made
