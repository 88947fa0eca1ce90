"""Outputs of a call to the bytes of its answer: JSON, or JSON followed by binary tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pellucid.core.tensor import Tensor, datatype, unpack_elements
from pellucid.errors import TensorError
from pellucid.serving.request import InferRequest

_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Answer:
    """The reply to a call.

    Attributes:
        body: Whole body.
        json_size: Bytes of JSON at its head when binary tensors follow, else ``None``.
        call: Call key.
        trace: Trace id under which the call is found.
    """

    body: bytes
    json_size: int | None
    call: str
    trace: str


def render_answer(
    model: str, version: str, request: InferRequest, outputs: Sequence[Tensor], call: str, trace: str
) -> Answer:
    """Answer of the protocol: only the wanted outputs, in the model's order.

    Raises:
        TensorError: A JSON answer cannot hold a value (NaN, an infinity, bytes that are no text).
    """
    described: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for position, binary in request.outputs:
        tensor = outputs[position]
        item: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary:
            data = bytes(tensor.data)
            item["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            item["data"] = _elements(tensor, literals=request.literals)
        described.append(item)
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        head["id"] = request.id
    head["parameters"] = {"pellucid-call": call}
    head["outputs"] = described
    text = json.dumps(head).encode() if request.literals else _encode(head)
    if not tail:
        return Answer(text, None, call, trace)
    return Answer(b"".join([text, *tail]), len(text), call, trace)


def _elements(tensor: Tensor, *, literals: bool) -> list[Any]:
    values = unpack_elements(tensor)
    kind = datatype(tensor.datatype).kind
    if kind == "bytes":
        return _texts(tensor.name, values)
    if kind == "float" and not literals and not all(map(math.isfinite, values)):
        raise TensorError(
            f"output {tensor.name!r:.80}: expected finite values in a JSON answer, got NaN or an infinity",
            hint="ask for binary output (binary_data), or send the parameter nonfinite=literal",
        )
    return values


def _texts(name: str, values: list[bytes]) -> list[str]:
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError:
        raise TensorError(
            f"output {name!r:.80}: expected UTF-8 text in a JSON answer, got other bytes",
            hint="ask for binary output (binary_data)",
        ) from None
