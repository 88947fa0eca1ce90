"""What a package is in memory, and the rules every path and every set of paths must keep.

The same rules hold for archives and for unpacked folders. Paths are judged as text only, so that a
package means the same on every file system. Source: spec/package.md, section 3.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pellucid.errors import PackageError

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "model.sig"
ATTESTATIONS: Final = "attestations"
ATTESTATION_SUFFIX: Final = ".sigstore.json"

PATH_BYTES_MAX: Final = 200  # limit: fits ustar's prefix and name with every folder name allowed
SEGMENT_BYTES_MAX: Final = 100  # limit: ustar's name field
FOLDER_BYTES_MAX: Final = 100
DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PackageFiles:
    """A package's files, read once into memory: what is verified is what is used.

    Attributes:
        name: Folder name ``NAME-vVERSION-BACKEND-TARGET``.
        files: Every file below it by POSIX path.
        digest: Digest of the archive's bytes, or ``""`` for a folder.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a package may hold; each bounds memory before it is used."""

    archive_max: int = 8 * 2**30
    total_max: int = 8 * 2**30
    file_max: int = 8 * 2**30 - 1  # ustar writes sizes in 11 octal digits
    count_max: int = 4096


DEFAULT_LIMITS: Final = Limits()


def verify_folder_name(name: str) -> str:
    """Return the name of a package's top folder if it is one safe segment.

    Raises:
        PackageError: Empty, too long, or not ``[segment]``.
    """
    if "/" in name:
        raise PackageError(f"package folder {name!r:.120}: expected one name, got a path")
    return verify_path(name)


def verify_path(path: str) -> str:
    """Return a package path if it stays inside the folder on every file system.

    Raises:
        PackageError: Names the path and the rule it breaks.
    """
    if path.startswith("/"):
        raise _refused(path, "a relative path", "an absolute path")
    if "\\" in path or ":" in path:
        raise _refused(path, "POSIX segments", "a backslash or a colon")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise _refused(path, "Unicode text", "a lone surrogate") from None
    if len(encoded) > PATH_BYTES_MAX:
        raise _refused(path, f"at most {PATH_BYTES_MAX} bytes", f"{len(encoded):,}")
    segments = path.split("/")
    if len(segments) > DEPTH_MAX:
        raise _refused(path, f"at most {DEPTH_MAX} levels", f"{len(segments):,}")
    for segment in segments:
        _verify_segment(path, segment)
    return path


def _verify_segment(path: str, segment: str) -> None:
    if segment in ("", ".", ".."):
        got = "a way out of the folder" if segment == ".." else f"the segment {segment!r}"
        raise _refused(path, "named segments", got)
    if len(segment.encode()) > SEGMENT_BYTES_MAX:
        raise _refused(path, f"segments of at most {SEGMENT_BYTES_MAX} bytes", "a longer one")
    if any(unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" for c in segment):
        raise _refused(path, "printable characters", "a control or unassigned character")
    if unicodedata.normalize("NFC", segment) != segment:
        raise _refused(path, "Unicode normal form C", "another form, which looks the same")
    if segment != segment.strip() or segment.endswith("."):
        raise _refused(path, "no space or dot at the end of a segment", "one")
    if segment.casefold().startswith(".git"):
        # the stock model_signing verifier skips every .git* path, so nobody's signature covers it
        raise _refused(path, "no .git* names", "one, which stock verifiers would skip")


def _refused(path: str, expected: str, got: str) -> PackageError:
    return PackageError(f"path {path!r:.240}: expected {expected}, got {got}")


def verify_paths(paths: Iterable[str]) -> None:
    """Check a package's whole set of paths: each one, no twins, no file that is also a folder.

    Raises:
        PackageError: Names the first offender, and its twin.
    """
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        verify_path(path)
        key = _twin_key(path)
        if key in seen:
            raise twins(path, seen[key])
        seen[key] = path
        _remember_folders(path, folders)
    for key, folder in folders.items():
        if key in seen:
            raise _refused(seen[key], "a file or a folder", f"both (folder {folder!r})")


def _remember_folders(path: str, folders: dict[str, str]) -> None:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        known = folders.setdefault(_twin_key(folder), folder)
        if known != folder:
            raise twins(folder, known)


def _twin_key(path: str) -> str:
    # NFKC after case folding: what any file system in use might take for the same name
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def twins(path: str, other: str) -> PackageError:
    """The error for two paths that some file system takes for one."""
    if path == other:
        return _refused(path, "each path once", "two entries of that name")
    return _refused(path, "names that differ beyond case and Unicode form", f"the twin {other!r:.240}")


def is_attestation(path: str) -> bool:
    """True for ``attestations/<name>.sigstore.json``."""
    folder, _, name = path.partition("/")
    return (
        folder == ATTESTATIONS
        and "/" not in name
        and name.endswith(ATTESTATION_SUFFIX)
        and len(name) > len(ATTESTATION_SUFFIX)
    )


def signed_paths(paths: Iterable[str]) -> list[str]:
    """Paths that ``model.sig`` covers, in its order: all but itself and ``attestations/*``.

    The order compares path components, as the reference signer does (``a/b`` before ``a-b``).
    """
    covered = [p for p in paths if p != SIGNATURE and not is_attestation(p)]
    return sorted(covered, key=lambda p: p.split("/"))


def verify_sizes(sizes: Mapping[str, int], limits: Limits = DEFAULT_LIMITS) -> None:
    """Check count and sizes of a package's files.

    Raises:
        PackageError: Too many files, one too large, or all together too large.
    """
    if len(sizes) > limits.count_max:
        raise PackageError(f"package: expected at most {limits.count_max:,} files, got {len(sizes):,}")
    for path, size in sizes.items():
        if size > limits.file_max:
            raise _refused(path, f"at most {limits.file_max:,} bytes", f"{size:,}")
    total = sum(sizes.values())
    if total > limits.total_max:
        raise PackageError(f"package: expected at most {limits.total_max:,} bytes in all, got {total:,}")
