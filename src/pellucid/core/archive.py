"""The package archive: a reproducible ``.tar.gz``, and a strict reader that works on bytes.

The writer emits one form only: a fixed gzip header, plain ustar headers with fixed owner, mode and
time, files only, sorted, two zero blocks, nothing after. The reader accepts that form and nothing
else: it rebuilds each header and compares, so that no second reading of the same bytes exists (no
pax or GNU records, no links, no devices, no folders). Source: spec/package.md, section 4.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from typing import Final

from pellucid.core.package import (
    DEFAULT_LIMITS,
    FOLDER_BYTES_MAX,
    Limits,
    PackageFiles,
    twins,
    verify_folder_name,
    verify_path,
    verify_paths,
    verify_sizes,
)
from pellucid.errors import PackageError

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
GZIP_HEADER: Final = bytes.fromhex("1f8b08000000000000ff")  # deflate, no name, no time, unknown system
LEVEL: Final = 6
PROBE: Final = 64 * 2**10  # a file whose first bytes do not shrink is stored: weights rarely do
PIECE: Final = 256 * 2**10  # packed bytes at a time
UNPACKED_PIECE: Final = 4 * 2**20  # limit: memory of one step, whatever the packed bytes say
_REPACKED: Final = "repacked archives are refused: use the archive as it was signed, or its unpacked folder"
MODE, FILE_TYPE = "0000644", b"0"
_KINDS: Final = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device", b"4": "a block device",
    b"5": "a folder entry", b"6": "a named pipe", b"7": "a contiguous file", b"x": "a pax record",
    b"g": "a global pax record", b"L": "a GNU long name", b"K": "a GNU long link name",
    b"S": "a sparse file", b"\x00": "an old-style file", b"D": "a GNU folder dump", b"V": "a volume label",
}  # fmt: skip


# -- writing --------------------------------------------------------------------------------------


def write_archive(name: str, files: Mapping[str, bytes]) -> bytes:
    """Pack a folder's files; the same name and files give the same bytes (with one zlib).

    Raises:
        PackageError: A path or size that the reader would refuse.
    """
    verify_folder_name(name)
    verify_paths(files)
    verify_sizes({path: len(data) for path, data in files.items()})
    out, crc, size = [GZIP_HEADER], 0, 0
    for path in sorted(files, key=str.encode):
        data = files[path]
        for part in (tar_header(f"{name}/{path}", len(data)), data, _padding(len(data))):
            crc, size = zlib.crc32(part, crc), size + len(part)
        out.append(_deflate(tar_header(f"{name}/{path}", len(data)), LEVEL))
        out.append(_deflate(data, _level(data)))
        out.append(_deflate(_padding(len(data)), LEVEL))
    crc, size = zlib.crc32(END, crc), size + len(END)
    out.append(_deflate(END, LEVEL, last=True))
    return b"".join([*out, struct.pack("<II", crc, size & 0xFFFFFFFF)])


def _level(data: bytes) -> int:
    probe = data[:PROBE]
    return LEVEL if len(zlib.compress(probe, 1)) < len(probe) * 0.9 else 0


def _deflate(data: bytes, level: int, *, last: bool = False) -> bytes:
    # pieces that each end on a byte join to one stream: every file gets the level that suits it
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush(zlib.Z_FINISH if last else zlib.Z_FULL_FLUSH)


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def tar_header(path: str, size: int) -> bytes:
    """The one ustar header of a file: mode 0644, owner 0, time 0.

    Raises:
        PackageError: The path does not split into ustar's prefix and name.
    """
    prefix, name = _split(path)
    header = struct.pack(
        "<100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12s",
        name, MODE.encode(), b"0000000", b"0000000", b"%011o" % size, b"00000000000",
        b" " * 8, FILE_TYPE, b"", b"ustar", b"00", b"", b"", b"0000000", b"0000000", prefix, b"",
    )  # fmt: skip
    return header[:148] + b"%06o\x00 " % sum(header) + header[156:]


def _split(path: str) -> tuple[bytes, bytes]:
    raw = path.encode()
    if len(raw) <= 100:
        return b"", raw
    cut = raw.find(b"/", len(raw) - 101)
    if cut < 1 or cut > 155:
        raise PackageError(
            f"path {path!r:.240}: expected one that fits ustar (155 + 100 bytes), got {len(raw)}"
        )
    return raw[:cut], raw[cut + 1 :]


# -- reading --------------------------------------------------------------------------------------


def read_archive(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> PackageFiles:
    """Read an archive that ``write_archive`` could have written; refuse every other.

    Args:
        raw: The whole file, read once.
        limits: Bounds on archive, files, count and total, held before memory is used.

    Raises:
        PackageError: Names the entry and the rule it breaks.
    """
    if len(raw) > limits.archive_max:
        raise PackageError(f"archive: expected at most {limits.archive_max:,} bytes, got {len(raw):,}")
    folder, files = _read_tar(_Unpacked(raw), limits)
    return PackageFiles(folder, files, "sha256:" + hashlib.sha256(raw).hexdigest())


class _Unpacked:
    """Unpacked bytes of one gzip member of our form, a bounded piece at a time: no bomb unfolds."""

    def __init__(self, raw: bytes) -> None:
        if raw[: len(GZIP_HEADER)] != GZIP_HEADER:
            raise PackageError(
                "archive: expected the gzip header that pellucid writes, got another", hint=_REPACKED
            )
        self._raw, self._position = memoryview(raw), len(GZIP_HEADER)
        self._zip = zlib.decompressobj(-15)
        self._ready, self._used, self._crc, self._size = memoryview(b""), 0, 0, 0

    def take(self, size: int, subject: str) -> bytes:
        """The next ``size`` bytes."""
        parts: list[memoryview] = []
        while size:
            if self._used == len(self._ready) and not self._more():
                raise PackageError(f"{subject}: expected {size:,} bytes more, got a cut-off archive")
            part = self._ready[self._used : self._used + size]
            self._used, size = self._used + len(part), size - len(part)
            parts.append(part)
        return b"".join(parts)

    def _more(self) -> bool:
        """Unpack the next piece; False at the end of the data."""
        while not self._zip.eof:
            packed = self._zip.unconsumed_tail or self._raw[self._position : self._position + PIECE]
            if not packed:
                raise PackageError("archive: expected the end of the gzip data, got a cut-off file")
            if not self._zip.unconsumed_tail:
                self._position += len(packed)
            try:
                piece = self._zip.decompress(packed, UNPACKED_PIECE)
            except zlib.error as error:
                raise PackageError(f"archive: expected whole gzip data, got {error}") from error
            if piece:
                self._crc, self._size = zlib.crc32(piece, self._crc), self._size + len(piece)
                self._ready, self._used = memoryview(piece), 0
                return True
        return False

    def finish(self) -> None:
        """Check that nothing follows and that the checksum fits."""
        if self._used < len(self._ready) or self._more():
            raise _no_end()
        trailer = self._zip.unused_data + bytes(self._raw[self._position : self._position + PIECE])
        if len(trailer) != 8:
            got = "a cut-off trailer" if len(trailer) < 8 else f"{len(trailer) - 8:,} bytes after the end"
            raise PackageError(f"archive: expected 8 trailing gzip bytes, got {got}")
        if trailer != struct.pack("<II", self._crc, self._size & 0xFFFFFFFF):
            raise PackageError("archive: expected the gzip checksum to fit, got damaged data")


def _no_end() -> PackageError:
    return PackageError("archive: expected two zero blocks at the end, got something else")


def _read_tar(unpacked: _Unpacked, limits: Limits) -> tuple[str, dict[str, bytes]]:
    folder, files, total = "", dict[str, bytes](), 0
    while any(header := unpacked.take(BLOCK, "archive")):
        path, size = _read_header(header)
        top, _, below = path.partition("/")
        _verify_member(path, below, top, folder or top, files)
        folder, total = top, total + size
        if size > limits.file_max or total > limits.total_max or len(files) >= limits.count_max:
            raise _too_large(below, size, limits)
        subject = f"path {below!r:.240}"
        files[below] = unpacked.take(size, subject)
        if any(unpacked.take(-size % BLOCK, subject)):
            raise PackageError(f"{subject}: expected zeros after the file, got something else")
    if any(unpacked.take(BLOCK, "archive")):
        raise _no_end()
    unpacked.finish()
    if not files:
        raise PackageError("archive: expected files, got none")
    verify_paths(files)
    return folder, files


def _verify_member(path: str, below: str, top: str, folder: str, files: dict[str, bytes]) -> None:
    if path.startswith("/"):
        verify_path(path)  # raises: an absolute path
    if top != folder:
        raise PackageError(f"archive: expected one top folder {folder!r:.120}, got {top!r:.120} as well")
    verify_path(below or path)
    verify_folder_name(top)
    if len(top.encode()) > FOLDER_BYTES_MAX or not below:
        raise PackageError(f"path {path!r:.240}: expected a file below the package's folder, got another")
    if below in files:
        raise twins(below, below)
    previous = next(reversed(files)) if files else ""
    if previous.encode() > below.encode():
        verify_paths([*files, below])  # a twin is the better reason
        raise PackageError(f"path {below!r:.240}: expected sorted entries, got it after {previous!r:.240}")


def _too_large(path: str, size: int, limits: Limits) -> PackageError:
    return PackageError(
        f"path {path!r:.240}: expected at most {limits.count_max:,} files of {limits.file_max:,} bytes, "
        f"{limits.total_max:,} in all, got more at this file of {size:,} bytes"
    )


def _read_header(header: bytes) -> tuple[str, int]:
    """Path and size of one header, after comparing it with the only form allowed."""
    path = _path_of(header)
    kind = header[156:157]
    if kind != FILE_TYPE:
        got = _KINDS.get(kind, f"an entry of type {kind!r}")
        target = _text(header[157:257])
        link = f" to {target!r:.120}" if kind in (b"1", b"2") else ""
        raise PackageError(f"path {path!r:.240}: expected a plain file, got {got}{link}")
    _verify_mode(path, header[100:108])
    try:
        size = int(header[124:135], 8) if header[124:135].isdigit() else -1
    except ValueError:
        size = -1
    if size < 0 or header != tar_header(path, size):
        raise PackageError(
            f"path {path!r:.240}: expected the header that pellucid writes (mode 0644, owner 0, time 0, "
            "plain octal size, right checksum), got another",
            hint=_REPACKED,
        )
    return path, size


def _path_of(header: bytes) -> str:
    name, prefix = header[:100].rstrip(b"\x00"), header[345:500].rstrip(b"\x00")
    raw = prefix + b"/" + name if prefix else name
    if b"\x00" in raw:
        raise PackageError(f"path {_text(raw)!r:.240}: expected printable characters, got a NUL")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise PackageError(f"path {_text(raw)!r:.240}: expected UTF-8, got other bytes") from None


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\x00").decode("utf-8", "replace")


def _verify_mode(path: str, field: bytes) -> None:
    digits = field.rstrip(b" \x00")
    mode = int(digits, 8) if digits.isdigit() and not set(digits) & set(b"89") else None
    if mode is not None and mode & 0o7000:
        bits = [
            word for bit, word in ((0o4000, "set-uid"), (0o2000, "set-gid"), (0o1000, "sticky")) if mode & bit
        ]
        raise PackageError(f"path {path!r:.240}: expected no special mode bits, got {', '.join(bits)}")
