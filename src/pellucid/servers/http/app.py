"""The HTTP door: raw ASGI, no framework. It maps paths, headers and errors, and knows no tensors.

Every call to an inference route has its number before its body is read, and the reply carries the
call's key and trace id in headers. Every answer that is not 200 is JSON: ``{"error": text}``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from pellucid.errors import (
    AuthError,
    EncodingError,
    FormatError,
    PellucidError,
    RateError,
    TooManyError,
    UnavailableError,
)
from pellucid.servers.http.body import (
    COMPRESS_MIN,
    ENCODINGS,
    Receive,
    answer_encoding,
    deflate,
    inflate,
    read_body,
)
from pellucid.servers.http.callers import action_of, knock_of
from pellucid.servers.http.routes import Route, find_route
from pellucid.servers.http.slow import SlowBodies
from pellucid.servers.http.statuses import STATUSES
from pellucid.servers.http.telling import BODY_MAX, tell
from pellucid.serving.answer import Answer
from pellucid.serving.call import OpenCall
from pellucid.serving.dataplane import Dataplane

Headers = list[tuple[bytes, bytes]]
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_LENGTH: Final = b"inference-header-content-length"
_ONCE: Final = (_LENGTH, b"content-encoding", b"traceparent")  # heard twice, they say two things
BODIES_BYTES: Final = 256 * 2**20  # limit: of all bodies that come in pieces, where one may be no larger
FAULT: Final = b'{"error": "server: expected an answer, got a fault of its own"}'


def make_app(door: HttpDoor) -> App:
    """ASGI application of a door."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        route = find_route(scope["raw_path"])
        if route.kind == "infer" and scope["method"] == "POST":
            await door.infer(route, scope, receive, send)
        else:
            await door.tell(route, scope, receive, send)

    return app


