"""API tokens: 256 random bits behind a name, kept only as a salted hash.

``pellucid_<8 hex digits>_<43 characters>``: the digits find the row, the rest is the secret. A random
secret of that length cannot be guessed, so the hash is HMAC-SHA256 and not a slow one. The book is a
JSON file of the site; it holds nothing with which anybody could call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from pellucid.core.access import Caller, verify_roles
from pellucid.errors import ConfigError, FormatError, NotFoundError, UnauthenticatedError, UsageError

PREFIX: Final = "pellucid_"
SECRET_BYTES: Final = 32
ID_BYTES: Final = 4
SALT_BYTES: Final = 16
TOKENS_MAX: Final = 10_000  # limit: a site gives out a few dozen
NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?")
_TOKEN: Final = re.compile(r"pellucid_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token. Times are nanoseconds since 1970; ``expires_ns`` 0 is never."""

    id: str
    name: str
    roles: tuple[str, ...]
    salt: str
    hash: str
    created_ns: int
    expires_ns: int = 0


class Book(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens of a site."""

    tokens: tuple[Row, ...] = ()

    def add(
        self, name: str, roles: tuple[str, ...], random: bytes, *, now_ns: int, expires_ns: int = 0
    ) -> tuple[Book, str]:
        """The book with one more token, and the token, which nobody can read off the book.

        Args:
            random: Fresh random bytes: secret, salt and id, 52 in all.

        Raises:
            UsageError: A name that is none or taken, too many tokens.
            ConfigError: No roles, or unknown ones.
        """
        if not NAME.fullmatch(name):
            raise UsageError(f"token name: expected {NAME.pattern}, got {name!r:.80}")
        if any(row.name == name for row in self.tokens):
            raise UsageError(
                f"token {name!r}: expected a new name, got one in use", hint="revoke it, or choose another"
            )
        if len(self.tokens) >= TOKENS_MAX:
            raise UsageError(f"tokens: expected at most {TOKENS_MAX:,}, got one more")
        verify_roles(roles, f"token {name!r}")
        end = SECRET_BYTES + SALT_BYTES
        secret, salt, number = random[:SECRET_BYTES], random[SECRET_BYTES:end], random[end : end + ID_BYTES]
        if len(number) != ID_BYTES or any(row.id == number.hex() for row in self.tokens):
            raise UsageError("token: expected fresh random bytes, got used or too few ones")
        text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
        row = Row(
            id=number.hex(), name=name, roles=roles, salt=salt.hex(), hash=_hash(salt, text).hex(),
            created_ns=now_ns, expires_ns=expires_ns,
        )  # fmt: skip
        return Book(tokens=(*self.tokens, row)), f"{PREFIX}{row.id}_{text}"

    def revoke(self, name: str) -> Book:
        """The book without a token.

        Raises:
            NotFoundError: No token of that name.
        """
        rest = tuple(row for row in self.tokens if row.name != name)
        if len(rest) == len(self.tokens):
            raise NotFoundError(f"token {name!r:.80}: expected one of the site's, got none of that name")
        return Book(tokens=rest)

    def by_id(self) -> Mapping[str, Row]:
        """Rows by their ids, for ``find_caller``."""
        return {row.id: row for row in self.tokens}


def is_token(text: str) -> bool:
    """True for what claims to be one of our tokens."""
    return text.startswith(PREFIX)


def find_caller(rows: Mapping[str, Row], text: str, now_ns: int) -> Caller:
    """Whose token it is.

    Raises:
        UnauthenticatedError: Nobody's, or not any more. What is told does not say which.
    """
    match = _TOKEN.fullmatch(text)
    row = rows.get(match[1]) if match else None
    if match is None or row is None:
        raise UnauthenticatedError("token: expected a valid one, got another")
    right = hmac.compare_digest(_hash(bytes.fromhex(row.salt), match[2]), bytes.fromhex(row.hash))
    if not right or (row.expires_ns and now_ns >= row.expires_ns):
        raise UnauthenticatedError("token: expected a valid one, got another")
    return Caller(f"token:{row.name}", frozenset(row.roles), "token", row.expires_ns)


def _hash(salt: bytes, text: str) -> bytes:
    return hmac.new(salt, text.encode(), hashlib.sha256).digest()


def encode_book(book: Book) -> bytes:
    """Bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(book), indent=1) + b"\n"


def decode_book(raw: bytes) -> Book:
    """Book of a file's bytes.

    Raises:
        FormatError: Not a book.
    """
    try:
        book = msgspec.json.decode(raw, type=Book)
        for row in book.tokens:
            verify_roles(row.roles, f"token {row.name!r:.80}")
            if len(bytes.fromhex(row.salt)) < SALT_BYTES or len(bytes.fromhex(row.hash)) != 32:
                raise FormatError(f"tokens: expected salt and hash of {row.name!r:.80}, got other lengths")
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError, ConfigError) as error:
        raise FormatError(f"tokens: expected a book of tokens, got {error!s:.200}") from None
    if len({row.id for row in book.tokens}) != len(book.tokens):
        raise FormatError("tokens: expected each id once, got one twice")
    return book
