"""Heads of requests that were read before: what clients say the same each time is read once.

``parse_infer`` reads a request in full. What it accepted is remembered by the bytes around two holes,
the id and the JSON numbers: a later request with the same bytes around them says the same, whatever
stands in the holes, as long as it may stand there. Anything else is for ``parse_infer``, so that every
refusal comes from there. Only what was seen twice is remembered, and nothing of what stood in a hole.

Why it says the same: a head is learned with a mark in each hole, and only if the decoder then finds
the marks as whole values where id and data were. What JSON means depends on nothing else.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import msgspec

from pellucid.core.tensor import DATATYPES, Tensor
from pellucid.errors import PellucidError
from pellucid.serving.limits import ID_MAX
from pellucid.serving.members import NO_PARAMETERS
from pellucid.serving.model import Plan, Signature, make_plan
from pellucid.serving.request import InferRequest, parse_infer
from pellucid.serving.shared_memory import Place, Regions, Spot

HEAD_MAX: Final = 4_096  # limit: bytes of a head that is remembered
HEADS_MAX: Final = 64  # limit: heads remembered of a model
SEEN_MAX: Final = 1_024  # limit: heads of which it is known that they came once
_MARK: Final = "what stands in a hole"
_NUMBERS: Final = frozenset({"int", "float"})  # kinds of which every bit pattern is a value
_decode: Final = msgspec.json.Decoder().decode


class _Split(NamedTuple):
    """A head around its holes, each from a start to a stop; both 0 where there is none."""

    key: tuple[bytes, ...]
    id_start: int
    id_stop: int
    start: int
    stop: int


def read_infer(
    body: bytes,
    header_length: int | None,
    signature: Signature,
    personal: dict[str, str],
    regions: Regions | None = None,
    tail: bytes | None = None,
) -> InferRequest:
    """As ``parse_infer``, faster where the head is known."""
    if header_length == 0:
        return parse_infer(body, header_length, signature, personal, regions, tail)
    text = body if header_length is None or tail is not None else body[:header_length]
    split = _split(text)
    if split is None:
        return parse_infer(body, header_length, signature, personal, regions, tail)
    known: KnownHead | None = signature.heads.get(split.key)
    if known is not None:
        rest, start = (body, header_length or len(body)) if tail is None else (tail, 0)
        request = known.read(text, split, rest, start, regions)
        if request is not None:
            if request.id is not None:
                personal["request_id"] = request.id
            if request.subject is not None:
                personal["subject"] = request.subject
            return request
    request = parse_infer(body, header_length, signature, personal, regions, tail)
    if known is None:
        _remember(text, split, request, signature)
    return request


def _split(text: bytes) -> _Split | None:
    """The head around its holes as they seem to be; what it means is for the decoder to say."""
    key: tuple[bytes, ...]
    id_start = id_stop = start = stop = 0
    if text.startswith(b'{"id":'):
        id_start = text.find(b'"', 6) + 1
        id_stop = text.find(b'"', id_start)
        if not id_start or id_stop < 0:
            return None
    data = text.find(b'"data":', id_stop)
    if data >= 0:
        start = text.find(b"[", data)
        stop = text.find(b"]", start) + 1
        if start < 0 or not stop:
            return None
        key = (text[:id_start], text[id_stop:start], text[stop:])
    else:
        key = (text[:id_start], text[id_stop:])
    if len(text) - (stop - start) > HEAD_MAX:
        return None
    return _Split(key, id_start, id_stop, start, stop)


class KnownHead:
    """What a head says, but for its holes.

    Args:
        request: What was read when it was learned; what stood in a hole is not kept.
        has_id: The id stands in a hole.

    Attributes:
        plan: Of the numbers in the hole, where there is one.
        sources: By input, where its bytes begin behind the head, or its spot in shared memory.
        tail: Bytes behind the head.
        spots: By index of an output, where it goes.
    """

    __slots__ = ("_nbytes", "_said", "_specs", "plan", "sources", "spots", "tail")

    def __init__(self, request: InferRequest, *, has_id: bool) -> None:
        said = None if has_id else request.id
        self._said = msgspec.structs.replace(request, id=said, tensors=[], places=None)
        self._specs = [(each.name, each.datatype, each.shape, len(each.data)) for each in request.tensors]
        self.plan: Plan | None = None
        self.sources: list[int | Spot] = []
        self.tail = 0
        self.spots: dict[int, Spot] = {}

    def read(
        self, text: bytes, split: _Split, rest: bytes, start: int, regions: Regions | None
    ) -> InferRequest | None:
        """The request, or ``None`` where something is not as it was.

        Args:
            rest: Where the bytes behind the head are, from ``start`` on.
        """
        if len(rest) - start != self.tail:
            return None
        said = self._said
        request_id = said.id
        if split.id_stop > split.id_start:
            request_id = _id_of(text[split.id_start : split.id_stop])
            if request_id is None:
                return None
        if self.plan is not None:
            tensors = self._numbers(self.plan, text[split.start : split.stop])
        else:
            tensors = self._tensors(rest, start, regions)
        if tensors is None:
            return None
        places = self._places(regions) if self.spots else None
        if self.spots and places is None:
            return None
        return InferRequest(
            request_id, said.subject, tensors, said.rows, said.outputs, said.shapes, said.nbytes,
            said.literals, said.from_json, said.classes, places, said.timeout_us,
        )  # fmt: skip

    def _numbers(self, plan: Plan, text: bytes) -> list[Tensor] | None:
        assert plan.pack is not None
        try:
            values = _decode(text)
            if len(values) != plan.count or not plan.kinds.issuperset(map(type, values)):
                return None
            data = plan.pack(*values)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, struct.error, OverflowError):
            return None
        name, kind, shape, _ = self._specs[0]
        return [Tensor(name, kind, shape, data)]

    def _tensors(self, rest: bytes, start: int, regions: Regions | None) -> list[Tensor] | None:
        tensors = []
        shared = 0
        for (name, kind, shape, size), source in zip(self._specs, self.sources, strict=True):
            if isinstance(source, int):
                data = rest[start + source : start + source + size]
            else:
                place = None if regions is None else regions.find_place(source)
                shared += size
                if regions is None or place is None or shared > regions.inputs_max_bytes:
                    return None
                try:
                    data = place.region.read(place.offset, size, name)
                except PellucidError:
                    return None
            tensors.append(Tensor(name, kind, shape, data))
        return tensors

    def _places(self, regions: Regions | None) -> dict[int, Place] | None:
        places: dict[int, Place] = {}
        for position, spot in self.spots.items():
            place = None if regions is None else regions.find_place(spot)
            if place is None:
                return None
            places[position] = place
        return places


def _id_of(raw: bytes) -> str | None:
    """A text that needs no decoder; ``None`` for what an id may not be, or may be written otherwise."""
    if b"\\" in raw:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) <= ID_MAX and text.isprintable() else None


# -- learning -------------------------------------------------------------------------------------


def _remember(text: bytes, split: _Split, request: InferRequest, signature: Signature) -> None:
    """Learn a head that comes the second time."""
    seen, mark = signature.heads_seen, hash(split.key)
    if mark not in seen:
        if len(seen) >= SEEN_MAX:
            seen.clear()
        seen.add(mark)
        return
    learned = _learn(text, split, request, signature)
    if learned is not None:
        if len(signature.heads) >= HEADS_MAX:
            signature.heads.clear()
        signature.heads[split.key] = learned


def _learn(text: bytes, split: _Split, request: InferRequest, signature: Signature) -> KnownHead | None:
    """What an accepted head says; ``None`` where more than its holes may differ another time."""
    if any(DATATYPES[tensor.datatype].kind not in _NUMBERS for tensor in request.tensors):
        return None
    head = _decode(text)
    if not _has_holes(text, split, head):
        return None
    known = KnownHead(request, has_id=split.id_start > 0)
    if split.stop:
        if len(request.tensors) != 1 or not request.from_json:
            return None
        known.plan = make_plan(signature.inputs[0], request.tensors[0].shape)
    elif any("data" in item for item in head["inputs"]):
        return None  # written otherwise, so in no hole: bytes behind the head are none of its own
    else:
        _locate(known, head["inputs"], request, signature)
    for item in head.get("outputs", ()):
        if spot := _spot(item):
            known.spots[signature.output_index[item["name"]]] = spot
    return known


def _has_holes(text: bytes, split: _Split, head: dict[str, Any]) -> bool:
    """Are the holes whole values, the id and the first input's data?"""
    _, id_start, id_stop, start, stop = split
    marked, expected = text, dict(head)
    if stop:
        marked = marked[:start] + f'"{_MARK}"'.encode() + marked[stop:]
        expected["inputs"] = [head["inputs"][0] | {"data": _MARK}, *head["inputs"][1:]]
    if id_start:
        marked = marked[:id_start] + _MARK.encode() + marked[id_stop:]
        expected["id"] = _MARK
    try:
        return bool(_decode(marked) == expected)
    except msgspec.DecodeError:
        return False


def _locate(
    known: KnownHead, items: list[dict[str, Any]], request: InferRequest, signature: Signature
) -> None:
    """Where each input's bytes are."""
    sources: dict[int, int | Spot] = {}
    for item in items:
        position = signature.input_index[item["name"]]
        spot = _spot(item)
        sources[position] = spot or known.tail
        known.tail += 0 if spot else len(request.tensors[position].data)
    known.sources = [sources[position] for position in range(len(request.tensors))]


def _spot(item: dict[str, Any]) -> Spot | None:
    parameters = item.get("parameters", NO_PARAMETERS)
    if "shared_memory_region" not in parameters:
        return None
    offset = parameters.get("shared_memory_offset", 0)
    return parameters["shared_memory_region"], offset, parameters["shared_memory_byte_size"]
