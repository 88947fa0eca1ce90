"""Signatures beside packages: sign and pack, attach attestations, approve."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.app.clock import SystemClock
from pellucid.app.packages import SUFFIX, claimed_digest, history_for
from pellucid.core.approval import Approval, approval_statement
from pellucid.core.archive import write_archive
from pellucid.core.digest import sha256
from pellucid.core.dsse import sign_bundle
from pellucid.core.manifest import parse_manifest, verify_files
from pellucid.core.model_signing import file_digests, sign_package
from pellucid.core.package import (
    ATTESTATION_SUFFIX,
    ATTESTATIONS,
    MANIFEST,
    SIGNATURE,
    PackageFiles,
    is_attestation,
    verify_paths,
)
from pellucid.core.statement import PAYLOAD_TYPE
from pellucid.core.times import format_time
from pellucid.core.trust import TrustedPackage, verify_package
from pellucid.errors import PackageError, UsageError
from pellucid.guardian.open import open_package, read_folder

if TYPE_CHECKING:
    from pellucid.app.site import Site

PROVENANCE: Final = "provenance.json"
SIGNED_PROVENANCE: Final = f"{ATTESTATIONS}/provenance{ATTESTATION_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed and packed package; ``entry`` is the key of its ``package`` entry."""

    archive: Path
    package: TrustedPackage
    entry: str


def sign_folder(site: Site, folder: Path) -> Signed:
    """Sign a package folder and its provenance, pack it into the site's packages, and record it.

    Order of writes: ``model.sig`` by rename, archive by rename, entry. A crash between leaves a
    signed folder or an archive without entry; doing it again gives the same package digest.

    Raises:
        PackageError: The folder does not hold exactly what its manifest lists.
        UsageError: Another package of this folder name exists already.
    """
    from pellucid.app.ledger import record_event

    unsigned = read_folder(folder)
    files = {path: data for path, data in unsigned.files.items() if path != SIGNATURE}
    _verify_unsigned(unsigned.name, files)
    builder = site.signer("builder")
    files[SIGNATURE] = sign_package(files, unsigned.name, builder)
    if PROVENANCE in files:
        files[SIGNED_PROVENANCE] = sign_bundle(PAYLOAD_TYPE, files[PROVENANCE], builder)
    package = verify_package(PackageFiles(unsigned.name, files), site.trust())
    target = site.packages_folder / (unsigned.name + SUFFIX)
    files = _attestations_of(target, package.digest) | files
    for member in (SIGNED_PROVENANCE, SIGNATURE):
        if member in files:
            (folder / member).parent.mkdir(exist_ok=True)
            replace_file(folder / member, files[member], scratch=folder.resolve().parent)
    raw = write_archive(unsigned.name, files)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, raw)
    data = {
        "package": package.digest, "name": package.name, "version": package.version, "archive": sha256(raw),
        "folder": package.folder, "engine": package.engine_digest, "signer": package.signer,
    }  # fmt: skip
    return Signed(target, package, record_event(site, "package", data))


def _verify_unsigned(name: str, files: dict[str, bytes]) -> None:
    if MANIFEST not in files:
        raise PackageError(f"package {name}: expected {MANIFEST}, got a folder without it")
    manifest = parse_manifest(files[MANIFEST])
    if manifest.folder != name:
        raise PackageError(f"package folder: expected {manifest.folder!r}, got {name!r:.120}")
    verify_files(manifest, files, file_digests(files))


def _attestations_of(target: Path, digest: str) -> dict[str, bytes]:
    """Attestations of the archive about to be replaced: signing again must not lose them."""
    if not target.exists():
        return {}
    known = open_package(target)
    if (claimed := claimed_digest(known)) != digest:
        raise UsageError(
            f"package {target.name}: expected a new version, got other bytes under an existing one "
            f"({claimed[:19]}... is there, this is {digest[:19]}...)",
            hint="versions are immutable: raise the version in the recipe, or move the old archive away",
        )
    return {path: data for path, data in known.files.items() if is_attestation(path)}


def attach(path: Path, name: str, raw: bytes) -> PackageFiles:
    """Add an attestation beside a package, in its archive or folder; the package digest stays.

    Args:
        path: Archive or folder.
        name: ``NAME`` of ``attestations/NAME.sigstore.json``; one already there is replaced.
        raw: The signed bundle.
    """
    package = open_package(path)
    member = f"{ATTESTATIONS}/{name}{ATTESTATION_SUFFIX}"
    if not is_attestation(member):
        raise UsageError(f"attestation: expected a plain name, got {name!r:.80}")
    files = {**package.files, member: raw}
    verify_paths(files)
    if path.is_dir():
        (path / ATTESTATIONS).mkdir(exist_ok=True)
        replace_file(path / member, raw, scratch=path.resolve().parent)
        return PackageFiles(package.name, files)
    archive = write_archive(package.name, files)
    replace_file(path, archive)
    return PackageFiles(package.name, files, sha256(archive))


@dataclass(frozen=True, slots=True)
class Approved:
    """An approval that stands beside its package now; ``entry`` is the key of its entry."""

    approval: Approval
    member: str
    entry: str


def approve(
    site: Site, path: Path, *, kind: str, role: str, reason: str, expires: str | None = None
) -> Approved:
    """Sign an approval for exactly this package, put it beside the package, and record it.

    A rollback approval is bound to the highest version admitted so far: once a higher one is
    admitted, it no longer lowers anything.

    Raises:
        UsageError: A rollback where nothing higher was admitted.
        VerificationError: The package itself does not hold.
    """
    from pellucid.app.ledger import record_event

    package = verify_package(open_package(path), site.trust())
    floor = history_for(site, package.name).highest if kind == "rollback" else None
    if kind == "rollback" and floor is None:
        raise UsageError(
            f"approval: expected an admitted version of {package.name} to roll back from, got none"
        )
    approval = Approval(
        kind, package.name, package.version, package.digest, role, reason,
        format_time(SystemClock().now_ns()), expires, floor,
    )  # fmt: skip
    raw = sign_bundle(PAYLOAD_TYPE, approval_statement(approval, package.folder), site.signer("approver"))
    name = f"approval-{kind}-{role}-{sha256(raw)[7:15]}"
    attach(path, name, raw)
    data = {
        "package": package.digest, "name": package.name, "version": package.version, "kind": kind,
        "role": role, "attestation": sha256(raw), "rolls_back_from": floor,
    }  # fmt: skip
    entry = record_event(site, "approval", data)
    return Approved(approval, f"{ATTESTATIONS}/{name}{ATTESTATION_SUFFIX}", entry)


def replace_file(path: Path, data: bytes, *, scratch: Path | None = None) -> None:
    """Write a file by rename: readers see the old bytes or the new ones, on disk before named.

    Args:
        scratch: Where the file grows, on the same file system; a package folder must never hold one.
    """
    temporary = (scratch or path.parent) / f".{path.name}.{os.getpid()}.part"
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with ExitStack() as left:
        left.callback(temporary.unlink, missing_ok=True)
        with os.fdopen(os.open(temporary, flags, 0o644), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
