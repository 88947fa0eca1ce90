"""Rows through graphs: in batches, on one thread, one tensor's values at a time.

Sessions are those of the backend ``reference``: ONNX Runtime, no optimisation, settings read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import onnx

from pellucid.build.judge import graphs
from pellucid.build.samples import Validation
from pellucid.core.tensor import Tensor, TensorSpec, split_bytes_elements
from pellucid.errors import BuildError, TensorError
from pellucid.ports import Backend, Session

ROWS_AT_ONCE_MAX: Final = 64  # limit: enough for a matrix product, little enough to hold activations
TENSORS_AT_ONCE: Final = 64  # activations looked at in the first pass, before their size is known
TENSORS_MAX: Final = 4096  # limit: activations of one pass; each pass reads both graphs again
BATCH_BYTES: Final = 2**28  # limit: inputs of one batch, or the activations it shows
_NUMPY: Final = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


Arrays = dict[str, Any]
Visit = Callable[[int, Sequence[int], list[Any]], None]


class Rows(msgspec.Struct, frozen=True):
    """Rows that go in.

    Attributes:
        specs: Inputs of the graph that was compiled.
        at_once: Rows of one batch at most; 1 where the model has no batch axis.
        is_batched: Whether rows can share a batch.
    """

    data: Validation
    specs: tuple[TensorSpec, ...]
    at_once: int
    is_batched: bool

    def batch(self, rows: Sequence[int]) -> Arrays:
        """Arrays of some rows; of one row where there is no batch axis."""
        if self.is_batched:
            return {s.name: self.data.inputs[s.name][list(rows)] for s in self.specs}
        return {s.name: self.data.inputs[s.name][rows[0]] for s in self.specs}

    @property
    def row_bytes(self) -> int:
        return sum(int(self.data.inputs[s.name][0].nbytes) for s in self.specs)


def rows_of(data: Validation, specs: tuple[TensorSpec, ...], buckets: Sequence[int]) -> Rows:
    """Rows in batches of the largest bucket, unless they are large."""
    rows = Rows(data, specs, 1, bool(buckets))
    if not buckets:
        return rows
    fits = max(1, BATCH_BYTES // max(rows.row_bytes, 1))
    return Rows(data, specs, min(max(buckets), ROWS_AT_ONCE_MAX, fits), True)


class Graph:
    """One graph that runs, and shows the tensors in ``names``, in that order, or else its outputs.

    Raises:
        BuildError, ParseError: The library does not take it, or a tensor is no tensor of numbers.
    """

    def __init__(self, backend: Backend, raw: bytes, names: Sequence[str] = ()) -> None:
        self._session: Session = backend.open(raw, {})
        found = {spec.name: position for position, spec in enumerate(self._session.outputs)}
        self.names = list(names or found)
        self._order = [found[name] for name in self.names]
        for spec in self._session.outputs if names else ():
            if spec.datatype == "BYTES":
                raise BuildError(f"tensor {spec.name!r:.80}: expected numbers, got text")

    def run(self, arrays: Arrays) -> list[Any]:
        """Values as arrays.

        Raises:
            TensorError: The graph does not take the rows.
        """
        given = self._session.infer([*self._tensors(arrays)])
        return [to_array(given[position]) for position in self._order]

    def _tensors(self, arrays: Arrays) -> Iterator[Tensor]:
        for spec in self._session.inputs:
            if spec.name not in arrays:
                raise TensorError(
                    f"source: input {spec.name!r:.80}: expected one that was compiled, got none"
                )
            array = np.ascontiguousarray(arrays[spec.name], dtype=_NUMPY[spec.datatype])
            yield Tensor(spec.name, spec.datatype, array.shape, array.tobytes())

    def close(self) -> None:
        self._session.close()


def to_array(tensor: Tensor) -> Any:
    """Numbers of a tensor; text as an array of objects."""
    if tensor.datatype == "BYTES":
        count = int(np.prod(tensor.shape, dtype=np.int64))
        elements = split_bytes_elements(tensor.data, count, subject=tensor.name)
        return np.array(elements, dtype=object).reshape(tensor.shape)
    if tensor.datatype == "BF16":
        wide = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(tensor.shape)
    return np.frombuffer(tensor.data, _NUMPY[tensor.datatype]).reshape(tensor.shape)


def walk(
    backend: Backend,
    models: Sequence[onnx.ModelProto],
    wanted: Sequence[Sequence[str]],
    rows: Rows,
    groups: Sequence[Sequence[int]],
    visit: Visit,
) -> dict[int, str]:
    """Show inner tensors of several graphs, side by side, batch by batch.

    Args:
        wanted: For each model the tensors to look at; position ``i`` stands for the same everywhere.
        groups: Rows to run; a batch never holds rows of two groups.
        visit: Gets the position, the rows of the batch and the arrays, one of each model.

    Returns:
        Position -> why it could not be looked at.
    """
    failed: dict[int, str] = {}
    count = len(wanted[0]) if wanted else 0
    start, at_once = 0, TENSORS_AT_ONCE
    waiting: list[list[int]] = []
    while waiting or start < count:
        if not waiting:
            waiting = [list(range(start, min(start + at_once, count)))]
            start += at_once
        part = waiting.pop(0)
        try:
            running = _open(backend, models, wanted, part)
        except BuildError as error:
            if len(part) == 1:
                failed[part[0]] = f"{error.message:.200}"
            else:  # one of them is the cause: look at smaller parts
                half = len(part) // 2
                waiting = [part[:half], part[half:], *waiting]
            continue
        row_bytes = _show(running, part, rows, groups, visit)
        fits = BATCH_BYTES // 16 * len(part) // max(row_bytes, 1)  # the next ones may be larger
        at_once = max(TENSORS_AT_ONCE, min(2 * at_once, fits, TENSORS_MAX))
        for graph in running:
            graph.close()
    return failed


def _open(
    backend: Backend, models: Sequence[onnx.ModelProto], wanted: Sequence[Sequence[str]], part: Sequence[int]
) -> list[Graph]:
    """Sessions that show the tensors of ``part``.

    Raises:
        BuildError, ParseError: One of the tensors cannot be shown.
    """
    running = []
    for model, names in zip(models, wanted, strict=True):
        asked = [names[i] for i in part]
        running.append(Graph(backend, graphs.exposing(model, dict.fromkeys(asked)), asked))
    return running


def _show(
    running: Sequence[Graph], part: Sequence[int], rows: Rows, groups: Sequence[Sequence[int]], visit: Visit
) -> int:
    """Bytes of the activations that a row has, at most."""
    at_once, largest = 1, 0  # the first batch says how large a row's activations are
    for group in groups:
        start = 0
        while start < len(group):
            batch = group[start : start + at_once]
            start += len(batch)
            shown = [graph.run(rows.batch(batch)) for graph in running]
            size = sum(int(array.nbytes) for arrays in shown for array in arrays)
            largest = max(largest, size // len(batch))
            at_once = max(1, min(rows.at_once, BATCH_BYTES * len(batch) // max(size, 1)))
            for position, index in enumerate(part):
                visit(index, batch, [arrays[position] for arrays in shown])
    return largest
