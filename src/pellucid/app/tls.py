"""TLS of both doors from PEM files: TLS 1.2 and 1.3, forward secrecy, authenticated encryption only.

Files that were replaced are taken up at the next connection; files that do not fit leave what is in
use, and are reported once.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.app.tokens import read_private
from pellucid.errors import ConfigError, PellucidError

if TYPE_CHECKING:
    from pellucid.app.site import Site

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all sane
PEM_MAX: Final = 2**20
HTTP: Final = "http/1.1"
HTTP_2: Final = "h2"


class Tls:
    """TLS of a site's doors.

    Args:
        report: Gets lines for operators.

    Raises:
        ConfigError: A file that is not there, is no PEM or does not fit, or a key that others can read.
    """

    def __init__(
        self, certificate: Path, key: Path, client_ca: Path | None, report: Callable[[str], None]
    ) -> None:
        self._paths, self._ca, self._report = (certificate, key), client_ca, report
        self._seen = self._mark()
        self._contexts = self._open()

    def context(self, speaks: str = HTTP) -> ssl.SSLContext:
        """For a listener of that protocol: each new connection gets the newest files."""
        context = self._contexts[speaks]

        def newest(socket: ssl.SSLObject | ssl.SSLSocket, _: object, __: object) -> None:
            self._look()
            if self._contexts[speaks] is not context:
                socket.context = self._contexts[speaks]

        context.sni_callback = newest  # called whether or not the client names a server
        return context

    def _look(self) -> None:
        mark = self._mark()
        if mark == self._seen:
            return
        self._seen = mark
        try:
            self._contexts = self._open()
        except PellucidError as error:
            self._report(f"{error.message}: the certificate in use stays")

    def _mark(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (*self._paths, *((self._ca,) if self._ca else ())):
            try:
                said = path.stat()
                found.append((said.st_ino, said.st_mtime_ns, said.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def _open(self) -> dict[str, ssl.SSLContext]:
        chain, key = self._paths
        try:
            read_private(key, "doors.key", PEM_MAX)
            authorities = self._ca.read_bytes().decode("ascii") if self._ca is not None else None
            return {speaks: _context(speaks, chain, key, authorities) for speaks in (HTTP, HTTP_2)}
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ConfigError(
                f"doors.certificate: expected PEM files that fit together at {chain}, {key}"
                f"{f', {self._ca}' if self._ca else ''}, got {error!s:.160}"
            ) from None


def _context(speaks: str, chain: Path, key: Path, authorities: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols([speaks])
    # no password: a key that asks for one would ask the terminal
    context.load_cert_chain(chain, key, password=_no_password)
    if authorities is not None:
        context.load_verify_locations(cadata=authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ValueError("a key with a password")


def open_tls(site: Site, report: Callable[[str], None]) -> Tls | None:
    """TLS as the site has it; ``None`` where it has none.

    Raises:
        ConfigError: As ``Tls``.
    """
    doors = site.config.doors
    if not doors.certificate:
        return None
    client_ca = site.path(doors.client_ca) if doors.client_ca else None
    return Tls(site.path(doors.certificate), site.path(doors.key), client_ca, report)
