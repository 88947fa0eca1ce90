"""A model as it is served: its session, its declared tensors, its buckets, its facts.

Rules that hold here: nothing is served that the guardian did not admit; a model whose label is
``variant`` or ``untested`` never shares a batch with a stranger's call; a pinned bucket is the
only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pellucid.core.tensor import DATATYPES, TensorSpec
from pellucid.ports import Session

SHAREABLE: Final = frozenset({"invariant", "bucket-invariant"})


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, in its order; ``-1`` is a variable dimension.

    Attributes:
        batched: True when axis 0 of every tensor is the batch.
        rows_max: Largest bucket.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool
    rows_max: int
    input_index: Mapping[str, int]
    output_index: Mapping[str, int]


def make_signature(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], rows_max: int
) -> Signature:
    """Signature of a session's tensors."""
    batched = all(spec.shape and spec.shape[0] == -1 for spec in (*inputs, *outputs))
    return Signature(
        inputs,
        outputs,
        batched,
        rows_max if batched else 1,
        {spec.name: position for position, spec in enumerate(inputs)},
        {spec.name: position for position, spec in enumerate(outputs)},
    )


@dataclass(frozen=True)
class Model:
    """One version of a model, admitted.

    Attributes:
        facts: What every call's entry says of it (``core.record.Context``).
        decision: ``meaning.json``'s decision; empty when the model decides nothing.
        buckets: Batch sizes it runs in, ascending; one when a bucket is pinned.
        platform: The protocol's word, ``onnx_onnxv1`` or ``tensorrt_plan``.
        properties: Text pairs for the model's metadata.
        allow_nonfinite: NaN and infinities in binary inputs reach the engine.
    """

    name: str
    version: str
    session: Session = field(repr=False)
    facts: Mapping[str, Any]
    decision: Mapping[str, Any]
    buckets: tuple[int, ...]
    platform: str = "onnx_onnxv1"
    properties: Mapping[str, str] = field(default_factory=dict)
    label_variance: str = "untested"
    allow_nonfinite: bool = False

    @cached_property
    def signature(self) -> Signature:
        return make_signature(tuple(self.session.inputs), tuple(self.session.outputs), self.buckets[-1])

    @property
    def shares(self) -> bool:
        """True if calls of strangers may lie in one batch."""
        return self.signature.batched and self.label_variance in SHAREABLE

    def metadata(self, versions: list[str]) -> dict[str, Any]:
        """The protocol's model metadata."""
        return {
            "name": self.name,
            "versions": versions,
            "platform": self.platform,
            "inputs": [_describe(spec) for spec in self.signature.inputs],
            "outputs": [_describe(spec) for spec in self.signature.outputs],
            "properties": dict(self.properties),
        }


def _describe(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def is_binary_only(datatype: str) -> bool:
    """True for datatypes that JSON has no way to write."""
    return DATATYPES[datatype].kind == "float" and DATATYPES[datatype].code in ("", "e")
