"""Journals: what writers append, and how it is read back.

A segment is ``ledger/journal/<source, / as +>-<seq>.journal``: a head (magic, source, seq,
checksum), then frames ``u32 length | u32 crc32 | payload``, little-endian. A record is appended
with one ``write``. A torn frame at the end was never acknowledged and is ignored. A writer holds
``flock`` on every segment it may still append to; a segment whose lock can be had is final.
Source: spec/ledger.md, section 3.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pellucid.errors import (
    DiskFullError,
    FormatError,
    LedgerHaltedError,
    LimitError,
    PellucidError,
    UnavailableError,
)
from pellucid.ledger.board import sync_folder
from pellucid.ledger.reserve import keep_ahead

MAGIC: Final = b"PLCJRN01"
FRAME_MAX: Final = 16 * 2**20  # limit: bounds what a reader allocates for one frame
SOURCE_MAX: Final = 512
_HEAD: Final = struct.Struct("<8sQH")
_FRAME: Final = struct.Struct("<II")
_NAME: Final = re.compile(r"([A-Za-z0-9.+-]+)-([0-9]{8,})\.journal")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SCARCE: Final = (errno.EMFILE, errno.ENFILE)  # a crowd of clients may take all descriptors for a while


class SegmentHead(msgspec.Struct, frozen=True):
    """Who wrote a segment, its number, and where its frames begin."""

    source: str
    seq: int
    stop: int


def segment_name(source: str, seq: int) -> str:
    """File name of a segment; its order within a source is its number's."""
    return f"{source.replace('/', '+')}-{seq:08d}.journal"


def parse_segment_name(name: str) -> tuple[str, int] | None:
    """Source and number of a segment's file name, or ``None`` for any other file."""
    match = _NAME.fullmatch(name)
    return (match[1].replace("+", "/"), int(match[2])) if match else None


def encode_head(source: str, seq: int) -> bytes:
    """First bytes of a segment."""
    raw = source.encode()
    if len(raw) > SOURCE_MAX:
        raise FormatError(f"journal source: expected at most {SOURCE_MAX} bytes, got {len(raw)}")
    head = _HEAD.pack(MAGIC, seq, len(raw)) + raw
    return head + struct.pack("<I", zlib.crc32(head))


def decode_head(data: bytes) -> SegmentHead:
    """Head of a segment's first bytes.

    Raises:
        FormatError: Not a segment.
    """
    if len(data) < _HEAD.size:
        raise FormatError(f"journal segment: expected a head, got {len(data)} bytes")
    magic, seq, length = _HEAD.unpack_from(data)
    stop = _HEAD.size + length
    if magic != MAGIC or length > SOURCE_MAX or len(data) < stop + 4:
        raise FormatError("journal segment: expected magic and source, got something else")
    if int.from_bytes(data[stop : stop + 4], "little") != zlib.crc32(data[:stop]):
        raise FormatError("journal segment: expected a matching checksum of the head, got another")
    try:
        return SegmentHead(data[_HEAD.size : stop].decode(), seq, stop + 4)
    except UnicodeDecodeError:
        raise FormatError("journal segment: expected a source in UTF-8, got other bytes") from None


def encode_frame(payload: bytes) -> bytes:
    """One record, framed."""
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def decode_frames(data: bytes | memoryview) -> tuple[list[tuple[int, bytes]], int]:
    """Whole frames from the start of ``data``.

    Returns:
        Payloads, each with the offset behind it, and how many bytes were read; what follows is
        not a whole frame (yet, or for ever: a torn tail).
    """
    frames: list[tuple[int, bytes]] = []
    position, stop = 0, len(data)
    while position + _FRAME.size <= stop:
        length, crc = _FRAME.unpack_from(data, position)
        end = position + _FRAME.size + length
        if length > FRAME_MAX or end > stop:
            break
        payload = bytes(data[position + _FRAME.size : end])
        if zlib.crc32(payload) != crc:
            break
        frames.append((end, payload))
        position = end
    return frames, position


