"""Why a replay is not bit-exact: recorded factors, toggled one at a time.

A factor is the cause when changing it alone brings the recorded bits back. Source: spec/replay.md,
section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pellucid.core.divergence import Change
from pellucid.errors import BuildError, UsageError

SLOTS_MAX: Final = 8  # limit: slots tried beside the recorded one
THREADS: Final = (1, 2, 4, 8)
SERVE_LEVELS: Final = ("portable", "native")
BRINGS_BACK: Final = "brings the recorded bits back"
NO_EFFECT: Final = "does not bring them back"
NOT_TRIED: Final = "could not be tried"


@dataclass(frozen=True, slots=True)
class Trial:
    """How to run the rows: as recorded, or with one factor changed."""

    bucket: int
    slot: int
    recipe: Mapping[str, Any]
    neighbours: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """One factor that was changed, and what that did."""

    factor: str
    recorded: str
    tried: str
    effect: str


def find_causes(
    trial: Trial,
    width: int,
    recipe: Mapping[str, Any],
    is_same: Callable[[Trial], bool],
    changes: Sequence[Change],
) -> tuple[tuple[Cause, ...], str]:
    """Everything tried, and the cause in one sentence.

    Args:
        trial: The run that was not bit-exact.
        width: Slots that the rows need.
        recipe: The package's recipe; names the buckets it may run in.
        is_same: Runs a trial and says whether the recorded bits came back.
        changes: How the environment differs from the recorded one.
    """
    causes = []
    for factor, recorded, tried, other in _toggles(trial, width, recipe):
        effect = _effect(other, is_same)
        causes.append(Cause(factor, recorded, tried, effect))
        if effect == BRINGS_BACK and factor != "repetition":
            break
    return tuple(causes), _sentence(causes, changes)


def _effect(trial: Trial, is_same: Callable[[Trial], bool]) -> str:
    try:
        return BRINGS_BACK if is_same(trial) else NO_EFFECT
    except (BuildError, UsageError) as error:  # an engine that cannot run that way rules the factor out
        return f"{NOT_TRIED}: {error.message:.120}"


Toggle = tuple[str, str, str, Trial]


def _toggles(trial: Trial, width: int, recipe: Mapping[str, Any]) -> Iterator[Toggle]:
    yield "repetition", "one run", "the same run again", trial
    if trial.bucket:
        yield from _place_toggles(trial, width, recipe)
    yield from _recipe_toggles(trial, recipe, "threads", THREADS)
    yield from _recipe_toggles(trial, recipe, "serve_level", SERVE_LEVELS)


def _place_toggles(trial: Trial, width: int, recipe: Mapping[str, Any]) -> Iterator[Toggle]:
    for bucket in recipe.get("buckets") or ():
        if bucket != trial.bucket and trial.slot + width <= bucket:
            yield "bucket", str(trial.bucket), str(bucket), replace(trial, bucket=bucket)
    for slot in range(min(trial.bucket - width + 1, SLOTS_MAX)):
        if slot != trial.slot:
            yield "slot", str(trial.slot), str(slot), replace(trial, slot=slot)
    if trial.bucket > width:
        yield "neighbours", "zeros", "copies of the row", replace(trial, neighbours=True)


def _recipe_toggles(
    trial: Trial, recipe: Mapping[str, Any], key: str, values: Sequence[Any]
) -> Iterator[Toggle]:
    if key not in recipe:
        return
    for value in values:
        if value != recipe[key]:
            yield key, str(recipe[key]), str(value), replace(trial, recipe={**recipe, key: value})


def _sentence(causes: Sequence[Cause], changes: Sequence[Change]) -> str:
    for cause in causes:
        if cause.effect == BRINGS_BACK:
            if cause.factor == "repetition":
                return "the engine does not repeat itself: the same run again gave the recorded bits"
            return (
                f"{cause.factor}: the recorded bits come back with {cause.tried} "
                f"instead of the recorded {cause.recorded}"
            )
    if changes:
        named = ", ".join(f"{c.what} ({c.recorded:.40} then, {c.now:.40} now)" for c in changes[:3])
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        return f"no recorded factor brings the bits back; the environment differs: {named}{more}"
    return (
        "no recorded factor brings the bits back and the environment is the recorded one: "
        "the recorded output did not come from this engine and input"
    )
