"""A call from its number to its reply, and the record of it."""

from __future__ import annotations

import asyncio
from typing import Final

from pellucid.core.record import Call, Row
from pellucid.errors import PellucidError
from pellucid.serving.limits import MESSAGE_MAX
from pellucid.serving.request import InferRequest
from pellucid.serving.response import Answer

_NOT_RUN: Final = -1


class OpenCall:
    """An accepted call. Times are nanoseconds: ``accepted_ns`` wall clock, the others monotonic.

    Attributes:
        n: Reserved number.
        personal: What the entry only commits to.
        trace: Our own trace id, or ``None`` when the client brought one.
        shown: The trace id under which the client finds the call.
        queued: True once a batcher has it, and closes it whatever happens.
        closed: True once its record is appended.
        counted: True when it was refused beyond the rate: it has no entry of its own.
        alone: Run without neighbours, since the batch it was in failed.
    """

    __slots__ = (
        "accepted_ns", "alone", "closed", "context", "counted", "decoded", "n", "nbytes", "personal",
        "queued", "reply", "request", "seed", "shapes", "shown", "started", "trace",
    )  # fmt: skip

    shapes: tuple[tuple[int, ...], ...]
    request: InferRequest | None
    reply: asyncio.Future[Answer] | None

    def __init__(
        self,
        n: int,
        context: int,
        accepted_ns: int,
        started: int,
        seed: bytes,
        personal: dict[str, str],
        trace: str | None,
    ) -> None:
        self.n, self.context, self.accepted_ns = n, context, accepted_ns
        self.started = self.decoded = started
        self.seed, self.personal, self.trace = seed, personal, trace
        self.shown = trace if trace is not None else personal["trace_id"]
        self.nbytes, self.shapes, self.request, self.reply = 0, (), None, None
        self.queued = self.closed = self.counted = self.alone = False

    def settle(self, answer: Answer) -> None:
        """Give the answer to whoever still waits."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(answer)

    def fail(self, error: PellucidError) -> None:
        """Give the error to whoever still waits."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)

    def record(
        self,
        outcome: str,
        error: PellucidError | None,
        closed_ns: int,
        stages: tuple[int, int, int, int],
        *,
        slot: int = _NOT_RUN,
        bucket: int = 0,
        rows: tuple[Row, ...] = (),
        output_bytes: int = 0,
    ) -> Call:
        """The call's record, closed."""
        code = None
        if error is not None:
            code, self.personal["message"] = error.code, error.message[:MESSAGE_MAX]
        return Call(
            self.n, self.context, outcome, code, self.accepted_ns, closed_ns, stages, slot, bucket, rows,
            self.shapes, (self.nbytes, output_bytes), self.seed, self.personal, self.trace,
        )  # fmt: skip
