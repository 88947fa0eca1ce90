"""Bytes of an inference request to tensors: the Open Inference Protocol's rules, all of them.

The body is JSON, JSON followed by binary tensors (header length given), or one raw tensor (header
length 0). Either the tensors fit the model exactly, or the refusal says what was expected and what
came. Source: docs/reference/http.md; the ids in tests are those of the conformance list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pellucid.core.tensor import Tensor
from pellucid.errors import FormatError, TensorError
from pellucid.serving.answer import Answer
from pellucid.serving.inputs import (
    BinaryTail,
    Body,
    match_inputs,
    names_of,
    raw_tensor,
    read_input,
    row_count,
)
from pellucid.serving.members import (
    SHARED,
    count_of,
    flag_of,
    items_of,
    object_of,
    parameters_of,
    refuse_unserved,
    text_of,
)
from pellucid.serving.model import Signature, is_binary_only
from pellucid.serving.shared_memory import Place, Regions
from pellucid.serving.strict import decode_strict

Render = Callable[[str, str, "InferRequest", Sequence[Tensor], str, str], Answer]


class InferRequest(msgspec.Struct, gc=False):
    """A request whose tensors fit the model.

    Attributes:
        tensors: One per input, in the model's order; data is private to this request.
        rows: Rows along the batch axis; 1 when the model has none.
        outputs: Index into the model's outputs, and whether it is wanted as binary.
        shapes, nbytes: Of the tensors: their shapes, and bytes added up.
        literals: JSON answers may hold NaN and infinities as literals.
        from_json: True when every tensor came as JSON, so that all of it is finite.
        classes: By index of an output, how many of its best classes are wanted instead of it.
        places: By index of an output, where in shared memory it goes instead of into the answer.
        timeout_us: Longest time the caller lets it wait in the queue; 0 is no limit.
        digests: Of its rows, where they were made before its record.
        render: How the door that it came through makes the answer; ``None``: as JSON.
    """

    id: str | None
    subject: str | None
    tensors: list[Tensor]
    rows: int
    outputs: tuple[tuple[int, bool], ...]
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int
    literals: bool = False
    from_json: bool = True
    classes: dict[int, int] | None = None
    places: dict[int, Place] | None = None
    timeout_us: int = 0
    render: Render | None = None
    digests: list[bytes] | None = None


def parse_infer(
    body: bytes,
    header_length: int | None,
    signature: Signature,
    personal: dict[str, str] | None = None,
    regions: Regions | None = None,
    tail: bytes | None = None,
) -> InferRequest:
    """Read one inference request.

    Args:
        body: The whole body, decompressed; only its head of ``header_length`` where ``tail`` is given.
        header_length: Value of ``Inference-Header-Content-Length``, or ``None`` without it.
        personal: Gets ``request_id`` and ``subject`` as soon as they are read, so that a refusal
            that follows is found by them.
        regions: Shared memory that tensors may lie in; ``None`` where it is off.
        tail: What follows the head, in one piece.

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
    rest: Body | None
    if tail is not None:
        head, rest = decode_strict(body), tail
    elif header_length is None or header_length == len(body):
        head, rest = decode_strict(body), None
    else:
        view = memoryview(body)
        head, rest = decode_strict(view[:header_length]), view[header_length:]
    binary = BinaryTail(rest, header_length is not None, regions)
    return build_request(object_of(head, "body"), binary, signature, {} if personal is None else personal)


