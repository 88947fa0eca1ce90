"""Checks a recipe is made of: each takes a key and a value and gives the value in force, or refuses.

Source: spec/recipe.md, section 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pellucid.core.version import parse_version
from pellucid.errors import FormatError, RecipeError

MISSING: Final = object()
BUCKET_MAX: Final = 4096  # limit: rows of one batch
BUCKETS_MAX: Final = 16  # limit: each bucket is measured at qualification
DIMENSION_MAX: Final = 2**31 - 1
PLACES_MAX: Final = 40  # limit: written out, 1e-999999999 is a gigabyte
RANK_MAX: Final = 16  # limit: more axes than any operator of the standard has
_TENSORS_MAX: Final = 64

Check = Callable[[str, Any], Any]
Table = Mapping[str, tuple[Any, Check]]


def refused(key: str, expected: str, got: Any, hint: str = "") -> RecipeError:
    return RecipeError(f"recipe: {key}: expected {expected}, got {got!r:.80}", hint=hint)


def text(pattern: str, expected: str) -> Check:
    compiled = re.compile(pattern)

    def check(key: str, value: Any) -> str:
        if type(value) is not str or not compiled.fullmatch(value):
            hint = "put the value in quotes" if isinstance(value, int | float) else ""
            raise refused(key, expected, value, hint)
        return value

    return check


def one_of(*allowed: str, later: tuple[str, ...] = ()) -> Check:
    def check(key: str, value: Any) -> str:
        if value in later:
            raise RecipeError(
                f"recipe: {key}: expected {' or '.join(allowed)}, got {value!r}, "
                "which is not built by this version"
            )
        if type(value) is not str or value not in allowed:
            raise refused(key, " or ".join(allowed), value)
        return value

    return check


def integer(low: int, high: int) -> Check:
    def check(key: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise refused(key, f"an integer from {low:,} to {high:,}", value)
        return value

    return check


def flag(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise refused(key, "true or false", value)
    return value


def decimal(high: str, low: str = "0") -> Check:
    def check(key: str, value: Any) -> str:
        try:
            if type(value) not in (int, float, str):
                raise InvalidOperation
            number = Decimal(str(value))
            if not number.is_finite() or not Decimal(low) <= number <= Decimal(high):
                raise InvalidOperation
            if len(number.as_tuple().digits) > PLACES_MAX or number.adjusted() < -PLACES_MAX:
                raise InvalidOperation
        except InvalidOperation:
            raise refused(
                key, f"a number from {low} to {high}, of at most {PLACES_MAX} places", value
            ) from None
        return format(number.normalize(), "f")

    return check


def optional(check: Check) -> Check:
    return lambda key, value: None if value is None else check(key, value)


def mapping(table: Table) -> Check:
    def check(key: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise refused(key, "a mapping", value)
        return fill(key, value, table)

    return check


def listed(check: Check, size_max: int) -> Check:
    def checked(key: str, value: Any) -> list[Any]:
        if type(value) is not list or len(value) > size_max:
            raise refused(key, f"a list of at most {size_max}", value)
        return [check(f"{key}[{position}]", item) for position, item in enumerate(value)]

    return checked


def ascending_sizes(key: str, value: Any) -> list[int]:
    sizes: list[int] = listed(integer(1, BUCKET_MAX), BUCKETS_MAX)(key, value)
    if sizes != sorted(set(sizes)):
        raise refused(key, "ascending sizes, each once", value)
    return sizes


def version(key: str, value: Any) -> str:
    try:
        return parse_version(value, subject=key).text
    except FormatError as error:
        hint = "put the value in quotes" if isinstance(value, int | float) else error.hint
        raise RecipeError(f"recipe: {error.message}", hint=hint) from error


def fill(where: str, given: dict[str, Any], table: Table) -> dict[str, Any]:
    prefix = f"{where}." if where else ""
    unknown = sorted(set(given) - set(table))
    if unknown:
        raise RecipeError(
            f"recipe: {prefix}{unknown[0][:60]}: expected one of {', '.join(table)}, got an unknown key"
        )
    filled = {}
    for key, (default, check) in table.items():
        value = given.get(key, default)
        if value is MISSING:
            raise RecipeError(f"recipe: {prefix}{key}: expected a value, got none")
        filled[key] = check(prefix + key, value)
    return filled


def named(check: Check) -> Check:
    """A mapping of tensor names to values of one kind."""

    def checked(key: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict or len(value) > _TENSORS_MAX:
            raise refused(key, f"a mapping of at most {_TENSORS_MAX} tensor names", value)
        return {_tensor(key, name): check(f"{key}.{name}", item) for name, item in value.items()}

    return checked


def _tensor(key: str, name: Any) -> str:
    if type(name) is not str or not 0 < len(name) <= 400:
        raise refused(key, "names of tensors", name)
    return name


def shape(low: int) -> Check:
    """Dimensions, each at least ``low`` (-1: the batch)."""
    return listed(integer(low, DIMENSION_MAX), RANK_MAX)


def ordered_shapes(key: str, value: Any) -> dict[str, list[int]]:
    """``min``, ``opt``, ``max`` of one tensor, of one rank, none below the one before."""
    table: Table = {name: (MISSING, shape(0)) for name in ("min", "opt", "max")}
    shapes: dict[str, list[int]] = mapping(table)(key, value)
    low, best, high = shapes["min"], shapes["opt"], shapes["max"]
    if not len(low) == len(best) == len(high):
        raise refused(key, "min, opt and max of one rank", value)
    for axis, (a, b, c) in enumerate(zip(low, best, high, strict=True)):
        if not a <= b <= c:
            raise RecipeError(
                f"recipe: {key}: axis {axis}: expected min <= opt <= max, got {a}, {b}, {c}",
                hint="the builder would refuse it without a word",
            )
    return shapes
