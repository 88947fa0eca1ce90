"""Messages between a parent and its child: 8 bytes of length, then msgpack."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, Final

import msgspec

from pellucid.core.tensor import Tensor
from pellucid.errors import FormatError, LimitError

FRAME_MAX: Final = 16 * 2**30  # limit: a model and its batches, never more than memory holds
_LENGTH: Final = struct.Struct(">Q")


def write_frame(stream: BinaryIO, message: Any) -> None:
    """Send one message whole.

    Raises:
        LimitError: A part of it is larger than its format allows (4 GiB).
    """
    try:
        body = msgspec.msgpack.encode(message)
    except msgspec.EncodeError as error:
        raise LimitError(f"frame: expected parts below 4 GiB, got {error!s:.120}") from error
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any | None:
    """Next message, or ``None`` at a clean end.

    Raises:
        FormatError: The stream ends inside a message (then caused by an ``EOFError``), or it is none.
    """
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise FormatError(f"frame: expected {_LENGTH.size} bytes of length, got {len(head)}") from EOFError()
    (size,) = _LENGTH.unpack(head)
    if size > FRAME_MAX:
        raise FormatError(f"frame: expected at most {FRAME_MAX:,} bytes, got a length of {size:,}")
    body = memoryview(bytearray(size))
    got = 0
    # into one buffer: pieces would be put together in memory as they happen to arrive, and a builder
    # that orders by address would give other bytes on a busy machine
    while got < size and (count := stream.readinto(body[got:])):  # type: ignore[attr-defined]
        got += count
    if got != size:
        raise FormatError(f"frame: expected {size:,} bytes, got {got:,}") from EOFError()
    try:
        message = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"frame: expected msgpack, got {error!s:.120}") from error
    if message is None:  # would be taken for the end
        raise FormatError("frame: expected a message, got nil")
    return message


def verify_map(message: Any) -> dict[Any, Any]:
    """The message, which is to have names for what it says.

    Raises:
        FormatError: It is no map.
    """
    if not isinstance(message, dict):
        raise FormatError(f"frame: expected a map, got {type(message).__name__}")
    return message


def pack_tensors(tensors: list[Tensor] | tuple[Tensor, ...]) -> list[Any]:
    """Tensors as a message's value."""
    return [[t.name, t.datatype, list(t.shape), bytes(t.data)] for t in tensors]


def unpack_tensors(value: list[Any]) -> list[Tensor]:
    return [Tensor(name, kind, tuple(shape), data) for name, kind, shape, data in value]
