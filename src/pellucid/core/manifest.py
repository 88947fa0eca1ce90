"""``manifest.json``: name and version inside the signed bytes, and the closed list of files.

Canonical JSON. The list must equal the files of the package and the list inside ``model.sig``;
beside them stand only ``manifest.json`` itself, ``model.sig`` and ``attestations/*``.
Source: spec/package.md, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.digest import Data, parse_digest, sha256
from pellucid.core.package import (
    ATTESTATIONS,
    MANIFEST,
    SIGNATURE,
    is_attestation,
    signed_paths,
    verify_folder_name,
    verify_paths,
)
from pellucid.core.times import parse_time
from pellucid.core.version import parse_version
from pellucid.errors import DigestMismatchError, FormatError, PackageError

FORMAT: Final = "pellucid-package/1"
MANIFEST_BYTES_MAX: Final = 4 * 2**20
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_KEYS: Final = frozenset(
    ["format", "folder", "name", "version", "previous", "created", "backend", "target", "files"]
)
_FILE_KEYS: Final = frozenset(["path", "size", "digest", "role"])

_ROLES: Final[dict[str, str]] = {  # exact path, or first segment with "/": what the file is for
    "metadata.json": "metadata", "meaning.json": "meaning", "recipe.yaml": "recipe",
    "build.log.jsonl": "build-log", "build.stderr": "build-log", "facts.json": "facts",
    "environment.json": "environment", "label.html": "label", "label.md": "label", "drawing.svg": "label",
    "sbom.cdx.json": "sbom", "provenance.json": "provenance", "model/": "model", "engine/": "engine",
    "golden/": "golden", "calibration/": "calibration",
}  # fmt: skip
ROLES: Final = frozenset([*_ROLES.values(), "other"])


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One signed file."""

    path: str
    size: int
    digest: str
    role: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the builder says this package is.

    Attributes:
        folder: Name of the package's top folder.
        name, version: Of the model.
        previous: Version this one follows, or ``None``.
        created: RFC 3339 time.
        backend: Name of the backend that opens the engine, for example ``onnxruntime``.
        target: What it was built for, for example ``cpu``.
        files: Every signed file but the manifest itself, in signing order.
    """

    folder: str
    name: str
    version: str
    previous: str | None
    created: str
    backend: str
    target: str
    files: tuple[ManifestFile, ...]

    def with_role(self, role: str) -> tuple[ManifestFile, ...]:
        """Files of one role, in order."""
        return tuple(file for file in self.files if file.role == role)


def folder_name(name: str, version: str, backend_tag: str, target: str) -> str:
    """``NAME-vVERSION-BACKEND-TARGET``, for example ``credit-v1.0.0-ort1.27-cpu``."""
    return f"{name}-v{version}-{backend_tag}-{target}"


def role_of(path: str) -> str:
    """Role of a file by where it stands."""
    first, slash, _ = path.partition("/")
    return _ROLES.get(first + slash, "other")


def make_manifest(
    *,
    folder: str,
    name: str,
    version: str,
    previous: str | None,
    created: str,
    backend: str,
    target: str,
    files: Mapping[str, Data],
    digest: Callable[[Data], str] = sha256,
) -> bytes:
    """Bytes of the manifest for these files; ``manifest.json`` and what is not signed is left out.

    Args:
        digest: Gives the digest of a file, where it may be known already.

    Raises:
        FormatError, PackageError: A value that ``parse_manifest`` would refuse.
    """
    listed = [
        {"path": path, "size": len(files[path]), "digest": digest(files[path]), "role": role_of(path)}
        for path in signed_paths(files)
        if path != MANIFEST
    ]
    document = {
        "format": FORMAT, "folder": folder, "name": name, "version": version, "previous": previous,
        "created": created, "backend": backend, "target": target, "files": listed,
    }  # fmt: skip
    raw = canonical.encode(document)
    parse_manifest(raw)
    return raw


def parse_manifest(raw: bytes) -> Manifest:
    """Read a manifest; closed: unknown and missing keys are refused.

    Raises:
        FormatError: Not canonical JSON, or a value of another form.
        PackageError: A path that breaks the rules, twins, or another order.
    """
    document = canonical.decode(raw, size_max=MANIFEST_BYTES_MAX)
    _closed(MANIFEST, document, _KEYS)
    if document["format"] != FORMAT:
        raise FormatError(f"{MANIFEST}: expected format {FORMAT!r}, got {document['format']!r:.60}")
    texts = {key: _name(key, document[key]) for key in ("folder", "name", "version", "backend", "target")}
    verify_folder_name(texts["folder"])
    parse_version(texts["version"], subject=f"{MANIFEST}: version")
    if not texts["folder"].startswith(f"{texts['name']}-v{texts['version']}-"):
        raise FormatError(
            f"{MANIFEST}: expected a folder {texts['name']}-v{texts['version']}-..., got {texts['folder']!r}"
        )
    previous = document["previous"]
    if previous is not None:
        parse_version(previous, subject=f"{MANIFEST}: previous")
    parse_time(document["created"])
    return Manifest(
        previous=previous, created=document["created"], files=_parse_files(document["files"]), **texts
    )


def _closed(subject: str, value: Any, keys: frozenset[str]) -> None:
    if type(value) is not dict:
        raise FormatError(f"{subject}: expected an object, got {type(value).__name__}")
    if value.keys() != keys:
        missing, unknown = sorted(keys - value.keys()), sorted(value.keys() - keys)
        raise FormatError(
            f"{subject}: expected exactly its keys, got missing {missing!r}, unknown {unknown!r:.200}"
        )


def _name(key: str, value: Any) -> str:
    limit = 100 if key == "folder" else 63
    if (
        not isinstance(value, str)
        or len(value) > limit
        or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value)
    ):
        raise FormatError(f"{MANIFEST}: {key}: expected a name of [A-Za-z0-9._-], got {value!r:.80}")
    return value


def _parse_files(value: Any) -> tuple[ManifestFile, ...]:
    if type(value) is not list or not value:
        raise FormatError(f"{MANIFEST}: files: expected a list of files, got {value!r:.40}")
    files = tuple(_parse_file(position, item) for position, item in enumerate(value))
    paths = [file.path for file in files]
    verify_paths(paths)
    for path in paths:
        if path in (MANIFEST, SIGNATURE) or path.split("/", 1)[0] == ATTESTATIONS:
            raise PackageError(f"{MANIFEST}: expected signed files only, got {path!r:.240}")
    if paths != signed_paths(paths):
        raise FormatError(f"{MANIFEST}: files: expected them sorted by path components, got another order")
    return files


def _parse_file(position: int, value: Any) -> ManifestFile:
    subject = f"{MANIFEST}: files[{position}]"
    _closed(subject, value, _FILE_KEYS)
    path, size, role = value["path"], value["size"], value["role"]
    if not isinstance(path, str):
        raise FormatError(f"{subject}: path: expected text, got {path!r:.40}")
    if type(size) is not int or size < 0:
        raise FormatError(f"{subject}: size: expected bytes, got {size!r:.40}")
    if role != role_of(path):
        raise FormatError(f"{subject}: role: expected {role_of(path)!r} for {path!r:.120}, got {role!r:.40}")
    parse_digest(value["digest"])
    return ManifestFile(path, size, value["digest"], role)


def verify_files(manifest: Manifest, files: Mapping[str, bytes], digests: Mapping[str, str]) -> None:
    """Check that a package holds exactly what its manifest lists; every byte was hashed once, before.

    Args:
        manifest: Parsed manifest.
        files: Every file of the package.
        digests: Digest of each file.

    Raises:
        PackageError: A missing or an extra file, or a file of another size.
        DigestMismatchError: A file of another content.
    """
    listed = {file.path for file in manifest.files}
    present = {p for p in files if p not in (MANIFEST, SIGNATURE) and not is_attestation(p)}
    if missing := sorted(listed - present):
        raise PackageError(f"package: expected {missing[0]!r:.240}, got a package without this file")
    if extra := sorted(present - listed):
        raise PackageError(
            f"package: expected only the files of {MANIFEST}, got {extra[0]!r:.240} as well",
            hint=f"{len(extra)} more than listed; attestations are {ATTESTATIONS}/NAME.sigstore.json",
        )
    for file in manifest.files:
        _verify_file(file, files[file.path], digests[file.path])


def _verify_file(file: ManifestFile, data: bytes, digest: str) -> None:
    if len(data) != file.size:
        raise PackageError(f"{file.path}: expected {file.size:,} bytes, got {len(data):,}")
    if digest != file.digest:
        raise DigestMismatchError(
            f"{file.path}: expected {file.digest[:19]}..., got {digest[:19]}... over {len(data):,} bytes",
            hint="the file changed after it was signed: fetch the package again, or rebuild it",
        )
