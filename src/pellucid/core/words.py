"""Texts of others made short enough to be read, never in the middle of a word."""

from __future__ import annotations

from typing import Final

_MORE: Final = "..."


def shortened(text: str, size_max: int) -> str:
    """In one line, at most that long, cut behind a word and marked where anything is missing."""
    line = " ".join(text.split())
    if len(line) <= size_max:
        return line
    head = line[: size_max - len(_MORE)]
    whole = head if line[len(head)] == " " else head.rpartition(" ")[0]
    return (whole or head).rstrip(" ,;:") + _MORE


def printable(text: str) -> str:
    """Every character that does not print spelled out: none of them moves a cursor or turns a line round."""
    return text if text.isprintable() else "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )  # fmt: skip


def counted(count: int, word: str) -> str:
    """``1 operator``, ``2 operators``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
