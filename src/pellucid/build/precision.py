"""Precision as data: the graph gets the types that the recipe asks for, before the builder sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pellucid.errors import PrecisionError


@dataclass(frozen=True, slots=True)
class Precise:
    """A graph of the wanted precision.

    Attributes:
        steps: ``{"step", "before", "after", "detail"}`` of what was done.
        documents: Path in the package -> value of the canonical profile.
    """

    model: bytes
    steps: list[dict[str, Any]] = field(default_factory=list)
    documents: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def apply(model: bytes, recipe: Mapping[str, Any], files: Mapping[str, bytes]) -> Precise:
    """The graph in the recipe's precision.

    Args:
        files: What the recipe names, by role: ``calibration``, ``artefact``.

    Raises:
        PrecisionError: The graph cannot have it.
    """
    if recipe["precision"] == "fp32":
        return Precise(model)
    raise PrecisionError(
        f"precision: expected fp32, got {recipe['precision']} with {sorted(files)}, which is not built yet"
    )
