"""Frames of HTTP/2 (RFC 9113): their bytes, and the errors that end a connection. Knows no gRPC."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9
ID_MAX: Final = 2**31 - 1
WINDOW_MAX: Final = 2**31 - 1
WINDOW: Final = 65_535  # of a connection, and of a stream unless its settings say otherwise
SIZE_MIN: Final = 16_384  # every end takes frames of this size

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """What an end says of itself."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class BrokenError(Exception):
    """The connection ends: what came is no HTTP/2, or too much of it."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


_head: Final = struct.Struct(">HBBBI")
read_head: Final = _head.unpack_from


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    size = len(payload)
    return _head.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def head_of(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of that size."""
    return _head.pack(size >> 8, size & 0xFF, kind, flags, stream)


def settings(values: dict[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(Kind.SETTINGS, 0, 0, b"".join([struct.pack(">HI", *item) for item in values.items()]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Settings of a frame, in order.

    Raises:
        BrokenError: Not whole ones.
    """
    if len(payload) % 6:
        raise BrokenError(Code.FRAME_SIZE_ERROR, f"settings: expected six bytes each, got {len(payload)}")
    return list(struct.iter_unpack(">HI", payload))


def window_update(stream: int, count: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(Kind.WINDOW_UPDATE, 0, stream, count.to_bytes(4, "big"))


def rst_stream(stream: int, code: Code) -> bytes:
    """An RST_STREAM frame."""
    return frame(Kind.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last: int, code: Code, text: str = "") -> bytes:
    """A GOAWAY frame: streams beyond ``last`` were not and will not be looked at."""
    return frame(Kind.GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode()[:256])


def unpadded(flags: int, payload: bytes) -> bytes:
    """Payload of DATA or HEADERS without padding.

    Raises:
        BrokenError: More padding than payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BrokenError(Code.PROTOCOL_ERROR, "padding: expected less than the frame, got more")
    return payload[1 : len(payload) - payload[0]]
