"""Outputs of a call to the bytes of its answer: JSON, or JSON followed by binary tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pellucid.core.tensor import Tensor, datatype, unpack_elements
from pellucid.errors import TensorError
from pellucid.serving.answer import Answer
from pellucid.serving.finite import unpacker
from pellucid.serving.request import InferRequest
from pellucid.serving.shared_memory import Place

_encode: Final = msgspec.json.Encoder().encode


def render_answer(
    model: str, version: str, request: InferRequest, outputs: Sequence[Tensor], call: str, trace: str
) -> Answer:
    """Answer of the protocol: only the wanted outputs, in the model's order.

    Raises:
        TensorError: A JSON answer cannot hold a value (NaN, an infinity, bytes that are no text).
    """
    described: list[dict[str, Any]] = []
    tail: list[bytes] = []
    elsewhere: list[tuple[Place, bytes]] = []
    places = request.places
    for position, binary in request.outputs:
        tensor = outputs[position]
        item: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if places and position in places:
            elsewhere.append(put(tensor, places[position]))  # stock clients want no parameters then
        elif binary:
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
        return Answer(text, None, call, trace, elsewhere)
    return Answer(b"".join([text, *tail]), len(text), call, trace, elsewhere)


def put(tensor: Tensor, place: Place) -> tuple[Place, bytes]:
    """An output and its place, if it fits.

    Raises:
        TensorError: The place is too small.
    """
    if len(tensor.data) > place.byte_size:
        raise TensorError(
            f"output {tensor.name!r:.80}: expected a place of {len(tensor.data):,} bytes in region "
            f"{place.region.name!r:.80}, got {place.byte_size:,}"
        )
    return place, bytes(tensor.data)


def _elements(tensor: Tensor, *, literals: bool) -> Sequence[Any]:
    kind = datatype(tensor.datatype)
    values: Sequence[Any]
    if kind.code:
        values = unpacker(kind.code, len(tensor.data) // kind.itemsize).unpack(tensor.data)
    else:
        values = unpack_elements(tensor)
    if kind.kind == "bytes":
        return _texts(tensor.name, values)
    # a sum of finite values may overflow by itself; one of others never is finite
    if (
        kind.kind == "float"
        and not (literals or math.isfinite(sum(values)))
        and not all(map(math.isfinite, values))
    ):
        raise TensorError(
            f"output {tensor.name!r:.80}: expected finite values in a JSON answer, got NaN or an infinity",
            hint="ask for binary output (binary_data), or send the parameter nonfinite=literal",
        )
    return values


def _texts(name: str, values: Sequence[bytes]) -> list[str]:
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError:
        raise TensorError(
            f"output {name!r:.80}: expected UTF-8 text in a JSON answer, got other bytes",
            hint="ask for binary output (binary_data)",
        ) from None
