"""What an engine answers to every validation row in every bucket, one row after the other.

A validation set may be larger than memory allows once it is padded to buckets: batches are made when
they are due, run in parts that take so many bytes at most, each part in a process of its own, and a
row's answers are given away once every bucket has been through it. A set that fits is one part.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pellucid.build.golden import verify_rows
from pellucid.core.bucket import place
from pellucid.core.tensor import Tensor, rows

T = TypeVar("T")
Row = Sequence[Tensor]
Infer = Callable[[Sequence[Sequence[Tensor]]], Sequence[Sequence[Tensor]]]


def in_parts(items: Iterable[T], weight: Callable[[T], int], room: int) -> Iterator[list[T]]:
    """The items in order, as many to a part as weigh at most ``room`` together, at least one."""
    part: list[T] = []
    left = room
    for item in items:
        if part and weight(item) > left:
            yield part
            part, left = [], room
        part.append(item)
        left -= weight(item)
    if part:
        yield part


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors."""
    return sum(len(tensor.data) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that are asked.

    Attributes:
        row: The row at that position as tensors.
        sizes: Buckets that each row goes through; 0 is a model without a batch axis.
        is_alone: Each row in a batch of its own, whatever the bucket.
        row_bytes: What one row and the answers to it take.
    """

    row: Callable[[int], list[Tensor]]
    count: int
    sizes: Sequence[int]
    is_alone: bool
    row_bytes: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows ``start`` to ``start + count`` in a bucket; what is left of it is padding."""

    start: int
    size: int
    count: int


def answers(asked: Rows, infer: Infer, room: int) -> Iterator[Mapping[int, Row]]:
    """The answers to each row in order, by bucket.

    Args:
        infer: Runs batches in a fresh process.
        room: Bytes of batches and answers that one process is given.

    Raises:
        BuildError: An output does not follow the batch axis.
    """
    waiting: dict[int, deque[Row]] = {size: deque() for size in asked.sizes}
    for part in in_parts(_plan(asked), lambda batch: max(batch.size, 1) * asked.row_bytes, room):
        # neither the batches nor the answers of a part have a name that would outlive it
        for batch, answer in zip(part, infer([_tensors(asked, batch) for batch in part]), strict=True):
            verify_rows(batch.size, answer)
            waiting[batch.size] += rows(answer)[: batch.count] if batch.size else [answer]
        while all(waiting.values()):
            yield {size: answered.popleft() for size, answered in waiting.items()}


def _plan(asked: Rows) -> Iterator[_Batch]:
    """Batches of all buckets by their first row, so that no bucket is far ahead of another."""
    return heapq.merge(*(_of_bucket(asked, size) for size in asked.sizes), key=lambda batch: batch.start)


def _of_bucket(asked: Rows, size: int) -> Iterator[_Batch]:
    step = 1 if asked.is_alone else max(size, 1)
    for start in range(0, asked.count, step):
        yield _Batch(start, size, min(step, asked.count - start))


def _tensors(asked: Rows, batch: _Batch) -> list[Tensor]:
    each = [asked.row(batch.start + i) for i in range(batch.count)]
    if not batch.size:
        return each[0]
    return [place(list(enumerate(parts)), batch.size) for parts in zip(*each, strict=True)]
