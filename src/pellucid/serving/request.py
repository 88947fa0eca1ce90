"""Bytes of an inference request to tensors: the Open Inference Protocol's rules, all of them.

The body is JSON, JSON followed by binary tensors (header length given), or one raw tensor (header
length 0). Either the tensors fit the model exactly, or the refusal says what was expected and what
came. Source: docs/reference/http.md; the ids in tests are those of the conformance list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pellucid.core.tensor import Tensor
from pellucid.errors import FormatError, TensorError
from pellucid.serving.inputs import BinaryTail, match_inputs, names_of, raw_tensor, read_input, row_count
from pellucid.serving.members import (
    NOT_OFFERED,
    flag_of,
    items_of,
    object_of,
    parameters_of,
    refuse_unserved,
    text_of,
)
from pellucid.serving.model import Signature, is_binary_only
from pellucid.serving.strict import decode_strict


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
    binary = BinaryTail(rest, header_length is not None)
    return _build(object_of(head, "body"), binary, signature, {} if personal is None else personal)


def _build(
    head: dict[str, Any], binary: BinaryTail, signature: Signature, personal: dict[str, str]
) -> InferRequest:
    if request_id := text_of(head, "id", "id"):
        personal["request_id"] = request_id
    parameters = parameters_of(head, "request")
    if subject := text_of(parameters, "subject", "parameter 'subject'"):
        personal["subject"] = subject
    refuse_unserved(parameters)
    items = items_of(head, "inputs")
    if not items:
        raise TensorError("inputs: expected " + names_of(signature.inputs) + ", got none")
    ordered = match_inputs(items, signature)
    data: list[Tensor] = [read_input(item, spec, signature, binary) for item, spec in ordered]
    binary.finish()
    return InferRequest(
        request_id or None,
        subject or None,
        _in_model_order(data, signature),
        row_count(data, signature),
        _wanted(head, parameters, signature),
        literals=parameters.get("nonfinite") == "literal",
        from_json=not binary.used,
    )


def _in_model_order(tensors: list[Tensor], signature: Signature) -> list[Tensor]:
    if len(tensors) > 1:
        tensors.sort(key=lambda tensor: signature.input_index[tensor.name])
    return tensors


def _parse_raw(body: bytes, signature: Signature) -> InferRequest:
    outputs = tuple((position, True) for position in range(len(signature.outputs)))
    return InferRequest(None, None, [raw_tensor(body, signature)], 1, outputs, from_json=False)


def _wanted(
    head: dict[str, Any], parameters: dict[str, Any], signature: Signature
) -> tuple[tuple[int, bool], ...]:
    """Wanted outputs in the model's order."""
    if signature.every_output and "outputs" not in head and "binary_data_output" not in parameters:
        return signature.every_output
    everywhere = flag_of(parameters, "binary_data_output", "request")
    if "outputs" not in head or head["outputs"] == []:
        wanted = dict.fromkeys(range(len(signature.outputs)), everywhere)
    else:
        wanted = {}
        for item in items_of(head, "outputs"):
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
        raise TensorError(
            f"outputs: expected some of {names_of(signature.outputs)}, got {item['name']!r:.60}"
        )
    parameters = parameters_of(item, subject)
    for name in (*NOT_OFFERED, "classification"):
        if name in parameters:
            raise FormatError(f"{subject}: expected a plain output, got {name}: not offered here")
    return position, flag_of(
        parameters, "binary_data", subject
    ) if "binary_data" in parameters else everywhere
