"""Sessions without an engine: pure Python, exact, and they can be told to fail or to wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from pellucid.core.tensor import Tensor, TensorSpec, verify_tensor
from pellucid.errors import TensorError
from pellucid.testing.clock import FakeClock


class EchoSession:
    """Gives each input back under the name of the output at its place, bit for bit.

    Polices the port: one thread at a time, inputs in the model's order and whole, nothing after
    ``close``.

    Attributes:
        poison: An input that holds these bytes makes the run fail.
        gate: When set, every run waits for it.
        batches: Leading dimension of the first input of every run.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec] | None = None) -> None:
        self._inputs = tuple(inputs)
        self._outputs = tuple(
            outputs or [TensorSpec(f"{spec.name}_out", spec.datatype, spec.shape) for spec in inputs]
        )
        self.poison: bytes | None = None
        self.fault: Exception | None = None
        self.gate: threading.Event | None = None
        self.batches: list[int] = []
        self.closed = False
        self._running = threading.Lock()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    def infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not self._running.acquire(blocking=False):
            raise AssertionError("two threads in one session")
        try:
            return self._infer(tensors)
        finally:
            self._running.release()

    def _infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if self.closed:
            raise TensorError("session: expected an open session, got a closed one")
        got = [(t.name, t.datatype) for t in tensors]
        if got != [(s.name, s.datatype) for s in self._inputs]:
            raise TensorError(f"inputs: expected the model's, in order, got {got!r:.200}")
        for tensor in tensors:
            verify_tensor(tensor)
        if self.gate is not None:
            self.gate.wait(30)
        self.batches.append(tensors[0].shape[0])
        if self.fault is not None:
            raise self.fault
        if self.poison is not None and any(self.poison in bytes(t.data) for t in tensors):
            raise TensorError("engine: expected healthy input, got poison")
        pairs = zip(self._outputs, tensors, strict=False)
        return [Tensor(spec.name, spec.datatype, t.shape, bytes(t.data)) for spec, t in pairs]

    def describe(self) -> dict[str, Any]:
        return {"backend": "echo", "threads": 1}

    def close(self) -> None:
        self.closed = True


class TimedSession(EchoSession):
    """Takes as long as it is told, zeros too, by a clock in the hand of the test.

    Attributes:
        takes_s, a_row_s: Seconds a run, and more of them for each of its rows.
    """

    def __init__(self, clock: FakeClock, takes_s: float = 0.0, *, a_row_s: float = 0.0) -> None:
        super().__init__([TensorSpec("x", "FP32", (-1, 3))])
        self.clock, self.takes_s, self.a_row_s = clock, takes_s, a_row_s

    def _infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.clock.move(self.takes_s + self.a_row_s * tensors[0].shape[0])
        return super()._infer(tensors)
