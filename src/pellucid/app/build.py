"""Building and qualifying, plugged together: which backend, which processes, which ledger."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pellucid import schemes
from pellucid.app.clock import SystemClock
from pellucid.errors import (
    DiskFullError,
    FormatError,
    NotFoundError,
    PackageError,
    PellucidError,
    RecipeError,
    TensorError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.build.isolated import ChildIsolated
    from pellucid.build.job import BuildOutcome
    from pellucid.build.qualify import Subject
    from pellucid.core.tensor import TensorSpec
    from pellucid.core.trust import TrustedPackage

    Specs = tuple[TensorSpec, ...]


_AHEAD: Final = 2  # a build that opens its site already has the children of its first two stages


def isolated(_site: Site | None = None) -> ChildIsolated:
    """Runs engines in fresh processes; no site has a say in how."""
    from pellucid.build.isolated import ChildIsolated

    return ChildIsolated()


def build(
    site: Site | Callable[[], Site],
    recipe_path: Path,
    progress: Callable[[str], None] = lambda phase: None,
) -> BuildOutcome:
    """Build a recipe into the site's packages folder (unsigned) and record how it went.

    Ctrl-C and SIGTERM end the build: no process is left, and that it was cancelled is recorded.
    Where the environment names an OpenTelemetry collector, the build becomes spans there.

    Args:
        site: A site, or what opens it: that is called while the first children load.

    Raises:
        ModuleNotFoundError: A library that the children will need is not installed.
        What brings the entry into the ledger's tree: the package and its entry stand.
        As ``pellucid.build.job.run_build``; UsageError where the collector cannot be spoken to;
        what ``site`` raises.
    """
    _find_libraries()
    from pellucid.build.cancel import Stop
    from pellucid.build.left import ENTRY
    from pellucid.build.stages import STEP, Opened, start

    def said(phase: str) -> None:
        if not phase.startswith(STEP):
            spans.phase(phase)
        progress(phase)

    with Stop():
        ahead: list[Opened] = []
        try:
            with suppress(OSError):  # the build will meet the same, and record it
                ahead.extend(start(ENTRY, said) for _ in range(_AHEAD))
            opened = site() if callable(site) else site
            from pellucid.build.job import Job, run_build
            from pellucid.build.spans import Spans

            recorder = _Recorder(opened)
            job = Job(
                opened.packages_folder, recorder, SystemClock(), said,
                meanwhile=lambda: _load_ledger(opened), ahead=ahead,
            )  # fmt: skip
            try:
                with Spans(recipe_path) as spans:
                    return run_build(recipe_path, job)
            except PellucidError as error:
                recorder.settle_after(error)
                raise
            finally:
                recorder.settle()
        finally:
            with ExitStack() as left_over:  # each, also when one of them fails
                for child in ahead:
                    left_over.callback(child.abandon)


def _find_libraries() -> None:
    """Look for what the children import, without importing it: that is theirs."""
    for name in ("numpy", "onnx", "onnxruntime"):
        try:
            found = importlib.util.find_spec(name) is not None
        except ValueError:  # barred from being imported
            found = False
        if not found:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _load_ledger(site: Site) -> None:
    """What the record of a build needs, imported while its children work."""
    import pellucid.app.ledger

    assert pellucid.app.ledger
    uris = {"store": "file:", "index": site.config.ledger.index, "key": site.config.keys.get("log", "")}
    for kind, uri in uris.items():
        with suppress(UsageError):  # the record will meet the same, and say it
            schemes.load(kind, uri.partition(":")[0])


class _Recorder:
    """``ports.EventRecorder`` of a site, opened only when there is something to record."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._key = ""

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        from pellucid.app.ledger import append_event

        self._key = append_event(self._site, kind, data, personal)
        return self._key

    def settle(self) -> None:
        """Bring what was recorded into the tree, once; a failure takes nothing back, and says so."""
        key, self._key = self._key, ""
        if not key:
            return
        from pellucid.app.ledger import integrate

        said = f"the build is recorded as {key}, and the next command integrates it"
        try:
            integrate(self._site)
        except PellucidError as error:
            hint = f"{error.hint}; {said}" if error.hint else said
            raise type(error)(error.message, hint=hint) from error
        except OSError as error:
            kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
            place = error.filename or "its folder"
            refused = f"ledger: expected {place} to be usable, got: {error.strerror or error}"
            raise kind(refused, hint=said) from error

    def settle_after(self, failed: PellucidError) -> None:
        """The same where the build failed: why it did is what counts, and a failure here comes behind it."""
        try:
            self.settle()
        except PellucidError as error:
            said = "; ".join(words for words in (failed.hint, error.message, error.hint) if words)
            raise type(failed)(failed.message, hint=said) from failed


class Qualified(msgspec.Struct, frozen=True):
    """A qualification that stands beside its package now.

    Attributes:
        attestation: Digest of the signed bundle; member: its path in the package.
        entry: Key of the ``qualification`` entry.
    """

    package: TrustedPackage
    predicate: dict[str, Any]
    member: str
    attestation: str
    entry: str

    @property
    def passed(self) -> bool:
        return self.predicate["accuracy"]["passed"] is True