class SegmentReader:
    """Reads one segment from any offset on, while its writer may still append."""

    CHUNK: Final = 4 * 2**20

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        try:
            self.head = decode_head(os.pread(self._fd, _HEAD.size + SOURCE_MAX + 4, 0))
        except FormatError:
            os.close(self._fd)
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        """Whatever can be read here now survives power loss when this returns."""
        os.fdatasync(self._fd)

    def frames(self, start: int, stop: int | None = None, chunk: int = CHUNK) -> list[tuple[int, bytes]]:
        """Some whole frames behind ``start``, each with the offset behind it; ``[]`` at the end."""
        want = chunk if stop is None else stop - start
        while True:
            data = os.pread(self._fd, want, start)
            found, _ = decode_frames(data)
            if found or len(data) < want or stop is not None:
                return [(start + end, payload) for end, payload in found]
            if want > FRAME_MAX:
                return []  # no frame is as long as this: what stands here is not one
            want = FRAME_MAX + _FRAME.size

    def close(self) -> None:
        os.close(self._fd)


class _Segment:
    """An open segment that we append to."""

    __slots__ = ("fd", "path", "secured", "seq", "size", "start")

    def __init__(self, folder: Path, source: str, seq: int, frames: bytes, ahead: int = 0) -> None:
        self.path, self.seq = folder / segment_name(source, seq), seq
        content = encode_head(source, seq) + frames
        draft = folder / f".{self.path.name}.{os.getpid()}"
        self.fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            # locked and whole before it has a name, so that nobody takes it for a dead writer's
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(self.fd, content)
            self.secured = 0.0
            self.secure(len(content), ahead)
            os.fsync(self.fd)
            os.link(draft, self.path)
            os.unlink(draft)
            sync_folder(folder)
        except OSError as error:
            os.close(self.fd)  # final where it has its name already: the sequencer drops it
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise _write_error(self.path.name, error) from error
        self.size = self.start = len(content)

    def secure(self, size: int, ahead: int) -> None:
        """Have room for that many bytes behind the end; raises ``OSError`` when there is none."""
        able = not ahead or keep_ahead(self.fd, size, ahead)
        self.secured = size + ahead if able else math.inf


def _write_all(fd: int, data: bytes) -> None:
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, "no space left on device")


def _write_error(name: str, error: OSError) -> PellucidError:
    if error.errno in _FULL:
        return DiskFullError(
            f"journal {name}: expected to append, got {error.strerror}", hint="free some disk space"
        )
    if error.errno in _SCARCE:
        return UnavailableError(f"journal {name}: expected a free descriptor, got {error.strerror}")
    return LedgerHaltedError(f"journal {name}: expected to append, got {error}")


