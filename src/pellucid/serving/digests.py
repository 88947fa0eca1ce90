"""Row digests with their constant parts made once. Equal to ``core.tensor.row_digest`` (tested)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from pellucid.core.tensor import ROW_DOMAIN, Buffer, Tensor, encode_head, row_digest, rows

_SHAPES_MAX: Final = 256  # limit: models with variable trailing dimensions make one plan a shape
LARGE: Final = 65_536  # bytes of a row from which a copy of it costs more than a second call


class RowDigester:
    """Digests of rows of one model's inputs, or outputs."""

    __slots__ = ("_heads", "_plans")

    def __init__(self) -> None:
        self._plans: dict[tuple[tuple[int, ...], ...], tuple[tuple[bytes, int], ...]] = {}
        self._heads: dict[tuple[int, ...], bytes] = {}

    def digests(self, tensors: Sequence[Tensor], *, batched: bool) -> list[bytes]:
        """One 32-byte digest a row; a call to a model without batch axis is one row as a whole."""
        if not batched:
            return [row_digest(tensors)]
        if len(tensors) == 1 and tensors[0].datatype != "BYTES":
            return self._single(tensors[0])
        if any(tensor.datatype == "BYTES" for tensor in tensors):
            return [row_digest(row) for row in rows(tensors)]
        return self._several(tensors)

    def _plan(self, tensors: Sequence[Tensor]) -> tuple[tuple[bytes, int], ...]:
        key = tuple([tensor.shape[1:] for tensor in tensors])
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _SHAPES_MAX:
                self._plans.clear()
            plan = self._plans[key] = _make_plan(tensors)
        return plan

    def one(self, tensor: Tensor) -> bytes:
        """Digest of the row that is this one tensor of leading size 1, not BYTES."""
        head = self._heads.get(tensor.shape)
        if head is None:
            if len(self._heads) >= _SHAPES_MAX:
                self._heads.clear()
            head = self._heads[tensor.shape] = _make_plan((tensor,))[0][0]
        if len(tensor.data) < LARGE:
            return hashlib.sha256(head + tensor.data).digest()
        return _sha256(head, tensor.data)

    def _single(self, tensor: Tensor) -> list[bytes]:
        if tensor.shape[0] == 1:
            return [self.one(tensor)]
        ((head, size),) = self._plan((tensor,))
        view = memoryview(tensor.data)
        return [_sha256(head, view[start : start + size]) for start in range(0, len(view), size)]

    def _several(self, tensors: Sequence[Tensor]) -> list[bytes]:
        plan = self._plan(tensors)
        views = [memoryview(tensor.data) for tensor in tensors]
        digests = []
        for number in range(tensors[0].shape[0]):
            hasher = hashlib.sha256()
            for (head, size), view in zip(plan, views, strict=True):
                hasher.update(head)
                hasher.update(view[number * size : (number + 1) * size])
            digests.append(hasher.digest())
        return digests


def _sha256(head: bytes, data: Buffer) -> bytes:
    if len(data) < LARGE:
        return hashlib.sha256(head + data).digest()
    hasher = hashlib.sha256(head)
    hasher.update(data)
    return hasher.digest()


def _make_plan(tensors: Sequence[Tensor]) -> tuple[tuple[bytes, int], ...]:
    """Constant bytes before each tensor's data in a row, and the data's size."""
    plan = []
    start = ROW_DOMAIN + struct.pack(">I", len(tensors))
    for tensor in tensors:
        size = len(tensor.data) // tensor.shape[0]
        head = encode_head(tensor.name, tensor.datatype, (1, *tensor.shape[1:]), size)
        plan.append((start + head, size))
        start = b""
    return tuple(plan)
