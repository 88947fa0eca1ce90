"""The short way of an inference call: no task, no scope, no future between the socket and the batcher.

Taken by a POST to an inference route that came whole in one read, plainly framed, on a connection
that waits for nothing else. Everything else (bodies in pieces, compressed, pipelined behind another
request, clients that do not read their answers) goes through the application, and must be answered
the same: the tests of the door run over both ways.

A connection remembers the head of its last such call. The next request whose head is the same but for
the digits of its length needs no parser: what the parser said of that head holds for it as well.
"""

from __future__ import annotations

import re
import sys
import traceback
from functools import lru_cache
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pellucid.errors import PellucidError
from pellucid.servers.http.app import FAULT, HttpDoor, answer_of, error_of, header_length
from pellucid.servers.http.body import COMPRESS_MIN
from pellucid.servers.http.callers import short_knock
from pellucid.servers.http.protocol import DoorProtocol, is_host
from pellucid.servers.http.routes import Route, find_route
from pellucid.serving.answer import Answer
from pellucid.serving.call import OpenCall

_LENGTH: Final = b"inference-header-content-length"
_SLOW: Final = frozenset([b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"])
_OK: Final = STATUS_LINE[200]
_CLOSE: Final = b"connection: close\r\n"
_JSON: Final = b"content-type: application/json\r\npellucid-call: "
_BINARY: Final = (
    b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\npellucid-call: "
)
_HEAD_MAX: Final = 2_048  # limit: bytes of a head that a connection remembers
_DIGITS: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)


@lru_cache(maxsize=1_024)
def _inference_route(url: bytes) -> Route | None:
    route = find_route(httptools.parse_url(url).path)
    return route if route.kind == "infer" and route.problem is None else None


class _Nobody:
    """Nobody waits for the body of a request that came whole."""

    def set(self) -> None: ...


_NOBODY: Final = _Nobody()


class KnownHead:
    """A head that the parser has read on this connection, around the digits of its length."""

    __slots__ = ("after", "before", "headers", "keep_alive", "route")

    def __init__(
        self, before: bytes, after: bytes, route: Route, headers: dict[bytes, bytes], keep_alive: bool
    ) -> None:
        self.before, self.after = before, after
        self.route, self.headers, self.keep_alive = route, headers, keep_alive

    def body_of(self, data: bytes, size_max: int) -> bytes | None:
        """Body of one whole request with this head; ``None`` where it is anything else."""
        start = len(self.before)
        if not data.startswith(self.before):
            return None
        stop = data.find(b"\r", start, start + 20)
        digits = data[start:stop]
        if stop < 0 or not digits.isdigit() or not data.startswith(self.after, stop):
            return None
        begin, size = stop + len(self.after), int(digits)
        return data[begin:] if size <= size_max and len(data) == begin + size else None


class FastCycle:
    """One such call: what the connection asks of a cycle, and what the batcher asks of a reply."""

    __slots__ = (
        "_accepts", "_call", "_door", "_protocol", "body", "disconnected", "keep_alive", "message_event",
        "more_body", "response_complete",
    )  # fmt: skip

    def __init__(self, protocol: FastProtocol, accepts: bytes | None, *, keep_alive: bool) -> None:
        self._protocol, self._door, self._accepts = protocol, protocol.door, accepts
        self._call: OpenCall | None = None
        self.keep_alive, self.message_event, self.body = keep_alive, _NOBODY, b""
        self.disconnected = self.more_body = self.response_complete = False

    def run(self, route: Route, headers: dict[bytes, bytes], body: bytes) -> None:
        """Hand the call to its batcher, or answer why not."""
        plane, client = self._door.plane, self._protocol.client
        peer, trace = client[0] if client else "", headers.get(b"traceparent")
        call: OpenCall | None = None
        try:
            if plane.doors is None:
                self._call = call = plane.accept(peer, trace)
            else:
                knock = short_knock(peer, headers, self._protocol.names, len(body), plane.doors)
                self._call = call = plane.accept_from(knock, trace)
                plane.admit(call, knock)
            length = header_length(headers[_LENGTH]) if _LENGTH in headers else None
            plane.start(call, route.model, route.version, body, length, self)
        except PellucidError as error:
            self.set_exception(error)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._write(500, [(b"content-type", b"application/json")], FAULT)
        finally:
            if call is not None:
                plane.abandon(call)

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
        told = self._door.refuse(self._call, error)
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
        self.response_complete = True
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


class FastProtocol(DoorProtocol):
    """One connection; ``door`` is set by the class made for a server."""

    door: HttpDoor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._route: Route | None = None  # of a call whose body is still being read, in this very read
        self._known: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._body_max = self.door.plane.limits.body_max_bytes
        self._head: KnownHead | None = None
        self._between = True  # the parser waits for the first byte of a request
        self._whole: tuple[Route, bool] | None = (
            None  # of the only request in this very read, if it was short
        )

    def data_received(self, data: bytes) -> None:
        head = self._head
        if head is not None and self._between and self._is_free() and not self._is_done_for():
            body = head.body_of(data, self._body_max)
            if body is not None:
                self._run_known(head, body)
                return
        was_between, self._whole = self._between, None
        super().data_received(data)
        if self._whole is not None and was_between:
            self._remember(data, *self._whole)
        if self._route is not None:  # its body did not come whole
            self._route, parts = None, self._parts
            super().on_headers_complete()
            for part in parts:
                super().on_body(part)

    def _is_free(self) -> bool:
        """Nothing is waited for on this connection."""
        cycle = self.cycle
        free = cycle is None or cycle.response_complete
        return free and not (self.pipeline or self.flow.write_paused)

    def _is_done_for(self) -> bool:
        """Nothing that comes is read any more."""
        return self.transport.lingering or self._deaf or self._refusal is not None

    def _run_known(self, head: KnownHead, body: bytes) -> None:
        """What the parser would have led to."""
        self.end_head()
        self.cycle = cycle = FastCycle(
            self,
            head.headers.get(b"accept-encoding"),
            keep_alive=head.keep_alive and not self.door.retiring,
        )
        cycle.run(head.route, head.headers, body)
        if self._head_timer is None and self._is_idle():
            self._arm()

    def _remember(self, data: bytes, route: Route, keep_alive: bool) -> None:
        """Keep the head of a read that was one whole request."""
        stop = data.find(b"\r\n\r\n") + 4
        digits = _DIGITS.search(data, 0, stop)
        if not data.startswith(b"POST ") or stop > _HEAD_MAX or digits is None:
            self._head = None
        elif digits[1] == self._known[b"content-length"] and len(data) == stop + int(digits[1]):
            before, after = data[: digits.start(1)], data[digits.end(1) : stop]
            self._head = KnownHead(before, after, route, self._known, keep_alive)

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if not self._muted and self._is_short():
            self.end_head()
            self._parts = []
            return
        self._route = None
        super().on_headers_complete()
        if self.door.retiring and self.cycle is not None:
            self.cycle.keep_alive = False

    def _is_short(self) -> bool:
        if not self._is_free() or self.parser.get_method() != b"POST" or self.expect_100_continue:
            return False
        self._route = _inference_route(self.url)
        if self._route is None:
            return False
        known = self._known = dict(self.headers)
        if len(known) != len(self.headers) or not _SLOW.isdisjoint(known):
            return False
        length = known.get(b"content-length", b"")
        return (
            self._is_plain(known) and length.isdigit() and len(length) < 20 and int(length) <= self._body_max
        )

    def _is_plain(self, known: dict[bytes, bytes]) -> bool:
        """What ``verify_head`` has to look at more closely takes the long way."""
        return self.parser.get_http_version() == "1.1" and is_host(known.get(b"host"))

    def on_body(self, body: bytes) -> None:
        if self._route is None:
            super().on_body(body)
        else:
            self._silent = 0
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._between = True
        route = self._route
        if route is None:
            super().on_message_complete()
            return
        self._route, parser, known = None, self.parser, self._known
        keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self._whole = route, keep_alive
        keep_alive = keep_alive and not self.door.retiring
        self.cycle = cycle = FastCycle(self, known.get(b"accept-encoding"), keep_alive=keep_alive)
        parts = self._parts
        cycle.run(route, known, parts[0] if len(parts) == 1 else b"".join(parts))
