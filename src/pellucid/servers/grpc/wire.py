"""gRPC over HTTP/2 as bytes: messages with their length, compressed or not, statuses in trailers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from pellucid.servers.grpc.statuses import StatusCode

PREFIX: Final = 5  # bytes before a message: compressed or not, its length
TEXT_MAX: Final = 2_048  # limit: bytes of a status's text, each up to three when sent: clients take 8 KiB
ENCODINGS: Final = {b"gzip": 31, b"deflate": 15}  # zlib's window bits with its wrapper
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class RefusedError(Exception):
    """A status that no error of the house has."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def _length(count: int) -> bytes:
    """An HPACK length, without Huffman coding."""
    if count < 127:
        return bytes((count,))
    count -= 127
    rest = bytearray(b"\x7f")
    while count >= 128:
        rest.append(count & 0x7F | 0x80)
        count >>= 7
    rest.append(count)
    return bytes(rest)


@lru_cache(maxsize=64)
def _name(name: bytes) -> bytes:
    return b"\x00" + _length(len(name)) + name


def field(name: bytes, value: bytes) -> bytes:
    """A header as HPACK writes it that is in no table; so what we send needs none."""
    return _name(name) + _length(len(value)) + value


OK_HEAD: Final = (
    b"\x88"  # :status 200
    + field(b"content-type", b"application/grpc")
    + field(b"grpc-accept-encoding", b"identity,deflate,gzip")
)
OK_TAIL: Final = field(b"grpc-status", b"0")
NO_GRPC_HEAD: Final = b"\x08\x03415"  # :status, for those who ask for something else


def is_plain(data: bytes) -> bool:
    """True for one whole message that is not compressed, and nothing else."""
    return data[:1] == b"\x00" and len(data) - PREFIX == int.from_bytes(data[1:PREFIX], "big")


def framed(message: bytes) -> bytes:
    """A message with its length before it."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _said(text: str) -> bytes:
    raw = text[:TEXT_MAX].encode("utf-8", "replace")[:TEXT_MAX]
    return quote(raw.decode("utf-8", "ignore"), safe=_PRINTABLE).encode()


def trailers(code: StatusCode, text: str, marks: Iterable[tuple[str, str]] = ()) -> bytes:
    """Header block that ends an RPC."""
    lines = [field(b"grpc-status", b"%d" % code)]
    if text:
        lines.append(field(b"grpc-message", _said(text)))
    lines += [field(name.encode(), value.encode()) for name, value in marks]
    return b"".join(lines)


def inflate(data: bytes, encoding: bytes, size_max: int) -> bytes:
    """A message that came compressed, never more than ``size_max`` bytes of it in memory.

    Raises:
        RefusedError: Another compression, more bytes, or bytes that are none of it.
    """
    if encoding == b"identity":
        raise RefusedError(
            StatusCode.INTERNAL, "message: expected none compressed, got one without grpc-encoding"
        )
    if encoding not in ENCODINGS:
        raise RefusedError(StatusCode.UNIMPLEMENTED, other_encoding(encoding))
    inflater = zlib.decompressobj(ENCODINGS[encoding])
    try:
        message = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        text = f"message: expected {encoding.decode()}, got {error!s:.80}"
        raise RefusedError(StatusCode.INTERNAL, text) from None
    if len(message) > size_max:
        raise too_large(size_max, "more when inflated")
    if not inflater.eof or inflater.unused_data:
        raise RefusedError(
            StatusCode.INTERNAL, f"message: expected one whole {encoding.decode()}, got another length"
        )
    return message


def other_encoding(encoding: bytes) -> str:
    """What is said of a compression that is not known here."""
    return f"grpc-encoding: expected identity, gzip or deflate, got {encoding.decode('latin-1')!r:.40}"


def too_large(size_max: int, got: str) -> RefusedError:
    """The refusal of a message that never becomes a call."""
    return RefusedError(
        StatusCode.RESOURCE_EXHAUSTED, f"message: expected at most {size_max:,} bytes, got {got}"
    )
