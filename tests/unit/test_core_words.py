"""Texts made short: never longer, never in the middle of a word, and marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.words import counted, printable, shortened


@pytest.mark.parametrize(
    ("text", "size", "short"),
    [
        ("no tactics to implement operation", 20, "no tactics to..."),
        ("no tactics to implement", 23, "no tactics to implement"),
        ("one  line\nof\ttwo", 40, "one line of two"),
        ("w" * 30, 10, "wwwwwww..."),
        ("a, b, c, d", 8, "a, b..."),
    ],
)
def test_a_text_is_cut_behind_a_word(text: str, size: int, short: str) -> None:
    assert shortened(text, size) == short


@given(st.text(), st.integers(4, 60))
def test_it_is_never_longer_and_whole_where_it_fits(text: str, size: int) -> None:
    short = shortened(text, size)
    line = " ".join(text.split())
    assert len(short) <= size
    assert short == line if len(line) <= size else short.endswith("...")


def test_one_is_no_plural() -> None:
    assert [counted(n, "operator") for n in (0, 1, 2000)] == ["0 operators", "1 operator", "2,000 operators"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text, caf\u00e9", "plain text, caf\u00e9"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u202eb\u2028", r"a\u202eb\u2028"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_does_not_print_is_spelled_out(text: str, seen: str) -> None:
    assert printable(text) == seen
