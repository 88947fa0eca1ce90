"""The first stage: from the source model to the graph that the builder gets, each step with digests.

Runs in a child process, never in the caller's: a hostile file may crash its reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pellucid import onnx_light
from pellucid.build import precision
from pellucid.build.canonical_graph import canonicalise
from pellucid.build.drawing_graph import graph_of
from pellucid.build.task import Task


class Prepared(msgspec.Struct, frozen=True):
    """A graph fit to build.

    Attributes:
        compiled: ONNX bytes the builder gets.
        source: The model as given, with weights that lay outside the file put inside.
        names: ``{"nodes": [...], "tensors": [...]}`` of ``{"from", "to"}``, only what changed.
        steps: ``{"step", "before", "after", "detail"}``: digests of the graph around each step.
        external: File name -> digest of weights that lay outside the model's file.
        documents: Path in the package -> value of the canonical profile.
        graph: What a drawing needs of the compiled graph.
        notes: What a reader should know, in words.
        given: Operators of the graph as it was given.
    """

    compiled: bytes
    source: bytes
    names: dict[str, Any]
    steps: list[dict[str, Any]]
    external: dict[str, str]
    documents: dict[str, Any]
    graph: dict[str, Any]
    notes: list[str]
    given: int


def prepare(task: Task) -> Prepared:
    """Canonicalise, then give it the recipe's precision.

    Raises:
        ParseError, PrecisionError, RecipeError: The model, or what the recipe asks of it, does not hold.
    """
    request = task.request
    canonical = canonicalise(request["model"], request["recipe"], Path(request["model_folder"]))
    task.phase("precision")
    precise = precision.apply(canonical.compiled, request["recipe"], request["files"])
    return Prepared(
        compiled=precise.model,
        source=canonical.source,
        names=canonical.names,
        steps=[*canonical.steps, *precise.steps],
        external=canonical.external,
        documents=precise.documents,
        graph=graph_of(onnx_light.parse(precise.model)).as_json(),
        notes=[*canonical.notes, *precise.notes],
        given=canonical.given,
    )
