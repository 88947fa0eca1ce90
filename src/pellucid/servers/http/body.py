"""Bodies: read within a limit, inflated within the same limit, answered compressed when asked."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from pellucid.errors import DeadlineError, FormatError, LimitError, PellucidError
from pellucid.servers.http.slow import SlowBodies

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
BODY_TIMEOUT_S: Final = 30.0  # limit: a client that sends slower than this holds a number for nothing
COMPRESS_MIN: Final = 1_024  # below, the header costs more than it saves
ENCODINGS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # zlib's window bits with its wrapper


async def read_body(
    receive: Receive,
    announced: bytes | None,
    size_max: int,
    slow: SlowBodies,
    give_up: Callable[[PellucidError], object],
) -> bytes:
    """Whole body, never more than ``size_max`` bytes of it in memory.

    Args:
        slow: Where bodies are counted that do not come whole.
        give_up: Told at once when this one is pushed out by others.

    Raises:
        LimitError: Announced or sent larger.
        DeadlineError: The client left, or was too slow, or one of too many that are slow.
    """
    if announced is not None and announced.isdigit() and int(announced[:20]) > size_max:
        raise too_large(size_max, announced[:20].decode())
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S) as deadline:

            def pushed_out() -> None:
                # its reader hears of a deadline only a turn later, and a burst of others may come before
                give_up(too_late())
                deadline.reschedule(asyncio.get_running_loop().time())

            with slow.hold(deadline, pushed_out):
                return await _gather(receive, size_max, partial(slow.grow, deadline))
    except TimeoutError:
        raise too_late() from None


def too_late() -> DeadlineError:
    """The refusal of a body that did not come in time."""
    return DeadlineError(
        f"body: expected all of it within {BODY_TIMEOUT_S:.0f} s, sooner where many are slow, got less"
    )


async def _gather(receive: Receive, size_max: int, grow: Callable[[int], None]) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DeadlineError(f"body: expected all of it, got {len(body):,} bytes before the client left")
        piece = message.get("body", b"")
        body += piece
        grow(len(piece))
        if len(body) > size_max:
            raise too_large(size_max, "more")
        if not message.get("more_body"):
            return bytes(body)


def too_large(size_max: int, got: str) -> LimitError:
    """The refusal of a body over the limit."""
    return LimitError(
        f"body: expected at most {size_max:,} bytes, got {got}", hint="raise serving.body_max_bytes"
    )


def inflate(body: bytes, encoding: bytes, size_max: int) -> bytes:
    """Body of a compressed one; stops at the limit.

    Raises:
        FormatError: Broken, cut off, or with bytes behind its end.
        LimitError: Inflates beyond ``size_max``.
    """
    engine = zlib.decompressobj(ENCODINGS[encoding])
    try:
        plain = engine.decompress(body, size_max + 1)
    except zlib.error as error:
        raise FormatError(f"body: expected valid {encoding.decode()} data, got {error!s:.120}") from None
    if len(plain) > size_max:
        raise too_large(size_max, "more after decompression")
    if not engine.eof or engine.unused_data:
        raise FormatError(f"body: expected one whole {encoding.decode()} stream, got another length")
    return plain


def answer_encoding(accepted: bytes) -> bytes:
    """First of gzip and deflate that ``Accept-Encoding`` takes, or ``b""``."""
    for item in accepted.lower().split(b","):
        name, _, quality = item.partition(b";")
        if name.strip() in (b"gzip", b"deflate") and not _is_zero(quality):
            return name.strip()
    return b""


def _is_zero(quality: bytes) -> bool:
    value = quality.replace(b" ", b"").removeprefix(b"q=")
    return bool(value) and not value.strip(b"0.")


def deflate(body: bytes, encoding: bytes) -> bytes:
    """Compressed body."""
    engine = zlib.compressobj(1, zlib.DEFLATED, ENCODINGS[encoding])
    return engine.compress(body) + engine.flush()