class HttpDoor:
    """Answers requests; stateless but for the data plane."""

    def __init__(self, dataplane: Dataplane) -> None:
        self.plane = dataplane
        self.retiring = False  # each answer closes its connection: another process serves the next
        limits = dataplane.limits
        self.slow = SlowBodies(limits.slow_bodies_max, max(BODIES_BYTES, 2 * limits.body_max_bytes))

    # -- inference --------------------------------------------------------------------------------

    async def infer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """One inference call, recorded whatever happens."""
        headers = dict(scope["headers"])
        knock = knock_of(scope, self.plane.doors)
        try:
            call = self.plane.accept_from(knock, headers.get(b"traceparent"))
        except PellucidError as error:
            await _send(send, *error_of(error))
            return
        try:
            try:
                self.plane.admit(call, knock)
                answer = await self._run(call, route, scope["headers"], headers, receive)
            except PellucidError as error:
                # no name for what is told: a frame that names its error keeps itself, and the body in it
                await _send(send, *error_of(self.plane.told(call, error), self.marks(call)))
                return
            told_headers, content = answer_of(answer, headers.get(b"accept-encoding"))
            await _send(send, 200, [*told_headers, *self.traced(call)], content)
        finally:
            self.plane.abandon(call)

    async def _run(
        self,
        call: OpenCall,
        route: Route,
        sent: Headers,
        headers: dict[bytes, bytes],
        receive: Receive,
    ) -> Answer:
        route.verify()
        length = header_length(headers.get(_LENGTH))
        give_up = partial(self.plane.told, call)
        body = await self._body(sent, headers, receive, self.plane.limits.body_max_bytes, give_up)
        if b"content-length" not in headers:
            self.plane.charge(call, len(body))
        return await self.plane.infer(call, route.model, route.version, body, length)

    async def _body(
        self,
        sent: Headers,
        headers: dict[bytes, bytes],
        receive: Receive,
        size_max: int,
        give_up: Callable[[PellucidError], object] = lambda _: None,
    ) -> bytes:
        """The whole body, decompressed."""
        if len(sent) != len(headers):
            _verify_once(sent)
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding != b"identity" and encoding not in ENCODINGS:
            raise _unsupported(encoding)
        body = await read_body(receive, headers.get(b"content-length"), size_max, self.slow, give_up)
        return body if encoding == b"identity" else inflate(body, encoding, size_max)

    def marks(self, call: OpenCall) -> Headers:
        """Headers under which a refused call is found."""
        key = self.plane.key(call)
        marks = [(b"pellucid-trace", call.shown.encode()), *self.traced(call)]
        return [(b"pellucid-call", key.encode()), *marks] if key else marks

    def traced(self, call: OpenCall) -> Headers:
        """Context of the call's own span, where calls are traced."""
        tracer = self.plane.tracer
        made = tracer.take(call.n) if tracer is not None else b""
        return [(b"traceparent", made)] if made else []

    # -- everything else --------------------------------------------------------------------------

    async def tell(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Health, metadata and what else is asked besides inference."""
        method = scope["method"]
        if route.kind != "none" and method not in route.methods:
            allowed = ", ".join(route.methods)
            error = FormatError(f"method: expected {allowed}, got {method:.20}")
            await _send(send, 405, *error_of(error, [(b"allow", allowed.encode())])[1:])
            return
        try:
            knock = knock_of(scope, self.plane.doors)
            caller = self.plane.ask(action_of(route.kind, method), knock)
            route.verify()
            body = b""
            if method == "POST":
                body = await self._body(scope["headers"], dict(scope["headers"]), receive, BODY_MAX)
            kind, told = await tell(self.plane, route, method, body, caller)
        except PellucidError as error:
            await _send(send, *error_of(error))
            return
        await _send(send, 200, [(b"content-type", kind)], told)


def _unsupported(encoding: bytes) -> EncodingError:
    text = encoding.decode("latin-1")
    return EncodingError(f"content-encoding: expected gzip, deflate or identity, got {text!r:.40}")


def _verify_once(sent: Headers) -> None:
    for name in _ONCE:
        if sum(1 for other, _ in sent if other == name) > 1:
            raise FormatError(f"{name.decode()}: expected once, got it twice")


def header_length(value: bytes | None) -> int | None:
    """Length of the JSON before binary tensors, or ``None`` where the header is not.

    Raises:
        FormatError: Not digits.
    """
    if value is None:
        return None
    if not value.isdigit() or len(value) > 20:
        raise FormatError(f"{_LENGTH.decode()}: expected digits, got {value.decode('latin-1')!r:.40}")
    return int(value)


def answer_of(answer: Answer, accepted: bytes | None) -> tuple[Headers, bytes]:
    """Headers and body of an answer, compressed where the client takes it and it is worth it."""
    headers: Headers = [
        _JSON if answer.json_size is None else _BINARY,
        (b"pellucid-call", answer.call.encode()),
        (b"pellucid-trace", answer.trace.encode()),
    ]
    if answer.json_size is not None:
        headers.append((_LENGTH, b"%d" % answer.json_size))
    if accepted is None or len(answer.body) < COMPRESS_MIN:
        return headers, answer.body
    encoding = answer_encoding(accepted)
    if not encoding:
        return headers, answer.body
    headers.append((b"content-encoding", encoding))
    return headers, deflate(answer.body, encoding)


def error_of(error: PellucidError, more: Iterable[tuple[bytes, bytes]] = ()) -> tuple[int, Headers, bytes]:
    """Status, headers and body that tell an error."""
    status = STATUSES[type(error)]
    headers: Headers = [_JSON, *more]
    if status == 415:
        headers.append((b"accept-encoding", b"gzip, deflate"))
    if isinstance(error, (UnavailableError, TooManyError)):
        headers.append((b"retry-after", b"%d" % (error.retry_s if isinstance(error, RateError) else 1)))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413 or isinstance(error, AuthError):  # what still comes is nobody's to read
        headers.append((b"connection", b"close"))
    told = {"error": error.message} | ({"hint": error.hint} if error.hint else {})
    return status, headers, json.dumps(told).encode()


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
