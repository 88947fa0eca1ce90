"""Tensors as bytes: datatypes, shapes, canonical encoding, row digests.

A tensor is a name, a datatype and shape of the Open Inference Protocol, and its exact row-major
little-endian bits. BYTES elements are a 4-byte little-endian length and that many bytes, as in
Triton's binary tensor extension. The digest covers all four, so that it is the same however the
tensor travelled. Source: spec/canonical.md, section 3.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pellucid.errors import TensorError

Buffer = bytes | bytearray | memoryview

RANK_MAX: Final = 32  # limit: no framework goes beyond
NAME_MAX: Final = 512  # limit: UTF-8 bytes of a tensor's name
NBYTES_MAX: Final = 2**40  # limit: bounds every product of dimensions before it is used


class Datatype(msgspec.Struct, frozen=True):
    """One datatype of the protocol.

    Attributes:
        itemsize: Bytes of one element; 0 for BYTES, whose elements vary.
        code: ``struct`` letter, or ``""`` where JSON has no way to write it (FP16, BF16, BYTES).
        kind: ``bool``, ``int``, ``float`` or ``bytes``.
    """

    name: str
    itemsize: int
    code: str
    kind: str


DATATYPES: Final[dict[str, Datatype]] = {
    d.name: d
    for d in (
        Datatype("BOOL", 1, "?", "bool"),
        Datatype("UINT8", 1, "B", "int"),
        Datatype("UINT16", 2, "H", "int"),
        Datatype("UINT32", 4, "I", "int"),
        Datatype("UINT64", 8, "Q", "int"),
        Datatype("INT8", 1, "b", "int"),
        Datatype("INT16", 2, "h", "int"),
        Datatype("INT32", 4, "i", "int"),
        Datatype("INT64", 8, "q", "int"),
        Datatype("FP16", 2, "e", "float"),
        Datatype("BF16", 2, "", "float"),
        Datatype("FP32", 4, "f", "float"),
        Datatype("FP64", 8, "d", "float"),
        Datatype("BYTES", 0, "", "bytes"),
    )
}


class TensorSpec(msgspec.Struct, frozen=True):
    """What a model declares: ``-1`` is a variable dimension; axis 0 is the batch when ``-1``."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def read_specs(value: Any, subject: str) -> tuple[TensorSpec, ...]:
    """Specs of a document's list of ``{"name", "datatype", "shape"}``.

    Raises:
        TensorError: No such list, or an empty one.
    """
    if type(value) is not list or not value:
        raise TensorError(f"{subject}: expected a list of tensors, got {value!r:.80}")
    return tuple(_read_spec(one, subject) for one in value)


def _read_spec(value: Any, subject: str) -> TensorSpec:
    said = value if type(value) is dict else {}
    name, shape = said.get("name"), said.get("shape")
    is_shape = (
        type(shape) is list
        and len(shape) <= RANK_MAX
        and all(type(axis) is int and axis >= -1 for axis in shape)
    )
    if type(name) is not str or not is_shape:
        raise TensorError(f"{subject}: expected name, datatype and shape, got {value!r:.80}")
    return TensorSpec(name, datatype(said.get("datatype", "")).name, tuple(said["shape"]))


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """A concrete tensor; ``data`` is row-major, little-endian, BYTES length-prefixed.

    Several are made for every call: a struct of this kind costs a tenth of a frozen dataclass.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


def datatype(name: str) -> Datatype:
    """The datatype of that name.

    Raises:
        TensorError: Not a datatype of the protocol.
    """
    try:
        return DATATYPES[name]
    except (KeyError, TypeError):
        raise TensorError(f"datatype: expected one of {', '.join(DATATYPES)}, got {name!r:.40}") from None


def element_count(shape: Sequence[int], *, subject: str = "shape") -> int:
    """Product of the dimensions, checked against overflow as it grows.

    Raises:
        TensorError: A negative dimension, too many dimensions, or a product over the limit.
    """
    if len(shape) > RANK_MAX:
        raise TensorError(f"{subject}: expected at most {RANK_MAX} dimensions, got {len(shape)}")
    for dimension in shape:
        if type(dimension) is not int or dimension < 0 or dimension > NBYTES_MAX:
            raise TensorError(f"{subject}: expected dimensions of 0 or more, got {dimension!r:.40}")
    if 0 in shape:
        return 0
    count = 1
    for dimension in shape:
        count *= dimension
        if count > NBYTES_MAX:
            raise TensorError(f"{subject}: expected at most {NBYTES_MAX:,} elements, got more")
    return count


def verify_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor if its data fits datatype and shape exactly.

    Raises:
        TensorError: Wrong size, a BOOL that is neither 0 nor 1, or malformed BYTES.
    """
    kind = datatype(tensor.datatype)
    if len(tensor.name.encode("utf-8", "surrogatepass")) > NAME_MAX:
        raise TensorError(f"tensor name: expected at most {NAME_MAX} bytes, got more")
    count = element_count(tensor.shape, subject=f"tensor {tensor.name!r:.80}")
    if kind.kind == "bytes":
        split_bytes_elements(tensor.data, count, subject=tensor.name)
        return tensor
    expected = count * kind.itemsize
    if len(tensor.data) != expected:
        raise TensorError(
            f"tensor {tensor.name!r:.80}: expected {expected:,} bytes for {tensor.datatype} "
            f"{list(tensor.shape)}, got {len(tensor.data):,}"
        )
    if kind.kind == "bool" and bytes(tensor.data).translate(None, b"\x00\x01"):
        raise TensorError(f"tensor {tensor.name!r:.80}: expected BOOL bytes of 0 or 1, got another")
    return tensor


