"""The recipe: everything a build was told, nothing left to a silent default.

``parse_recipe`` reads what a person wrote; ``effective`` is the same with every default written
out, and that is what the package keeps. Decimals stand as text, so that no float is ever signed.
Source: spec/recipe.md; requirement B1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pellucid.core import strict_yaml
from pellucid.core.recipe_checks import fill, refused
from pellucid.core.recipe_choices import verify_choices
from pellucid.core.recipe_keys import DEFAULT_LIMITS, DEFAULTS, KEYS, ONLY, SECTIONS
from pellucid.errors import FormatError, RecipeError

__all__ = ["DEFAULT_LIMITS", "Recipe", "effective", "encode_recipe", "in_force", "parse_recipe"]


class Recipe(msgspec.Struct, frozen=True):
    """One build, said in full.

    Attributes:
        model, meaning: Paths relative to the recipe's folder; ``meaning`` may be ``None``.
        precision: ``fp32`` keeps the types of the model; ``fp16``, ``bf16``, ``int8`` change them.
        serve_level: ``portable`` (same bits on machines of one ISA) or ``native`` (faster, same
            bits on this machine only).
        shapes: Input -> dimensions that its variable axes are fixed to; -1 stays the batch.
        canonical: ``{opset, fold}``: what the graph is brought to before the builder sees it.
        buckets: Batch sizes served, ascending; ``()`` for a model without a batch axis.
        pinned_bucket: The one bucket every call uses, or ``None``.
        batch_delay_us: How long a served call may wait for company; ``None`` leaves it to the site.
        profiles: ``{name, inputs: {tensor: {min, opt, max}}}``; ``()`` is one made of the buckets.
        calibration: How an INT8 graph gets its ranges, or ``None``.
        reference: ``{data, slices}`` that the ranges are held against, or ``None``.
        validation: ``{data, labels, slices}`` or ``None``; golden: ``{inputs, count, seed}``.
        gate: Limits of the accuracy report; decimals as text, ``None`` where nothing is asked.
        reasons: ``{choice, reason, reviewer}`` for each risky choice.
        licence_ack: The author read the terms of NVIDIA's library; ``None`` where it is not used.
        said: Keys the author wrote, dotted.
    """

    name: str
    version: str
    previous: str | None
    backend: str
    target: str
    model: str
    meaning: str | None
    precision: str
    tf32: bool
    serve_level: str
    threads: int
    shapes: dict[str, list[int]]
    canonical: dict[str, Any]
    buckets: tuple[int, ...]
    pinned_bucket: int | None
    batch_delay_us: int | None
    profiles: tuple[dict[str, Any], ...]
    commitment: str
    nonfinite: str
    calibration: dict[str, Any] | None
    reference: dict[str, Any] | None
    validation: dict[str, Any] | None
    golden: dict[str, Any]
    gate: dict[str, Any]
    reasons: tuple[dict[str, str], ...]
    workspace_bytes: int | None
    licence_ack: bool | None
    limits: dict[str, Any]
    strict: bool
    said: frozenset[str]


_TUPLES = ("buckets", "profiles", "reasons")


def parse_recipe(raw: bytes) -> Recipe:
    """Recipe of a YAML file's bytes.

    Raises:
        RecipeError: Not YAML, an unknown or repeated key, a value out of range, a risky choice
            without reason and reviewer, or, with ``strict``, anything left unsaid.
    """
    try:
        given = strict_yaml.load(raw, subject="recipe")
    except FormatError as error:
        raise RecipeError(error.message, hint=error.hint) from error
    if type(given) is not dict:
        got = "an empty file" if given is None else type(given).__name__
        raise RecipeError(f"recipe: expected a mapping, got {got}")
    defaults = DEFAULTS.get(given["backend"], {}) if type(given.get("backend")) is str else {}
    values = fill("", _merged(defaults, given), KEYS)
    said = frozenset(_said(given))
    if values["strict"]:
        _verify_all_said(said, values)
    verify_choices(values)
    return Recipe(**values | {key: tuple(values[key]) for key in _TUPLES}, said=said)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given over a backend's own defaults, inside sections, too."""
    inner = {
        key: value | given[key]
        for key, value in defaults.items()
        if type(value) is dict and type(given.get(key)) is dict
    }
    return {**defaults, **given, **inner}


def _said(given: Mapping[str, Any]) -> list[str]:
    keys = list(given)
    for key in SECTIONS:
        if type(given.get(key)) is dict:
            keys += [f"{key}.{name}" for name in given[key]]
    return keys


def _verify_all_said(said: frozenset[str], values: Mapping[str, Any]) -> None:
    wanted = {key for key in KEYS if _is_for(key, values["backend"])}
    for key, table in SECTIONS.items():
        if values[key] is not None:
            wanted |= {f"{key}.{name}" for name in table}
    unsaid = sorted(wanted - said)
    if unsaid:
        raise RecipeError(
            f"recipe: strict: expected every key to be said, got no {', '.join(unsaid)}",
            hint="write them out, or copy them from the recipe.yaml of an earlier package",
        )


def _is_for(key: str, backend: str) -> bool:
    return backend in ONLY.get(key, (backend,))


def effective(recipe: Recipe) -> dict[str, Any]:
    """Everything the recipe says, defaults written out; values of the canonical profile."""
    values = {name: getattr(recipe, name) for name in Recipe.__struct_fields__ if name != "said"}
    values |= {key: list(values[key]) for key in _TUPLES}
    return {key: value for key, value in values.items() if _is_for(key, recipe.backend)}


def in_force(values: Mapping[str, Any]) -> dict[str, Any]:
    """A package's recipe, fit to be worked with: every key that this version knows is of its kind.

    A key that the builder's version did not know gets its default; one that this version does not know
    stays as it is, but not inside a section.

    Raises:
        RecipeError: A value that nobody could have built with.
    """
    backend = KEYS["backend"][1]("backend", values.get("backend"))
    table = {key: kind for key, kind in KEYS.items() if _is_for(key, backend)}
    known = {key: value for key, value in values.items() if key in table}
    found = {**values, **fill("", _merged(DEFAULTS.get(backend, {}), known), table)}
    pinned = found["pinned_bucket"]
    if pinned is not None and pinned not in found["buckets"]:
        raise refused("pinned_bucket", f"one of the buckets {found['buckets']}", pinned)
    return found


def encode_recipe(values: Mapping[str, Any]) -> bytes:
    """YAML of an effective recipe; ``parse_recipe`` reads the same values back."""
    return strict_yaml.dump({key: values[key] for key in KEYS if key in values or key not in ONLY})
