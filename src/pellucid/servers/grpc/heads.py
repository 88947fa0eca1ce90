"""Header blocks: what an RPC says before its messages. ``hpack`` decompresses, the rules are here.

A block that changes nothing in the connection's table means the same each time it comes: what was
read of it is kept (measured: decompressing costs more than all else of a call's HTTP/2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import hpack

from pellucid.servers.grpc.frames import BrokenError, Code

LIST_MAX: Final = 32_768  # limit: bytes of all headers of an RPC, as of the HTTP door
LIST_HARD_MAX: Final = 65_536  # limit: above, the connection ends; below, the RPC is refused
FIELDS_MAX: Final = 128
KNOWN_MAX: Final = 32  # limit: blocks of a connection that are remembered
KNOWN_BYTES_MAX: Final = 1_024
TIMEOUT_UNITS: Final = {
    b"H": 3_600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 10**3, b"n": 1,
}  # fmt: skip
TIMEOUT_MAX_NS: Final = 366 * 86_400 * 10**9  # limit: what any clock can be set to
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")  # RFC 9110's tokens, in lower case
_BAD: Final = re.compile(rb"[\x00\r\n]")
_OF_HTTP_1: Final = frozenset(
    [b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"]
)
_NEEDED: Final = frozenset([b":method", b":path", b":scheme"])
_PSEUDO: Final = _NEEDED | {b":authority"}
_ONCE: Final = frozenset([b"content-length", b"content-type", b"grpc-encoding", b"grpc-timeout"])
_TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")

Fields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of an RPC say.

    Attributes:
        problem: Why it is no request of HTTP/2, or ``""``.
        oversized: More headers than are taken.
        path: Which method is called.
        is_post, content_type: As sent.
        length: Bytes announced of all data, or -1.
        timeout_ns: How long the caller waits; 0 is for ever, -1 not readable.
        encoding: How its messages are compressed.
        trace: The ``traceparent``, if one came once.
        fields: All that are no pseudo-headers.
    """

    problem: str = ""
    oversized: bool = False
    path: bytes = b""
    is_post: bool = True
    content_type: bytes = b""
    length: int = -1
    timeout_ns: int = 0
    encoding: bytes = b"identity"
    trace: bytes | None = None
    fields: Fields = ()

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header, in order."""
        return [value for other, value in self.fields if other == name]


class HeadReader:
    """Reads the header blocks of one connection, each of them, in order."""

    __slots__ = ("_decoder", "_known")

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=LIST_HARD_MAX)
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """What a block says.

        Raises:
            BrokenError: It cannot be decompressed, or is far too large.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        entries = self._decoder.header_table.dynamic_entries
        before = _mark(entries)
        try:
            fields = self._decoder.decode(block, raw=True)
        except hpack.OversizedHeaderListError as error:
            text = f"headers: expected at most {LIST_HARD_MAX:,} bytes, got more"
            raise BrokenError(Code.ENHANCE_YOUR_CALM, text) from error
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise BrokenError(
                Code.COMPRESSION_ERROR, "headers: expected HPACK, got something else"
            ) from error
        head = read_fields([(bytes(name), bytes(value)) for name, value in fields])
        if _changed(before, _mark(entries)) or (block and block[0] & 0xE0 == 0x20):  # also of its size
            self._known.clear()
        elif block and len(block) <= KNOWN_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[block] = head
        return head


def _mark(entries: Any) -> tuple[int, object]:
    """An entry that is added becomes the first, and is a new object."""
    return len(entries), entries[0] if entries else None


def _changed(before: tuple[int, object], after: tuple[int, object]) -> bool:
    return before[0] != after[0] or before[1] is not after[1]


def read_fields(fields: Fields) -> Head:
    """Head of decompressed headers; what is wrong with them is in it."""
    problem, pseudo, rest = _divide(fields)
    size = sum([len(name) + len(value) for name, value in fields])
    if problem:
        return Head(problem=problem)
    if size > LIST_MAX or len(fields) > FIELDS_MAX:
        return Head(oversized=True, path=pseudo[b":path"])
    named: dict[bytes, bytes] = {}
    traces = 0
    for name, value in rest:
        traces += name == b"traceparent"
        if name in _ONCE and named.get(name, value) != value:
            return Head(problem=f"header {name!r:.60}: expected one value, got several")
        named.setdefault(name, value)
    length = named.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) < 20):
        return Head(problem="content-length: expected digits, got others")
    return Head(
        path=pseudo[b":path"],
        is_post=pseudo[b":method"] == b"POST",
        content_type=named.get(b"content-type", b""),
        length=-1 if length is None else int(length),
        timeout_ns=read_timeout(named.get(b"grpc-timeout")),
        encoding=named.get(b"grpc-encoding", b"identity"),
        trace=named[b"traceparent"] if traces == 1 else None,
        fields=tuple(rest),
    )


def _divide(fields: Fields) -> tuple[str, dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    """What is wrong, pseudo-headers, others."""
    pseudo: dict[bytes, bytes] = {}
    rest: list[tuple[bytes, bytes]] = []
    problem = ""
    for name, value in fields:
        if name[:1] == b":":
            if rest or name in pseudo or name not in _PSEUDO:
                problem = "headers: expected each pseudo-header once and first, got others"
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or name in _OF_HTTP_1:
            problem = f"header {name!r:.60}: expected a name of HTTP/2, got another"
        elif name == b"te" and value != b"trailers":
            problem = "te: expected trailers, got something else"
        else:
            rest.append((name, value))
        if _BAD.search(value):
            problem = f"header {name!r:.60}: expected one line, got others"
    if not problem and not (pseudo.keys() >= _NEEDED and pseudo[b":path"]):
        problem = "headers: expected a method, a path and a scheme, got less"
    return problem, pseudo, rest


def read_timeout(value: bytes | None) -> int:
    """Nanoseconds of a ``grpc-timeout``; 0 without one, -1 where it is none."""
    if value is None:
        return 0
    if not _TIMEOUT.fullmatch(value):
        return -1
    return min(max(1, int(value[:-1]) * TIMEOUT_UNITS[value[-1:]]), TIMEOUT_MAX_NS)
