"""What a site knows of quantisation: packages of a model in order, who holds a sample, new data for old.

Every package is verified before a word of it is believed. Which calls a sample stands behind is read
from the ledger, and that reading is an entry itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.app.packages import SUFFIX, FolderOpener
from pellucid.app.site import read_file
from pellucid.core import canonical
from pellucid.core.calibration import MANIFEST_PATH, RANGES_PATH, CalibrationSet, parse_manifest
from pellucid.core.calibration_ranges import RangeChange, Ranges, changes, parse_ranges
from pellucid.core.digest import parse_digest, sha256
from pellucid.core.package import SIGNATURE
from pellucid.core.trust import TrustedPackage, verify_package
from pellucid.core.version import parse_version
from pellucid.errors import FormatError, NotFoundError, PellucidError, RecipeError, UsageError
from pellucid.guardian.open import open_package
from pellucid.ports import Found, Query

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.build.job import BuildOutcome

_CALLS_MAX: Final = 10**7  # limit: calls of one package in one answer


@dataclass(frozen=True, slots=True)
class Quantised:
    """A verified package and what it says of its calibration; ``None`` where it has none."""

    package: TrustedPackage
    calibration: CalibrationSet | None
    ranges: Ranges | None


def show(site: Site, reference: str) -> Quantised:
    """A package of the site: archive, folder, ``name:version`` or package digest.

    Raises:
        NotFoundError: No such package.
        VerificationError: It does not hold.
    """
    package = verify_package(FolderOpener(site.packages_folder).open(reference), site.trust())
    return _read(package)


def _read(package: TrustedPackage) -> Quantised:
    calibration, ranges = package.files.get(MANIFEST_PATH), package.files.get(RANGES_PATH)
    return Quantised(
        package,
        parse_manifest(calibration) if calibration is not None else None,
        parse_ranges(ranges) if ranges is not None else None,
    )


# -- history --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One package in a model's history.

    Attributes:
        changed: Against the calibrated package for the same target before it, largest first; empty for
            the first.
    """

    quantised: Quantised
    changed: tuple[RangeChange, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """Packages of a site, and those it could not believe: name and reason."""

    packages: tuple[Quantised, ...]
    refused: tuple[tuple[str, str], ...]


def history(site: Site, model: str) -> tuple[list[Step], Kept]:
    """Every package of a model, by version, each with what changed.

    Raises:
        NotFoundError: The site has no package of that name.
    """
    kept = all_packages(site, model)
    if not kept.packages:
        raise NotFoundError(
            f"model {model!r:.80}: expected a package of it in {site.packages_folder}, got none"
        )
    steps: list[Step] = []
    latest: dict[tuple[str, str], Ranges] = {}
    for each in kept.packages:
        built_for = (each.package.manifest.backend, each.package.manifest.target)
        before = latest.get(built_for)
        if each.ranges is not None:
            latest[built_for] = each.ranges
        changed = changes(before, each.ranges) if before is not None and each.ranges is not None else []
        steps.append(Step(each, tuple(changed)))
    return steps, kept


def all_packages(site: Site, model: str = "") -> Kept:
    """Every signed package of the site, each once, by name and version."""
    trust, refused = site.trust(), []
    found: dict[str, Quantised] = {}
    for path in _places(site):
        try:
            files = open_package(path)
            if path.is_dir() and SIGNATURE not in files.files:
                continue  # built, not signed: no package yet
            package = verify_package(files, trust)
            if model in ("", package.name):
                found.setdefault(package.digest, _read(package))
        except PellucidError as error:
            refused.append((path.name, error.message))
    ordered = sorted(
        found.values(), key=lambda q: (q.package.name, parse_version(q.package.version), q.package.folder)
    )
    return Kept(tuple(ordered), tuple(refused))


def _places(site: Site) -> Iterator[Path]:
    """Archives first: they are what travels."""
    for path in sorted(site.packages_folder.glob("*"), key=lambda path: (path.is_dir(), path.name)):
        if path.name.endswith(SUFFIX) or ((path / SIGNATURE).is_file()):
            yield path


# -- who depends on a sample ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dependent:
    """A package whose calibration set holds the sample, and the calls that it answered.

    Attributes:
        samples: ``(row in the set's file, digest)`` of what it holds.
    """

    quantised: Quantised
    samples: tuple[tuple[int, str], ...]
    calls: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class Dependents:
    """An answer, and the key of the ``read`` entry that says it was given."""

    found: tuple[Dependent, ...]
    refused: tuple[tuple[str, str], ...]
    entry: str


def dependents(site: Site, sample: str, row: int | None = None) -> Dependents:
    """Packages that were calibrated with a sample, and every recorded call of each.

    Args:
        sample: Digest ``sha256:...``, or an ``.npz`` file of rows.
        row: One row of the file; every row otherwise.

    Raises:
        NotFoundError: No such file.
        FormatError: Neither a digest nor an ``.npz`` file.
        UsageError: A row of a digest, or one beyond the file.
    """
    from pellucid.app.ledger import record_event
    from pellucid.build.npz import read_arrays

    if sample.startswith("sha256:"):
        parse_digest(sample)
        if row is not None:
            raise UsageError("sample: expected a file for --row, got a digest")
        raw = b""
    else:
        raw = read_file(Path(sample), "sample")
        read_arrays(raw, "sample")  # a file that nobody can read was not looked for: no answer is given
    kept = all_packages(site)
    held = [(each, _held(each.calibration, sample, raw, row)) for each in kept.packages if each.calibration]
    holders = [(each, samples) for each, samples in held if samples]
    named = sorted({digest for _, samples in holders for _, digest in samples})
    about = {"what": "dependents", "sample": sample if not raw else sha256(raw), "row": row}
    entry = record_event(
        site, "read",
        about | {"packages": [each.package.digest for each, _ in holders][:100], "samples": named[:100]},
    )  # fmt: skip
    calls = _calls(site, [each.package.digest for each, _ in holders])
    found = tuple(Dependent(each, samples, calls[each.package.digest]) for each, samples in holders)
    return Dependents(found, kept.refused, entry)


def _held(
    calibration: CalibrationSet, sample: str, raw: bytes, row: int | None
) -> tuple[tuple[int, str], ...]:
    wanted = {sample} if not raw else _file_digests(calibration, raw, row)
    return tuple((s.index, s.digest) for s in calibration.samples if s.digest in wanted)


def _file_digests(calibration: CalibrationSet, raw: bytes, row: int | None) -> set[str]:
    """Digests of a file's rows as this set's inputs read them; none where they do not fit."""
    from pellucid.build.calibration_data import file_digests

    try:
        digests = file_digests(raw, calibration.inputs)
    except RecipeError:
        return set()
    if row is None:
        return set(digests)
    if row >= len(digests):
        raise UsageError(f"sample: expected a row below {len(digests):,}, got {row:,}")
    return {digests[row]}


def _calls(site: Site, packages: list[str]) -> dict[str, tuple[Found, ...]]:
    from pellucid.app.ledger import open_ledger, settle

    settle(site)
    with closing(open_ledger(site)) as ledger:
        return {
            package: tuple(
                ledger.reader.find(Query(type="call", package=package, limit=_CALLS_MAX, newest_first=False))
            )
            for package in packages
        }


# -- recalibrating --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """A new package beside the old one.

    Attributes:
        old: The package it follows.
        outcome: The build of the new one, unsigned yet.
        calibration, ranges: Of the new one.
        changed: Ranges that moved, largest relative change first.
        recipe: Folder with everything the build took.
        entry: Key of the ``recalibration`` entry.
    """

    old: Quantised
    outcome: BuildOutcome
    calibration: CalibrationSet
    ranges: Ranges
    changed: tuple[RangeChange, ...]
    recipe: Path
    entry: str


def recalibrate(
    site: Site,
    reference: str,
    data: Path,
    version: str,
    *,
    source: str | None = None,
    licence: str | None = None,
    progress: Callable[[str], None] = lambda phase: None,
) -> Recalibrated:
    """Build a package again from its own source and recipe, with new calibration data.

    What it is built from lies in the site's ``recipes`` afterwards. What the recipe names outside the
    package (validation and reference data, preprocessing code) is found below ``recipes`` by digest.

    Args:
        source, licence: Of the new data; what was said of the old ones is not said of these.

    Raises:
        UsageError: Not a quantised package, or not a later version.
        NotFoundError: The data, or a file that the recipe names, is not to be found.
        VerificationError: The package does not hold.
        BuildError: As a build; recorded as a build that failed.
    """
    from pellucid.app.build import build
    from pellucid.app.ledger import record_event

    old = show(site, reference)
    if old.calibration is None or old.ranges is None:
        raise UsageError(
            f"package {old.package.folder}: expected one with a calibration set, got {old.package.precision}"
        )
    if not parse_version(version) > parse_version(old.package.version):
        raise UsageError(f"version: expected one after {old.package.version}, got {version!r:.60}")
    folder = site.path("recipes") / f"{old.package.name}-v{version}"
    files = _recipe_files(site, old.package, read_file(data, "data"), version, source, licence)
    if folder.exists():
        raise UsageError(
            f"recipe: expected no folder at {folder}, got one", hint="choose another version, or move it away"
        )
    with ExitStack() as undone:
        undone.callback(shutil.rmtree, folder, ignore_errors=True)  # so that it can be tried again
        _write_recipe(folder, files)
        outcome = build(site, folder / "recipe.yaml", progress)
        undone.pop_all()
    calibration = parse_manifest((outcome.folder / MANIFEST_PATH).read_bytes())
    raw = (outcome.folder / RANGES_PATH).read_bytes()
    ranges = parse_ranges(raw)
    changed = tuple(changes(old.ranges, ranges))
    entry = record_event(site, "recalibration", {
        "name": outcome.name, "version": outcome.version, "package": outcome.package,
        "previous_version": old.package.version, "previous_package": old.package.digest,
        "data": calibration.data, "previous_data": old.calibration.data, "samples": calibration.digest,
        "previous_samples": old.calibration.digest, "ranges": sha256(raw),
        "previous_ranges": sha256(old.package.files[RANGES_PATH]), "method": ranges.method,
        "build": outcome.entry, "changed": len(changed),
        "largest": [{"tensor": c.name, "change": share_text(c.share)} for c in changed[:5]],
    })  # fmt: skip
    return Recalibrated(old, outcome, calibration, ranges, changed, folder, entry)


def share_text(share: float) -> str:
    """A relative change as decimal text; ``came or went`` for a tensor that only one of the two has."""
    return "came or went" if share == float("inf") else f"{share:.6f}"


def _recipe_files(
    site: Site,
    package: TrustedPackage,
    data: bytes,
    version: str,
    source: str | None,
    licence: str | None,
) -> dict[str, bytes]:
    from pellucid.core.recipe import encode_recipe

    recipe = dict(package.recipe)
    recipe |= {"version": version, "previous": package.version, "model": "model.onnx"}
    recipe["calibration"] = recipe["calibration"] | {
        "data": "calibration.npz", "artefact": None, "source": source, "licence": licence,
    }  # fmt: skip
    files = {"model.onnx": _member(package, "model/source.onnx"), "calibration.npz": data}
    if recipe["meaning"] is not None:
        recipe["meaning"] = "meaning.json"
        files["meaning.json"] = _member(package, "meaning.json")
        code = canonical.decode(files["meaning.json"]).get("preprocessing")
        if code:
            files[code["file"]] = _find(site, code["file"], code["digest"], "preprocessing")
    for role, key in (("validation", "data"), ("reference", "data"), ("golden", "inputs")):
        if recipe[role] is None or recipe[role][key] is None:
            continue
        name = f"{role}{Path(recipe[role][key]).suffix}"
        files[name] = _find(site, recipe[role][key], _named(package, role), role)
        recipe[role] = recipe[role] | {key: name}
    return files | {"recipe.yaml": encode_recipe(recipe)}


def _member(package: TrustedPackage, path: str) -> bytes:
    if path not in package.files:
        raise NotFoundError(f"package {package.folder}: expected {path}, got a package without this file")
    return package.files[path]


def _named(package: TrustedPackage, role: str) -> str:
    from pellucid.core.provenance import dependency
    from pellucid.core.statement import parse_statement

    digest = dependency(parse_statement(package.files["provenance.json"]).predicate, role)
    if digest is None:
        raise NotFoundError(f"package {package.folder}: expected the digest of its {role} data, got none")
    return digest


def _find(site: Site, name: str, digest: str, role: str) -> bytes:
    """The very bytes that the package names, from below the site's recipes."""
    for path in sorted(site.path("recipes").rglob("*")):
        is_like = path.suffix == Path(name).suffix and path.is_file()
        if is_like and sha256(raw := path.read_bytes()) == digest:
            return raw
    raise NotFoundError(
        f"{role}: expected {name} ({digest[:19]}...) below {site.path('recipes')}, got none",
        hint="the package holds only its digest: put the file back, under any name of that ending",
    )


def _write_recipe(folder: Path, files: dict[str, bytes]) -> None:
    for name, raw in files.items():
        place = folder / name
        if not place.resolve().is_relative_to(folder.resolve()):
            raise FormatError(f"recipe: expected a file below its folder, got {name!r:.80}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(raw)
