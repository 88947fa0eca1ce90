"""Dynamic batching in fixed buckets: one execution at a time, one record an execution.

What arrived in one turn of the event loop shares a batch; nothing waits when the model is idle
(unless ``batch_delay_us``, of its recipe or of the site, says so). Slots follow the order of arrival. A
model that may not share runs every call alone. The record is appended before any reply of the batch
leaves; in the ``durable`` mode the replies wait for the group commit that holds it.

Where the rows that wait would leave much of a bucket to zeros, a full smaller one runs first, if the
times measured at the warm-up say that all are answered sooner so.

A batch that fails is run again call by call, so that one caller's input cannot fail another's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pellucid.core.bucket import bucket_for, fill_plan, slots_for
from pellucid.core.record import Batch
from pellucid.errors import DeadlineError, LedgerHaltedError, PellucidError, UnavailableError
from pellucid.ports import CallTracer, Clock, ProfiledSession, Recorder, Session
from pellucid.serving.baseline import Baselines, Load
from pellucid.serving.call import OpenCall
from pellucid.serving.closing import Closer, Done
from pellucid.serving.limits import Limits
from pellucid.serving.meter import Meter
from pellucid.serving.model import Model
from pellucid.serving.worker import Execution, Parts, Worker


class BatchCount:
    """Number of the last batch recorded; shared by all models of a process."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class Batcher:
    """The queue of one model version. Lives on the event loop's thread."""

    def __init__(
        self,
        model: Model,
        context: int,
        recorder: Recorder,
        *,
        clock: Clock,
        limits: Limits,
        count: BatchCount,
        times: Mapping[int, int],
        load: Load,
    ) -> None:
        self.model, self.context = model, context
        self._recorder, self._limits, self._count = recorder, limits, count
        self._wall, self._now = clock.now_ns, clock.monotonic_ns
        self._worker = Worker(model.session, clock.monotonic_ns, f"{model.name}:{model.version}")
        self.meter = Meter()
        self.baselines = Baselines(model, recorder, load=load, limits=limits.baseline, frozen=model.baselines)
        self._closer = Closer(model, recorder, clock, limits, self.meter)
        self._inline = frozenset(b for b, took in times.items() if took <= limits.inline_max_ns)
        self._shares, self._batched = model.shares, model.signature.batched
        self._fill = fill_plan(times, limits.execution_ns) if self._shares else ()
        self._delay_us = model.delay_us(limits.batch_delay_us)
        self._queue: deque[OpenCall] = deque()
        self._busy = self._scheduled = self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._retired: Callable[[Any], object] | None = None
        self.tracer: CallTracer | None = None
        self._usual: Session | None = None  # set aside while the layers are measured
        self._profiled: ProfiledSession | None = None
        self.profiled = 0  # executions whose layers were measured

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the loop whose thread appends to the journal."""
        self._loop, self._thread = loop, threading.get_ident()

    def submit(self, call: OpenCall) -> None:
        """Queue a call whose request is parsed.

        Raises:
            UnavailableError: The queue is full.
        """
        if len(self._queue) >= self._limits.queue_max:
            self.meter.rejected += 1
            raise UnavailableError(
                f"{len(self._queue):,} calls wait for {self.model.name}, queue_max is "
                f"{self._limits.queue_max:,}",
                hint="retry after 1 s, or raise serving.queue_max",
            )
        self._queue.append(call)
        if call.deadline:
            self._watch(call)
        if not self._busy and not self._scheduled:
            self._schedule(self._delay_us)

    @property
    def waiting(self) -> int:
        """Calls queued, and one more while an execution runs."""
        return len(self._queue) + self._busy

    def close(self) -> None:
        """Close the engine; a second time nothing happens."""
        closed, self._closed = self._closed, True
        if not closed:
            self._worker.close()
            if self._usual is not None:
                self._usual.close()

    # -- verbose ------------------------------------------------------------------------------------

    def start_verbose(self, session: ProfiledSession) -> None:
        """Run through a session that measures its layers; these executions are judged by no baseline."""
        assert self._usual is None
        self._profiled, self._usual, self.profiled = session, self._worker.swap(session), 0

    def end_verbose(self) -> ProfiledSession | None:
        """Go back; gives the session that measured, to be read and closed. ``None``: one runs just now."""
        if self._busy or self._usual is None or self._profiled is None:
            return None
        self._worker.swap(self._usual)
        ended, self._usual, self._profiled = self._profiled, None, None
        return ended

    def retire(self, done: Callable[[Batcher], object]) -> None:
        """Close once no call is left; nobody submits from now on. ``done`` is told then."""
        self._retired = done
        self._leave()

    def _leave(self) -> None:
        if self._retired is None or self.waiting:
            return
        done, self._retired = self._retired, None
        if self._loop is None or not self._loop.is_running():
            self.close()
            done(self)
            return
        # an engine may take long to let go of its memory, and calls of others must not wait for it
        closing = self._loop.run_in_executor(None, self.close)
        closing.add_done_callback(lambda _: done(self))

    # -- a call that will not wait ----------------------------------------------------------------

    def _watch(self, call: OpenCall) -> None:
        assert self._loop is not None, "attach comes first"
        left_s = max(0, call.deadline - self._now()) / 1e9
        call.timer = self._loop.call_later(left_s, self._expire, call)

    def _expire(self, call: OpenCall) -> None:
        """Close a call that still waits; one that runs, or has run, is left alone."""
        try:
            self._queue.remove(call)
        except ValueError:
            return
        waited = (self._now() - call.decoded) // 1000
        limit = (call.deadline - call.started) // 1000
        error: PellucidError = DeadlineError(
            f"call: expected its turn within {limit:,} us, got none after waiting {waited:,} us"
        )
        try:
            self._recorder.close_call(self._closer.expire(call, error, self._wall()))
            call.closed = True
            self.meter.expire(self._now() - call.started)
        except PellucidError as worse:
            call.queued, error = isinstance(worse, LedgerHaltedError), worse
        self._recorder.after_durable(partial(self._release, [(call, error)]))
        self._leave()

    # -- one execution ----------------------------------------------------------------------------

    def _schedule(self, delay_us: int = 0) -> None:
        assert self._loop is not None, "attach comes first"
        self._scheduled = True
        if delay_us:
            self._loop.call_later(delay_us / 1e6, self._flush)
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._busy or not self._queue:
            return
        calls, rows = self._take()
        for call in calls:
            if call.timer is not None:  # else it would hold the call, and its tensors, until it rings
                call.timer.cancel()
                call.timer = None
        bucket = bucket_for(rows, self.model.buckets) if self._batched else 0
        slots = slots_for([call.parsed.rows for call in calls])
        parts = _parts(calls, slots)
        started = self._now()
        if bucket in self._inline:
            self._finish(calls, slots, bucket, started, self._worker.run(parts, bucket))
        else:
            self._busy = True
            done = partial(self._hand_over, calls, slots, bucket, started)
            self._worker.start(parts, bucket, done, partial(self._closer.prepare, calls))

    def _take(self) -> tuple[list[OpenCall], int]:
        """Calls that share the next batch, in order of arrival."""
        queue = self._queue
        first = queue.popleft()
        calls, rows = [first], first.parsed.rows
        if not self._shares or first.alone or not queue:
            return calls, rows
        rest, largest = _rests(first), self.model.buckets[-1]
        while queue:
            following = queue[0]
            count = following.parsed.rows
            if following.alone or rows + count > largest:
                break
            if following.shapes != first.shapes and _rests(following) != rest:
                break
            calls.append(queue.popleft())
            rows += count
        if self._fill[rows] < rows:
            rows = self._give_back(calls, rows, self._fill[rows])
        return calls, rows

    def _give_back(self, calls: list[OpenCall], rows: int, wanted: int) -> int:
        """Put calls at the end back into the queue, if the others are just as many rows as wanted."""
        kept, count = 0, 0
        while count < wanted:
            count += calls[kept].parsed.rows
            kept += 1
        if count != wanted:
            return rows
        self._queue.extendleft(reversed(calls[kept:]))
        del calls[kept:]
        return count

    def _hand_over(
        self, calls: list[OpenCall], slots: list[int], bucket: int, started: int, execution: Execution
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._finish, calls, slots, bucket, started, execution)

    def _finish(
        self, calls: list[OpenCall], slots: list[int], bucket: int, started: int, execution: Execution
    ) -> None:
        self._busy = False
        if execution.error is not None and len(calls) > 1:
            for call in reversed(calls):
                call.alone = True
                self._queue.appendleft(call)
                if call.deadline:
                    self._watch(call)
        else:
            self._record(calls, slots, bucket, started, execution)
        if self._queue and not self._scheduled:
            self._schedule()
        if self._retired is not None:
            self._leave()

    def _record(
        self, calls: list[OpenCall], slots: list[int], bucket: int, started: int, execution: Execution
    ) -> None:
        closed_ns, ran, mark = self._wall(), self._now(), None
        if execution.error is None:
            if self._usual is None:
                mark = self.baselines.judge(bucket, execution.infer_ns)
            else:  # what is profiled is no measure of what is usual
                self.profiled += 1
        records, done = self._closer.close(calls, slots, bucket, started, closed_ns, execution, mark)
        if execution.error is None:
            rows = slots[-1] + calls[-1].parsed.rows  # slots ascend from 0 without gaps
            stages = (execution.input_ns, execution.infer_ns, self._now() - ran)
            self.meter.executed(rows, len(calls), stages, closed_ns)
        try:
            if records:
                n = self._count.last + 1
                batch = Batch(n, self.context, bucket, closed_ns, execution.infer_ns, records)
                self._recorder.close_batch(batch)
                self._count.last = n
            for call in calls:
                call.closed = True
            if self.tracer is not None:
                for record in records:
                    self.tracer.closed(record, self.model.name, self.model.version)
            self._recorder.after_durable(partial(self._release, done))
        except PellucidError as error:
            # without its record no answer leaves; whoever waits for it closes the call as refused, or,
            # where the ledger has stopped, the next start closes it as unresolved
            for record, (_, outcome) in zip(records, done, strict=True):
                if not isinstance(outcome, PellucidError):
                    self.meter.broke(record.stages[1], record.stages[3], engine=False)
            for call in calls:
                call.queued = call.closed or isinstance(error, LedgerHaltedError)
            _settle([(call, error) for call in calls])

    def _release(self, done: Done) -> None:
        """Called when the promised durability is reached, from any thread."""
        if threading.get_ident() == self._thread:
            _settle(done)
        else:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(_settle, done)


def _rests(call: OpenCall) -> list[tuple[int, ...]]:
    """Shapes behind the batch axis."""
    return [shape[1:] for shape in call.shapes]


def _parts(calls: list[OpenCall], slots: list[int]) -> Parts:
    inputs = range(len(calls[0].parsed.tensors))
    return [[(slot, call.parsed.tensors[i]) for call, slot in zip(calls, slots, strict=True)] for i in inputs]


def _settle(done: Done) -> None:
    for call, outcome in done:
        call.settle(outcome)
