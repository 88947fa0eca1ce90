"""From an execution to records and replies: each call of a batch gets its rows, answer and record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pellucid.core.bucket import take
from pellucid.core.entry import complete_row
from pellucid.core.record import Call, Row
from pellucid.errors import PellucidError
from pellucid.ports import Clock, Recorder
from pellucid.serving.answer import Answer
from pellucid.serving.call import OpenCall
from pellucid.serving.classification import classified
from pellucid.serving.limits import KEPT_MAX, Limits
from pellucid.serving.meter import Meter
from pellucid.serving.model import Model
from pellucid.serving.request import InferRequest
from pellucid.serving.response import render_answer
from pellucid.serving.rows import Rows
from pellucid.serving.worker import Execution

Outcome = Answer | PellucidError
Done = list[tuple[OpenCall, Outcome]]
Made = tuple[Outcome, tuple[Row, ...], int]  # outcome of a call, its rows, bytes of its outputs
UNRECORDED = "unsafe_record_nothing"


class Closer:
    """Closes the calls of one model's executions; appends nothing itself.

    Attributes:
        recording: False under ``unsafe_record_nothing``: no digests, no decisions, no records.
    """

    def __init__(self, model: Model, recorder: Recorder, clock: Clock, limits: Limits, meter: Meter) -> None:
        self._name, self._version, self._meter = model.name, model.version, meter
        self._call_key, self._now = recorder.call_key, clock.monotonic_ns
        self._decision, self._batched = model.decision, model.signature.batched
        self._rows = Rows(model, limits.keep_outputs_max_bytes)
        self.recording = recorder.mode != UNRECORDED

    def close(
        self,
        calls: Sequence[OpenCall],
        slots: Sequence[int],
        bucket: int,
        started: int,
        closed_ns: int,
        execution: Execution,
        mark: dict[str, Any] | None = None,
    ) -> tuple[tuple[Call, ...], Done]:
        """Records, and what each caller gets once they are appended.

        Args:
            started: Monotonic time at which the batch was put together.
            closed_ns: Wall clock of the closing.
            mark: Where the execution is beyond its baseline.
        """
        failed = execution.error is not None
        if failed:
            made = [self._failure(call, execution) for call in calls]
        else:
            pairs = zip(calls, slots, strict=True)
            made = [self._outcome(call, call.parsed, slot, bucket, execution) for call, slot in pairs]
        now, meter = self._now(), self._meter
        records: list[Call] = []
        done: Done = []
        kept = 0
        for call, slot, (outcome, rows, nbytes) in zip(calls, slots, made, strict=True):
            done.append((call, outcome))
            queue_ns, total_ns = started - call.decoded, now - call.started
            meter.closed(queue_ns, total_ns)
            if isinstance(outcome, PellucidError):
                meter.broke(queue_ns, total_ns, engine=failed)
            if self.recording:
                stages = (call.decoded - call.started, queue_ns, execution.infer_ns, total_ns)
                records.append(call.ran(outcome, closed_ns, stages, slot, bucket, rows, nbytes, mark))
                kept += nbytes
        return tuple(records if kept <= KEPT_MAX else map(self._without_outputs, records)), done

    def _failure(self, call: OpenCall, execution: Execution) -> Made:
        assert execution.error is not None
        return execution.error, self._rows.of_inputs(call.parsed) if self.recording else (), 0

    def prepare(self, calls: Sequence[OpenCall]) -> None:
        """What can be made of large calls before they ran, on whatever thread."""
        if self.recording:
            for call in calls:
                self._rows.prepare(call.parsed)

    def expire(self, call: OpenCall, error: PellucidError, closed_ns: int) -> Call:
        """Record of a call that waited longer than it wanted to."""
        now = self._now()
        stages = (call.decoded - call.started, now - call.decoded, 0, now - call.started)
        rows = self._rows.of_inputs(call.parsed) if self.recording else ()
        return call.expired(error, closed_ns, stages, rows)

    def _without_outputs(self, call: Call) -> Call:
        rows = [replace(complete_row(row, self._decision), value=None) for row in call.rows]
        return replace(call, rows=tuple(rows))

    def _outcome(
        self, call: OpenCall, request: InferRequest, slot: int, bucket: int, execution: Execution
    ) -> Made:
        outputs, count = execution.outputs, request.rows
        rows: tuple[Row, ...] = ()
        nbytes = 0
        try:
            if bucket and bucket != count:
                outputs = [take(tensor, slot, count) for tensor in outputs]
            if self.recording:
                rows = self._rows.of(request, outputs)
                for tensor in outputs:
                    nbytes += len(tensor.data)
            key = self._call_key(call.n)
            if request.classes:
                outputs = classified(outputs, request.classes, self._batched, self._decision)
            render = request.render or render_answer
            answer = render(self._name, self._version, request, outputs, key, call.shown)
        except PellucidError as error:
            return error, rows, nbytes
        return answer, rows, nbytes
