"""Rows of a call as the ledger keeps them: digests, decision, and outputs within a bound."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.core.decision import decide
from pellucid.core.entry import encode_outputs
from pellucid.core.record import Row
from pellucid.core.tensor import Tensor, rows
from pellucid.serving.digests import RowDigester
from pellucid.serving.model import Model
from pellucid.serving.request import InferRequest


class Rows:
    """Makes ``core.record.Row`` for one model."""

    __slots__ = ("_batched", "_decision", "_inputs", "_keep_max", "_outputs")

    def __init__(self, model: Model, keep_max: int) -> None:
        self._batched, self._decision, self._keep_max = model.signature.batched, model.decision, keep_max
        self._inputs, self._outputs = RowDigester(), RowDigester()

    def of_inputs(self, request: InferRequest) -> tuple[Row, ...]:
        """Rows of a call that has no outputs."""
        return tuple([Row(d) for d in self._inputs.digests(request.tensors, batched=self._batched)])

    def of(self, request: InferRequest, outputs: Sequence[Tensor]) -> tuple[Row, ...]:
        """Rows of a call that was computed.

        Raises:
            FormatError: ``meaning.json`` and the outputs do not fit.
        """
        read = self._inputs.digests(request.tensors, batched=self._batched)
        given = self._outputs.digests(outputs, batched=self._batched)
        parts = [tuple(outputs)] if request.rows == 1 or not self._batched else rows(outputs)
        return tuple([self._row(*each) for each in zip(read, given, parts, strict=True)])

    def _row(self, read: bytes, given: bytes, outputs: tuple[Tensor, ...]) -> Row:
        label, confidence = decide(self._decision, outputs)
        kept = None
        if sum([len(tensor.data) for tensor in outputs]) <= self._keep_max:
            kept = encode_outputs(outputs)
        return Row(read, given, label, confidence, kept)
