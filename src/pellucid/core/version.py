"""Versions of models: one total order, so that 'older' has one meaning.

Numbers separated by dots (1 to 4 of them), then an optional pre-release, ordered as Semantic
Versioning 2.0.0 orders them. Build metadata is refused: it has no order. Missing numbers count as 0
when comparing. Source: spec/package.md, section 2.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import total_ordering
from typing import Final

import msgspec

from pellucid.errors import FormatError

_TEXT: Final = re.compile(
    r"(?P<numbers>(?:0|[1-9][0-9]{0,8})(?:\.(?:0|[1-9][0-9]{0,8})){0,3})(?:-(?P<pre>[0-9A-Za-z.-]{1,40}))?",
    re.ASCII,
)


@total_ordering
class Version:
    """A parsed version; equal when neither is older, so ``1.2`` equals ``1.2.0``."""

    __slots__ = ("_key", "text")

    def __init__(self, text: str, key: tuple[object, ...]) -> None:
        self.text = text
        self._key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return bool(self._key < other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


def parse_version(text: object, *, subject: str = "version") -> Version:
    """Version of a text such as ``1.2.3`` or ``2.0-rc.1``.

    Raises:
        FormatError: Another form, leading zeros, an empty pre-release part, or build metadata.
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) and len(text) <= 80 else None
    if match is None:
        raise FormatError(
            f"{subject}: expected numbers and dots such as 1.2.3 or 1.2.3-rc.1, got {text!r:.80}",
            hint="no leading v, no leading zeros, no +build",
        )
    numbers = [int(part) for part in match["numbers"].split(".")]
    numbers += [0] * (4 - len(numbers))
    pre = match["pre"]
    # without a pre-release is newer than with one: (1,) > (0, ...)
    return Version(match[0], (*numbers, (1,) if pre is None else (0, _prerelease(pre, match[0], subject))))


def _prerelease(text: str, whole: str, subject: str) -> tuple[tuple[int, int, str], ...]:
    parts = []
    for part in text.split("."):
        if not part or (part.isdigit() and len(part) > 1 and part[0] == "0"):
            raise FormatError(
                f"{subject}: expected pre-release parts without leading zeros, got {whole!r:.80}"
            )
        # numbers are older than words, and compare as numbers
        parts.append((0, int(part), "") if part.isdigit() else (1, 0, part))
    return tuple(parts)


_COMPARATOR: Final = re.compile(r"\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<version>\S+)\s*")
_OPERATORS: Final[dict[str, Callable[[Version, Version], bool]]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
    "<": operator.lt,
}  # fmt: skip
_LEADING: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}", re.ASCII)
RANGE_PARTS_MAX: Final = 8


class VersionRange(msgspec.Struct, frozen=True):
    """A prefix (``8.6`` allows 8.6 and 8.6.1, not 8.60) or comparators that must all hold."""

    text: str
    prefix: str
    comparators: tuple[tuple[str, Version], ...]

    def allows(self, text: str) -> bool:
        """True if the version is in the range; what cannot be read as a version is not."""
        if self.prefix:
            return text == self.prefix or text.startswith((f"{self.prefix}.", f"{self.prefix}-"))
        version = _lenient(text)
        return version is not None and all(_OPERATORS[op](version, bound) for op, bound in self.comparators)


def _lenient(text: str) -> Version | None:
    """Version of a library's own text: ``1.27.0+cpu`` and ``1.27.0.dev3`` count as their numbers."""
    try:
        return parse_version(text)
    except FormatError:
        match = _LEADING.match(text)
    numbers = ".".join(str(int(part)) for part in match[0].split(".")) if match else ""
    return parse_version(numbers) if numbers else None


def parse_range(text: str, *, subject: str = "version range") -> VersionRange:
    """Range of a text such as ``8.6`` or ``>=1.20, <2``.

    Raises:
        FormatError: Neither a version to be used as prefix nor comparators.
    """
    if not re.search(r"[<>=!,]", text):
        return VersionRange(text, parse_version(text, subject=subject).text, ())
    parts = text.split(",")
    matches = [_COMPARATOR.fullmatch(part) for part in parts[: RANGE_PARTS_MAX + 1]]
    if len(parts) > RANGE_PARTS_MAX or None in matches:
        raise FormatError(f"{subject}: expected comparators such as '>=1.2, <2', got {text!r:.80}")
    found = [(m["operator"], parse_version(m["version"], subject=subject)) for m in matches if m]
    return VersionRange(text, "", tuple(found))
