"""The metrics' own door: one thread, ``GET /metrics``, nothing else; apart from the calls' port.

It tells names of models and numbers. Listen on loopback, or where only the monitoring gets in: there
is no authentication here.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pellucid.core.metrics import CONTENT_TYPE
from pellucid.errors import UnavailableError

TIMEOUT_S: Final = 5.0  # limit: of a client that connects and says nothing, or does not read


class MetricsListener:
    """Listens until it is closed.

    Args:
        text: Makes the answer; called on a thread of the listener.

    Raises:
        UnavailableError: The address is taken or not ours.
    """

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind: Any = type("_Server", (_Server,), {"address_family": family})
        handler: Any = type("_Bound", (_Handler,), {"text": staticmethod(text)})
        try:
            self._server = kind((host, port), handler)
        except OSError as error:
            raise UnavailableError(
                f"metrics: expected to listen on {host}:{port}, got {error.strerror or error}",
                hint="choose another serving.metrics_port; 0 takes a free one",
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is nobody's fault."""


class _Handler(BaseHTTPRequestHandler):
    text: Callable[[], str]
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"expected /metrics\n", "text/plain; charset=utf-8")
            return
        self._answer(200, self.text().encode(), CONTENT_TYPE)

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "pellucid"

    def log_message(self, format: str, *args: Any) -> None:
        """Who reads metrics is not written down."""
