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
import re
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
from pellucid.core.package_diff_sides import Side, package_side
from pellucid.core.recipe import in_force
from pellucid.core.statement import parse_statement
from pellucid.core.trust import TrustedPackage
from pellucid.core.words import printable
from pellucid.errors import FormatError, MissingExtraError, PackageError, PellucidError, RecipeError

SAME_BYTES: Final = "same bytes"
SAME_LAYERS: Final = "same layers"
DIFFERENT: Final = "different"
GRAPH: Final = "model/compiled.onnx"
METADATA: Final = "metadata.json"
PROVENANCE: Final = "provenance.json"
UNEXPLAINED: Final = (
    "nothing recorded explains other bytes: both builds had every hermetic measure and the same environment"
)
UNSTEADY: Final = "the builder itself is not steady here: rebuilds of this graph differ from one another"
_TRIES_MAX: Final = 3  # limit: rebuilds, where nothing explains other bytes

# who and when, and what is said of the GPU a second time beside ``device``
_NOT_COMPARED: Final = ("gpu", "gpu_uuid", "mig", "driver", "cuda", "commit", "image")
_NOT_INSTALLED_BY_PIP: Final = {"pellucid", "setuptools", "pip"}
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)  # PEP 508
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", re.ASCII)  # PEP 440, no epoch


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


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What a package says of its build, read and found to be of its form before anything runs."""

    package: TrustedPackage
    recipe: dict[str, Any]
    libraries: list[dict[str, str]]
    side: Side
    contradictions: list[str]
    install: str


def rebuild(package: TrustedPackage, progress: Progress = lambda phase: None, entry: str = ENTRY) -> Rebuilt:
    """Compile a verified package's graph again in a fresh hermetic child, and compare.

    Raises:
        PackageError: The package lacks the graph that was compiled, or a document is not of its form.
        MissingExtraError: The builder is not installed; the hint installs the recorded versions.
        BuildError: The builder refused or died.
    """
    recorded = _recorded(package)
    found = _once(recorded, progress, entry)
    for _ in range(_TRIES_MAX - 1):
        if found.why != [UNEXPLAINED]:
            break
        again = _once(recorded, progress, entry)
        if again.outcome == SAME_BYTES:
            return replace(again, why=[UNSTEADY])
        if again.digest != found.digest:
            return replace(found, outcome=SAME_LAYERS, why=[UNSTEADY])
    return found


def _recorded(package: TrustedPackage) -> _Recorded:
    if GRAPH not in package.files:
        raise PackageError(f"package {package.folder}: expected {GRAPH} to rebuild from, got none")
    try:
        libraries = recorded_libraries(package.environment)
        return _Recorded(
            package, in_force(package.recipe), libraries, package_side(package.folder, package.files),
            contradictions_of(package), install_line(libraries),
        )  # fmt: skip
    except (FormatError, RecipeError) as error:
        raise _refused(package, error) from error


def _refused(package: TrustedPackage, error: PellucidError) -> PackageError:
    """A document that is not what it must be: evidence does not hold."""
    where = "" if package.folder in error.message else f"package {package.folder!r}: "
    return PackageError(where + error.message, hint=error.hint)


def recorded_libraries(environment: Mapping[str, Any]) -> list[dict[str, str]]:
    """Name and version of what the builder had loaded.

    Raises:
        FormatError: ``packages`` is no list of these.
    """
    said = environment.get("packages", [])
    is_whole = isinstance(said, list) and all(
        isinstance(one, dict) and type(one.get("name")) is str and type(one.get("version")) is str
        for one in said
    )
    if not is_whole:
        raise FormatError(f"environment.json: packages: expected names and versions, got {said!r:.80}")
    libraries: list[dict[str, str]] = said
    return libraries


def _once(recorded: _Recorded, progress: Progress, entry: str) -> Rebuilt:
    stages = Stages(recorded.recipe, progress, entry)
    try:
        with stages:
            staged = stages.run("compile", {"compiled": recorded.package.files[GRAPH]})
    except MissingExtraError as error:
        raise MissingExtraError(error.message, hint=recorded.install or error.hint) from error
    return _judged(recorded, stages, staged)


def _judged(recorded: _Recorded, stages: Stages, staged: Staged) -> Rebuilt:
    package = recorded.package
    engine, here = bytes(staged.files["engine"]), _environment(recorded, staged)
    facts = staged.result["facts"] | {"options": staged.result["options"]}
    comparison = _compared(recorded, engine, facts, here)
    missing = missing_measures(package.environment, here)
    outcome, why = _outcome(package, engine, facts, comparison, missing, recorded.contradictions)
    return Rebuilt(
        outcome=outcome, recorded=package.engine_digest, digest=sha256(engine), engine=engine,
        engine_name=staged.result["engine_name"], facts=facts, environment=here, log=stages.log,
        stderr=stages.stderr, bytes_differ=bytes_differ(package.engine, engine), why=why, missing=missing,
        comparison=comparison, install=recorded.install,
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


def _environment(recorded: _Recorded, staged: Staged) -> dict[str, Any]:
    """Of the rebuild, with the libraries that both builds name: the first one also made the graph."""
    here = dict(staged.result["environment"])
    loaded = {p["name"]: p for p in here["packages"]}
    known = {p["name"] for p in recorded.libraries}
    return here | {
        "packages": [loaded[name] for name in sorted(loaded.keys() & known)],
        "system": environment.system(),
        "hermetic": dict(measures().report),
    }


def _compared(
    recorded: _Recorded, engine: bytes, facts: Mapping[str, Any], here: Mapping[str, Any]
) -> Comparison:
    package, known = recorded.package, {p["name"] for p in here["packages"]}
    there = {k: v for k, v in package.environment.items() if k not in _NOT_COMPARED}
    there["packages"] = [p for p in recorded.libraries if p["name"] in known]
    rebuilt = dict(package.files) | {
        package.engine_path: engine,
        "facts.json": canonical.encode({**facts, "inputs": [], "outputs": []}),
        "environment.json": canonical.encode(dict(here)),
    }
    try:
        return compare(replace(recorded.side, environment=there), package_side("rebuild", rebuilt))
    except FormatError as error:
        raise _refused(package, error) from error


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
                found.append(f"{whose} lacked {name}: {printable(f'{value!s:.120}')}")
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


def install_line(libraries: Sequence[Mapping[str, str]]) -> str:
    """``pip install`` of the recorded versions that are not the ones installed here.

    A name or version that a shell or pip would take for something else is left out: people paste this.
    """
    wanted = []
    for library in libraries:
        name, version = library["name"], library["version"]
        if not (_NAME.fullmatch(name) and _VERSION.fullmatch(version)) or name in _NOT_INSTALLED_BY_PIP:
            continue
        if _installed(name) != version:
            wanted.append(f"{name}=={version}")
    return f"pip install {' '.join(wanted)}" if wanted else ""


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
