"""A model as it is served: its session, its declared tensors, its buckets, its facts.

Rules that hold here: nothing is served that the guardian did not admit; a model whose label is
``variant`` or ``untested`` never shares a batch with a stranger's call; a pinned bucket is the
only one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pellucid.core.baseline import Baseline
from pellucid.core.tensor import DATATYPES, TensorSpec, element_count
from pellucid.ports import Session

PLANS_MAX: Final = 256  # limit: shapes remembered per input
_KINDS: Final[dict[str, frozenset[type]]] = {
    "bool": frozenset({bool}), "int": frozenset({int}), "float": frozenset({float, int}),
}  # fmt: skip
SHAREABLE: Final = frozenset({"invariant", "bucket-invariant"})


@dataclass(frozen=True, slots=True)
class Plan:
    """A shape that fits an input.

    Attributes:
        pack: Packs that many numbers into the input's datatype; ``None`` where JSON has no form.
        kinds: Python types that such numbers may have.
    """

    shape: tuple[int, ...]
    count: int
    pack: Callable[..., bytes] | None
    kinds: frozenset[type]


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, in its order; ``-1`` is a variable dimension.

    Attributes:
        batched: True when axis 0 of every tensor is the batch.
        rows_max: Largest bucket.
        plans: Per input, shapes that were found right before (``shape_plan`` fills it).
        every_output: All outputs as JSON, or ``None`` when one of them has no JSON form.
        heads, heads_seen: What ``serving.heads`` remembers.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool
    rows_max: int
    input_index: Mapping[str, int]
    output_index: Mapping[str, int]
    plans: tuple[dict[tuple[int, ...], Plan], ...]
    every_output: tuple[tuple[int, bool], ...] | None
    heads: dict[Any, Any] = field(default_factory=dict)
    heads_seen: set[int] = field(default_factory=set)


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
        tuple({} for _ in inputs),
        None
        if any(is_binary_only(spec.datatype) for spec in outputs)
        else tuple((position, False) for position in range(len(outputs))),
    )


def make_plan(spec: TensorSpec, shape: tuple[int, ...]) -> Plan:
    """Plan of a shape that was checked against the input's declaration."""
    kind, count = DATATYPES[spec.datatype], element_count(shape)
    pack = None
    if kind.kind in _KINDS and not is_binary_only(spec.datatype):
        pack = struct.Struct(f"<{count}{kind.code}").pack
    return Plan(shape, count, pack, _KINDS.get(kind.kind, frozenset()))


@dataclass(frozen=True)
class Model:
    """One version of a model, admitted.

    Attributes:
        facts: What every call's entry says of it (``core.record.Context``).
        decision: ``meaning.json``'s decision; empty when the model decides nothing.
        buckets: Batch sizes it runs in, ascending; one when a bucket is pinned.
        batch_delay_us: How long its calls may wait for company; ``None``: as the site says.
        platform: The protocol's word, ``onnx_onnxv1`` or ``tensorrt_plan``.
        properties: Text pairs for the model's metadata.
        baselines: Latency baselines by bucket, frozen before; the others are made.
        allow_nonfinite: NaN and infinities in binary inputs reach the engine.
        about: Optimisations and approvals of its package, for ``/whoami``.
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
    baselines: Mapping[int, Baseline] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    batch_delay_us: int | None = None

    @cached_property
    def signature(self) -> Signature:
        return make_signature(tuple(self.session.inputs), tuple(self.session.outputs), self.buckets[-1])

    @property
    def shares(self) -> bool:
        """True if calls of strangers may lie in one batch."""
        return self.signature.batched and self.label_variance in SHAREABLE

    def delay_us(self, site_us: int) -> int:
        """How long a call may wait for company: as the recipe says, or else as the site does."""
        return site_us if self.batch_delay_us is None else self.batch_delay_us

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
