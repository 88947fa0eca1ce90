"""Paths of the door. Names are decoded once and must be plain: no slash, dots, control characters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from pellucid.errors import FormatError, NotFoundError, PellucidError

NAME_MAX: Final = 256  # limit: characters of a name in a path
GET: Final = ("GET", "HEAD")
POST: Final = ("POST",)
BOTH: Final = (*GET, *POST)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a path leads.

    Attributes:
        kind: What is asked: a row of ``ENDPOINTS``, or ``none``.
        model: Name of the model, or of the shared memory region.
        problem: Why nothing can be found there; an ``infer`` route is recorded all the same.
    """

    kind: str
    methods: tuple[str, ...] = GET
    model: str = ""
    version: str | None = None
    problem: tuple[type[PellucidError], str] | None = None

    def verify(self) -> None:
        """Pass only where the path leads somewhere.

        Raises:
            NotFoundError, FormatError: Made anew each time, since a raised error keeps its frames.
        """
        if self.problem is not None:
            kind, text = self.problem
            raise kind(text)


MODEL: Final = "/v2/models/{model}"
VERSION: Final = MODEL + "/versions/{version}"
_REGION: Final = "/region/{region}"
_OF_MODELS: Final = {
    "": ("model", GET),
    "/ready": ("model_ready", GET),
    "/infer": ("infer", POST),
    "/config": ("config", GET),
    "/stats": ("stats", GET),
    "/trace/setting": ("trace", BOTH),
}
_OF_REGIONS: Final = {
    "system": {
        "/status": ("shm_status", GET), "/unregister": ("shm_unregister", POST),
        _REGION + "/status": ("shm_status", GET), _REGION + "/register": ("shm_register", POST),
        _REGION + "/unregister": ("shm_unregister", POST),
    },
    "cuda": {
        "/status": ("cuda_status", GET), "/unregister": ("cuda_unregister", POST),
        _REGION + "/status": ("cuda_status", GET), _REGION + "/register": ("cuda_register", POST),
        _REGION + "/unregister": ("cuda_unregister", POST),
    },
}  # fmt: skip
ENDPOINTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "/v2": ("server", GET),
    "/v2/": ("server", GET),
    "/v2/health/live": ("live", GET),
    "/v2/health/ready": ("ready", GET),
    "/v2/models/stats": ("stats", GET),
    "/v2/repository/index": ("index", POST),
    "/v2/repository/models/{model}/load": ("load", POST),
    "/v2/repository/models/{model}/unload": ("unload", POST),
    "/v2/trace/setting": ("trace", BOTH),
    "/v2/logging": ("logging", BOTH),
    "/whoami": ("whoami", GET),
    "/openapi.json": ("openapi", GET),
    "/inference.proto": ("proto", GET),
    **{base + rest: row for base in (MODEL, VERSION) for rest, row in _OF_MODELS.items()},
    **{f"/v2/{k}sharedmemory{rest}": row for k, rows in _OF_REGIONS.items() for rest, row in rows.items()},
}


def _split(path: str) -> tuple[bytes, ...]:
    return tuple(path.encode().split(b"/"))


_FIXED: Final = {path.encode(): Route(*row) for path, row in ENDPOINTS.items() if "{" not in path}
_NAMED: Final = [(_split(path), row) for path, row in ENDPOINTS.items() if "{" in path]
_NOWHERE: Final = Route("none", problem=(NotFoundError, "path: expected an endpoint of /v2, got another"))


@lru_cache(maxsize=1_024)
def find_route(raw_path: bytes) -> Route:
    """Route of a path as sent, without its query."""
    fixed = _FIXED.get(raw_path)
    if fixed is not None:
        return fixed
    parts = raw_path.split(b"/")
    for pattern, (kind, methods) in _NAMED:
        if len(pattern) == len(parts) and all(
            p == w or p[:1] == b"{" for p, w in zip(pattern, parts, strict=True)
        ):
            return _named(kind, methods, pattern, parts)
    return _NOWHERE


def _named(kind: str, methods: tuple[str, ...], pattern: tuple[bytes, ...], parts: list[bytes]) -> Route:
    try:
        names = [_name(p[1:-1].decode(), w) for p, w in zip(pattern, parts, strict=True) if p[:1] == b"{"]
    except PellucidError as error:
        return Route(kind, methods, problem=(type(error), error.message))
    return Route(kind, methods, names[0], names[1] if len(names) > 1 else None)


def _name(subject: str, raw: bytes) -> str:
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise FormatError(f"{subject} in the path: expected UTF-8, got other bytes") from None
    if not 0 < len(text) <= NAME_MAX:
        raise FormatError(f"{subject} in the path: expected 1 to {NAME_MAX} characters, got {len(text)}")
    if "/" in text or text in (".", "..") or not text.isprintable():
        raise FormatError(f"{subject} in the path: expected a plain name, got {text!r:.80}")
    return text
