"""JWTs of an identity provider: keys from a file or an https address, read by a thread of their own.

What is believed is closed: three signatures made with a private key (never ``none``, never a shared
secret), a key of the set by its ``kid``, an issuer, an audience, an end. Nothing that a token says about
where keys are (``jku``, ``x5u``, ``jwk``) is looked at.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import jwt

from pellucid.core.access import IDENTITY_MAX, ROLES, Caller
from pellucid.errors import ConfigError, PellucidError, UnauthenticatedError, UnavailableError

if TYPE_CHECKING:
    from pellucid.app.site import Site

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
_KINDS: Final = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}
JWKS_MAX: Final = 262_144  # limit: bytes of a key set
KEYS_MAX: Final = 64
RSA_BITS_MIN: Final = 2_048
JWT_MAX: Final = 8_192
KID_MAX: Final = 256
FETCH_S: Final = 5.0  # limit: one read of the keys
SOON_S: Final = 15.0  # limit: pause between two reads that an unknown key asked for
GROUPS_MAX: Final = 256
_REFUSED: Final = "token: expected a valid one, got another"
_OPTIONS: Final[Any] = {"require": ["exp", "iss", "aud"], "verify_sub": False}


class Jwts:
    """Checks JWTs against the newest keys.

    Attributes:
        changes: Grows when the keys changed.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        subject_claim: str = "sub",
        roles_claim: str = "roles",
        roles: Mapping[str, str] | None = None,
        leeway_s: float = 30.0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._issuer, self._audience, self._leeway = issuer, audience, leeway_s
        self._subject, self._claim, self._roles = subject_claim, roles_claim, dict(roles or {})
        self._wake, self.changes = wake, 0
        self._keys: dict[str, jwt.PyJWK] = {}

    def use(self, keys: dict[str, jwt.PyJWK]) -> None:
        """Believe these keys from now on, and no others; from any thread."""
        self._keys, self.changes = keys, self.changes + 1

    def find(self, text: str) -> Caller:
        """Who the token says its bearer is, by the system's clock.

        Raises:
            UnauthenticatedError: It does not hold; what is told does not say why.
        """
        claims = self._claims(text)
        subject = _at(claims, self._subject)
        if not (isinstance(subject, str) and 0 < len(subject) <= IDENTITY_MAX - 4 and subject.isprintable()):
            raise UnauthenticatedError(_REFUSED)
        try:
            until_ns = int((float(claims["exp"]) + self._leeway) * 1e9)
        except (OverflowError, ValueError):
            raise UnauthenticatedError(_REFUSED) from None
        return Caller(f"jwt:{subject}", self._roles_of(claims), "jwt", until_ns)

    def _claims(self, text: str) -> dict[str, Any]:
        if len(text) > JWT_MAX:
            raise UnauthenticatedError(_REFUSED)
        try:
            head = jwt.get_unverified_header(text)
            key = self._key(head)
            # what the key is for decides, never what the token says of itself
            return jwt.decode(
                text, key.key, algorithms=[str(key.algorithm_name)], audience=self._audience,
                issuer=self._issuer, leeway=self._leeway, options=_OPTIONS,
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError):
            raise UnauthenticatedError(_REFUSED) from None

    def _key(self, head: Mapping[str, Any]) -> jwt.PyJWK:
        kid = head.get("kid")
        known = self._keys
        if kid is None and len(known) == 1:
            return next(iter(known.values()))
        key = known.get(kid) if isinstance(kid, str) and len(kid) <= KID_MAX else None
        if key is None:
            self._wake()  # a provider that has new keys is asked soon; this caller tries again
            raise UnauthenticatedError(_REFUSED)
        return key

    def _roles_of(self, claims: Mapping[str, Any]) -> frozenset[str]:
        said = _at(claims, self._claim)
        words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
        groups = [word for word in words[:GROUPS_MAX] if isinstance(word, str)]
        if self._roles:
            return frozenset(self._roles[group] for group in groups if group in self._roles)
        return frozenset(groups) & frozenset(ROLES)


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """Claim of its name, or of ``outer.inner`` where there is none of that name."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def parse_keys(raw: bytes) -> dict[str, jwt.PyJWK]:
    """Keys of a set that sign in one of the allowed ways, by ``kid``.

    Raises:
        ConfigError: Not a key set, or none of its keys will do.
    """
    try:
        rows = json.loads(raw)["keys"]
        found = [_parse_key(row) for row in rows[:KEYS_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise ConfigError("doors.jwks: expected a JSON Web Key Set, got something else") from None
    keys = {key.key_id or "": key for key in found if key is not None}
    if not keys:
        raise ConfigError(f"doors.jwks: expected a public key for {', '.join(ALGORITHMS)}, got none")
    return keys


def _parse_key(row: Mapping[str, Any]) -> jwt.PyJWK | None:
    algorithm = _KINDS.get(row.get("kty", ""))
    if algorithm is None or row.get("alg", algorithm) != algorithm or row.get("use", "sig") != "sig":
        return None
    if row.get("crv") not in {"RS256": (None,), "ES256": ("P-256",), "EdDSA": ("Ed25519",)}[algorithm]:
        return None
    public = {name: value for name, value in row.items() if name not in ("d", "p", "q", "dp", "dq", "qi")}
    try:
        key = jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if algorithm == "RS256" and key.key.key_size < RSA_BITS_MIN:
        return None
    return key


# -- where they come from -------------------------------------------------------------------------


def fetch(place: str, authorities: str | None) -> bytes:
    """Bytes of the key set at an https address or in a file.

    Raises:
        UnavailableError: It cannot be had now.
    """
    try:
        if place.startswith("https://"):
            return _bounded(_get(place, authorities))
        with open(place, "rb") as file:
            return _bounded(file.read(JWKS_MAX + 1))
    except (OSError, ValueError) as error:  # URLError and SSLError are OSErrors
        raise UnavailableError(f"doors.jwks: expected keys at {place}, got {error!s:.200}") from None


def _bounded(raw: bytes) -> bytes:
    if len(raw) > JWKS_MAX:
        raise ValueError(f"more than {JWKS_MAX:,} bytes")
    return raw


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Nowhere else."""


