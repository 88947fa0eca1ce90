"""Inference messages to requests and answers: the members that JSON would have, read by the same rules.

What travels as bytes (``raw_input_contents``, BYTES, shared memory) takes the way of binary tensors, what
travels as numbers (``contents``) the way of JSON data. Answers are always raw: stock clients read nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from pellucid.core.tensor import Tensor, join_bytes_elements
from pellucid.errors import FormatError
from pellucid.servers.grpc.messages import InferResponse
from pellucid.serving.answer import Answer
from pellucid.serving.inputs import BinaryTail
from pellucid.serving.members import SHARED
from pellucid.serving.model import Signature
from pellucid.serving.request import InferRequest, build_request
from pellucid.serving.response import put
from pellucid.serving.shared_memory import Place, Regions

FIELDS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
    "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


class _Parts(BinaryTail):
    """Bytes of the inputs that do not travel as numbers, in the order of the inputs."""

    __slots__ = ("parts",)

    def __init__(self, regions: Regions) -> None:
        super().__init__(None, True, regions)
        self.parts: list[bytes] = []

    def next(self, parameters: dict[str, Any], subject: str) -> bytes:
        self.used = True
        data = self.parts[self.position]
        self.position += 1
        return data

    def finish(self) -> None:
        """Nothing can be left: parts and inputs are counted when they are read."""


def read_request(
    message: Any, regions: Regions, signature: Signature, personal: dict[str, str]
) -> InferRequest:
    """The request of a ``ModelInferRequest``; raises as ``serving.request.parse_infer``."""
    parts = _Parts(regions)
    head = {
        "id": message.id,
        "parameters": parameters_of(message.parameters, "request") | {"binary_data_output": True},
        "inputs": _inputs(message, parts),
        "outputs": [_output(item) for item in message.outputs],
    }
    request = build_request(head, parts, signature, personal)
    request.render = render
    return request


def parameters_of(given: Any, subject: str) -> dict[str, Any]:
    """Values of a map of parameters.

    Raises:
        FormatError: One holds no value.
    """
    found: dict[str, Any] = {}
    for name, parameter in given.items():
        field = parameter.WhichOneof("parameter_choice")
        if field is None:
            raise FormatError(f"{subject} parameter {name!r:.60}: expected a value, got none")
        found[name] = getattr(parameter, field)
    return found


def _output(item: Any) -> dict[str, Any]:
    parameters = parameters_of(item.parameters, f"output {item.name!r:.60}")
    parameters.pop("binary_data", None)  # every answer here is raw
    return {"name": item.name, "parameters": parameters}


def _inputs(message: Any, parts: _Parts) -> list[dict[str, Any]]:
    raw = list(message.raw_input_contents)
    items = [_input(item, raw) for item in message.inputs]
    inline = [item for item in items if SHARED.isdisjoint(item["parameters"])]
    if raw and len(raw) != len(inline):
        raise FormatError(
            f"raw_input_contents: expected one for each of {len(inline)} inputs, got {len(raw)}"
        )
    given = iter(raw)
    for item in inline:
        data = next(given) if raw else item.get("data")
        if isinstance(data, bytes):
            item.pop("data", None)
            item["parameters"]["binary_data_size"] = len(data)
            parts.parts.append(data)
        elif data is not None:
            parts.used = True  # numbers of a message may be NaN, those of JSON may not
    return items


def _input(item: Any, raw: list[bytes]) -> dict[str, Any]:
    subject = f"input {item.name!r:.80}"
    parameters = parameters_of(item.parameters, subject)
    parameters.pop("binary_data_size", None)  # it says nothing here
    member = {
        "name": item.name, "datatype": item.datatype, "shape": list(item.shape), "parameters": parameters,
    }  # fmt: skip
    if item.HasField("contents"):
        filled = [field.name for field, _ in item.contents.ListFields()]
        if filled and raw:
            raise FormatError(f"{subject}: expected contents or raw_input_contents, got both")
        if filled:
            member["data"] = _contents(item, filled, subject)
    return member


def _contents(item: Any, filled: list[str], subject: str) -> list[Any] | bytes:
    wanted = FIELDS.get(item.datatype)
    if wanted is None:
        raise FormatError(f"{subject}: expected raw_input_contents for {item.datatype!r:.40}, got contents")
    if filled != [wanted]:
        raise FormatError(f"{subject}: expected {wanted} for {item.datatype}, got {' and '.join(filled)}")
    values = list(getattr(item.contents, wanted))
    return join_bytes_elements(values) if item.datatype == "BYTES" else values


def render(
    model: str, version: str, request: InferRequest, outputs: Sequence[Tensor], call: str, trace: str
) -> Answer:
    """The answer as the bytes of a ``ModelInferResponse``; raises as ``render_answer``."""
    outs = [outputs[position] for position, _ in request.outputs]
    parts = [_named(model, version)]
    if request.id:
        parts.append(_field(3, request.id.encode()))
    parts.append(_field(4, _CALL + _field(2, _field(3, call.encode()))))
    parts += [_described(tensor.name, tensor.datatype, tensor.shape) for tensor in outs]
    elsewhere: list[tuple[Place, bytes]] = []
    places = request.places or {}
    for (position, _), tensor in zip(request.outputs, outs, strict=True):
        if position in places:
            elsewhere.append(put(tensor, places[position]))
            parts.append(_field(6, b""))  # stock clients expect one for every output
        else:
            parts.append(_field(6, tensor.data))
    return Answer(b"".join(parts), None, call, trace, elsewhere)


def _field(number: int, value: bytes | bytearray | memoryview) -> bytes:
    """A field of bytes, text or a message, as protobuf writes it."""
    count = len(value)
    if count < 128:
        return bytes((number << 3 | 2, count)) + value
    head = bytearray((number << 3 | 2,))
    while count > 127:
        head.append(count & 127 | 128)
        count >>= 7
    head.append(count)
    return bytes(head) + value


_CALL: Final = _field(1, b"pellucid-call")


@lru_cache(maxsize=256)
def _named(model: str, version: str) -> bytes:
    named: bytes = InferResponse(model_name=model, model_version=version).SerializeToString()
    return named


@lru_cache(maxsize=1_024)
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    described = InferResponse()
    described.outputs.add(name=name, datatype=datatype, shape=shape)
    told: bytes = described.SerializeToString()
    return told
