"""Warm-up: every bucket runs before a model is ready, and is timed while it does."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

from pellucid.core.bucket import take
from pellucid.core.decision import decide
from pellucid.core.tensor import Tensor, TensorSpec, datatype, element_count
from pellucid.errors import FormatError
from pellucid.serving.model import Model

RUNS: Final = 7  # enough for a median that one interruption does not move


def warm_up(model: Model, monotonic_ns: Callable[[], int]) -> dict[int, int]:
    """Run each bucket with zeros; median nanoseconds by bucket (0: no batch axis).

    Raises:
        FormatError: Outputs do not have the rows of the bucket, or do not fit ``meaning.json``.
    """
    return {bucket: _time(model, bucket, monotonic_ns) for bucket in buckets_of(model)}


def buckets_of(model: Model) -> tuple[int, ...]:
    """Buckets a model runs in; ``(0,)`` when it has no batch axis."""
    return model.buckets if model.signature.batched else (0,)


def _time(model: Model, bucket: int, monotonic_ns: Callable[[], int]) -> int:
    tensors = [_zeros(spec, bucket) for spec in model.signature.inputs]
    times = []
    for _ in range(RUNS):
        started = monotonic_ns()
        outputs = model.session.infer(tensors)
        times.append(monotonic_ns() - started)
    _check(model, bucket, outputs)
    return int(statistics.median(times))


def _check(model: Model, bucket: int, outputs: list[Tensor]) -> None:
    for tensor in outputs:
        if bucket and (not tensor.shape or tensor.shape[0] != bucket):
            raise FormatError(
                f"output {tensor.name!r:.80}: expected {bucket} rows for bucket {bucket}, "
                f"got shape {list(tensor.shape)}"
            )
    decide(model.decision, [take(tensor, 0, 1) for tensor in outputs] if bucket else outputs)


def _zeros(spec: TensorSpec, bucket: int) -> Tensor:
    shape = [1 if dimension == -1 else dimension for dimension in spec.shape]
    if bucket:
        shape[0] = bucket
    size = element_count(shape) * (datatype(spec.datatype).itemsize or 4)
    return Tensor(spec.name, spec.datatype, tuple(shape), bytes(size))