def split_bytes_elements(data: Buffer, count: int, *, subject: str) -> list[bytes]:
    """Elements of a BYTES tensor.

    Raises:
        TensorError: A length beyond the data, or not exactly ``count`` elements.
    """
    view, position = memoryview(data), 0
    elements: list[bytes] = []
    while position < len(view):
        if len(elements) == count:
            raise TensorError(f"tensor {subject!r:.80}: expected {count:,} BYTES elements, got more")
        if position + 4 > len(view):
            raise TensorError(f"tensor {subject!r:.80}: expected a 4-byte length, got fewer bytes")
        (size,) = struct.unpack_from("<I", view, position)
        position += 4
        if size > len(view) - position:
            raise TensorError(
                f"tensor {subject!r:.80}: expected at most {len(view) - position:,} bytes left, "
                f"got an element length of {size:,}"
            )
        elements.append(bytes(view[position : position + size]))
        position += size
    if len(elements) != count:
        raise TensorError(f"tensor {subject!r:.80}: expected {count:,} BYTES elements, got {len(elements):,}")
    return elements


def join_bytes_elements(elements: Sequence[bytes]) -> bytes:
    """Wire form of BYTES elements."""
    return b"".join(struct.pack("<I", len(e)) + e for e in elements)


def pack_json(name: str, datatype_name: str, shape: Sequence[int], data: Any) -> Tensor:
    """Tensor from a JSON ``data`` member, flat or nested exactly like ``shape``.

    Numbers become binary64 (nearest) and then the datatype; nothing wraps, nothing is cast.

    Raises:
        TensorError: Ragged nesting, wrong count, a value of another type or out of range,
            FP16/BF16 (binary only), or a finite number that overflows FP32.
    """
    kind = datatype(datatype_name)
    subject = f"input {name!r:.80}"
    count = element_count(shape, subject=subject)
    if type(data) is not list:
        raise TensorError(f"{subject}: expected data as an array, got {type(data).__name__}")
    flat = _flatten(subject, data, list(shape))
    if len(flat) != count:
        raise TensorError(f"{subject}: expected {count:,} elements for {list(shape)}, got {len(flat):,}")
    return Tensor(name, datatype_name, tuple(shape), _pack_elements(subject, kind, flat))


def _flatten(subject: str, data: list[Any], shape: list[int]) -> list[Any]:
    if not data or type(data[0]) is not list:
        return data
    level: list[Any] = [data]
    for axis, dimension in enumerate(shape):
        following: list[Any] = []
        for item in level:
            if type(item) is not list or len(item) != dimension:
                got = f"{len(item):,}" if type(item) is list else type(item).__name__
                raise TensorError(
                    f"{subject}: expected {dimension:,} elements along axis {axis}, got {got}",
                    hint="data is flat, or nested exactly like shape",
                )
            following.extend(item)
        level = following
    return level


_JSON_TYPES: Final[dict[str, tuple[type, ...]]] = {"bool": (bool,), "int": (int,), "float": (int, float)}