def _get(address: str, authorities: str | None) -> bytes:
    context = ssl.create_default_context(cafile=authorities)
    no_proxy = urllib.request.ProxyHandler({})
    handlers: Sequence[Any] = (no_proxy, urllib.request.HTTPSHandler(context=context), _NoRedirect())
    until = time.monotonic() + FETCH_S
    raw = b""
    with urllib.request.build_opener(*handlers).open(address, timeout=FETCH_S) as answer:
        while len(raw) <= JWKS_MAX and (piece := answer.read1(65_536)):
            raw += piece
            if time.monotonic() > until:
                raise ValueError(f"no end within {FETCH_S:.0f} s")
    return raw


class Refresher:
    """Reads the keys now and then, and soon when somebody comes with one that is not known."""

    def __init__(
        self,
        read: Callable[[], bytes],
        use: Callable[[dict[str, jwt.PyJWK]], None],
        report: Callable[[str], None],
    ) -> None:
        self._read, self._use, self._report = read, use, report
        self._asked = threading.Event()
        self._raw, self._failed = b"", ""

    def wake(self) -> None:
        """Read again soon."""
        self._asked.set()

    def look(self) -> None:
        """Read once. What cannot be read leaves the keys that are known."""
        try:
            raw = self._read()
            if raw != self._raw:
                self._use(parse_keys(raw))
                self._raw = raw
            self._failed = ""
        except PellucidError as error:
            if error.message != self._failed:
                self._failed = error.message
                self._report(error.message)

    def run(self, every_s: float) -> None:
        """Read for ever, on a thread of its own."""
        while True:
            began = time.monotonic()
            self._asked.wait(every_s)
            time.sleep(max(0.0, began + min(SOON_S, every_s) - time.monotonic()))
            self._asked.clear()
            self.look()


def open_jwts(site: Site, report: Callable[[str], None]) -> Jwts:
    """The site's JWTs; keys are read once before this returns, and by a thread from then on.

    Raises:
        ConfigError, UnavailableError: A file of keys that cannot be read; an address may come later.
    """
    settings = site.config.doors
    remote = settings.jwks.startswith("https://")
    place = settings.jwks if remote else str(site.path(settings.jwks))
    authorities = str(site.path(settings.jwks_ca)) if settings.jwks_ca else None
    jwts = Jwts(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        subject_claim=settings.jwt_subject_claim,
        roles_claim=settings.jwt_roles_claim,
        roles=settings.jwt_roles,
        leeway_s=settings.jwt_leeway_s,
        wake=lambda: refresher.wake(),
    )
    refresher = Refresher(lambda: fetch(place, authorities), jwts.use, report)
    if not remote:
        parse_keys(fetch(place, None))
    refresher.look()
    threading.Thread(target=refresher.run, args=(settings.jwks_refresh_s,), name="jwks", daemon=True).start()
    return jwts
