"""SLSA v1 provenance of a build: from what, with what, by whom, into which bytes.

Source: https://slsa.dev/provenance/v1; requirement P2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pellucid.core.digest import parse_digest
from pellucid.core.statement import SLSA, make_statement
from pellucid.errors import FormatError

BUILD_TYPE: Final = "urn:pellucid:build:v1"
BUILDER_ID: Final = "urn:pellucid:builder:v1"


class Material(msgspec.Struct, frozen=True):
    """Something a build took in or gave out: a name and its digest."""

    name: str
    digest: str


class BuildFacts(msgspec.Struct, frozen=True):
    """What a provenance says.

    Attributes:
        subjects: Engine and compiled graph.
        recipe: The effective recipe.
        environment: ``environment.json`` as an object.
        dependencies: Source model, recipe as written, meaning, validation data, ...
        byproducts: Build log and the builder's stderr.
        steps: What was done to the model before the builder saw it, with digests around each step.
        versions: Component -> version of what did the work.
        started, finished: RFC 3339 times.
    """

    subjects: Sequence[Material]
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    dependencies: Sequence[Material]
    byproducts: Sequence[Material]
    versions: Mapping[str, str]
    invocation: str
    started: str
    finished: str
    steps: Sequence[Mapping[str, Any]] = ()


def make_provenance(facts: BuildFacts) -> bytes:
    """The in-toto statement, canonical JSON, unsigned."""
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"recipe": dict(facts.recipe)},
            "internalParameters": {
                "environment": dict(facts.environment),
                "steps": [dict(step) for step in facts.steps],
            },
            "resolvedDependencies": [_descriptor(m) for m in facts.dependencies],
        },
        "runDetails": {
            "builder": {"id": BUILDER_ID, "version": dict(facts.versions)},
            "metadata": {
                "invocationId": facts.invocation,
                "startedOn": facts.started,
                "finishedOn": facts.finished,
            },
            "byproducts": [_descriptor(m) for m in facts.byproducts],
        },
    }
    return make_statement([(m.name, m.digest) for m in facts.subjects], SLSA, predicate)


def dependency(predicate: Mapping[str, Any], name: str) -> str | None:
    """Digest of a resolved dependency by name, or ``None`` when the build had none of that name.

    Raises:
        FormatError: No provenance of this form.
    """
    try:
        for item in predicate["buildDefinition"]["resolvedDependencies"]:
            if item["name"] == name:
                digest = f"sha256:{item['digest']['sha256']}"
                parse_digest(digest)
                return digest
    except (KeyError, TypeError) as error:
        raise FormatError(
            f"provenance: expected resolved dependencies with names and digests, got {error!r:.80}"
        ) from error
    return None


def _descriptor(material: Material) -> dict[str, Any]:
    return {"name": material.name, "digest": {"sha256": parse_digest(material.digest).hex()}}
