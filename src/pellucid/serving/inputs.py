"""Inputs of a request: matched with what the model declares, shapes checked, data made bits.

Data come as JSON numbers, as bytes behind the JSON, or as the whole body of a raw request.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from pellucid.core.tensor import Tensor, TensorSpec, datatype, element_count, pack_json, verify_tensor
from pellucid.errors import FormatError, LimitError, TensorError
from pellucid.serving.members import NO_PARAMETERS, SHARED, kind_of, parameters_of
from pellucid.serving.model import PLANS_MAX, Plan, Signature, make_plan
from pellucid.serving.shared_memory import NoRegions, Regions

Body = bytes | memoryview
_INTEGERS: Final[frozenset[type]] = frozenset({int})
_NO_REGIONS: Final = NoRegions()


def names_of(specs: Sequence[TensorSpec]) -> str:
    """Names of tensors, for messages."""
    return ", ".join(repr(spec.name) for spec in specs)


def match_inputs(
    items: list[dict[str, Any]], signature: Signature
) -> list[tuple[dict[str, Any], TensorSpec]]:
    """Pair each input, in the request's order, with what the model declares; all findings at once."""
    if len(items) == 1 == len(signature.inputs) and items[0]["name"] == signature.inputs[0].name:
        return [(items[0], signature.inputs[0])]
    names = [item["name"] for item in items]
    found = set(names)
    findings = [f"{name!r:.60} is not an input" for name in names if name not in signature.input_index]
    findings += [f"{name!r:.60} stands twice" for name in sorted(found) if names.count(name) > 1]
    findings += [f"{spec.name!r:.60} is missing" for spec in signature.inputs if spec.name not in found]
    if findings:
        raise TensorError(
            f"inputs: expected {names_of(signature.inputs)}, got another set: {'; '.join(findings[:20])}"
        )
    return [(item, signature.inputs[signature.input_index[item["name"]]]) for item in items]


def read_input(item: dict[str, Any], spec: TensorSpec, signature: Signature, binary: BinaryTail) -> Tensor:
    """One input's tensor, exactly as the model declares it."""
    if item.get("datatype") != spec.datatype:
        raise TensorError(
            f"{_subject(spec)}: expected datatype {spec.datatype}, got {item.get('datatype')!r:.40}"
        )
    plan = _plan(item.get("shape"), spec, signature)
    parameters = parameters_of(item, _subject(spec)) if "parameters" in item else NO_PARAMETERS
    if parameters:
        shared = not SHARED.isdisjoint(parameters)
        if shared or "binary_data_size" in parameters:
            if "data" in item or (shared and "binary_data_size" in parameters):
                raise TensorError(
                    f"{_subject(spec)}: expected one of data, binary_data_size and a shared memory region, "
                    "got both"
                )
            if shared:
                data = binary.shared(parameters, spec, plan)
            else:
                data = binary.next(parameters, _subject(spec))
            return verify_tensor(Tensor(spec.name, spec.datatype, plan.shape, data))
    if "data" not in item:
        raise TensorError(f"{_subject(spec)}: expected data, got none")
    return _from_json(item["data"], spec, plan)


def _from_json(data: Any, spec: TensorSpec, plan: Plan) -> Tensor:
    """``pack_json``, with a short way for flat numbers (tested to be the same)."""
    if (
        type(data) is list
        and len(data) == plan.count
        and plan.pack
        and plan.kinds.issuperset(map(type, data))
    ):
        try:
            return Tensor(spec.name, spec.datatype, plan.shape, plan.pack(*data))
        except (struct.error, OverflowError):
            pass  # out of range: the long way says so
    return pack_json(spec.name, spec.datatype, plan.shape, data)


def _subject(spec: TensorSpec) -> str:
    return f"input {spec.name!r:.80}"


def _plan(value: Any, spec: TensorSpec, signature: Signature) -> Plan:
    """The shape's plan: known, or checked now and remembered."""
    if type(value) is not list:
        raise TensorError(f"{_subject(spec)}: expected shape as an array of integers, got {kind_of(value)}")
    known = signature.plans[signature.input_index[spec.name]]
    if _INTEGERS.issuperset(map(type, value)):  # 1.0 and true would find the plan of 1
        plan = known.get(tuple(value))
        if plan is not None:
            return plan
    plan = make_plan(spec, _shape(value, spec, signature))
    if len(known) >= PLANS_MAX:
        known.clear()
    known[plan.shape] = plan
    return plan


