"""A build again, from its package alone: the compile stage with the package's own graph and recipe.

Nothing of the recipe's folder is needed: the graph that the builder got is in the package. Three
outcomes, and the middle one is granted only where something explains other bytes:

- ``same bytes``
- ``same layers``: the layer fingerprint is the recorded one, and a hermetic measure was missing, the
  environment is another, or rebuilds differ from one another, so that other bytes were to be expected
- ``different``: anything else, also a package whose parts name another engine

Source: spec/rebuild.md; requirement B12.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pellucid.build import environment
from pellucid.build.child import measures
from pellucid.build.left import ENTRY
from pellucid.build.stages import Progress, Staged, Stages
from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.metadata import parse_metadata, value_of
from pellucid.core.package_diff import Comparison, compare
from pellucid.core.package_diff_sides import package_side
from pellucid.core.statement import parse_statement
from pellucid.core.trust import TrustedPackage
from pellucid.errors import MissingExtraError, PackageError

SAME_BYTES: Final = "same bytes"
SAME_LAYERS: Final = "same layers"
DIFFERENT: Final = "different"
GRAPH: Final = "model/compiled.onnx"
METADATA: Final = "metadata.json"
PROVENANCE: Final = "provenance.json"
UNEXPLAINED: Final = (
    "nothing explains other bytes: both builds had every hermetic measure and the same environment"
)
UNSTEADY: Final = "the builder itself is not steady here: rebuilds of this graph differ from one another"
_TRIES_MAX: Final = 3  # limit: rebuilds, where nothing explains other bytes

# who and when, and what is said of the GPU a second time beside ``device``
_NOT_COMPARED: Final = ("gpu", "gpu_uuid", "mig", "driver", "cuda", "commit", "image")
_NOT_INSTALLED_BY_PIP: Final = {"pellucid", "setuptools", "pip"}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How a rebuild went.

    Attributes:
        outcome: One of ``same bytes``, ``same layers``, ``different``.
        recorded, digest: Of the package's engine and of the rebuilt one.
        bytes_differ: Sizes and first offset that differs, in words; ``""`` for the same bytes.
        why: What stands behind the outcome, in words.
        missing: Hermetic measures that either build lacked, in words.
        comparison: Everything that differs, the package as A and the rebuild as B.
        install: The line that installs the recorded libraries, or ``""`` when they are here.
    """

    outcome: str
    recorded: str
    digest: str
    engine: bytes = field(repr=False)
    engine_name: str
    facts: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)
    log: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    bytes_differ: str
    why: list[str]
    missing: list[str]
    comparison: Comparison = field(repr=False)
    install: str


def rebuild(package: TrustedPackage, progress: Progress = lambda phase: None, entry: str = ENTRY) -> Rebuilt:
    """Compile a verified package's graph again in a fresh hermetic child, and compare.

    Raises:
        PackageError: The package lacks the graph that was compiled.
        MissingExtraError: The builder is not installed; the hint installs the recorded versions.
        BuildError: The builder refused or died.
    """
    if GRAPH not in package.files:
        raise PackageError(f"package {package.folder}: expected {GRAPH} to rebuild from, got none")
    found = _once(package, progress, entry)
    for _ in range(_TRIES_MAX - 1):
        if found.why != [UNEXPLAINED]:
            break
        again = _once(package, progress, entry)
        if again.outcome == SAME_BYTES:
            return replace(again, why=[UNSTEADY])
        if again.digest != found.digest:
            return replace(found, outcome=SAME_LAYERS, why=[UNSTEADY])
    return found


def _once(package: TrustedPackage, progress: Progress, entry: str) -> Rebuilt:
    stages = Stages(package.recipe, progress, entry)
    install = install_line(package.environment)
    try:
        with stages:
            staged = stages.run("compile", {"compiled": package.files[GRAPH]})
    except MissingExtraError as error:
        raise MissingExtraError(error.message, hint=install or error.hint) from error
    return _judged(package, stages, staged, install)


def _judged(package: TrustedPackage, stages: Stages, staged: Staged, install: str) -> Rebuilt:
    engine, here = bytes(staged.files["engine"]), _environment(package, staged)
    facts = staged.result["facts"] | {"options": staged.result["options"]}
    comparison = _compared(package, engine, facts, here)
    missing = missing_measures(package.environment, here)
    contradictions = contradictions_of(package)
    outcome, why = _outcome(package, engine, facts, comparison, missing, contradictions)
    return Rebuilt(
        outcome=outcome, recorded=package.engine_digest, digest=sha256(engine), engine=engine,
        engine_name=staged.result["engine_name"], facts=facts, environment=here, log=stages.log,
        stderr=stages.stderr, bytes_differ=bytes_differ(package.engine, engine), why=why, missing=missing,
        comparison=comparison, install=install,
    )  # fmt: skip


