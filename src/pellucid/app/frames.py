"""Messages between a parent and its workers: JSON, each behind its length, over one stream a worker."""

from __future__ import annotations

import inspect
import json
import socket
from typing import Any, Final

from pellucid import errors
from pellucid.errors import FormatError, PellucidError, UnavailableError

FRAME_MAX: Final = 16 * 2**20  # limit: statistics of very many models
HEAD: Final = 4
_KINDS: Final = {
    kind.code: kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PellucidError)
}
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """One message, framed."""
    raw = json.dumps(message).encode()
    return len(raw).to_bytes(HEAD, "little") + raw


def length_of(head: bytes | bytearray) -> int:
    """Bytes that follow a head.

    Raises:
        FormatError: More than any message has.
    """
    length = int.from_bytes(head[:HEAD], "little")
    if length > FRAME_MAX:
        raise FormatError(f"message: expected at most {FRAME_MAX:,} bytes, got {length:,}")
    return length


def decode(raw: bytes) -> Message:
    """One message, without its head."""
    message: Message = json.loads(raw)
    return message


def take(buffer: bytearray) -> list[Message]:
    """Whole messages from the start of a buffer; they are cut off it."""
    found = []
    while len(buffer) >= HEAD and len(buffer) >= HEAD + (length := length_of(buffer)):
        found.append(decode(bytes(buffer[HEAD : HEAD + length])))
        del buffer[: HEAD + length]
    return found


def receive(channel: socket.socket) -> Message:
    """The next message; waits for it.

    Raises:
        UnavailableError: The other end is gone.
    """
    return decode(_exactly(channel, length_of(_exactly(channel, HEAD))))


def _exactly(channel: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = channel.recv(count - len(found))
        if not piece:
            raise UnavailableError("parent: expected a message, got the end of its channel")
        found += piece
    return bytes(found)


def error_record(error: PellucidError) -> Message:
    """An error as it travels."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def error_of(record: Message) -> PellucidError:
    """The error that travelled."""
    return _KINDS.get(record["code"], PellucidError)(record["message"], hint=record["hint"])
