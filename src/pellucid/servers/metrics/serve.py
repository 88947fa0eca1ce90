"""The metrics' own door: one thread, ``GET /metrics``, nothing else; apart from the calls' port.

It tells names of models and numbers, to those whom the site's doors let in: where callers are asked
who they are, so is who reads metrics, and where calls go over TLS, metrics do too.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pellucid.app.watch import Admits
from pellucid.core.certificate import certificate_names
from pellucid.core.metrics import CONTENT_TYPE
from pellucid.errors import PellucidError, UnavailableError
from pellucid.servers.http.statuses import STATUSES
from pellucid.serving.doors import Knock

_PLAIN: Final = "text/plain; charset=utf-8"
TIMEOUT_S: Final = 5.0  # limit: of a client that connects and says nothing, or does not read


class MetricsListener:
    """Listens until it is closed.

    Args:
        text: Makes the answer; called on a thread of the listener.
        admits: Who may have it; called before, on the same thread.
        context: Of TLS, where there is one.

    Raises:
        UnavailableError: The address is taken or not ours.
    """

    def __init__(
        self,
        host: str,
        port: int,
        text: Callable[[], str],
        admits: Admits,
        context: ssl.SSLContext | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind: Any = type("_Server", (_Server,), {"address_family": family, "context": context})
        more = {"text": staticmethod(text), "admits": staticmethod(admits)}
        handler: Any = type("_Bound", (_Handler,), more | {"forwarded_header": admits.forwarded_header})
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
    context: ssl.SSLContext | None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """On the connection's own thread: who does not finish the handshake holds up nobody."""
        if self.context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(TIMEOUT_S)
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is nobody's fault."""


class _Handler(BaseHTTPRequestHandler):
    text: Callable[[], str]
    admits: Callable[[Knock], None]
    forwarded_header: str
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"expected /metrics\n", _PLAIN)
            return
        try:
            self.admits(self._knock())
        except PellucidError as error:
            hint = f"\n{error.hint}" if error.hint else ""
            self._answer(STATUSES[type(error)], f"{error.message}{hint}\n".encode(), _PLAIN)
            return
        self._answer(200, self.text().encode(), CONTENT_TYPE)

    def _knock(self) -> Knock:
        certificate = (
            self.connection.getpeercert(True) if isinstance(self.connection, ssl.SSLSocket) else None
        )
        return Knock(
            self.client_address[0],
            self._sent("authorization"),
            self._sent(self.forwarded_header) if self.forwarded_header else (),
            certificate_names(certificate or b""),
        )

    def _sent(self, name: str) -> list[bytes]:
        return [value.encode("latin-1", "replace") for value in self.headers.get_all(name, [])]

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if status == 401:
            self.send_header("www-authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "pellucid"

    def log_message(self, format: str, *args: Any) -> None:
        """Who reads metrics is not written down."""
