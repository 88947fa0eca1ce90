"""The order of checks, in one place: from bytes nobody vouches for to a ``TrustedPackage``.

1. paths, twins, counts and sizes, as text and numbers only
2. ``model.sig`` by a builder's key; every file hashed once; the folder's name, the files and their
   digests are exactly the signed ones
3. ``manifest.json`` says the same list
4. attestations, each under its own role's key, about exactly this package; others are ignored and
   reported
5. only now are signed documents read

Nothing is parsed for its meaning before the signature over it held. Source: spec/package.md,
section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any, Final

from pellucid.core import canonical, strict_yaml
from pellucid.core.approval import Approval
from pellucid.core.attestation import LABELS, Attestations, Qualification
from pellucid.core.attestation import TrustRoot as TrustRoot
from pellucid.core.finding import Finding
from pellucid.core.manifest import Manifest, parse_manifest, verify_files
from pellucid.core.model_signing import file_digests, verify_model_signature
from pellucid.core.package import (
    ATTESTATIONS,
    DEFAULT_LIMITS,
    MANIFEST,
    SIGNATURE,
    Limits,
    PackageFiles,
    is_attestation,
    verify_folder_name,
    verify_paths,
    verify_sizes,
)
from pellucid.errors import FormatError, PackageError

ATTESTATION_BYTES_MAX: Final = 4 * 2**20
ATTESTATIONS_MAX: Final = 256
_SEAL: Final = object()


@dataclass(frozen=True, slots=True)
class TrustedPackage:
    """A package whose every byte is vouched for. Only ``verify_package`` makes one.

    Attributes:
        folder: Name of the package's folder; name, version: of the model.
        digest: Package digest (OMS root digest).
        files: Every file, signed or verified attestation; read only.
        recipe, meaning, metadata, facts, environment, golden: Signed documents, ``{}`` when absent.
        engine, engine_digest, engine_path: The one engine file.
        qualifications: Verified qualifications, by file name.
        approvals: Verified approvals, by file name.
        findings: What was ignored, and why.
        signer: Id of the builder's key.
        archive: Digest of the archive's bytes, or ``""`` for a folder.
    """

    folder: str
    name: str
    version: str
    digest: str
    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)
    recipe: dict[str, Any] = field(repr=False)
    meaning: dict[str, Any] = field(repr=False)
    metadata: dict[str, Any] = field(repr=False)
    facts: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)
    golden: dict[str, Any] = field(repr=False)
    engine: bytes = field(repr=False)
    engine_digest: str
    engine_path: str
    qualifications: tuple[Qualification, ...] = field(repr=False)
    approvals: tuple[Approval, ...]
    findings: tuple[Finding, ...]
    signer: str
    archive: str
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("TrustedPackage: only verify_package makes one")

    @property
    def qualification(self) -> dict[str, Any] | None:
        """Predicate of the first verified qualification, or ``None``."""
        return self.qualifications[0].predicate if self.qualifications else None

    @property
    def label_variance(self) -> str:
        """The worst label of all verified qualifications; ``untested`` without any."""
        return max((q.label for q in self.qualifications), key=LABELS.index, default="untested")

    @property
    def precision(self) -> str:
        """Precision of the recipe, lower case, for example ``fp32``."""
        return str(self.recipe.get("precision", "unknown")).lower()

    @property
    def computed_precision(self) -> str:
        """Lowest precision that computes: the recipe's, or ``int8`` when the source came quantised."""
        count = self.metadata.get("quantized_ops_count")
        return "int8" if isinstance(count, int) and count > 0 else self.precision


def verify_package(
    package: PackageFiles, trust: TrustRoot, limits: Limits = DEFAULT_LIMITS
) -> TrustedPackage:
    """Do every check, in the one right order.

    Args:
        package: Files read once; these very bytes are what the result holds.
        trust: The recipient's keys.

    Raises:
        SignatureError, PackageError, DigestMismatchError, VerificationError: Names what broke.
    """
    try:
        return _verify_package(package, trust, limits)
    except FormatError as error:
        # a document of a package that is not what it must be: evidence does not hold (exit 3)
        raise PackageError(f"package {package.name!r:.120}: {error.message}", hint=error.hint) from error


