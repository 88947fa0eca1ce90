"""Inference messages of a kind that was read before: what clients say the same each time is read once.

A message is a row of whole fields. Where all of them but the id and the raw contents are those of a
message that was accepted, it says the same: only the id and the bytes of the tensors are taken from it.
Anything else goes the long way, so that every refusal comes from there. Only what was seen twice is
remembered, and nothing of an id or of a tensor.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from pellucid.core.tensor import DATATYPES, Tensor
from pellucid.servers.grpc.codec import read_request, render
from pellucid.servers.grpc.messages import InferRequest as Message
from pellucid.servers.grpc.messages import read_message
from pellucid.serving.dataplane import Read
from pellucid.serving.limits import ID_MAX
from pellucid.serving.model import Signature
from pellucid.serving.request import InferRequest
from pellucid.serving.shared_memory import Regions

KIND_MAX: Final = 4_096  # limit: bytes of a message beside its tensors that are remembered
KINDS_MAX: Final = 256  # limit: kinds of messages that are remembered
SEEN_MAX: Final = 1_024
_ID: Final = 0x1A  # tags of fields 3 and 7
_RAW: Final = 0x3A
_NUMBERS: Final = frozenset({"int", "float"})  # of which every bit pattern is a value


class _Split(NamedTuple):
    """A message in its parts; the id and each raw content from a start to a stop."""

    key: tuple[bytes, bytes, tuple[int, ...]]
    id_start: int
    id_stop: int
    raw: list[tuple[int, int]]


class _Known(NamedTuple):
    """What such a message says.

    Attributes:
        order: By input of the model, which raw content is its.
    """

    model: str
    version: str | None
    signature: Signature
    said: InferRequest
    order: list[int]


def split(data: bytes) -> _Split | None:
    """The parts of a message whose raw contents, some, stand behind all else; ``None`` for any other."""
    position, size = 0, len(data)
    id_tag = id_start = id_stop = 0
    first = -1
    raw: list[tuple[int, int]] = []
    try:
        while position < size:
            begin, tag, length = position, data[position], data[position + 1]
            position += 2
            if length > 127:
                length, shift = length & 127, 7
                while True:
                    more = data[position]
                    position += 1
                    length |= (more & 127) << shift
                    if more < 128:
                        break
                    shift += 7
                    if shift > 28:
                        return None
            stop = position + length
            if tag == _RAW:
                first = begin if first < 0 else first
                raw.append((position, stop))
            elif first >= 0 or tag & 7 != 2 or tag > 127:
                return None
            elif tag == _ID:
                if id_stop:
                    return None
                id_tag, id_start, id_stop = begin, position, stop
            position = stop
    except IndexError:
        return None
    if position != size or first < 0:
        return None
    lengths = tuple([stop - start for start, stop in raw])
    return _Split((data[:id_tag], data[id_stop:first], lengths), id_start, id_stop, raw)


class Messages:
    """Reads the inference messages of one door."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes, tuple[int, ...]], _Known] = {}
        self._seen: set[int] = set()

    def open(self, data: bytes, regions: Regions) -> tuple[str, str | None, Read]:
        """Name and version that a message asks for, and what reads it for that model.

        Raises:
            FormatError: Not such a message.
        """
        parts = split(data)
        known = self._known.get(parts.key) if parts is not None else None
        if parts is not None and known is not None:
            request_id = _id_of(data[parts.id_start : parts.id_stop])
            if request_id is not None:
                again = partial(self._again, known, data, parts, request_id, regions)
                return known.model, known.version, again
        message = read_message(Message, data)
        return message.model_name, message.model_version or None, partial(self._read, message, parts, regions)

    def _read(
        self,
        message: Any,
        parts: _Split | None,
        regions: Regions,
        signature: Signature,
        personal: dict[str, str],
    ) -> InferRequest:
        request = read_request(message, regions, signature, personal)
        if parts is not None:
            self._remember(message, parts, request, signature)
        return request

    def _again(
        self, known: _Known, data: bytes, parts: _Split, request_id: str, regions: Regions,
        signature: Signature, personal: dict[str, str],
    ) -> InferRequest:  # fmt: skip
        if known.signature is not signature:
            return self._read(read_message(Message, data), parts, regions, signature, personal)
        said = known.said
        if request_id:
            personal["request_id"] = request_id
        if said.subject is not None:
            personal["subject"] = said.subject
        raw, tensors = parts.raw, []
        for spec, shape, part in zip(signature.inputs, said.shapes, known.order, strict=True):
            start, stop = raw[part]
            tensors.append(Tensor(spec.name, spec.datatype, shape, data[start:stop]))
        return InferRequest(
            request_id or None, said.subject, tensors, said.rows, said.outputs, said.shapes, said.nbytes,
            said.literals, said.from_json, said.classes, None, said.timeout_us, render,
        )  # fmt: skip

    def _remember(self, message: Any, parts: _Split, request: InferRequest, signature: Signature) -> None:
        """Learn a kind that comes the second time; what was learned for another signature is replaced."""
        key = parts.key
        names = [item.name for item in message.inputs]
        if request.places or len(parts.raw) != len(names) or len(key[0]) + len(key[1]) > KIND_MAX:
            return
        if any(DATATYPES[tensor.datatype].kind not in _NUMBERS for tensor in request.tensors):
            return
        mark = hash(key)
        if mark not in self._seen:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen.add(mark)
            return
        if len(self._known) >= KINDS_MAX:
            self._known.clear()
        said = InferRequest(
            None, request.subject, [], request.rows, request.outputs, request.shapes, request.nbytes,
            request.literals, request.from_json, request.classes, None, request.timeout_us,
        )  # fmt: skip
        order = [names.index(tensor.name) for tensor in request.tensors]
        self._known[key] = _Known(message.model_name, message.model_version or None, signature, said, order)


def _id_of(raw: bytes) -> str | None:
    """``None`` for what an id may not be."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) <= ID_MAX and text.isprintable() else None
