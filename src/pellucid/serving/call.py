"""A call from its number to its reply, and the record of it."""

from __future__ import annotations

from asyncio import TimerHandle
from typing import Any, Final, Protocol

from pellucid.core.access import Caller
from pellucid.core.record import Call, Row
from pellucid.errors import PellucidError
from pellucid.serving.answer import Answer
from pellucid.serving.limits import MESSAGE_MAX
from pellucid.serving.request import InferRequest

Stages = tuple[int, int, int, int]
_NEVER_RAN: Final = -1


class Reply(Protocol):
    """Who waits for an outcome: a future, or a connection. Used on the event loop's thread."""

    def done(self) -> bool: ...
    def set_result(self, answer: Answer, /) -> None: ...
    def set_exception(self, error: PellucidError, /) -> None: ...


class OpenCall:
    """An accepted call. Times are nanoseconds: ``accepted_ns`` wall clock, the others monotonic.

    Attributes:
        n: Reserved number.
        personal: What the entry only commits to.
        trace: Our own trace id, or ``None`` when the client brought one.
        shown: The trace id under which the client finds the call.
        parsed: Its request, once it was read and fits the model.
        queued: True once a batcher has it, and closes it unless the ledger cannot take the record.
        closed: True once its record is appended.
        counted: True when it was refused beyond the rate: it has no entry of its own.
        caller: Who it is from, where the doors ask.
        alone: Run without neighbours, since the batch it was in failed.
        deadline: Monotonic time by which it wants to leave the queue; 0 is none.
        timer: Rings then, while it waits.
    """

    __slots__ = (
        "accepted_ns", "alone", "caller", "closed", "context", "counted", "deadline", "decoded", "n",
        "nbytes", "parsed", "personal", "queued", "reply", "seed", "shapes", "shown", "started", "timer",
        "trace",
    )  # fmt: skip

    shapes: tuple[tuple[int, ...], ...]
    parsed: InferRequest
    reply: Reply

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
        self.nbytes, self.shapes, self.deadline = 0, (), 0
        self.caller: Caller | None = None
        self.timer: TimerHandle | None = None
        self.queued = self.closed = self.counted = self.alone = False

    def settle(self, outcome: Answer | PellucidError) -> None:
        """Give the outcome to whoever still waits."""
        if self.reply.done():
            return  # the caller gave up
        if type(outcome) is Answer and outcome.elsewhere:
            try:
                outcome.deliver()
            except PellucidError as error:
                outcome = error
        if isinstance(outcome, PellucidError):
            self.reply.set_exception(outcome)
        else:
            self.reply.set_result(outcome)

    def refused(self, error: PellucidError, closed_ns: int, took: int) -> Call:
        """Record of a call that never ran."""
        return self._record("refused", error, closed_ns, (took, 0, 0, took), _NEVER_RAN, 0, (), 0)

    def expired(self, error: PellucidError, closed_ns: int, stages: Stages, rows: tuple[Row, ...]) -> Call:
        """Record of a call whose turn did not come in time."""
        return self._record("failed", error, closed_ns, stages, _NEVER_RAN, 0, rows, 0)

    def ran(
        self,
        outcome: Answer | PellucidError,
        closed_ns: int,
        stages: Stages,
        slot: int,
        bucket: int,
        rows: tuple[Row, ...],
        output_bytes: int,
        mark: dict[str, Any] | None = None,
    ) -> Call:
        """Record of a call that was executed, or should have been."""
        if isinstance(outcome, PellucidError):
            return self._record("failed", outcome, closed_ns, stages, slot, bucket, rows, output_bytes)
        return Call(
            self.n, self.context, "answered", None, self.accepted_ns, closed_ns, stages, slot, bucket, rows,
            self.shapes, (self.nbytes, output_bytes), self.seed, self.personal, self.trace, mark,
        )  # fmt: skip

    def _record(
        self,
        outcome: str,
        error: PellucidError,
        closed_ns: int,
        stages: Stages,
        slot: int,
        bucket: int,
        rows: tuple[Row, ...],
        output_bytes: int,
    ) -> Call:
        self.personal["message"] = error.message[:MESSAGE_MAX]
        return Call(
            self.n, self.context, outcome, error.code, self.accepted_ns, closed_ns, stages, slot, bucket,
            rows, self.shapes, (self.nbytes, output_bytes), self.seed, self.personal, self.trace,
        )  # fmt: skip
