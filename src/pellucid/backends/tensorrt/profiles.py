"""Optimisation profiles: the shapes an engine takes, each as the library read it back.

The recipe's ``profiles`` as they stand, or else one over the batch axis of every input, made of the
buckets. Source: spec/recipe.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.errors import BuildError

_HINT = "buckets: ascending batch sizes, pinned_bucket one of them"
Shapes = dict[str, tuple[list[int], list[int], list[int]]]


def choose_batches(buckets: Sequence[int], pinned: int | None) -> tuple[int, int, int] | None:
    """Smallest, best served and largest batch; ``None`` for a model without a batch axis."""
    if not buckets:
        return None
    return buckets[0], pinned or buckets[len(buckets) // 2], buckets[-1]


def add_profiles(builder: Any, config: Any, network: Any, recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every profile of the recipe; gives them as read back: ``{name, input, min, opt, max}``.

    Raises:
        BuildError: The library does not take one.
    """
    inputs = {network.get_input(i).name: network.get_input(i) for i in range(network.num_inputs)}
    given = recipe.get("profiles") or []
    if given:
        asked = [(profile["name"], _named(profile, inputs)) for profile in given]
    else:
        batches = choose_batches(recipe["buckets"], recipe["pinned_bucket"])
        asked = [] if batches is None else [("buckets", _over_batches(inputs, batches))]
    return [row for name, shapes in asked for row in _add(builder, config, name, shapes)]


def _named(profile: Mapping[str, Any], inputs: Mapping[str, Any]) -> Shapes:
    unknown = sorted(profile["inputs"].keys() ^ inputs.keys())
    if unknown:
        raise BuildError(
            f"profile {profile['name']}: expected shapes of exactly {sorted(inputs)}, got another set: "
            f"{', '.join(unknown)!s:.200}",
            hint="profiles: every input by its own name, with min, opt and max",
        )
    return {
        name: (list(shapes["min"]), list(shapes["opt"]), list(shapes["max"]))
        for name, shapes in profile["inputs"].items()
    }


def _over_batches(inputs: Mapping[str, Any], batches: tuple[int, int, int]) -> Shapes:
    found: Shapes = {}
    for name, tensor in inputs.items():
        rest = list(tensor.shape)[1:]
        smallest, best, largest = ([batch, *rest] for batch in batches)
        found[name] = (smallest, best, largest)
    return found


def _add(builder: Any, config: Any, name: str, inputs: Shapes) -> list[dict[str, Any]]:
    profile = builder.create_optimization_profile()
    rows = []
    for tensor, shapes in inputs.items():
        profile.set_shape(tensor, *shapes)
        got = [list(shape) for shape in profile.get_shape(tensor) or ()]
        if got != list(shapes):
            raise BuildError(
                f"profile of input {tensor!r:.80}: expected min, opt, max {list(shapes)}, got {got}",
                hint=_HINT,
            )
        rows.append({"name": name, "input": tensor, "min": shapes[0], "opt": shapes[1], "max": shapes[2]})
    if config.add_optimization_profile(profile) < 0:
        asked = [[row["min"], row["opt"], row["max"]] for row in rows]
        raise BuildError(
            f"profile {name}: expected min <= opt <= max, got {asked!s:.200}, which the builder refuses",
            hint=_HINT,
        )
    return rows
