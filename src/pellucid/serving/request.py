"""Bytes of an inference request to tensors: the Open Inference Protocol's rules, all of them.

The body is JSON, JSON followed by binary tensors (header length given), or one raw tensor (header
length 0). Either the tensors fit the model exactly, or the refusal says what was expected and what
came. Source: docs/reference/http.md; the ids in tests are those of the conformance list.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.tensor import (
    Tensor,
    TensorSpec,
    datatype,
    element_count,
    pack_json,
    verify_tensor,
)
from pellucid.errors import FormatError, TensorError
from pellucid.serving.limits import ID_MAX, PARAMETER_MAX, PARAMETERS_MAX, TENSORS_MAX
from pellucid.serving.model import PLANS_MAX, Plan, Signature, is_binary_only, make_plan
from pellucid.serving.strict import decode_strict

Body = bytes | memoryview
_NO_PARAMETERS: Final[dict[str, Any]] = {}
_INTEGERS: Final[frozenset[type]] = frozenset({int})
_NOT_OFFERED: Final = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


@dataclass(slots=True)
class InferRequest:
    """A request whose tensors fit the model.

    Attributes:
        tensors: One per input, in the model's order; data is private to this request.
        rows: Rows along the batch axis; 1 when the model has none.
        outputs: Index into the model's outputs, and whether it is wanted as binary.
        literals: JSON answers may hold NaN and infinities as literals.
        from_json: True when every tensor came as JSON, so that all of it is finite.
    """

    id: str | None
    subject: str | None
    tensors: list[Tensor]
    rows: int
    outputs: tuple[tuple[int, bool], ...]
    literals: bool = False
    from_json: bool = True

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple([tensor.shape for tensor in self.tensors])

    @property
    def nbytes(self) -> int:
        return sum([len(tensor.data) for tensor in self.tensors])


def parse_infer(
    body: bytes, header_length: int | None, signature: Signature, personal: dict[str, str] | None = None
) -> InferRequest:
    """Read one inference request.

    Args:
        body: The whole body, decompressed.
        header_length: Value of ``Inference-Header-Content-Length``, or ``None`` without it.
        personal: Gets ``request_id`` and ``subject`` as soon as they are read, so that a refusal
            that follows is found by them.

    Raises:
        FormatError: Not a request of the protocol.
        TensorError: Tensors that do not fit the model.
    """
    if header_length == 0:
        return _parse_raw(body, signature)
    if header_length is not None and header_length > len(body):
        raise FormatError(
            f"inference-header-content-length: expected 0 to {len(body):,}, got {header_length:,}"
        )
    if header_length is None or header_length == len(body):
        head, rest = decode_strict(body), None
    else:
        view = memoryview(body)
        head, rest = decode_strict(view[:header_length]), view[header_length:]
    binary = _Binary(rest, header_length is not None)
    return _build(_object(head, "body"), binary, signature, {} if personal is None else personal)


def _build(
    head: dict[str, Any], binary: _Binary, signature: Signature, personal: dict[str, str]
) -> InferRequest:
    if request_id := _text(head, "id", "id"):
        personal["request_id"] = request_id
    parameters = _parameters(head, "request")
    if subject := _text(parameters, "subject", "parameter 'subject'"):
        personal["subject"] = subject
    _refuse_unserved(parameters)
    items = _items(head, "inputs")
    if not items:
        raise TensorError("inputs: expected " + _names(signature.inputs) + ", got none")
    ordered = _match_inputs(items, signature)
    data: list[Tensor] = [_read_input(item, spec, signature, binary) for item, spec in ordered]
    binary.finish()
    return InferRequest(
        request_id or None,
        subject or None,
        _in_model_order(data, signature),
        _row_count(data, signature),
        _wanted(head, parameters, signature),
        literals=parameters.get("nonfinite") == "literal",
        from_json=not binary.used,
    )


def _in_model_order(tensors: list[Tensor], signature: Signature) -> list[Tensor]:
    if len(tensors) > 1:
        tensors.sort(key=lambda tensor: signature.input_index[tensor.name])
    return tensors


# -- members --------------------------------------------------------------------------------------


def _object(value: Any, subject: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise FormatError(f"{subject}: expected a JSON object, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _items(head: dict[str, Any], member: str) -> list[dict[str, Any]]:
    value = head.get(member)
    if type(value) is not list:
        got = _kind(value) if member in head else "none"
        raise FormatError(f"{member}: expected an array of tensors, got {got}")
    if len(value) > TENSORS_MAX:
        raise FormatError(f"{member}: expected at most {TENSORS_MAX} tensors, got {len(value):,}")
    for position, item in enumerate(value):
        _object(item, f"{member}[{position}]")
        if type(item.get("name")) is not str:
            got = _kind(item["name"]) if "name" in item else "none"
            raise FormatError(f"{member}[{position}].name: expected a string, got {got}")
    return value


def _text(head: dict[str, Any], member: str, subject: str) -> str:
    """A bounded text without control characters; ``""`` when absent."""
    value = head.get(member, "")
    if type(value) is not str:
        raise FormatError(f"{subject}: expected a string, got {_kind(value)}")
    if len(value) > ID_MAX:
        raise FormatError(f"{subject}: expected at most {ID_MAX} characters, got {len(value):,}")
    if value and not value.isprintable():
        raise FormatError(f"{subject}: expected text without control characters, got {value!r:.60}")
    return value


def _parameters(item: dict[str, Any], subject: str) -> dict[str, Any]:
    if "parameters" not in item:
        return _NO_PARAMETERS
    parameters = _object(item["parameters"], f"{subject} parameters")
    if len(parameters) > PARAMETERS_MAX:
        raise FormatError(f"{subject} parameters: expected at most {PARAMETERS_MAX}, got {len(parameters):,}")
    for name, value in parameters.items():
        _check_parameter(name, value, subject)
    return parameters


def _check_parameter(name: str, value: Any, subject: str) -> None:
    where = f"{subject} parameter {name!r:.60}"
    if len(name) > ID_MAX:
        raise FormatError(f"{where}: expected a name of at most {ID_MAX} characters, got {len(name):,}")
    if type(value) not in (str, int, float, bool):
        raise FormatError(f"{where}: expected a string, number or boolean, got {_kind(value)}")
    if type(value) is str and len(value) > PARAMETER_MAX:
        raise FormatError(f"{where}: expected at most {PARAMETER_MAX:,} characters, got {len(value):,}")
    if name.startswith("triton_"):
        raise FormatError(f"{where}: expected no reserved name 'triton_*', got one")


def _refuse_unserved(parameters: dict[str, Any]) -> None:
    if parameters.get("sequence_id") not in (None, 0, ""):
        raise FormatError(
            "parameter 'sequence_id': expected none, got one", hint="no state is kept between calls here"
        )


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


# -- inputs ---------------------------------------------------------------------------------------


def _match_inputs(
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
            f"inputs: expected {_names(signature.inputs)}, got another set: {'; '.join(findings[:20])}"
        )
    return [(item, signature.inputs[signature.input_index[item["name"]]]) for item in items]


def _read_input(item: dict[str, Any], spec: TensorSpec, signature: Signature, binary: _Binary) -> Tensor:
    if item.get("datatype") != spec.datatype:
        raise TensorError(
            f"{_subject(spec)}: expected datatype {spec.datatype}, got {item.get('datatype')!r:.40}"
        )
    plan = _plan(item.get("shape"), spec, signature)
    parameters = _parameters(item, _subject(spec)) if "parameters" in item else _NO_PARAMETERS
    if "binary_data_size" in parameters:
        if "data" in item:
            raise TensorError(f"{_subject(spec)}: expected data or binary_data_size, got both")
        data = binary.next(parameters, _subject(spec))
        return verify_tensor(Tensor(spec.name, spec.datatype, plan.shape, data))
    for name in _NOT_OFFERED:
        if name in parameters:
            raise FormatError(
                f"{_subject(spec)}: expected data, got {name}", hint="shared memory is not offered"
            )
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
        raise TensorError(f"{_subject(spec)}: expected shape as an array of integers, got {_kind(value)}")
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


def _row_count(tensors: list[Tensor], signature: Signature) -> int:
    if not signature.batched:
        return 1
    if len(tensors) == 1:
        return tensors[0].shape[0]
    counts = {tensor.shape[0] for tensor in tensors}
    if len(counts) != 1:
        got = ", ".join(f"{t.name!r:.40} {t.shape[0]}" for t in tensors)
        raise TensorError(f"inputs, axis 0: expected the same number of rows in all, got {got}")
    return counts.pop()


class _Binary:
    """The bytes behind the JSON head, taken in the order of the inputs."""

    __slots__ = ("has_length", "position", "rest", "used")

    def __init__(self, rest: Body | None, has_length: bool) -> None:
        self.rest, self.has_length, self.position, self.used = rest or b"", has_length, 0, False

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


def _parse_raw(body: bytes, signature: Signature) -> InferRequest:
    """The whole body is the one input, one row of it."""
    if len(signature.inputs) != 1:
        raise TensorError(
            f"raw binary request: expected a model with one input, got one with {len(signature.inputs)}"
        )
    spec = signature.inputs[0]
    shape, data = _raw_shape(spec, len(body)), body
    if spec.datatype == "BYTES":
        data = len(body).to_bytes(4, "little") + body
    tensor = verify_tensor(Tensor(spec.name, spec.datatype, shape, data))
    outputs = tuple((position, True) for position in range(len(signature.outputs)))
    return InferRequest(None, None, [tensor], 1, outputs, from_json=False)


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


# -- outputs --------------------------------------------------------------------------------------


def _wanted(
    head: dict[str, Any], parameters: dict[str, Any], signature: Signature
) -> tuple[tuple[int, bool], ...]:
    """Wanted outputs in the model's order."""
    if signature.every_output and "outputs" not in head and "binary_data_output" not in parameters:
        return signature.every_output
    everywhere = _flag(parameters, "binary_data_output", "request")
    if "outputs" not in head or head["outputs"] == []:
        wanted = dict.fromkeys(range(len(signature.outputs)), everywhere)
    else:
        wanted = {}
        for item in _items(head, "outputs"):
            position, binary = _wanted_output(item, everywhere, signature)
            if position in wanted:
                raise TensorError(f"output {item['name']!r:.60}: expected once, got twice")
            wanted[position] = binary
    for position, binary in wanted.items():
        spec = signature.outputs[position]
        if not binary and is_binary_only(spec.datatype):
            raise TensorError(
                f"output {spec.name!r:.60}: expected a request for binary output, got one for JSON",
                hint=f"{spec.datatype} has no JSON form: set binary_data to true",
            )
    return tuple(sorted(wanted.items()))


def _wanted_output(item: dict[str, Any], everywhere: bool, signature: Signature) -> tuple[int, bool]:
    subject = f"output {item['name']!r:.60}"
    position = signature.output_index.get(item["name"])
    if position is None:
        raise TensorError(f"outputs: expected some of {_names(signature.outputs)}, got {item['name']!r:.60}")
    parameters = _parameters(item, subject)
    for name in (*_NOT_OFFERED, "classification"):
        if name in parameters:
            raise FormatError(f"{subject}: expected a plain output, got {name}: not offered here")
    return position, _flag(parameters, "binary_data", subject) if "binary_data" in parameters else everywhere


def _flag(parameters: dict[str, Any], name: str, subject: str) -> bool:
    value = parameters.get(name, False)
    if type(value) is not bool:
        raise FormatError(f"{subject} parameter {name!r}: expected true or false, got {value!r:.40}")
    return value
