"""The site's file of API tokens: changed as a whole, readable by its owner only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.core.times import format_time
from pellucid.core.token import ID_BYTES, SALT_BYTES, SECRET_BYTES, Book, decode_book, encode_book
from pellucid.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pellucid.app.site import Site

FILE_MAX: Final = 16 * 2**20


def tokens_path(site: Site) -> Path:
    """Where the site keeps its tokens."""
    return site.path(site.config.doors.tokens)


def read_private(path: Path, subject: str, size_max: int = FILE_MAX) -> bytes:
    """Bytes of a file that only its owner can read.

    Raises:
        ConfigError: Others can, it is no file, or too large.
        FileNotFoundError: It is not there.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of what was opened, not of what the name says later
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise ConfigError(
                    f"{subject}: expected a file that only its owner can read at {path}, "
                    f"got mode {mode & 0o777:o}",
                    hint=f"chmod 600 {path}",
                )
            raw = file.read(size_max + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{subject}: expected a readable file at {path}, got {error.strerror}") from error
    if len(raw) > size_max:
        raise ConfigError(f"{subject}: expected at most {size_max:,} bytes, got more")
    return raw


def read_book(path: Path) -> Book:
    """The tokens; none where there is no file.

    Raises:
        ConfigError: Others can read it.
        FormatError: It is no book.
    """
    try:
        return decode_book(read_private(path, "doors.tokens"))
    except FileNotFoundError:
        return Book()


def change_book(path: Path, change: Callable[[Book], Book], record: Callable[[], object]) -> None:
    """Change the tokens; two changes at once follow each other.

    Args:
        record: Called when the change holds and before it is written: what cannot be recorded does
            not happen.

    Raises:
        UsageError: The file cannot be written.
        PellucidError: As ``read_book`` and ``change``; nothing is written then.
    """
    with _alone(path):
        book = change(read_book(path))
        record()
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"doors.tokens: expected a place to write, got {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode_book(book))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def add_token(
    path: Path,
    name: str,
    roles: tuple[str, ...],
    *,
    now_ns: int,
    expires_ns: int = 0,
    record: Callable[[], object] = lambda: None,
) -> str:
    """Make a token; it is told this once and kept nowhere.

    Raises:
        PellucidError: As ``core.token.Book.add`` and ``change_book``.
    """
    random, told = os.urandom(SECRET_BYTES + SALT_BYTES + ID_BYTES), ""

    def add(book: Book) -> Book:
        nonlocal told
        changed, told = book.add(name, roles, random, now_ns=now_ns, expires_ns=expires_ns)
        return changed

    change_book(path, add, record)
    return told


def revoke_token(path: Path, name: str, *, record: Callable[[], object] = lambda: None) -> None:
    """Take a token back; servers that run hear of it within a second.

    Raises:
        NotFoundError: No token of that name.
    """
    change_book(path, lambda book: book.revoke(name), record)


def issue(site: Site, name: str, roles: tuple[str, ...], *, now_ns: int, expires_ns: int = 0) -> str:
    """Make a token of a site; an entry says which roles were given, and commits to whom.

    Raises:
        PellucidError: As ``add_token``, or the ledger cannot take the entry.
    """
    expires = format_time(expires_ns) if expires_ns else None
    data = {"change": "token_added", "roles": sorted(roles), "expires": expires}
    record = partial(_record, site, data, name)
    return add_token(tokens_path(site), name, roles, now_ns=now_ns, expires_ns=expires_ns, record=record)


def withdraw(site: Site, name: str) -> None:
    """Take a token of a site back, with an entry; raises as ``revoke_token``."""
    record = partial(_record, site, {"change": "token_revoked"}, name)
    revoke_token(tokens_path(site), name, record=record)


def _record(site: Site, data: dict[str, Any], name: str) -> None:
    from pellucid.app.ledger import record_event

    record_event(site, "config", data, {"caller": f"token:{name}"})
