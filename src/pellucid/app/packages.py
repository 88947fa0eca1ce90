"""What a site's folder and ledger know of packages: finding them, and what was admitted so far."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.core.digest import parse_digest
from pellucid.core.dsse import parse_bundle
from pellucid.core.manifest import parse_manifest
from pellucid.core.package import MANIFEST, SIGNATURE, PackageFiles
from pellucid.core.policy import History
from pellucid.core.statement import parse_statement
from pellucid.core.version import Version, parse_version
from pellucid.errors import NotFoundError, PellucidError
from pellucid.guardian.open import open_package

if TYPE_CHECKING:
    from pellucid.app.site import Site

SUFFIX: Final = ".tar.gz"


def history_for(site: Site, name: str) -> History:
    """What the site's ledger says was admitted under a model's name; empty before its first entry.

    Fails closed: an index that is behind or lost is not asked, the entries themselves are read.
    """
    from pellucid.app.ledger import ledger_vkey, open_ledger
    from pellucid.ledger.reader import LedgerReader
    from pellucid.registry.admitted import history_of

    if not site.ledger_folder.is_dir():
        return History()
    with contextlib.closing(open_ledger(site)) as ledger:
        reader = ledger.reader
        if ledger.index.position() < reader.size():
            reader = LedgerReader(ledger.store, None, None, ledger_vkey(site))
        return history_of(reader, name)


class FolderOpener:
    """Finds packages of one folder: by package digest, by ``name:version``, or by path.

    What it finds is a candidate; whoever opens it verifies it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, reference: str) -> PackageFiles:
        """Files of a package.

        Raises:
            NotFoundError: Nothing in the folder answers to it.
        """
        if reference.startswith("sha256:"):
            return self._by_digest(reference)
        if "/" not in reference and ":" in reference:
            return self._by_name(reference)
        for path in (Path(reference), self._folder / reference, self._folder / (reference + SUFFIX)):
            if path.exists():
                return open_package(path)
        raise self._missing(reference)

    def _by_digest(self, digest: str) -> PackageFiles:
        parse_digest(digest)
        for files in self._candidates():
            if claimed_digest(files) == digest:
                return files
        raise self._missing(digest)

    def _by_name(self, reference: str) -> PackageFiles:
        name, _, version = reference.partition(":")
        unsigned = None
        for files in self._candidates():
            try:
                manifest = parse_manifest(files.files.get(MANIFEST, b""))
            except PellucidError:
                continue
            if (manifest.name, manifest.version) == (name, version):
                if SIGNATURE in files.files:
                    return files
                unsigned = self._folder / files.name
        if unsigned is not None:
            raise NotFoundError(
                f"package: expected {reference!r:.120} signed in {self._folder}, got it without a signature",
                hint=f"sign it first: pellucid sign {unsigned}",
            )
        raise self._missing(reference)

    def newest(self, name: str) -> PackageFiles:
        """Signed package of a model's name with the highest version.

        Raises:
            NotFoundError: None in the folder has that name.
        """
        found: dict[Version, PackageFiles] = {}
        for files in self._candidates():
            with contextlib.suppress(PellucidError):
                manifest = parse_manifest(files.files.get(MANIFEST, b""))
                if manifest.name == name and SIGNATURE in files.files:
                    found.setdefault(parse_version(manifest.version), files)
        if not found:
            raise NotFoundError(f"package: expected one of model {name!r:.80} in the site's folder, got none")
        return found[max(found)]

    def _candidates(self) -> Iterator[PackageFiles]:
        # archives first: they are what travels, with every attestation that came later
        for path in sorted(self._folder.glob("*"), key=lambda path: (path.is_dir(), path.name)):
            if path.is_dir() or path.name.endswith(SUFFIX):
                # a broken neighbour must not hide the package that was asked for
                with contextlib.suppress(PellucidError):
                    yield open_package(path)

    def _missing(self, reference: str) -> NotFoundError:
        return NotFoundError(f"package: expected {reference!r:.120} in {self._folder}, got none")


def claimed_digest(files: PackageFiles) -> str:
    """Package digest that ``model.sig`` claims; unverified, only good for finding."""
    try:
        payload = parse_bundle(files.files.get(SIGNATURE, b"")).payload
        return parse_statement(payload).subjects[0][1]
    except PellucidError:
        return ""
