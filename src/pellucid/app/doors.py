"""The doors of a site, furnished: tokens from its file, keys of JWTs, networks, rates.

Files are looked at again while the server runs: at most once a second, by their time and size. What
cannot be read any more lets nobody in, and is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.app.tokens import read_book, tokens_path
from pellucid.core.access import Caller, is_loopback, parse_networks
from pellucid.core.token import Row, find_caller, is_token
from pellucid.errors import ConfigError, PellucidError, UnauthenticatedError

if TYPE_CHECKING:
    from pellucid.app.jwks import Jwts
    from pellucid.app.site import Site
    from pellucid.config import DoorsSection
    from pellucid.ports import Clock
    from pellucid.serving.doors import Doors

LOOK_NS: Final = 1_000_000_000  # limit: how long a token that was revoked may still be heard


def verify_open(doors: DoorsSection, host: str, key: str = "serving.host") -> None:
    """Pass only an address that the doors are fit for; ``key`` names it.

    Raises:
        ConfigError: Beyond loopback, with callers unknown or words in the clear, and nobody said so.
    """
    if is_loopback(host) or doors.unsafe_open:
        return
    missing = [
        text
        for text, there in (
            ("doors.authenticate", doors.authenticate),
            ("doors.certificate", doors.certificate),
        )
        if not there
    ]
    if missing:
        raise ConfigError(
            f"{key}: expected a loopback address without {' and '.join(missing)}, got {host}",
            hint="set them (docs/how-to/secure-the-doors.md), or say doors.unsafe_open = true",
        )


def make_doors(site: Site, clock: Clock, report: Callable[[str], None]) -> Doors | None:
    """Doors of one serving process; ``None`` where nobody is asked and nothing is limited.

    Raises:
        PellucidError: What the configuration names cannot be read.
    """
    from pellucid.serving.doors import Doors
    from pellucid.serving.rates import Rates

    settings = site.config.doors
    limited = settings.requests_per_s or settings.bytes_per_s
    if not (settings.authenticate or limited or settings.trusted_proxies):
        return None
    return Doors(
        now_ns=clock.now_ns,
        monotonic_ns=clock.monotonic_ns,
        bearers=make_bearers(site, clock, report) if settings.authenticate else None,
        certificates={name: frozenset(roles) for name, roles in settings.certificates.items()},
        rates=Rates(settings.requests_per_s, settings.bytes_per_s) if limited else None,
        proxies=parse_networks(settings.trusted_proxies, "doors.trusted_proxies"),
        forwarded_header=settings.forwarded_header,
    )


def make_bearers(site: Site, clock: Clock, report: Callable[[str], None]) -> SiteBearers:
    """What knows the site's bearers; keys of JWTs are read by a thread that ends with the process."""
    jwts: Jwts | None = None
    if site.config.doors.jwks:
        from pellucid.app.jwks import open_jwts

        jwts = open_jwts(site, report)
    return SiteBearers(tokens_path(site), clock.monotonic_ns, report, jwts)


class SiteBearers:
    """Bearers of API tokens and of JWTs (``serving.doors.Bearers``)."""

    def __init__(
        self,
        path: Path,
        monotonic_ns: Callable[[], int],
        report: Callable[[str], None],
        jwts: Jwts | None = None,
    ) -> None:
        self._path, self._monotonic, self._report, self._jwts = path, monotonic_ns, report, jwts
        self._looked, self._changes = monotonic_ns(), 0
        self._seen = _mark(path)
        self._rows: Mapping[str, Row] = read_book(path).by_id()

    @property
    def generation(self) -> int:
        """Changes when tokens or keys did."""
        now = self._monotonic()
        if now - self._looked >= LOOK_NS:
            self._looked = now
            self._look()
        return self._changes + (self._jwts.changes if self._jwts else 0)

    def _look(self) -> None:
        mark = _mark(self._path)
        if mark == self._seen:
            return
        self._seen, self._changes = mark, self._changes + 1
        try:
            self._rows = read_book(self._path).by_id()
        except PellucidError as error:
            self._rows = {}
            self._report(f"{error.message}: no token is valid")

    def find(self, text: str, now_ns: int) -> Caller:
        """Whose token it is.

        Raises:
            UnauthenticatedError: Nobody's.
        """
        if is_token(text):
            return find_caller(self._rows, text, now_ns)
        if self._jwts is None:
            raise UnauthenticatedError("token: expected a valid one, got another")
        return self._jwts.find(text)


def _mark(path: Path) -> tuple[int, ...]:
    """What changes whenever a file is replaced, written or has other rights."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode)
