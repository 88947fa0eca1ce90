"""Paths of the door. Names are decoded once and must be plain: no slash, dots, control characters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from pellucid.errors import FormatError, NotFoundError, PellucidError

NAME_MAX: Final = 256  # limit: characters of a model's or version's name in a path
GET: Final = ("GET", "HEAD")
POST: Final = ("POST",)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a path leads.

    Attributes:
        kind: ``live``, ``ready``, ``server``, ``model``, ``model_ready``, ``infer`` or ``none``.
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


_FIXED: Final = {
    b"/v2": Route("server"),
    b"/v2/": Route("server"),
    b"/v2/health/live": Route("live"),
    b"/v2/health/ready": Route("ready"),
}
_VERBS: Final = {b"": ("model", GET), b"ready": ("model_ready", GET), b"infer": ("infer", POST)}


@lru_cache(maxsize=1_024)
def find_route(raw_path: bytes) -> Route:
    """Route of a path as sent, without its query."""
    fixed = _FIXED.get(raw_path)
    if fixed is not None:
        return fixed
    parts = raw_path.split(b"/")
    if parts[:3] != [b"", b"v2", b"models"] or not 4 <= len(parts) <= 7:
        return _nothing()
    name, rest = parts[3], parts[4:]
    version = None
    if rest and rest[0] == b"versions":
        if len(rest) < 2:
            return _nothing()
        version, rest = rest[1], rest[2:]
    if len(rest) > 1 or rest == [b""] or (verb := _VERBS.get(b"".join(rest))) is None:
        return _nothing()
    kind, methods = verb
    try:
        names = _name("model", name), None if version is None else _name("version", version)
    except PellucidError as error:
        return Route(kind, methods, problem=(type(error), error.message))
    return Route(kind, methods, *names)


def _nothing() -> Route:
    return Route("none", problem=(NotFoundError, "path: expected an endpoint of /v2, got another"))


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