def _pack_elements(subject: str, kind: Datatype, flat: list[Any]) -> bytes:
    if kind.kind == "bytes":
        for item in flat:
            if type(item) is not str:
                raise TensorError(f"{subject}: expected strings for BYTES, got {type(item).__name__}")
        try:
            return join_bytes_elements([item.encode() for item in flat])
        except UnicodeEncodeError:
            raise TensorError(f"{subject}: expected Unicode text, got a lone surrogate") from None
    if not kind.code or kind.name == "FP16":
        raise TensorError(
            f"{subject}: expected binary data for {kind.name}, got JSON",
            hint="send FP16 and BF16 with the binary tensor extension",
        )
    types: set[type] = set(map(type, flat))
    allowed: set[type] = set(_JSON_TYPES[kind.kind])
    if not types <= allowed:
        other = sorted(t.__name__ for t in types - allowed)
        raise TensorError(f"{subject}: expected {kind.name} values, got {', '.join(other)}")
    try:
        return struct.pack(f"<{len(flat)}{kind.code}", *flat)
    except (struct.error, OverflowError):
        raise TensorError(f"{subject}: expected values in {kind.name}'s range, got one outside") from None


def unpack_elements(tensor: Tensor) -> list[Any]:
    """Elements as Python values, flat: bool, int, float, or bytes. BF16 widens to float."""
    kind = datatype(tensor.datatype)
    count = element_count(tensor.shape)
    if kind.kind == "bytes":
        return split_bytes_elements(tensor.data, count, subject=tensor.name)
    if kind.name == "BF16":
        halves = struct.unpack(f"<{count}H", tensor.data)
        return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *[h << 16 for h in halves])))
    return list(struct.unpack(f"<{count}{kind.code}", tensor.data))


def is_finite(tensor: Tensor) -> bool:
    """True unless a float element is NaN or an infinity."""
    if datatype(tensor.datatype).kind != "float":
        return True
    return all(map(math.isfinite, unpack_elements(tensor)))


def encode_tensor(name: str, datatype_name: str, shape: Sequence[int], data: Buffer) -> bytes:
    """Canonical bytes of one tensor, unambiguous: every part is preceded by its length."""
    return encode_head(name, datatype_name, shape, len(data)) + bytes(data)


def encode_head(name: str, datatype_name: str, shape: Sequence[int], nbytes: int) -> bytes:
    """The part of ``encode_tensor`` before the data; constant for the rows of a fixed-size input."""
    label, kind = name.encode("utf-8", "surrogatepass"), datatype_name.encode()
    return (
        struct.pack(">H", len(label)) + label
        + struct.pack(">B", len(kind)) + kind
        + struct.pack(f">B{len(shape)}Q", len(shape), *shape)
        + struct.pack(">Q", nbytes)
    )  # fmt: skip


TENSOR_DOMAIN: Final = b"pellucid/tensor/v1\n"
ROW_DOMAIN: Final = b"pellucid/row/v1\n"


def tensor_digest(tensor: Tensor) -> bytes:
    """32 raw digest bytes of name, datatype, shape and bits."""
    encoded = encode_tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    return hashlib.sha256(TENSOR_DOMAIN + encoded).digest()


def row_digest(row: Sequence[Tensor]) -> bytes:
    """32 raw digest bytes of one row: its tensors in the model's order, each of leading size 1."""
    parts = [encode_tensor(t.name, t.datatype, t.shape, t.data) for t in row]
    return hashlib.sha256(ROW_DOMAIN + struct.pack(">I", len(parts)) + b"".join(parts)).digest()


def row_head(tensor: Tensor) -> bytes:
    """What ``row_digest`` hashes before the data of a row that is this one tensor."""
    head = encode_head(tensor.name, tensor.datatype, tensor.shape, len(tensor.data))
    return ROW_DOMAIN + struct.pack(">I", 1) + head


def rows(tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Split tensors along axis 0 into rows, each tensor of a row with leading dimension 1.

    Raises:
        TensorError: The tensors do not share their first dimension.
    """
    counts = {t.shape[0] if t.shape else None for t in tensors}
    if len(counts) != 1 or None in counts:
        raise TensorError("rows: expected tensors that share their first dimension, got others")
    split = [_split(t) for t in tensors]
    return list(zip(*split, strict=True))


def _split(tensor: Tensor) -> list[Tensor]:
    count, rest = tensor.shape[0], tensor.shape[1:]
    shape = (1, *rest)
    if datatype(tensor.datatype).kind == "bytes":
        per = element_count(rest)
        elements = split_bytes_elements(tensor.data, count * per, subject=tensor.name)
        chunks = [join_bytes_elements(elements[i * per : (i + 1) * per]) for i in range(count)]
        return [Tensor(tensor.name, tensor.datatype, shape, chunk) for chunk in chunks]
    size = element_count(rest) * datatype(tensor.datatype).itemsize
    view = memoryview(tensor.data)
    return [
        Tensor(tensor.name, tensor.datatype, shape, view[i * size : (i + 1) * size]) for i in range(count)
    ]
