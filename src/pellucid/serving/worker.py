"""Runs one engine: on the caller's thread when it is quick, else on one thread of its own.

Whatever an engine raises becomes an error of the tree; the house goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pellucid.core.bucket import place
from pellucid.core.tensor import Tensor
from pellucid.errors import PellucidError
from pellucid.ports import Session

Parts = list[list[tuple[int, Tensor]]]  # per input: first slot and tensor of each call


@dataclass(slots=True)
class Execution:
    """What one run gave: outputs, or the error; how long the engine took, and the placing before it."""

    outputs: list[Tensor]
    infer_ns: int
    error: PellucidError | None = None
    input_ns: int = 0


class Worker:
    """One engine's executions, one at a time."""

    def __init__(self, session: Session, monotonic_ns: Callable[[], int], name: str) -> None:
        self._session, self._now, self._name = session, monotonic_ns, name
        self._executor: ThreadPoolExecutor | None = None

    def run(self, parts: Parts, bucket: int) -> Execution:
        """Place and run on this thread; ``bucket`` 0: a model without batch axis, as it came."""
        began = started = self._now()
        try:
            if bucket:
                tensors: Sequence[Tensor] = [place(part, bucket) for part in parts]
            else:
                tensors = [part[0][1] for part in parts]
            started = self._now()
            outputs = self._session.infer(tensors)
            return Execution(outputs, self._now() - started, None, started - began)
        except PellucidError as error:
            return Execution([], self._now() - started, error)
        except Exception as error:
            text = f"engine {self._name}: expected outputs, got {type(error).__name__}: {error!s:.300}"
            return Execution([], self._now() - started, PellucidError(text))

    def start(
        self,
        parts: Parts,
        bucket: int,
        done: Callable[[Execution], None],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Run on the worker's thread; ``before`` and ``done`` are called there."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")

        def run() -> Execution:
            before()
            return self.run(parts, bucket)

        future: Future[Execution] = self._executor.submit(run)
        future.add_done_callback(lambda finished: done(finished.result()))

    def swap(self, session: Session) -> Session:
        """Use another session of the same engine from the next run on; gives the one before."""
        before, self._session = self._session, session
        return before

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self._session.close()
