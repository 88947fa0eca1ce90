"""The in-flight board: which numbers are given out and not yet closed.

A memory-mapped page file per worker, so that a store survives kill -9 without a system call. Its
owner holds ``flock`` on it for life; whoever obtains that lock knows the owner is dead.

Order of stores in ``reserve``: the slot, then ``next``. Killed in between, the number counts as
given out (a slot names it). ``next`` may lag behind after a power loss; ``reserved_until`` may not:
it is on the disk before any number below it is used. Source: spec/ledger.md, section 4.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pellucid.errors import DiskFullError, FormatError, LedgerFullError, LedgerHaltedError, TooManyError

MAGIC: Final = b"PLCBRD01"
PAGE: Final = 4096
BLOCK: Final = 65_536  # one durable store a block: about 1 ms every 65,536 calls
SLOTS_MAX: Final = 2**20  # limit: a board of 32 MiB
SOURCE_MAX: Final = 512
_HEAD: Final = struct.Struct(f"<8s16sQQQ{SOURCE_MAX}s")  # magic boot slots started source_length source
_CRC: Final = _HEAD.size // 8  # word behind the head
_NEXT, _RESERVED, _FLUSHED = _CRC + 1, _CRC + 2, _CRC + 3
_SLOTS: Final = PAGE // 8
_SLOT_WORDS: Final = 4  # n, accepted_ns, context, unused


@dataclass(frozen=True, slots=True)
class BoardImage:
    """A board as found on disk.

    Attributes:
        source: Writer's name, ``node/epoch/worker``.
        boot_id: Boot of the machine it was made in, 16 bytes.
        started_ns: Wall clock when it was made.
        next: Next number to give out; may be too small after a power loss.
        reserved_until: No number of this or above was ever given out.
        flushed_ns: Everything appended to the journal before this moment is on the disk.
        open: Numbers in slots: ``n -> (accepted_ns, context)``.
    """

    source: str
    boot_id: bytes
    started_ns: int
    next: int
    reserved_until: int
    flushed_ns: int
    open: dict[int, tuple[int, int]]


def read_boot_id() -> bytes:
    """16 bytes that change with every boot; zeros where the kernel does not say."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def parse_board(data: bytes) -> BoardImage:
    """Read a board file's bytes.

    Raises:
        FormatError: Not a board, or its fixed part does not match its checksum.
    """
    if len(data) < PAGE:
        raise FormatError(f"board: expected at least {PAGE} bytes, got {len(data)}")
    magic, boot_id, slots, started, length, source = _HEAD.unpack_from(data)
    words = memoryview(data[: len(data) // 8 * 8]).cast("Q")
    if magic != MAGIC or words[_CRC] != zlib.crc32(data[: _HEAD.size]):
        raise FormatError("board: expected magic and a matching checksum, got others")
    if not 0 < slots <= SLOTS_MAX or len(data) != _size(slots) or length > SOURCE_MAX:
        raise FormatError(f"board: expected {_size(slots):,} bytes for {slots:,} slots, got {len(data):,}")
    opened = {}
    for at in range(_SLOTS, _SLOTS + slots * _SLOT_WORDS, _SLOT_WORDS):
        if words[at]:
            opened[words[at]] = (words[at + 1], words[at + 2])
    try:
        name = source[:length].decode()
    except UnicodeDecodeError:
        raise FormatError("board: expected a source in UTF-8, got other bytes") from None
    return BoardImage(name, boot_id, started, words[_NEXT], words[_RESERVED], words[_FLUSHED], opened)


def _size(slots: int) -> int:
    return PAGE + slots * _SLOT_WORDS * 8


class Board:
    """A worker's own board. ``reserve`` and ``release`` are called by one thread at a time.

    Raises:
        LedgerHaltedError: The file exists already: two owners of one (epoch, worker).
    """

    def __init__(
        self, path: Path, source: str, *, slots: int, now_ns: int, boot_id: bytes | None = None
    ) -> None:
        self.path = path
        self._extending = threading.Lock()
        self._fd = _create(path, source, slots, now_ns, boot_id or read_boot_id())
        self._map = mmap.mmap(self._fd, _size(slots))
        self._words = memoryview(self._map).cast("Q")
        self._free = list(range(_SLOTS + (slots - 1) * _SLOT_WORDS, _SLOTS - 1, -_SLOT_WORDS))
        self._open: dict[int, int] = {}
        self._next = 1
        self._until = self._words[_RESERVED]
        self.slots = slots

    @property
    def next(self) -> int:
        """Next number to give out."""
        return self._next

    @property
    def in_flight(self) -> int:
        """Numbers given out and not closed."""
        return len(self._open)

    def reserve(self, accepted_ns: int, context: int = 0) -> int:
        """Give out the next number.

        Raises:
            TooManyError: Every slot is taken.
        """
        if not self._free:
            raise TooManyError(
                f"{self.slots:,} calls are in flight, ledger.in_flight_max is {self.slots:,}",
                hint="retry after 1 s, or raise ledger.in_flight_max",
            )
        n = self._next
        if n >= self._until:
            self.extend()
        slot = self._free.pop()
        words = self._words
        words[slot + 1] = accepted_ns
        words[slot + 2] = context
        words[slot] = n
        words[_NEXT] = n + 1
        self._next = n + 1
        self._open[n] = slot
        return n

    def is_open(self, n: int) -> bool:
        """True if the number is given out and not closed."""
        return n in self._open

    def release(self, n: int) -> None:
        """Clear a number's slot, after its record is in the journal."""
        slot = self._open.pop(n)
        self._words[slot] = 0
        self._free.append(slot)

    @property
    def wants_extension(self) -> bool:
        """True when half of the reserved block is used: time to extend off the call path."""
        return self._until - self._next < BLOCK // 2

    def extend(self) -> None:
        """Reserve the next block of numbers; on the disk when this returns.

        Raises:
            LedgerFullError: The disk does not take it; nothing was given out.
        """
        with self._extending:
            until = self._until + BLOCK
            self._words[_RESERVED] = until
            try:
                self._map.flush(0, PAGE)
                os.fdatasync(self._fd)
            except OSError as error:
                raise LedgerFullError(f"board {self.path.name}: cannot reserve numbers: {error}") from error
            self._until = until

    def mark_flushed(self, now_ns: int) -> None:
        """Note that all that was appended before ``now_ns`` is on the disk."""
        self._words[_FLUSHED] = now_ns

    def close(self) -> None:
        """Let go of the file; it stays until the sequencer has seen its end."""
        self._words.release()
        self._map.close()
        os.close(self._fd)


def _create(path: Path, source: str, slots: int, now_ns: int, boot_id: bytes) -> int:
    """Make the file whole, on the disk and locked before anyone can see it under its name."""
    raw = source.encode()
    if not 0 < slots <= SLOTS_MAX or len(raw) > SOURCE_MAX:
        raise FormatError(f"board: expected 1 to {SLOTS_MAX:,} slots, got {slots:,}")
    head = _HEAD.pack(MAGIC, boot_id, slots, now_ns, len(raw), raw)
    words = struct.pack("<QQQQ", zlib.crc32(head), 1, 1 + BLOCK, now_ns)
    image = (head + words).ljust(_size(slots), b"\0")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # every block is written, not left sparse: a later store must not find the disk full (SIGBUS)
        if os.write(fd, image) != len(image):
            raise OSError(errno.ENOSPC, "no space left on device")
        os.fsync(fd)
        os.link(draft, path)
    except OSError as error:
        os.close(fd)
        raise _creation_error(path, error) from error
    finally:
        os.unlink(draft)
    sync_folder(path.parent)
    return fd


def _creation_error(path: Path, error: OSError) -> LedgerHaltedError | DiskFullError:
    if error.errno == errno.EEXIST:
        return LedgerHaltedError(f"board {path.name}: expected none yet, got one: a second owner?")
    return DiskFullError(f"board {path.name}: expected to write it, got {error}")


def sync_folder(folder: Path) -> None:
    """Make names created in or removed from a folder survive power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_dead(path: Path) -> int | None:
    """Descriptor of a file whose owner is gone, locked by us; ``None`` while the owner lives.

    Raises:
        FileNotFoundError: It is gone.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd
