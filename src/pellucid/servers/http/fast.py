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
from functools import lru_cache
from typing import Any, Final

import httptools

from pellucid.servers.http.app import HttpDoor
from pellucid.servers.http.pieces import Piece, PiecesCycle
from pellucid.servers.http.protocol import DoorProtocol, is_host
from pellucid.servers.http.routes import Route, find_route
from pellucid.servers.http.short import ShortCycle

_SLOW: Final = frozenset([b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"])
_HEAD_MAX: Final = 2_048  # limit: bytes of a head that a connection remembers
_DIGITS: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)


@lru_cache(maxsize=1_024)
def _inference_route(url: bytes) -> Route | None:
    route = find_route(httptools.parse_url(url).path)
    return route if route.kind == "infer" and route.problem is None else None


class KnownHead:
    """A head that the parser has read on this connection, around the digits of its length."""

    __slots__ = ("after", "before", "headers", "keep_alive", "route")

    def __init__(
        self, before: bytes, after: bytes, route: Route, headers: dict[bytes, bytes], keep_alive: bool
    ) -> None:
        self.before, self.after = before, after
        self.route, self.headers, self.keep_alive = route, headers, keep_alive

    def find(self, data: bytes) -> tuple[int, int] | None:
        """Where the body of a request with this head begins, and its size; ``None`` for another head."""
        start = len(self.before)
        if not data.startswith(self.before):
            return None
        stop = data.find(b"\r", start, start + 20)
        digits = data[start:stop]
        if stop < 0 or not digits.isdigit() or not data.startswith(self.after, stop):
            return None
        return stop + len(self.after), int(digits)


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
        self._begun: tuple[Route, bool] | None = (
            None  # route and keep-alive of the call that began in this very read
        )
        self._gathered: PiecesCycle | None = None  # whose body comes now

    def data_received(self, data: bytes) -> None:
        if self._gathered is not None:
            self._gather(data)
            return
        head = self._head
        if head is not None and self._between and self._is_free() and not self._is_done_for():
            found = head.find(data)
            if found is not None and self._run_known(head, data, *found):
                return
        was_between, self._begun = self._between, None
        super().data_received(data)
        if self._route is not None:
            self._go_on_in_pieces(self._route)
        if self._begun is not None and was_between:
            self._remember(data, *self._begun)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gathered = None

    def _is_free(self) -> bool:
        """Nothing is waited for on this connection."""
        cycle = self.cycle
        free = cycle is None or cycle.response_complete
        return free and not (self.pipeline or self.flow.write_paused)

    def _is_done_for(self) -> bool:
        """Nothing that comes is read any more."""
        return self.transport.lingering or self._deaf or self._refusal is not None

    def _run_known(self, head: KnownHead, data: bytes, begin: int, size: int) -> bool:
        """Do what the parser would have led to; False, and nothing is done, where more or too much came."""
        more = begin + size - len(data)
        if more < 0 or size > self._body_max:
            return False
        accepts, keep_alive = head.headers.get(b"accept-encoding"), head.keep_alive and not self.door.retiring
        if more:
            gathered = PiecesCycle(self, self.door, accepts, keep_alive=keep_alive)
            self._begin(gathered, head.route, head.headers, size)
            self._gather(memoryview(data)[begin:])
            return True
        self.end_head()
        self.cycle = cycle = ShortCycle(self, self.door, accepts, keep_alive=keep_alive)
        cycle.run(head.route, head.headers, data[begin:])
        if self._head_timer is None and self._is_idle():
            self._arm()
        return True

    # -- bodies in pieces -------------------------------------------------------------------------

    def _go_on_in_pieces(self, route: Route) -> None:
        """The head is read, its body is not whole: from here on its bytes need no parser."""
        keep_alive = self.parser.should_keep_alive()
        self._begun = route, keep_alive
        parts, known = self._parts, self._known
        self._route, self._parts = None, []  # a connection that rests holds no body
        keep_alive = keep_alive and not self.door.retiring
        gathered = PiecesCycle(self, self.door, known.get(b"accept-encoding"), keep_alive=keep_alive)
        self.parser, self._between = self.new_parser(), True
        self._begin(gathered, route, known, int(known[b"content-length"]))
        for part in parts:
            gathered.take(part)

    def _begin(self, gathered: PiecesCycle, route: Route, headers: dict[bytes, bytes], size: int) -> None:
        self.end_head()
        self.cycle = self._gathered = gathered
        gathered.begin(route, headers, size)

    def _gather(self, data: Piece) -> None:
        gathered = self._gathered
        assert gathered is not None
        if self.transport.lingering:
            self.drop(len(data))
            return
        rest = gathered.take(data)
        if not gathered.left:
            self._gathered = None
            self._deaf |= not gathered.keep_alive  # it was the last: what stands behind it is nobody's
            if rest:
                self.data_received(bytes(rest))
            elif self._head_timer is None and self._is_idle():
                self._arm()

    def _remember(self, data: bytes, route: Route, keep_alive: bool) -> None:
        """Keep the head of a read that was one request, or the begin of one."""
        stop = data.find(b"\r\n\r\n") + 4
        digits = _DIGITS.search(data, 0, stop)
        if not data.startswith(b"POST ") or stop > _HEAD_MAX or digits is None:
            self._head = None
        elif digits[1] == self._known[b"content-length"] and len(data) <= stop + int(digits[1]):
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
        known = dict(self.headers)
        if len(known) != len(self.headers) or not _SLOW.isdisjoint(known):
            return False
        length = known.get(b"content-length", b"")
        if not (length.isdigit() and len(length) < 20 and int(length) <= self._body_max):
            return False
        if not self._is_plain(known):
            return False
        self._known = known  # of a short call alone: what else came in this read has no say in what is kept
        return True

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
        self._begun = route, keep_alive
        keep_alive = keep_alive and not self.door.retiring
        self.cycle = cycle = ShortCycle(self, self.door, known.get(b"accept-encoding"), keep_alive=keep_alive)
        parts, self._parts = self._parts, []
        cycle.run(route, known, parts[0] if len(parts) == 1 else b"".join(parts))