def _outcome(
    package: TrustedPackage,
    engine: bytes,
    facts: Mapping[str, Any],
    comparison: Comparison,
    missing: Sequence[str],
    contradictions: Sequence[str],
) -> tuple[str, list[str]]:
    there = [d.words for d in comparison.differences if d.section == "environment"]
    if contradictions:
        return DIFFERENT, list(contradictions)
    if engine == package.engine:
        return SAME_BYTES, []
    recorded, rebuilt = package.facts.get("fingerprint"), facts.get("fingerprint")
    if recorded is None or recorded != rebuilt:
        layers = [d.words for d in comparison.differences if d.section in ("tactics", "fusions", "precision")]
        return DIFFERENT, [*there, *missing, *layers] or ["the layers are not the same"]
    if not missing and not there:
        return DIFFERENT, [UNEXPLAINED]
    return SAME_LAYERS, [*there, *missing]


def _environment(package: TrustedPackage, staged: Staged) -> dict[str, Any]:
    """Of the rebuild, with the libraries that both builds name: the first one also made the graph."""
    here = dict(staged.result["environment"])
    loaded = {p["name"]: p for p in here["packages"]}
    known = {p["name"] for p in package.environment.get("packages", [])}
    return here | {
        "packages": [loaded[name] for name in sorted(loaded.keys() & known)],
        "system": environment.system(),
        "hermetic": dict(measures().report),
    }


def _compared(
    package: TrustedPackage, engine: bytes, facts: Mapping[str, Any], here: Mapping[str, Any]
) -> Comparison:
    known = {p["name"] for p in here["packages"]}
    there = {k: v for k, v in package.environment.items() if k not in _NOT_COMPARED}
    there["packages"] = [p for p in there.get("packages", []) if p["name"] in known]
    recorded = dict(package.files) | {"environment.json": canonical.encode(there)}
    rebuilt = recorded | {
        package.engine_path: engine,
        "facts.json": canonical.encode({**facts, "inputs": [], "outputs": []}),
        "environment.json": canonical.encode(dict(here)),
    }
    return compare(package_side("package", recorded), package_side("rebuild", rebuilt))


def bytes_differ(recorded: bytes, rebuilt: bytes) -> str:
    """Sizes and the first place that differs, in words; ``""`` where nothing does."""
    if recorded == rebuilt:
        return ""
    shorter = min(len(recorded), len(rebuilt))
    low, high = 0, shorter
    while low < high:  # the longest equal beginning, halved: engines are large
        middle = (low + high + 1) // 2
        if recorded[:middle] == rebuilt[:middle]:
            low = middle
        else:
            high = middle - 1
    return f"{len(recorded):,} bytes recorded, {len(rebuilt):,} rebuilt, first difference at offset {low:,}"


def missing_measures(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Hermetic measures that one of the two builds did not have, in words."""
    found = []
    for whose, said in (("the recorded build", recorded), ("this rebuild", here)):
        report = said.get("hermetic")
        if not isinstance(report, Mapping):
            found.append(f"{whose} does not say which hermetic measures it had")
            continue
        for name, value in sorted(report.items()):
            if name in ("fixed_addresses", "no_network") and value is not True:
                found.append(f"{whose} lacked {name}: {value!s:.120}")
    return found


def contradictions_of(package: TrustedPackage) -> list[str]:
    """Signed documents of the package that name another engine or another graph than the one inside."""
    found = []
    if METADATA in package.files:
        named = value_of(parse_metadata(package.files[METADATA]), "output_engine_hash")
        if named is not None and named != package.engine_digest:
            found.append(
                f"{METADATA} names engine {named[:19]}..., inside is {package.engine_digest[:19]}..."
            )
    if PROVENANCE in package.files:
        subjects = dict(parse_statement(package.files[PROVENANCE]).subjects)
        inside = {package.engine_path: package.engine_digest, GRAPH: sha256(package.files[GRAPH])}
        for path, digest in inside.items():
            if path in subjects and subjects[path] != digest:
                found.append(
                    f"{PROVENANCE} names {path} {subjects[path][:19]}..., inside is {digest[:19]}..."
                )
    return found


def install_line(recorded: Mapping[str, Any]) -> str:
    """``pip install`` of the recorded versions that are not the ones installed here."""
    wanted = []
    for package in recorded.get("packages", []):
        name, version = package["name"], package["version"]
        if name not in _NOT_INSTALLED_BY_PIP and _installed(name) != version:
            wanted.append(f"{name}=={version}")
    return f"pip install {' '.join(wanted)}" if wanted else ""


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