def _verify_package(package: PackageFiles, trust: TrustRoot, limits: Limits) -> TrustedPackage:
    files = dict(package.files)
    _verify_shape(package.name, files, limits)
    digests = file_digests(files)
    root, signer = verify_model_signature(files[SIGNATURE], package.name, digests, trust.of("builder"))
    manifest = parse_manifest(files[MANIFEST])
    if manifest.folder != package.name:
        raise PackageError(f"package folder: expected {manifest.folder!r}, got {package.name!r:.120}")
    verify_files(manifest, files, digests)
    attested = Attestations(package.name, root, manifest, trust)
    for path in sorted(filter(is_attestation, files)):
        attested.take(path, files[path])
    engine = _engine(manifest)
    return TrustedPackage(
        folder=package.name, name=manifest.name, version=manifest.version, digest=root, manifest=manifest,
        files=MappingProxyType({p: files[p] for p in files if p not in attested.ignored}),
        recipe=_recipe(files, manifest), meaning=_document(files, "meaning.json"),
        metadata=_document(files, "metadata.json"), facts=_document(files, "facts.json"),
        environment=_document(files, "environment.json"), golden=_document(files, "golden/golden.json"),
        engine=files[engine], engine_digest=digests[engine], engine_path=engine,
        qualifications=tuple(attested.qualifications), approvals=tuple(attested.approvals),
        findings=tuple(attested.findings), signer=signer, archive=package.digest, seal=_SEAL,
    )  # fmt: skip


def _verify_shape(name: str, files: Mapping[str, bytes], limits: Limits) -> None:
    verify_folder_name(name)
    verify_paths(files)
    verify_sizes({path: len(data) for path, data in files.items()}, limits)
    for path in (SIGNATURE, MANIFEST):
        if path not in files:
            hint = "sign it first: pellucid sign FOLDER" if path == SIGNATURE else ""
            raise PackageError(f"package: expected {path}, got a package without this file", hint=hint)
    inside = [path for path in files if path.split("/", 1)[0] == ATTESTATIONS]
    for path in inside:
        if not is_attestation(path):
            raise PackageError(f"path {path!r:.240}: expected {ATTESTATIONS}/NAME.sigstore.json, got another")
        if len(files[path]) > ATTESTATION_BYTES_MAX:
            raise PackageError(
                f"path {path!r:.240}: expected at most {ATTESTATION_BYTES_MAX:,} bytes, got more"
            )
    if len(inside) > ATTESTATIONS_MAX:
        raise PackageError(f"package: expected at most {ATTESTATIONS_MAX} attestations, got {len(inside):,}")


def _engine(manifest: Manifest) -> str:
    engines = manifest.with_role("engine")
    if len(engines) != 1:
        raise PackageError(f"package: expected one file below engine/, got {len(engines)}")
    return engines[0].path


def _document(files: Mapping[str, bytes], path: str) -> dict[str, Any]:
    """A signed JSON document of the canonical profile; ``{}`` when the package has none."""
    if path not in files:
        return {}
    value = canonical.decode(files[path], size_max=256 * 2**20)
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected an object, got {type(value).__name__}")
    return value


def _recipe(files: Mapping[str, bytes], manifest: Manifest) -> dict[str, Any]:
    if "recipe.yaml" not in files:
        raise PackageError("package: expected 'recipe.yaml', got a package without this file")
    recipe = strict_yaml.load(files["recipe.yaml"], subject="recipe.yaml")
    if not isinstance(recipe, dict):
        raise FormatError(f"recipe.yaml: expected a mapping, got {type(recipe).__name__}")
    for key in ("name", "version", "backend"):
        said, signed = recipe.get(key), getattr(manifest, key)
        if said != signed:
            raise PackageError(f"recipe.yaml: expected {key} {signed!r} as in {MANIFEST}, got {said!r:.60}")
    for key, is_good, expected in _RECIPE:
        if not is_good(recipe.get(key)):
            raise FormatError(f"recipe.yaml: {key}: expected {expected}, got {recipe.get(key)!r:.60}")
    return recipe


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


# what those rely on who open, judge and serve; a reader keeps whatever else a signed recipe says
_RECIPE: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("precision", lambda v: type(v) is str, "text"),
    ("serve_level", lambda v: v in ("portable", "native"), "portable or native"),
    ("threads", _is_count, "1 or more"),
    ("buckets", lambda v: type(v) is list and len(v) <= 64 and all(map(_is_count, v)), "a list of sizes"),
    ("pinned_bucket", lambda v: v is None or _is_count(v), "null or a size"),
    ("batch_delay_us", lambda v: v is None or (type(v) is int and 0 <= v <= 10**6), "null or up to 1 s"),
    ("commitment", lambda v: v in (None, "salted", "plain"), "salted or plain"),
    ("nonfinite", lambda v: v in (None, "refuse", "allow"), "refuse or allow"),
)