class JournalWriter:
    """Appends one writer's records. The caller serialises all calls but ``prepare`` and ``sync``.

    Args:
        folder: ``ledger/journal``.
        source: The writer's name; first part of every key of its entries.
        first_seq: Number of the first segment.
        ahead: Bytes of disk space that every segment takes before they are needed.
    """

    def __init__(self, folder: Path, source: str, *, first_seq: int = 1, ahead: int = 0) -> None:
        self._folder, self._source, self._ahead = folder, source, ahead
        self._contexts: dict[int, bytes] = {}
        self._leaving: set[int] = set()
        self._broken = ""
        self._seq = first_seq
        self._segment = _Segment(folder, source, first_seq, b"", ahead)

    @property
    def path(self) -> Path:
        return self._segment.path

    @property
    def size(self) -> int:
        """Bytes in the current segment."""
        return self._segment.size

    @property
    def has_records(self) -> bool:
        """True if something was appended behind the head of the current segment."""
        return self._segment.size > self._segment.start

    @property
    def room(self) -> float:
        """Bytes that can be appended whatever happens to the disk's free space."""
        segment = self._segment
        return segment.secured - segment.size

    def secure(self) -> None:
        """Take disk space ahead again.

        Raises:
            DiskFullError: There is none; what was taken before stays.
        """
        try:
            self._segment.secure(self._segment.size, self._ahead)
        except OSError as error:
            raise _write_error(self.path.name, error) from error

    def append(self, payload: bytes) -> None:
        """Append a record; in the page cache when this returns.

        Raises:
            DiskFullError: No space; nothing was appended.
            LimitError: Larger than a frame may be.
            LedgerHaltedError: The segment can no longer be trusted.
        """
        if len(payload) > FRAME_MAX:
            raise LimitError(f"journal record: expected at most {FRAME_MAX:,} bytes, got {len(payload):,}")
        if self._broken:
            raise LedgerHaltedError(self._broken)
        segment = self._segment
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            written = os.write(segment.fd, frame)
            if written != len(frame):
                raise OSError(errno.ENOSPC, "no space left on device")
        except OSError as error:
            self._undo(error)
            raise _write_error(segment.path.name, error) from error
        segment.size += written

    def append_context(self, number: int, payload: bytes) -> None:
        """Append a context record, to be repeated at the head of every later segment."""
        self.append(payload)
        self._contexts[number] = encode_frame(payload)

    def drop_context(self, number: int) -> None:
        """Repeat a context once more, and then no longer.

        Once more: a refusal may be told of after its model is gone, and a segment stands for itself.
        """
        self._leaving.add(number)

    def _undo(self, cause: OSError) -> None:
        """Cut off a half-written frame: what follows it could never be read."""
        try:
            os.ftruncate(self._segment.fd, self._segment.size)
        except OSError as error:
            self._broken = f"journal {self.path.name}: cannot cut a torn frame ({error}) after: {cause}"

    def prepare(self) -> _Segment:
        """Make the next segment, durable, off the call path."""
        self._seq += 1  # also when it fails: a reader may have seen the name
        return _Segment(self._folder, self._source, self._seq, b"", self._ahead)

    def swap(self, following: _Segment) -> _Segment:
        """Go on in ``following``; the caller syncs and closes what is returned."""
        contexts = b"".join(self._contexts.values())
        if contexts:
            try:
                _write_all(following.fd, contexts)
            except OSError as error:
                os.close(following.fd)  # final, without records: the sequencer drops it
                raise _write_error(following.path.name, error) from error
            following.size += len(contexts)
            following.start = following.size
        for number in self._leaving:
            self._contexts.pop(number, None)
        self._leaving.clear()
        previous, self._segment = self._segment, following
        return previous

    def sync(self) -> None:
        """Make all that was appended to the current segment survive power loss."""
        os.fdatasync(self._segment.fd)

    def close(self) -> None:
        """Sync, and let go: from now on the segment is final."""
        os.fdatasync(self._segment.fd)
        os.close(self._segment.fd)

    def abandon(self) -> None:
        """Let go without a sync."""
        os.close(self._segment.fd)


def open_journal(folder: Path, source: str) -> JournalWriter:
    """A new writer's journal; its folder is made if there is none.

    Raises:
        UnavailableError, LedgerHaltedError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(folder.name, error) from error
    return JournalWriter(folder, source)


def write_segment(folder: Path, source: str, seq: int, payloads: list[bytes]) -> Path:
    """Write a whole, final segment at once: either all of it exists durably, or nothing."""
    segment = _Segment(folder, source, seq, b"".join(map(encode_frame, payloads)))
    os.close(segment.fd)
    return segment.path


def list_segments(folder: Path) -> dict[str, tuple[str, int]]:
    """Segments of a folder: file name to source and number, ordered by both."""
    found: Mapping[str, tuple[str, int] | None] = {
        entry.name: parse_segment_name(entry.name) for entry in os.scandir(folder)
    }
    named = {name: at for name, at in found.items() if at is not None}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def backlog_bytes(folder: Path) -> int:
    """Bytes of all segments that still wait, or wait to be collected."""
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size if entry.name.endswith(".journal") else 0
        except FileNotFoundError:
            continue
    return total
