"""Rows of a call as the ledger keeps them: digests, decision, and outputs within a bound.

Most calls are one row of one input and one output; for them everything constant is made once. The
short ways are tested to equal ``core.tensor.row_digest``, ``core.decision.decide`` and
``core.entry.encode_outputs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.decision import make_decide
from pellucid.core.entry import encode_outputs
from pellucid.core.record import Row
from pellucid.core.tensor import Tensor, rows
from pellucid.errors import FormatError
from pellucid.serving.digests import LARGE, RowDigester
from pellucid.serving.model import Model
from pellucid.serving.request import InferRequest

_SHAPES_MAX: Final = 256  # limit: output shapes remembered
_DECISION_MAX: Final = 4096  # limit: it stands at the head of every segment


class Rows:
    """Makes ``core.record.Row`` for one model."""

    __slots__ = (
        "_batched", "_decide", "_deferred", "_defers", "_heads", "_inputs", "_keep_max", "_outputs", "_plain",
    )  # fmt: skip

    def __init__(self, model: Model, keep_max: int) -> None:
        signature = model.signature
        specs = (*signature.inputs, *signature.outputs)
        self._batched, self._keep_max = signature.batched, keep_max
        self._inputs, self._outputs = RowDigester(), RowDigester()
        self._decide = make_decide(model.decision)
        self._plain = (
            signature.batched
            and len(signature.inputs) == len(signature.outputs) == 1
            and all(spec.datatype != "BYTES" for spec in specs)
        )
        self._heads: dict[tuple[int, ...], bytes | None] = {}
        self._defers = bool(deferred_facts(model))
        self._deferred: dict[tuple[int, ...], bytes] = {}

    def of_inputs(self, request: InferRequest) -> tuple[Row, ...]:
        """Rows of a call that has no outputs."""
        return tuple([Row(digest) for digest in self._digests(request)])

    def prepare(self, request: InferRequest) -> None:
        """Digest a large input ahead, on whatever thread: it takes longer than many calls."""
        if request.nbytes >= LARGE:
            request.digests = self._inputs.digests(request.tensors, batched=self._batched)

    def _digests(self, request: InferRequest) -> list[bytes]:
        made = request.digests
        return self._inputs.digests(request.tensors, batched=self._batched) if made is None else made

    def of(self, request: InferRequest, outputs: Sequence[Tensor]) -> tuple[Row, ...]:
        """Rows of a call that was computed.

        Raises:
            FormatError: ``meaning.json`` and the outputs do not fit.
        """
        if self._plain and request.rows == 1:
            output = outputs[0]
            made = request.digests
            read = self._inputs.one(request.tensors[0]) if made is None else made[0]
            head = self._deferred.get(output.shape)
            if head is not None:
                # digest and decision follow from the kept output: the sequencer makes them
                return (Row(read, value=head + output.data),)
            return (self._first(read, output),)
        digests = self._digests(request)
        given_digests = self._outputs.digests(outputs, batched=self._batched)
        parts = [tuple(outputs)] if request.rows == 1 or not self._batched else rows(outputs)
        return tuple([self._row(*each) for each in zip(digests, given_digests, parts, strict=True)])

    def _first(self, read: bytes, output: Tensor) -> Row:
        """A row made whole; what fits the decision once in a shape always does, and is left out next."""
        label, confidence = self._decide((output,))
        kept = self._keep(output)
        head = self._heads[output.shape]
        if self._defers and head is not None:
            if len(self._deferred) >= _SHAPES_MAX:
                self._deferred.clear()
            self._deferred[output.shape] = head
        return Row(read, self._outputs.one(output), label, confidence, kept)

    def _row(self, read: bytes, given: bytes, outputs: tuple[Tensor, ...]) -> Row:
        label, confidence = self._decide(outputs)
        kept = None
        if sum([len(tensor.data) for tensor in outputs]) <= self._keep_max:
            kept = encode_outputs(outputs)
        return Row(read, given, label, confidence, kept)

    def _keep(self, output: Tensor) -> bytes | None:
        """``encode_outputs`` of a lone output: all but its data is the same for a shape."""
        shape = output.shape
        if shape not in self._heads:
            if len(self._heads) >= _SHAPES_MAX:
                self._heads.clear()
            size = len(output.data)
            head = encode_outputs([output])[:-size] if 0 < size <= self._keep_max else None
            self._heads[shape] = head
        head = self._heads[shape]
        return None if head is None else head + output.data


def deferred_facts(model: Model) -> dict[str, Any]:
    """What a context must say so that rows can be completed from kept outputs; empty: they cannot."""
    try:
        size = len(canonical.encode(model.decision))
    except FormatError:
        return {}
    return {"decision": dict(model.decision)} if size <= _DECISION_MAX else {}
