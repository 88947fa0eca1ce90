"""Buckets and slots: one padding rule, used by serving and replay alike.

A batch has a fixed number of rows (its bucket); calls lie in it one behind the other; the rest is
zeros. Same input, same bucket, same slot: same bits, whatever else shares the batch
(docs/reference, 'bits contract'). Source: spec/canonical.md, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pellucid.core.tensor import (
    Buffer,
    Tensor,
    datatype,
    element_count,
    join_bytes_elements,
    split_bytes_elements,
)
from pellucid.errors import TensorError


def bucket_for(rows: int, sizes: Sequence[int]) -> int:
    """Smallest bucket that holds ``rows`` rows.

    Raises:
        TensorError: No rows, or more than the largest bucket.
    """
    if rows < 1:
        raise TensorError(f"batch axis: expected 1 to {max(sizes)} rows, got {rows}")
    for size in sorted(sizes):
        if rows <= size:
            return size
    raise TensorError(f"batch axis: expected 1 to {max(sizes)} rows, got {rows:,}")


def fill_plan(times_ns: Mapping[int, int], each_ns: int) -> tuple[int, ...]:
    """How many of the rows that wait run next, by how many wait: all of them, or a full smaller bucket.

    Padding costs what rows cost. Where an engine takes its time by the row, a full bucket now and the
    rest after it are done sooner than all of them in a bucket that is partly zeros.

    Args:
        times_ns: Measured time of one execution by bucket.
        each_ns: What an execution takes beside that.

    Returns:
        At ``n``, for ``n`` rows: a bucket below ``n``, or ``n`` itself; up to the largest bucket.
    """
    costs, plan = [0], [0]
    for rows in range(1, max(times_ns) + 1):
        best, chosen = times_ns[bucket_for(rows, list(times_ns))] + each_ns, rows
        for bucket in sorted(times_ns, reverse=True):
            if bucket < rows and (cost := times_ns[bucket] + each_ns + costs[rows - bucket]) < best:
                best, chosen = cost, bucket
        costs.append(best)
        plan.append(chosen)
    return tuple(plan)


def slots_for(row_counts: Sequence[int]) -> list[int]:
    """First slot of each call, in order of arrival, without gaps."""
    slots, position = [], 0
    for count in row_counts:
        slots.append(position)
        position += count
    return slots


def place(parts: Sequence[tuple[int, Tensor]], bucket: int) -> Tensor:
    """Lay tensors of one input into a batch of ``bucket`` rows, zeros everywhere else.

    Args:
        parts: First slot and tensor ``[rows, ...]`` of each call; same name, datatype and
            trailing shape. Slots ascend and do not overlap. Replay gives one part.

    Returns:
        Tensor ``[bucket, ...]``. A zero BYTES element is the empty string.

    Raises:
        TensorError: Parts overlap, do not fit, or differ in datatype or trailing shape.
    """
    first = parts[0][1]
    rest = first.shape[1:]
    if len(parts) == 1 and parts[0][0] == 0 and first.shape[0] == bucket:
        return first  # nothing to lay beside it
    zero = _zero_row(first)
    chunks: list[Buffer] = []
    position = 0
    for slot, tensor in parts:
        if tensor.datatype != first.datatype or tensor.shape[1:] != rest:
            raise TensorError(
                f"input {first.name!r:.80}: expected {first.datatype} {list(rest)} in one batch, "
                f"got {tensor.datatype} {list(tensor.shape[1:])}"
            )
        if slot < position:
            raise TensorError(f"slot: expected at least {position}, got {slot}")
        chunks.append(zero * (slot - position))
        chunks.append(tensor.data)
        position = slot + tensor.shape[0]
    if position > bucket:
        raise TensorError(f"bucket: expected at most {bucket} rows, got {position}")
    chunks.append(zero * (bucket - position))
    return Tensor(first.name, first.datatype, (bucket, *rest), b"".join(chunks))


def _zero_row(tensor: Tensor) -> bytes:
    count = element_count(tensor.shape[1:])
    return bytes(count * (datatype(tensor.datatype).itemsize or 4))


def take(tensor: Tensor, slot: int, count: int) -> Tensor:
    """Rows ``slot`` to ``slot + count`` of a batch: what ``place`` laid there comes out again.

    Raises:
        TensorError: The tensor has no such rows.
    """
    if not tensor.shape or slot < 0 or count < 1 or slot + count > tensor.shape[0]:
        raise TensorError(
            f"output {tensor.name!r:.80}: expected at least {slot + count} rows, "
            f"got shape {list(tensor.shape)}"
        )
    shape = (count, *tensor.shape[1:])
    if tensor.datatype == "BYTES":
        per = element_count(tensor.shape[1:])
        elements = split_bytes_elements(tensor.data, tensor.shape[0] * per, subject=tensor.name)
        data: Buffer = join_bytes_elements(elements[slot * per : (slot + count) * per])
    else:
        size = len(tensor.data) // tensor.shape[0]
        data = bytes(tensor.data[slot * size : (slot + count) * size])
    return Tensor(tensor.name, tensor.datatype, shape, data)
