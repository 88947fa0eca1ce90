"""uvicorn's HTTP/1.1 protocol with the door's own limits and refusals in JSON.

What never becomes a request (broken framing, endless headers, a client that connects and says
nothing) ends here: one JSON answer where there is someone to read it, and the connection is closed.
A connection that is closed while its client still sends is not cut: the answer would be lost with
it. We send our end, throw away what still comes, for a while, and then cut. Head and body of an
answer leave in one write (measured: 41 us an answer with two writes, 38 with one).
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pellucid.core.certificate import certificate_names
from pellucid.servers.http.crowd import PACE_BYTES_PER_S, Crowd

URL_MAX: Final = 8_192  # limit: bytes of a request target
HEADERS_MAX: Final = 32_768  # limit: bytes of all headers of a request
HEADERS_COUNT_MAX: Final = 128
PIPELINE_MAX: Final = 64  # limit: requests of a connection that wait behind the one that is answered
SILENT_MAX: Final = 65_536  # limit: bytes that complete no head and bring no body; the parser holds them
HEAD_TIMEOUT_S: Final = 15.0  # limit: from the first byte behind an answer to the end of the next headers
SPARE: Final = 256  # descriptors that connections leave to the house
LINGER_S: Final = 2.0  # limit: how long we read what nobody will answer
LINGER_BYTES: Final = 16 * 2**20
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%:\[\]-]{0,255}")
_JOIN_MAX: Final = 65_536  # above, two pieces for one system call are cheaper than a copy

_CROWDED: Final = b'{"error": "server: expected room for one more connection, got too many"}'
_TOO_MANY: Final = (
    STATUS_LINE[503] + b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_CROWDED), _CROWDED)
)


def is_host(value: bytes | None) -> bool:
    """True for one host with or without a port; a list, a user or a path is none."""
    return value is not None and _HOST.fullmatch(value) is not None


class _Transport:
    """The connection, except that head and body leave in one write, and that closing it waits for a
    client that still sends."""

    __slots__ = (
        "_head", "_owner", "_transport", "_write", "get_extra_info", "get_write_buffer_size", "lingering",
        "pause_reading", "resume_reading",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, owner: DoorProtocol) -> None:
        self._transport, self._owner, self.lingering, self._head = transport, owner, False, b""
        self._write, self.get_extra_info = transport.write, transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        head = self._head
        if self._transport.is_closing():
            self._head = b""  # the client is gone, and who answers has not heard of it yet
        elif head:
            self._head = b""
            if len(data) > _JOIN_MAX:
                self._transport.writelines([head, data])
            else:
                self._write(head + data)
        elif data[:9] == b"HTTP/1.1 " and data[9:12] != b"100":
            self._head = data  # its body follows at once
        else:
            self._write(data)

    def write_whole(self, data: bytes) -> None:
        """Send an answer that is whole already."""
        self.flush()
        if not self._transport.is_closing():
            self._write(data)

    def flush(self) -> None:
        """Send a head that no body follows."""
        if self._head:
            head, self._head = self._head, b""
            if not self._transport.is_closing():
                self._write(head)

    def is_closing(self) -> bool:
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        if not self._owner.is_receiving() or self._transport.is_closing() or self.lingering:
            self._transport.close()
            return
        self.lingering = True
        if self._transport.can_write_eof():  # TLS knows no half that is closed: the client sees our answer
            self._transport.write_eof()
        self._owner.flow.resume_reading()
        self._owner.loop.call_later(LINGER_S, self._transport.abort)

    def leave(self, data: bytes) -> None:
        """Say that, and wait for nothing that may still come."""
        self._transport.write(data)
        self._transport.close()

    def cut(self) -> None:
        self._transport.abort()

    def reset(self) -> None:
        """Cut, and have the system forget what nobody has read."""
        if (connection := self._transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class DoorProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection."""

    cycle: Any
    connections_max: ClassVar[int] = 2**31  # set by who runs the server: what the system allows, less SPARE
    _standing: ClassVar[tuple[Any, bytes]] = (None, b"")
    crowd: ClassVar[Crowd] = Crowd()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_size = self._silent = self._dropped = 0
        self._refusal: tuple[int, str] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self.names: tuple[str, ...] = ()  # of the client's certificate
        self._address: str | None = None  # as it was counted
        self._pace_timer: asyncio.TimerHandle | None = None
        self._ended = self._deaf = self._in_head = self._muted = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(_Transport(transport, self))
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.names = certificate_names(tls.getpeercert(True) or b"")
        address = self.client[0] if self.client else ""
        if not self.crowd.enter(address):
            self._refusal = (503, "server: expected fewer connections at once, got one too many")
            self.send_400_response("")
            return
        self._address = address
        self._arm()
        if self.crowd.total > self.connections_max:
            self._deaf = True
            self.transport.leave(_TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            self.crowd.leave(self._address)
        if self._pace_timer is not None:
            self._pace_timer.cancel()
        self._disarm()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)
        self.cycle = None  # what knows us is let go at once: a crowd that left must not wait for a collector

    def data_received(self, data: bytes) -> None:
        if not (self.transport.lingering or self._deaf):
            self._silent += len(data)
            self._feed(data)
            if self._silent > SILENT_MAX and self._refusal is None:
                self._refusal = (431, f"request: expected a whole head within {SILENT_MAX:,} bytes, got more")
                self.send_400_response("")
            elif self._head_timer is None and (self._in_head or self._is_idle()):
                self._arm()  # most heads come whole and need no clock
            return
        self.drop(len(data))

    def drop(self, count: int) -> None:
        """That many bytes came that nobody reads."""
        self._dropped += count
        if self._dropped > LINGER_BYTES:
            self.transport.cut()

    # -- slow readers -----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client does not take what it asked for: it has to get on with it."""
        super().pause_writing()
        self._watch_pace()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._pace_timer = None

    def _watch_pace(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._pace_timer = self.loop.call_later(self.crowd.write_timeout_s, self._look_at_pace, left)

    def _look_at_pace(self, before: int) -> None:
        self._pace_timer = None
        taken = before - self.transport.get_write_buffer_size()
        if taken < self.crowd.write_timeout_s * PACE_BYTES_PER_S:
            self.transport.reset()
        else:
            self._watch_pace()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _feed(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = self._parse(rest)

    def _parse(self, data: memoryview) -> memoryview:
        """Give bytes to the parser; returns those behind a head at which it stopped."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade()
            return data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self.send_400_response("")
        return data[:0]

    def _go_on_without_upgrade(self) -> None:
        """Clients that would like another protocol (curl and Java offer h2c) are served in this one.

        The parser stops at such a head and takes the request for whole, before any task could see
        it. A new one is told how the body is framed, and goes on.
        """
        framing = [h for h in self.headers if h[0] in (b"content-length", b"transfer-encoding")]
        self.parser = self.new_parser()
        if framing and self.cycle is not None:
            self.cycle.more_body, self._muted = True, True
            lines = b"".join(b"%s: %s\r\n" % header for header in framing)
            self._feed(b"POST / HTTP/1.1\r\n" + lines + b"\r\n")
            self._muted = False

    def new_parser(self) -> Any:
        """One that waits for the first byte of a request."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        return parser

    def eof_received(self) -> bool:
        """True keeps the connection: the client has said all, and still reads."""
        self._ended = True
        waiting = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if waiting:
            self.cycle.keep_alive = False  # the newest request's answer is the last one
        return waiting and not self.transport.lingering

    def on_response_complete(self) -> None:
        self.transport.flush()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            # reading goes on when all that was read is answered: else what waits would grow with every answer
            self._start_asgi_task(*self.pipeline.pop())
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:  # one clock a connection, set again only when it rings
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)

    def _look_if_idle(self) -> None:
        self._idle_timer = None
        if self.transport.is_closing() or self.parser is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self._is_idle():
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(max(left, 1.0), self._look_if_idle)

    def standing_headers(self) -> bytes:
        """Header lines of every answer (the date), joined once for as long as they stand."""
        headers = self.server_state.default_headers
        if headers is not DoorProtocol._standing[0]:
            DoorProtocol._standing = (headers, b"".join([b"%s: %s\r\n" % header for header in headers]))
        return DoorProtocol._standing[1]

    def is_receiving(self) -> bool:
        """True while the client may still be sending what we will not read."""
        body = self.cycle is not None and self.cycle.more_body
        return not self._ended and (body or self._in_head or self._refusal is not None)

    def on_message_begin(self) -> None:
        if self._muted:
            return
        super().on_message_begin()
        if len(self.pipeline) >= PIPELINE_MAX:
            self._stop(429, f"request: expected at most {PIPELINE_MAX} to wait for their answers, got more")
        self._head_size, self._in_head = 0, True
        if self.names:
            self.scope["names"] = self.names

    def on_url(self, url: bytes) -> None:
        if self._muted:
            return
        super().on_url(url)
        if len(self.url) > URL_MAX:
            self._stop(414, f"target: expected at most {URL_MAX:,} bytes, got more")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._muted:
            return
        self._head_size += len(name) + len(value)
        if self._head_size > HEADERS_MAX or len(self.headers) >= HEADERS_COUNT_MAX:
            self._stop(
                431, f"headers: expected at most {HEADERS_COUNT_MAX} of {HEADERS_MAX:,} bytes, got more"
            )
        if self._in_head:  # a trailer is no header: whether it came in time must not change a call
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        self.end_head()
        self.verify_head()
        super().on_headers_complete()

    def end_head(self) -> None:
        """The head came in time."""
        self._in_head, self._silent = False, 0
        if self._head_timer is not None:
            self._disarm()

    def verify_head(self) -> None:
        """Refuse heads that the parser lets pass, and that a proxy before us may read otherwise."""
        version, hosts = self.parser.get_http_version(), 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
                if not is_host(value):
                    self._stop(400, "host: expected a name and a port, got something else")
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    self._stop(400, "transfer-encoding: expected chunked alone, got another coding")
                if version != "1.1":
                    self._stop(400, f"transfer-encoding: expected HTTP/1.1, got HTTP/{version}")
        if (version == "1.1" and hosts != 1) or hosts > 1:
            self._stop(400, f"host: expected once, got it {hosts} times")
        if version not in ("1.1", "1.0"):
            self._stop(400, f"request: expected HTTP/1.1 or HTTP/1.0, got HTTP/{version}")

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        refusal = (400, "request: expected valid HTTP/1.1 framing, got something else")
        status, text = self._refusal = self._refusal or refusal
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            # whole requests came before: they are answered, what came behind them is not
            self._deaf, self.cycle.keep_alive = True, False
            return
        body = json.dumps({"error": text}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(b"".join([STATUS_LINE[status], head % len(body), body]))
        self.transport.close()

    def _stop(self, status: int, text: str) -> None:
        self._refusal = (status, text)
        raise ValueError(text)  # the parser turns it into its own error, and data_received answers

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