def build_request(
    head: dict[str, Any], binary: BinaryTail, signature: Signature, personal: dict[str, str]
) -> InferRequest:
    """Request of the protocol's members, however they travelled; raises as ``parse_infer``."""
    if request_id := text_of(head, "id", "id"):
        personal["request_id"] = request_id
    parameters = parameters_of(head, "request")
    if subject := text_of(parameters, "subject", "parameter 'subject'"):
        personal["subject"] = subject
    timeout_us = 0
    if parameters:
        refuse_unserved(parameters)
        timeout_us = count_of(parameters, "timeout", "request")
    items = items_of(head, "inputs")
    if not items:
        raise TensorError("inputs: expected " + names_of(signature.inputs) + ", got none")
    ordered = match_inputs(items, signature)
    data: list[Tensor] = [read_input(item, spec, signature, binary) for item, spec in ordered]
    binary.finish()
    classes = places = None
    if signature.every_output and "outputs" not in head and "binary_data_output" not in parameters:
        outputs = signature.every_output
    else:
        wanted = _wanted(head, parameters, signature, binary.regions)
        outputs, classes, places = wanted.outputs, wanted.classes, wanted.places
    tensors = _in_model_order(data, signature)
    return InferRequest(
        request_id or None,
        subject or None,
        tensors,
        row_count(tensors, signature),
        outputs,
        tuple([tensor.shape for tensor in tensors]),
        sum([len(tensor.data) for tensor in tensors]),
        parameters.get("nonfinite") == "literal",
        not binary.used,
        classes,
        places,
        timeout_us,
    )


def _in_model_order(tensors: list[Tensor], signature: Signature) -> list[Tensor]:
    if len(tensors) > 1:
        tensors.sort(key=lambda tensor: signature.input_index[tensor.name])
    return tensors


def _parse_raw(body: bytes, signature: Signature) -> InferRequest:
    outputs = tuple((position, True) for position in range(len(signature.outputs)))
    tensor = raw_tensor(body, signature)
    shapes, nbytes = (tensor.shape,), len(tensor.data)
    return InferRequest(None, None, [tensor], 1, outputs, shapes, nbytes, from_json=False)


@dataclass(slots=True)
class _Wanted:
    """Wanted outputs in the model's order; of which only the best classes; which go elsewhere."""

    outputs: tuple[tuple[int, bool], ...]
    classes: dict[int, int] | None = None
    places: dict[int, Place] | None = None


def _wanted(
    head: dict[str, Any], parameters: dict[str, Any], signature: Signature, regions: Regions
) -> _Wanted:
    everywhere = flag_of(parameters, "binary_data_output", "request")
    if "outputs" not in head or head["outputs"] == []:
        found = _Wanted(tuple([(position, everywhere) for position in range(len(signature.outputs))]))
    else:
        found = _named(items_of(head, "outputs"), everywhere, signature, regions)
    for position, binary in found.outputs:
        spec = signature.outputs[position]
        if not binary and is_binary_only(spec.datatype) and position not in (found.classes or ()):
            raise TensorError(
                f"output {spec.name!r:.60}: expected a request for binary output, got one for JSON",
                hint=f"{spec.datatype} has no JSON form: set binary_data to true",
            )
    return found


def _named(items: list[dict[str, Any]], everywhere: bool, signature: Signature, regions: Regions) -> _Wanted:
    wanted: dict[int, bool] = {}
    classes: dict[int, int] = {}
    places: dict[int, Place] = {}
    for item in items:
        subject = f"output {item['name']!r:.60}"
        position = signature.output_index.get(item["name"])
        if position is None:
            raise TensorError(
                f"outputs: expected some of {names_of(signature.outputs)}, got {item['name']!r:.60}"
            )
        if position in wanted:
            raise TensorError(f"{subject}: expected once, got twice")
        parameters = parameters_of(item, subject)
        binary = flag_of(parameters, "binary_data", subject) if "binary_data" in parameters else everywhere
        if count := count_of(parameters, "classification", subject):
            if signature.outputs[position].datatype == "BYTES":
                raise TensorError(f"{subject}: expected numbers to classify, got BYTES")
            classes[position] = count
        if not SHARED.isdisjoint(parameters):
            if parameters.get("binary_data"):
                raise FormatError(f"{subject}: expected binary_data or a shared memory region, got both")
            places[position] = regions.place(parameters, subject)
            binary = True
        wanted[position] = binary
    return _Wanted(tuple(sorted(wanted.items())), classes or None, places or None)
