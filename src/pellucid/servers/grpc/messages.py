"""Messages of the gRPC door, from the compiled ``inference.proto``.

They live in a pool of their own: stock clients register the same names in the process-wide one, and a
process may hold both. There is no generated code, so any protobuf runtime will do.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message,
    message_factory,
)

from pellucid.errors import FormatError

SERVICE: Final = "inference.GRPCInferenceService"
_pool: Final = descriptor_pool.DescriptorPool()


def _load() -> Any:
    raw = files("pellucid.servers").joinpath("_generated/inference.binpb").read_bytes()
    (described,) = descriptor_pb2.FileDescriptorSet.FromString(raw).file
    return _pool.AddSerializedFile(described.SerializeToString())


_load()
DESCRIPTOR: Final = _pool.FindFileByName("inference.proto")


def message_class(name: str) -> Any:
    """Class of a message of ``inference.proto``."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))


InferRequest: Final = message_class("ModelInferRequest")
InferResponse: Final = message_class("ModelInferResponse")
StreamResponse: Final = message_class("ModelStreamInferResponse")


def read_message(kind: Any, raw: bytes) -> Any:
    """Message of its bytes.

    Raises:
        FormatError: Not such a message.
    """
    try:
        return kind.FromString(raw)
    except message.DecodeError as error:
        raise FormatError(f"message: expected {kind.DESCRIPTOR.name}, got {error!s:.120}") from None


def fill(kind: Any, members: Any) -> Any:
    """Message with the members that HTTP would answer as JSON."""
    return json_format.ParseDict(members, kind())
