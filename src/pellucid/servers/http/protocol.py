"""uvicorn's HTTP/1.1 protocol with the door's own limits and refusals in JSON.

What never becomes a request (broken framing, endless headers, a client that connects and says
nothing) ends here: one JSON answer where there is someone to read it, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

URL_MAX: Final = 8_192  # limit: bytes of a request target
HEADERS_MAX: Final = 32_768  # limit: bytes of all headers of a request
HEADERS_COUNT_MAX: Final = 128
HEAD_TIMEOUT_S: Final = 15.0  # limit: from the first byte of a request to the end of its headers


class DoorProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_size = 0
        self._refusal: tuple[int, str] | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_size = 0
        if self._head_timer is None:
            self._arm()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_MAX:
            self._stop(414, f"target: expected at most {URL_MAX:,} bytes, got more")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > HEADERS_MAX or len(self.headers) >= HEADERS_COUNT_MAX:
            self._stop(
                431, f"headers: expected at most {HEADERS_MAX:,} bytes and {HEADERS_COUNT_MAX}, got more"
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        status, text = self._refusal or (400, "request: expected valid HTTP/1.1 framing, got something else")
        body = json.dumps({"error": text}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        self.transport.write(b"".join([STATUS_LINE[status], head, body]))
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
