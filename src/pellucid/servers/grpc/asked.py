"""Everything but inference over gRPC: one row an RPC, each a call of ``serving.management``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from pellucid.errors import FormatError
from pellucid.servers.grpc.codec import parameters_of
from pellucid.servers.grpc.messages import fill, message_class
from pellucid.servers.grpc.statuses import StatusCode
from pellucid.servers.grpc.wire import RefusedError
from pellucid.serving.dataplane import Dataplane

Answer = Callable[[Dataplane, Any], Awaitable[Any]]
_responses: Final[dict[str, Any]] = {}


def _respond(name: str, members: Mapping[str, Any]) -> Any:
    kind = _responses.get(name)
    if kind is None:
        kind = _responses[name] = message_class(f"{name}Response")
    return fill(kind, members)


# -- health and metadata --------------------------------------------------------------------------


async def _live(_: Dataplane, __: Any) -> Any:
    return _respond("ServerLive", {"live": True})


async def _ready(plane: Dataplane, _: Any) -> Any:
    return _respond("ServerReady", {"ready": plane.is_ready})


async def _model_ready(plane: Dataplane, asked: Any) -> Any:
    ready = plane.manage.is_model_ready(asked.name, asked.version or None)
    return _respond("ModelReady", {"ready": ready})


async def _server(plane: Dataplane, _: Any) -> Any:
    return _respond("ServerMetadata", plane.manage.server_metadata())


async def _model(plane: Dataplane, asked: Any) -> Any:
    return _respond("ModelMetadata", plane.pool.metadata(asked.name, asked.version or None))


async def _config(plane: Dataplane, asked: Any) -> Any:
    config = plane.manage.configuration(asked.name, asked.version or None)
    return _respond("ModelConfig", {"config": config})


async def _statistics(plane: Dataplane, asked: Any) -> Any:
    told = await plane.manage.statistics(asked.name or None, asked.version or None)
    return _respond("ModelStatistics", told)


# -- repository -----------------------------------------------------------------------------------


def _verify_repository(asked: Any) -> None:
    if asked.repository_name:
        raise RefusedError(
            StatusCode.UNIMPLEMENTED,
            f"repository_name: expected none, got {asked.repository_name!r:.80}: there is one repository",
        )


async def _index(plane: Dataplane, asked: Any) -> Any:
    _verify_repository(asked)
    return _respond("RepositoryIndex", {"models": plane.manage.index({"ready": asked.ready})})


async def _load(plane: Dataplane, asked: Any) -> Any:
    _verify_repository(asked)
    await plane.manage.load(asked.model_name, {"parameters": _brought(asked)})
    return _respond("RepositoryModelLoad", {})


async def _unload(plane: Dataplane, asked: Any) -> Any:
    _verify_repository(asked)
    await plane.manage.unload(asked.model_name, {"parameters": _brought(asked)})
    return _respond("RepositoryModelUnload", {})


def _brought(asked: Any) -> dict[str, Any]:
    given = parameters_of(asked.parameters, "repository")
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in given.items()}


# -- shared memory --------------------------------------------------------------------------------


async def _shm_status(plane: Dataplane, asked: Any) -> Any:
    regions = {region["name"]: region for region in plane.manage.shm_status(asked.name)}
    return _respond("SystemSharedMemoryStatus", {"regions": regions})


async def _shm_register(plane: Dataplane, asked: Any) -> Any:
    members = {"key": asked.key, "offset": asked.offset, "byte_size": asked.byte_size}
    await plane.manage.shm_register(asked.name, members)
    return _respond("SystemSharedMemoryRegister", {})


async def _shm_unregister(plane: Dataplane, asked: Any) -> Any:
    await plane.manage.shm_unregister(asked.name)
    return _respond("SystemSharedMemoryUnregister", {})


async def _cuda_status(plane: Dataplane, asked: Any) -> Any:
    plane.manage.cuda_status(asked.name)
    return _respond("CudaSharedMemoryStatus", {})


async def _cuda_register(plane: Dataplane, asked: Any) -> Any:
    plane.manage.cuda_register(asked.name)
    return _respond("CudaSharedMemoryRegister", {})


async def _cuda_unregister(_: Dataplane, __: Any) -> Any:
    return _respond("CudaSharedMemoryUnregister", {})


# -- settings -------------------------------------------------------------------------------------


async def _trace(plane: Dataplane, asked: Any) -> Any:
    changes = {name: _trace_value(name, list(setting.value)) for name, setting in asked.settings.items()}
    told = plane.manage.trace_settings(asked.model_name or None, changes)
    shown = {name: {"value": value if type(value) is list else [value]} for name, value in told.items()}
    return _respond("TraceSetting", {"settings": shown})


def _trace_value(name: str, values: list[str]) -> Any:
    if not values:
        return None  # clears it
    if name == "trace_level":
        return values
    if len(values) > 1:
        raise FormatError(f"trace setting {name:.60}: expected one value, got {len(values)}")
    return values[0]


async def _log(plane: Dataplane, asked: Any) -> Any:
    told = plane.manage.log_settings(parameters_of(asked.settings, "log setting"))
    fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    shown = {name: {fields[type(value)]: value} for name, value in told.items()}
    return _respond("LogSettings", {"settings": shown})


_ROWS: Final[dict[str, Answer]] = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server,
    "ModelMetadata": _model,
    "ModelConfig": _config,
    "ModelStatistics": _statistics,
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _shm_status,
    "SystemSharedMemoryRegister": _shm_register,
    "SystemSharedMemoryUnregister": _shm_unregister,
    "CudaSharedMemoryStatus": _cuda_status,
    "CudaSharedMemoryRegister": _cuda_register,
    "CudaSharedMemoryUnregister": _cuda_unregister,
    "TraceSetting": _trace,
    "LogSettings": _log,
}
ASKED: Final = {name: (message_class(f"{name}Request"), answer) for name, answer in _ROWS.items()}
