"""Everything but inference over HTTP: one row an endpoint, each a call of ``serving.management``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from inspect import isawaitable
from typing import Any, Final

import msgspec

from pellucid.core.access import Caller
from pellucid.servers.http.openapi import document
from pellucid.servers.http.routes import Route
from pellucid.serving.dataplane import Dataplane
from pellucid.serving.members import object_of
from pellucid.serving.strict import decode_strict

BODY_MAX: Final = 2**20  # limit: bytes of a request that brings no tensors
Told = tuple[bytes, bytes]  # content type, body
Members = dict[str, Any]
_encode: Final = msgspec.json.Encoder().encode
_JSON: Final = b"application/json"
NOTHING: Final = b""
WHOAMI: Final = "whoami"


def members_of(body: bytes) -> Members:
    """Members of a body; none when it is empty.

    Raises:
        FormatError: Not a JSON object.
    """
    return object_of(decode_strict(body), "body") if body else {}


async def tell(
    plane: Dataplane, route: Route, method: str, body: bytes, caller: Caller | None = None
) -> Told:
    """Answer of an endpoint.

    Raises:
        PellucidError: Why there is none.
    """
    if (page := _PAGES.get(route.kind)) is not None:
        return page()
    if route.kind == WHOAMI:
        value: Any = plane.manage.whoami(caller)
    elif method == "POST":
        value = await _ASKED[route.kind](plane, route, members_of(body))
    else:
        value = _TOLD[route.kind](plane, route)
        if isawaitable(value):  # other processes are asked
            value = await value
    return _JSON, NOTHING if value is None else _encode(value)


# -- GET ------------------------------------------------------------------------------------------


def _ready(plane: Dataplane, _: Route) -> Any:
    plane.manage.verify_ready(draining=plane.draining)
    return {"ready": True}


def _model_ready(plane: Dataplane, route: Route) -> Any:
    plane.pool.find_ready(route.model, route.version)
    return {"name": route.model, "ready": True}


_TOLD: Final[dict[str, Callable[[Dataplane, Route], Any]]] = {
    "live": lambda _, __: {"live": True},
    "ready": _ready,
    "server": lambda plane, _: plane.manage.server_metadata(),
    "model": lambda plane, route: plane.pool.metadata(route.model, route.version),
    "model_ready": _model_ready,
    "config": lambda plane, route: plane.manage.configuration(route.model, route.version),
    "stats": lambda plane, route: plane.manage.statistics(route.model or None, route.version),
    "trace": lambda plane, route: plane.manage.trace_settings(route.model or None, {}),
    "logging": lambda plane, _: plane.manage.log_settings({}),
    "shm_status": lambda plane, route: plane.manage.shm_status(route.model),
    "cuda_status": lambda plane, route: plane.manage.cuda_status(route.model),
}


# -- POST -----------------------------------------------------------------------------------------


async def _index(plane: Dataplane, _: Route, members: Members) -> Any:
    return plane.manage.index(members)


async def _load(plane: Dataplane, route: Route, members: Members) -> None:
    await plane.manage.load(route.model, members)


async def _unload(plane: Dataplane, route: Route, members: Members) -> None:
    await plane.manage.unload(route.model, members)


async def _trace(plane: Dataplane, route: Route, members: Members) -> Any:
    return plane.manage.trace_settings(route.model or None, members)


async def _logging(plane: Dataplane, _: Route, members: Members) -> Any:
    return plane.manage.log_settings(members)


async def _shm_register(plane: Dataplane, route: Route, members: Members) -> None:
    await plane.manage.shm_register(route.model, members)


async def _shm_unregister(plane: Dataplane, route: Route, _: Members) -> None:
    await plane.manage.shm_unregister(route.model)


async def _cuda_register(plane: Dataplane, route: Route, _: Members) -> None:
    plane.manage.cuda_register(route.model)


async def _cuda_unregister(_: Dataplane, __: Route, ___: Members) -> None:
    """Nothing is registered, so nothing is left to do."""


_ASKED: Final[dict[str, Callable[[Dataplane, Route, Members], Awaitable[Any]]]] = {
    "index": _index,
    "load": _load,
    "unload": _unload,
    "trace": _trace,
    "logging": _logging,
    "shm_register": _shm_register,
    "shm_unregister": _shm_unregister,
    "cuda_register": _cuda_register,
    "cuda_unregister": _cuda_unregister,
}


# -- documents ------------------------------------------------------------------------------------


@cache
def _openapi() -> Told:
    return _JSON, _encode(document())


@cache
def _proto() -> Told:
    return b"text/plain; charset=utf-8", files("pellucid.servers").joinpath(
        "_generated/inference.proto"
    ).read_bytes()


_PAGES: Final[dict[str, Callable[[], Told]]] = {"openapi": _openapi, "proto": _proto}
KINDS: Final = frozenset({*_TOLD, *_ASKED, *_PAGES, WHOAMI, "infer"})
