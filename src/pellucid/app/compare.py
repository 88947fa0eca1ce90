"""Two packages, or two build logs, side by side: opened, verified where signed, compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pellucid.app.packages import FolderOpener
from pellucid.app.site import read_file
from pellucid.core.manifest import parse_manifest, verify_files
from pellucid.core.model_signing import file_digests
from pellucid.core.package import MANIFEST, SIGNATURE, PackageFiles
from pellucid.core.package_diff import Comparison, compare
from pellucid.core.package_diff_sides import Side, log_side, package_side
from pellucid.core.tensorrt_classic import FORM, parse_classic
from pellucid.core.tensorrt_log import decode_log, parse_log, read_messages
from pellucid.core.trust import TrustRoot, verify_package
from pellucid.errors import PackageError, ParseError

if TYPE_CHECKING:
    from pellucid.app.site import Site

UNSIGNED = "not signed: its own manifest holds, nobody vouches for it"


@dataclass(frozen=True, slots=True)
class Compared:
    """Two builds compared.

    Attributes:
        trust: For A and B: what vouches for what was read, in words.
        notes: What a reader should know of how it was read.
    """

    a: Side
    b: Side
    trust: tuple[str, str]
    comparison: Comparison
    notes: tuple[str, ...] = ()


def compare_packages(site: Site | None, trust: TrustRoot, a: str, b: str) -> Compared:
    """Compare two packages, each an archive, a folder, ``name:version`` or a package digest.

    Raises:
        NotFoundError: One is not there.
        VerificationError: One is signed and does not hold, or is not signed and not whole.
    """
    opener = FolderOpener(site.packages_folder if site is not None else Path())
    (first, how_first), (second, how_second) = (_side(opener.open(ref), trust) for ref in (a, b))
    return Compared(first, second, (how_first, how_second), compare(first, second))


def _side(package: PackageFiles, trust: TrustRoot) -> tuple[Side, str]:
    if SIGNATURE in package.files:
        trusted = verify_package(package, trust)
        measured = [q.predicate for q in trusted.qualifications]
        side = package_side(trusted.folder, trusted.files, measured)
        return side, f"verified: every byte is signed by key {trusted.signer[:16]}"
    if MANIFEST not in package.files:
        raise PackageError(f"package {package.name!r:.120}: expected {MANIFEST}, got a folder without it")
    manifest = parse_manifest(package.files[MANIFEST])
    verify_files(manifest, package.files, file_digests(package.files))
    return package_side(package.name, package.files), UNSIGNED


def compare_logs(a: Path, b: Path) -> Compared:
    """Compare two build logs without packages: JSON lines with ``severity`` and ``message``.

    Raises:
        NotFoundError, FormatError: A file is not there, or no such log.
        ParseError: It states no facts: hostile names, or no list of layers and no timed tactics.
    """
    (first, note_first), (second, note_second) = (_log(path) for path in (a, b))
    notes = tuple(dict.fromkeys(note for note in (note_first, note_second) if note))
    how = "a log alone: nobody vouches for it"
    return Compared(first, second, (how, how), compare(first, second), notes)


def _log(path: Path) -> tuple[Side, str]:
    lines = decode_log(read_file(path, "build log"))
    if read_messages(lines).form == "classic":
        classic = parse_classic(lines)
        note = f"form: {FORM}"
        if classic.unread:
            note += f"; {classic.unread} layers have names of no known form and are left out"
        return log_side(path.name, classic), note
    log = parse_log(lines)
    if log.layers is None:
        raise ParseError(
            f"build log {str(path)!r:.200}: expected TensorRT's list of layers or timed tactics, got neither",
            hint="build with detailed profiling verbosity and keep every message, VERBOSE included; "
            "logs of ONNX Runtime list no layers: compare the packages",
        )
    return log_side(path.name, log), ""
