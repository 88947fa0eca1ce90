"""Text in a drawing: how wide it gets, cut in its middle where it would not fit, and escaped."""

from __future__ import annotations

import html
import re
from typing import Final

_NARROW: Final = frozenset("iljtfrI.,:;'|!()[]{}/\\ -`\"")
_WIDE: Final = frozenset("mwMW@%&\u2014\u2026")
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def seen(text: str) -> str:
    """Text in which nothing is unseen, turns the line around, or is no character."""
    return _UNSAFE.sub("\ufffd", text)


def escape(text: str) -> str:
    """The same for markup: nothing in it can become structure, either."""
    return html.escape(seen(text))


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Width to reserve; no less than common sans-serif fonts take (limit: DejaVu Sans, the widest)."""
    ems = sum(map(_em, text))
    return round(ems * size * (1.12 if bold else 1.0), 2)


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.42
    if letter in _WIDE:
        return 1.0
    if not letter.isascii():
        return 1.1
    return 0.76 if letter.isupper() else 0.65


def fit(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """The text, or both of its ends around an ellipsis so that it stays inside ``room``."""
    text = seen(text[:600])
    if width_of(text, size, bold=bold) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if width_of(_cut(text, middle), size, bold=bold) <= room:
            low = middle
        else:
            high = middle - 1
    return _cut(text, low) if low else ""


def _cut(text: str, keep: int) -> str:
    tail = keep // 2
    return f"{text[: keep - tail]}\u2026{text[len(text) - tail :] if tail else ''}"


def number(value: float) -> str:
    """A coordinate as SVG text."""
    return f"{value:.1f}".removesuffix(".0")
