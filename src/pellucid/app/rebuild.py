"""A package rebuilt from itself: found, verified before anything runs, compiled again, recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.app.packages import FolderOpener
from pellucid.build.cancel import Stop
from pellucid.build.rebuild import Rebuilt
from pellucid.build.rebuild import rebuild as compile_again
from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.trust import TrustedPackage, verify_package
from pellucid.errors import PellucidError, UsageError

if TYPE_CHECKING:
    from pellucid.app.site import Site


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rebuild, its package, and the key of its ``rebuild`` entry."""

    package: TrustedPackage
    rebuilt: Rebuilt
    entry: str


def rebuild(
    site: Site,
    reference: str,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda phase: None,
) -> Outcome:
    """Rebuild a package, archive, folder, ``name:version`` or package digest, and record how it went.

    Args:
        keep: New folder for the rebuilt engine, its log and its facts.

    Raises:
        VerificationError: The package does not hold; nothing ran, nothing is recorded.
        UsageError: ``keep`` exists, or the builder is not installed.
        BuildError: The builder refused or died; that is recorded.
    """
    if keep is not None and keep.exists():
        raise UsageError(f"--keep: expected a new folder, got {keep}, which exists")
    package = verify_package(FolderOpener(site.packages_folder).open(reference), site.trust())
    try:
        with Stop():
            rebuilt = compile_again(package, progress)
    except PellucidError as error:
        _record(site, package, {"outcome": error.code, "reason": error.message[:500]})
        raise
    if keep is not None:
        _keep(keep, rebuilt)
    entry = _record(site, package, {
        "outcome": rebuilt.outcome, "rebuilt": rebuilt.digest, "log": sha256(rebuilt.log),
        "fingerprint": rebuilt.facts.get("fingerprint"), "reason": "; ".join(rebuilt.why)[:500] or None,
    })  # fmt: skip
    return Outcome(package, rebuilt, entry)


def _record(site: Site, package: TrustedPackage, data: dict[str, Any]) -> str:
    from pellucid.app.ledger import record_event

    about = {
        "package": package.digest, "name": package.name, "version": package.version,
        "backend": package.manifest.backend, "engine": package.engine_digest,
    }  # fmt: skip
    return record_event(site, "rebuild", about | data)


def _keep(folder: Path, rebuilt: Rebuilt) -> None:
    folder.mkdir(parents=True)
    (folder / rebuilt.engine_name).write_bytes(rebuilt.engine)
    (folder / "build.log.jsonl").write_bytes(rebuilt.log)
    (folder / "build.stderr").write_bytes(rebuilt.stderr)
    (folder / "facts.json").write_bytes(canonical.encode(rebuilt.facts))
    (folder / "environment.json").write_bytes(canonical.encode(rebuilt.environment))
    (folder / "differences.json").write_text(
        json.dumps([d.record() for d in rebuilt.comparison.differences], ensure_ascii=False, indent=1)
    )