def qualify(
    site: Site, path: Path, data: Path | None = None, progress: Callable[[str], None] = lambda step: None
) -> Qualified:
    """Measure a signed package on this device, sign the result, put it beside the package, record it.

    Args:
        path: Archive or folder.
        data: Validation file; by default the one of its name below the site's ``recipes``.

    Raises:
        VerificationError: The package does not hold, a document of it is not of its form, or the data
            are not those the build named.
        NotFoundError: The recipe names validation data and they are not to be found.
    """
    from pellucid.app.ledger import record_event
    from pellucid.app.sign import attach
    from pellucid.build.qualify import qualify as measure
    from pellucid.core.digest import sha256
    from pellucid.core.dsse import sign_bundle
    from pellucid.core.package import ATTESTATION_SUFFIX, ATTESTATIONS
    from pellucid.core.statement import PAYLOAD_TYPE, QUALIFICATION, make_statement
    from pellucid.core.trust import verify_package
    from pellucid.guardian.open import open_package

    package = verify_package(open_package(path), site.trust())
    subject = _subject(site, package, data)
    predicate = measure(subject, isolated(), SystemClock(), progress)
    statement = make_statement([(package.folder, package.digest)], QUALIFICATION, predicate)
    raw = sign_bundle(PAYLOAD_TYPE, statement, site.signer("qualifier"))
    name = _attestation_name(package, predicate)
    attach(path, name, raw)
    entry = record_event(
        site,
        "qualification",
        {
            "package": package.digest, "name": package.name, "version": package.version,
            "engine": package.engine_digest, "label": predicate["variance"]["label"],
            "passed": predicate["accuracy"]["passed"], "attestation": sha256(raw),
        },
    )  # fmt: skip
    return Qualified(package, predicate, f"{ATTESTATIONS}/{name}{ATTESTATION_SUFFIX}", sha256(raw), entry)


def _attestation_name(package: TrustedPackage, predicate: dict[str, Any]) -> str:
    """``qualification``, unless that speaks of another device already."""
    from pellucid.core import canonical
    from pellucid.core.digest import sha256
    from pellucid.core.package import ATTESTATION_SUFFIX, ATTESTATIONS

    first = f"{ATTESTATIONS}/qualification{ATTESTATION_SUFFIX}"
    for known in package.qualifications:
        if known.path == first and known.predicate.get("device") != predicate["device"]:
            return f"qualification-{sha256(canonical.encode(predicate['device']))[7:15]}"
    return "qualification"


def _subject(site: Site, package: TrustedPackage, data: Path | None) -> Subject:
    from pellucid.build.qualify import Subject
    from pellucid.build.samples import read_validation

    recipe, inputs, outputs, named = _read(package)
    validation = None
    if named is not None:
        raw = _validation_bytes(site, recipe, data, named)
        validation = read_validation(raw, recipe, package.meaning, inputs)
    return Subject(
        recipe=recipe, meaning=package.meaning, engine=package.engine,
        source=package.files.get("model/source.onnx", b""), inputs=inputs, outputs=outputs,
        validation=validation, data=named,
    )  # fmt: skip


def _read(package: TrustedPackage) -> tuple[dict[str, Any], Specs, Specs, str | None]:
    """Recipe, inputs, outputs, and the digest of the validation data, all of their form.

    Raises:
        PackageError: A signed document is not what it must be.
    """
    from pellucid.core.provenance import dependency
    from pellucid.core.recipe import in_force
    from pellucid.core.statement import parse_statement
    from pellucid.core.tensor import read_specs

    where = f"package {package.folder!r}: "
    if "provenance.json" not in package.files:
        raise PackageError(f"{where}expected provenance.json, got a package without this file")
    try:
        recipe = in_force(package.recipe)
        inputs, outputs = (read_specs(package.facts.get(kind), kind) for kind in ("inputs", "outputs"))
        named = dependency(parse_statement(package.files["provenance.json"]).predicate, "validation")
    except (FormatError, TensorError, RecipeError) as error:
        raise PackageError(where + error.message, hint=error.hint) from error
    if named is not None and recipe["validation"] is None:
        raise PackageError(f"{where}recipe.yaml: expected the validation data of the provenance, got none")
    return recipe, inputs, outputs, named


def _validation_bytes(site: Site, recipe: Mapping[str, Any], data: Path | None, named: str) -> bytes:
    """The very bytes that the build's provenance names."""
    from pellucid.app.site import read_file
    from pellucid.core.digest import sha256, verify_digest

    if data is not None:
        raw = read_file(data, "validation data")
        verify_digest(f"validation data {data.name}", raw, named)
        return raw
    wanted = Path(recipe["validation"]["data"]).name
    for path in sorted(site.path("recipes").rglob(wanted)):
        if path.is_file() and sha256(raw := path.read_bytes()) == named:
            return raw
    raise NotFoundError(
        f"validation data: expected {wanted} ({named[:19]}...) below {site.path('recipes')}, got none",
        hint="name the file with --data; the package holds only its digest",
    )
