"""Reading a model: ONNX bytes, and weights that lie in files beside them, which are put inside.

A model's file names other files; only plain ones at or below the model's own folder are opened, each
once and never through a link. What was hashed is what is embedded.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pellucid import onnx_light
from pellucid.core.digest import sha256
from pellucid.errors import ParseError

if TYPE_CHECKING:
    import onnx

WHOLE_MAX: Final = 2**31 - 1  # limit: protobuf's; one ONNX file holds no more
_LOCATION: Final = re.compile(r"[^\x00-\x1f\x7f\\]{1,400}")
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_PACKED: Final = {  # datatype -> elements in one byte
    kind: per_byte
    for name, per_byte in (("UINT4", 2), ("INT4", 2), ("FLOAT4E2M1", 2), ("UINT2", 4), ("INT2", 4))
    if (kind := getattr(onnx_light.TensorProto, name, None)) is not None
}


class Outside(msgspec.Struct, frozen=True):
    """A file beside the model that holds weights.

    Attributes:
        name: Path below the model's folder, as the model spells it.
        tensors: How many weights lie in it.
    """

    name: str
    digest: str
    size: int
    tensors: int


def parse(raw: bytes) -> onnx.ModelProto:
    """A model of ONNX bytes.

    Raises:
        ParseError: Empty, not ONNX, or without any node.
    """
    if not raw:
        raise ParseError(
            "model: expected ONNX, got an empty file", hint="the export or the copy failed: do it again"
        )
    try:
        model = onnx_light.parse(raw)
    except DecodeError as error:
        raise ParseError(
            f"model: expected ONNX, got {error!s:.200}", hint="another format, or cut short: export it again"
        ) from error
    if not model.graph.node:
        raise ParseError("model: expected a graph with nodes, got none")
    _verify_text(model)
    return model


def _verify_text(message: Any) -> None:
    """Names that are no UTF-8 come out as bytes, which nothing after this expects."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        items = [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        for item in items:
            if field.type == field.TYPE_MESSAGE:
                _verify_text(item)
            elif isinstance(item, bytes):
                raise ParseError(f"model: {field.full_name}: expected text in UTF-8, got {item!r:.60}")


def embed(model: onnx.ModelProto, folder: Path | None) -> list[Outside]:
    """Put all weights inside, in place; gives the files they lay in.

    Raises:
        ParseError: A file is missing, lies elsewhere, is no plain file or too short, or the whole
            does not fit into one ONNX file. Names every such tensor's file.
    """
    tensors = [t for t in all_tensors(model) if t.data_location == onnx_light.TensorProto.EXTERNAL]
    if not tensors:
        return []
    by_place: dict[str, list[onnx.TensorProto]] = {}
    for tensor in tensors:
        by_place.setdefault(_fields(tensor).get("location", ""), []).append(tensor)
    found, wrong, left = [], [], WHOLE_MAX - model.ByteSize()
    for place, group in sorted(by_place.items()):
        try:
            data = _read(place, folder, left, group[0].name)
            for tensor in group:
                _fill(tensor, place, data)
        except ParseError as error:
            wrong.append(error)
            continue
        left -= sum(len(tensor.raw_data) for tensor in group)
        found.append(Outside(place, sha256(data), len(data), len(group)))
    if wrong:
        raise ParseError("; ".join(error.message for error in wrong[:5]), hint=wrong[0].hint)
    return found


def all_tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor that holds values, wherever it stands in a model."""
    if isinstance(message, onnx_light.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from all_tensors(item)


def _fields(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


def _read(place: str, folder: Path | None, left: int, tensor: str) -> bytes:
    subject = f"model: weights {tensor!r:.80} in {place!r:.120}"
    if folder is None:
        raise ParseError(
            f"{subject}: expected all weights inside the file, got them outside",
            hint="embed them: onnx.save(onnx.load(path), path, save_as_external_data=False)",
        )
    parts = place.split("/")
    if not _LOCATION.fullmatch(place) or any(part in ("", ".", "..") for part in parts):
        raise ParseError(f"{subject}: expected a path at or below the model's own folder, got another")
    try:
        descriptor = _open(folder, parts)
    except OSError as error:
        raise ParseError(
            f"{subject}: expected a file beside the model, got {error.strerror}",
            hint="copy it there under this very name; links are not followed",
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ParseError(f"{subject}: expected a plain file, got another kind")
        if status.st_size > WHOLE_MAX:
            raise _too_large(subject, status.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(WHOLE_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > left:
        raise _too_large(subject, len(data))
    return data


def _too_large(subject: str, size: int) -> ParseError:
    return ParseError(
        f"{subject}: expected model and weights of 2 GiB in all, got {size:,} bytes in this file",
        hint="one ONNX file holds no more: split the model, or export its weights in FP16",
    )


def _open(folder: Path, parts: list[str]) -> int:
    """Descriptor of a file, each step of its path taken without following a link."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=held)
            os.close(held)
            held = inner
        # a pipe opened for reading would wait for its writer
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(parts[-1], flags, dir_fd=held)
    finally:
        os.close(held)


def _fill(tensor: onnx.TensorProto, place: str, data: bytes) -> None:
    subject = f"model: weights {tensor.name!r:.80} in {place!r:.120}"
    fields, size = _fields(tensor), byte_size(tensor)
    offset, length = (fields.get(key) or default for key, default in (("offset", "0"), ("length", str(size))))
    if not _NUMBER.fullmatch(offset) or not _NUMBER.fullmatch(length) or int(length) != size:
        raise ParseError(
            f"{subject}: expected {size:,} bytes as its shape says, got length {length!r:.20} "
            f"at offset {offset!r:.20}"
        )
    start = int(offset)
    if start + size > len(data):
        raise ParseError(
            f"{subject}: expected {size:,} bytes at {start:,}, got a file of {len(data):,}",
            hint="cut short, or of another export: copy it again",
        )
    tensor.raw_data = data[start : start + size]
    tensor.ClearField("data_location")
    del tensor.external_data[:]


def byte_size(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values as its shape and datatype say.

    Raises:
        ParseError: A negative dimension, or a datatype that has no fixed size.
    """
    count = math.prod(int(d) for d in tensor.dims)
    if any(d < 0 for d in tensor.dims) or count > WHOLE_MAX * 4:
        raise ParseError(
            f"model: weights {tensor.name!r:.80}: expected a shape, got {list(tensor.dims)!s:.80}"
        )
    if tensor.data_type in _PACKED:
        return int(-(-count // _PACKED[tensor.data_type]))
    if tensor.data_type == onnx_light.TensorProto.STRING:
        raise ParseError(f"model: weights {tensor.name!r:.80}: expected numbers, got strings")
    import onnx.helper  # loads NumPy: most models hold their weights themselves

    try:
        return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, TypeError, ValueError) as error:
        raise ParseError(
            f"model: weights {tensor.name!r:.80}: expected a datatype of ONNX, got {tensor.data_type}"
        ) from error
