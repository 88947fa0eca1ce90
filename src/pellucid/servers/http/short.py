"""A call by the short way: what its connection asks of it, and what the batcher asks of a reply."""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pellucid.errors import PellucidError
from pellucid.servers.http.app import FAULT, HttpDoor, answer_of, error_of, header_length
from pellucid.servers.http.body import COMPRESS_MIN
from pellucid.servers.http.callers import short_knock
from pellucid.servers.http.protocol import DoorProtocol
from pellucid.servers.http.routes import Route
from pellucid.serving.answer import Answer
from pellucid.serving.call import OpenCall

_LENGTH: Final = b"inference-header-content-length"
_OK: Final = STATUS_LINE[200]
_CLOSE: Final = b"connection: close\r\n"
_JSON: Final = b"content-type: application/json\r\npellucid-call: "
_BINARY: Final = (
    b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\npellucid-call: "
)


class _Nobody:
    """Nobody waits for the body of a request that came whole."""

    def set(self) -> None: ...


NOBODY: Final = _Nobody()


class ShortCycle:
    """One such call that came whole."""

    __slots__ = (
        "_accepts", "_call", "_door", "_protocol", "body", "disconnected", "keep_alive", "message_event",
        "more_body", "response_complete",
    )  # fmt: skip

    def __init__(
        self, protocol: DoorProtocol, door: HttpDoor, accepts: bytes | None, *, keep_alive: bool
    ) -> None:
        self._protocol, self._door, self._accepts = protocol, door, accepts
        self._call: OpenCall | None = None
        self.keep_alive, self.body = keep_alive, b""
        self.message_event: Any = NOBODY
        self.disconnected = self.more_body = self.response_complete = False

    def run(self, route: Route, headers: dict[bytes, bytes], body: bytes) -> None:
        """Hand a call that came whole to its batcher, or answer why not."""
        if self.accept(headers, len(body)):
            self.start(route, headers, body, None)

    def accept(self, headers: dict[bytes, bytes], size: int) -> bool:
        """Give the call its number; False where it may not come in, and that is answered."""
        plane, client = self._door.plane, self._protocol.client
        peer, trace = client[0] if client else "", headers.get(b"traceparent")
        try:
            if plane.doors is None:
                self._call = plane.accept(peer, trace)
            else:
                knock = short_knock(peer, headers, self._protocol.names, size, plane.doors)
                self._call = plane.accept_from(knock, trace)
                plane.admit(self._call, knock)
        except Exception as error:
            self._fail(error)
            return False
        return True

    def start(self, route: Route, headers: dict[bytes, bytes], body: bytes, tail: bytes | None) -> None:
        """Hand the call to its batcher, or answer why not."""
        call = self._call
        assert call is not None
        try:
            length = header_length(headers[_LENGTH]) if _LENGTH in headers else None
            self._door.plane.start(call, route.model, route.version, body, length, self, tail)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Answer an error; of ours that it is one."""
        call = self._call
        try:
            if isinstance(error, PellucidError):
                self.set_exception(error)
            else:
                traceback.print_exception(error, file=sys.stderr)
                self._write(500, [(b"content-type", b"application/json")], FAULT)
        finally:
            if call is not None:
                self._door.plane.abandon(call)

    @staticmethod
    def announced(headers: dict[bytes, bytes]) -> int:
        """Bytes of JSON before binary tensors, where that is said as it should be, else 0."""
        value = headers.get(_LENGTH, b"")
        return int(value) if value.isdigit() and len(value) <= 20 else 0

    # -- what a reply is --------------------------------------------------------------------------

    def done(self) -> bool:
        """True when nobody waits any more."""
        return self.response_complete or self.disconnected

    def set_result(self, answer: Answer) -> None:
        """Send the answer."""
        body, size = answer.body, answer.json_size
        if self._door.plane.tracer is not None or (self._accepts and len(body) >= COMPRESS_MIN):
            headers, body = answer_of(answer, self._accepts)
            assert self._call is not None
            self._write(200, [*headers, *self._door.traced(self._call)], body)
            return
        self._send(b"".join([
            _OK, self._protocol.standing_headers(), _JSON if size is None else _BINARY % size,
            answer.call.encode(), b"\r\npellucid-trace: ", answer.trace.encode(),
            b"\r\n" if self.keep_alive else b"\r\n" + _CLOSE, b"content-length: %d\r\n\r\n" % len(body), body,
        ]))  # fmt: skip

    def set_exception(self, error: PellucidError) -> None:
        """Record the refusal where the call did not run, and say why."""
        if self._call is None:
            self._write(*error_of(error))
            return
        told = self._door.plane.told(self._call, error)
        self._write(*error_of(told, self._door.marks(self._call)))

    def _write(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        lines = [b"%s: %s\r\n" % header for header in headers]
        if (b"connection", b"close") in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(_CLOSE)
        length = b"content-length: %d\r\n\r\n" % len(body)
        self._send(b"".join([STATUS_LINE[status], self._protocol.standing_headers(), *lines, length, body]))

    def _send(self, data: bytes) -> None:
        protocol = self._protocol
        if not self.disconnected:
            protocol.transport.write_whole(data)
        self.response_complete, self._call = True, None  # which knows us
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()