def _shape(value: list[Any], spec: TensorSpec, signature: Signature) -> tuple[int, ...]:
    subject, wanted = _subject(spec), f"{spec.datatype} {list(spec.shape)}"
    if len(value) != len(spec.shape):
        raise TensorError(
            f"{subject}: expected {len(spec.shape)} dimensions ({wanted}), got {len(value)}: {value!r:.80}"
        )
    for axis, (dimension, declared) in enumerate(zip(value, spec.shape, strict=True)):
        if type(dimension) is not int or not 0 < dimension < 2**64:
            raise TensorError(
                f"{subject}, axis {axis}: expected an integer of 1 or more ({wanted}), got {dimension!r:.40}"
            )
        if axis == 0 and signature.batched:
            if dimension > signature.rows_max:
                raise TensorError(
                    f"{subject}, axis 0: expected 1 to {signature.rows_max:,} rows, got {dimension:,}"
                )
        elif declared not in (-1, dimension):
            raise TensorError(f"{subject}, axis {axis}: expected {declared:,} ({wanted}), got {dimension:,}")
    element_count(value, subject=subject)
    return tuple(value)


def row_count(tensors: list[Tensor], signature: Signature) -> int:
    """Rows along the batch axis, the same in every input; 1 without a batch axis."""
    if not signature.batched:
        return 1
    if len(tensors) == 1:
        return tensors[0].shape[0]
    counts = {tensor.shape[0] for tensor in tensors}
    if len(counts) != 1:
        got = ", ".join(f"{t.name!r:.40} {t.shape[0]}" for t in tensors)
        raise TensorError(f"inputs, axis 0: expected the same number of rows in all, got {got}")
    return counts.pop()


class BinaryTail:
    """The bytes that are not JSON: behind the head, taken in the order of the inputs, or in regions."""

    __slots__ = ("has_length", "position", "regions", "rest", "taken", "used")

    def __init__(self, rest: Body | None, has_length: bool, regions: Regions | None = None) -> None:
        self.rest, self.has_length, self.position, self.used = rest or b"", has_length, 0, False
        self.regions, self.taken = regions or _NO_REGIONS, 0

    def shared(self, parameters: dict[str, Any], spec: TensorSpec, plan: Plan) -> bytes:
        """A copy of what lies in the region that the parameters name; nothing is read that cannot fit."""
        place, size = self.regions.place(parameters, _subject(spec)), datatype(spec.datatype).itemsize
        if size and place.byte_size != plan.count * size:
            raise TensorError(
                f"{_subject(spec)}: expected {plan.count * size:,} bytes for {spec.datatype} "
                f"{list(plan.shape)}, got {place.byte_size:,}"
            )
        self.used, self.taken = True, self.taken + place.byte_size
        if self.taken > self.regions.inputs_max_bytes:
            raise LimitError(
                f"{_subject(spec)}: expected at most {self.regions.inputs_max_bytes:,} bytes of inputs in "
                f"shared memory, got {self.taken:,}",
                hint="raise serving.body_max_bytes",
            )
        return place.region.read(place.offset, place.byte_size, _subject(spec))

    def next(self, parameters: dict[str, Any], subject: str) -> bytes:
        size = parameters["binary_data_size"]
        if type(size) is not int or size < 0:
            raise FormatError(f"{subject}: expected binary_data_size of 0 or more, got {size!r:.40}")
        if not self.has_length:
            raise FormatError(
                f"{subject}: expected the header inference-header-content-length with "
                "binary_data_size, got none"
            )
        left = len(self.rest) - self.position
        if size > left:
            raise FormatError(f"{subject}: expected at most {left:,} bytes left in the body, got {size:,}")
        start, self.position, self.used = self.position, self.position + size, True
        return bytes(self.rest[start : self.position])

    def finish(self) -> None:
        left = len(self.rest) - self.position
        if left:
            raise FormatError(f"body: expected no bytes behind the last tensor, got {left:,}")


def raw_tensor(body: bytes, signature: Signature) -> Tensor:
    """The whole body as one row of the one input.

    Raises:
        TensorError: The model has several inputs, or the body does not fit.
    """
    if len(signature.inputs) != 1:
        raise TensorError(
            f"raw binary request: expected a model with one input, got one with {len(signature.inputs)}"
        )
    spec = signature.inputs[0]
    shape, data = _raw_shape(spec, len(body)), body
    if spec.datatype == "BYTES":
        data = len(body).to_bytes(4, "little") + body
    return verify_tensor(Tensor(spec.name, spec.datatype, shape, data))


def _raw_shape(spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    subject = f"raw binary request, input {spec.name!r:.60}"
    shape = [1 if axis == 0 and dimension == -1 else dimension for axis, dimension in enumerate(spec.shape)]
    variable = [axis for axis, dimension in enumerate(shape) if dimension == -1]
    if spec.datatype == "BYTES":
        if variable or element_count(shape) != 1:
            raise TensorError(f"{subject}: expected one BYTES element, got {list(spec.shape)}")
        return tuple(shape)
    if len(variable) > 1:
        raise TensorError(f"{subject}: expected at most one variable dimension, got {list(spec.shape)}")
    if variable:
        row = element_count([d for d in shape if d != -1]) * datatype(spec.datatype).itemsize
        shape[variable[0]] = nbytes // row
    if 0 in shape:
        raise TensorError(f"{subject}: expected at least one element, got a body of {nbytes:,} bytes")
    return tuple(shape)
