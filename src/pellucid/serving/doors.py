"""Who may come in: the one place that every door asks, before anything of a request is read.

Order: who is it, may they, are they too fast. What they say of themselves counts for nothing: an
``Authorization`` header that does not hold is a refusal even where a certificate would have done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pellucid.core.access import HEALTH, Caller, Network, client_address, verify_allowed
from pellucid.errors import AuthError, ForbiddenError, PellucidError, RateError, UnauthenticatedError
from pellucid.serving.rates import Rates

AUTHORIZATION_MAX: Final = 8_192  # limit: bytes of the header; a JWT with many claims has a few thousand
KNOWN_MAX: Final = 10_000  # limit: bearers whose check is remembered
KNOWN_S: Final = 60.0  # limit: how long it is, so that keys that were withdrawn are heard of
Refused = Callable[[str, PellucidError, Mapping[str, str]], None]
_HINT: Final = "send: Authorization: Bearer TOKEN"


class Bearers(Protocol):
    """What knows bearers of tokens.

    Attributes:
        generation: Changes whenever what was found before may not hold any more.
    """

    @property
    def generation(self) -> int: ...

    def find(self, text: str, now_ns: int) -> Caller:
        """Whose it is. Raises ``UnauthenticatedError``. Called on the event loop: never waits."""
        ...


@dataclass(frozen=True, slots=True)
class Knock:
    """What a request says of who sends it.

    Attributes:
        peer: Address of the other end of the connection; ``""`` where there is none.
        authorization: The header's values, in order.
        forwarded: Values of the forwarding header, in order.
        names: Names of the peer's verified certificate, ``KIND:NAME``, best first.
        size: Bytes announced.
    """

    peer: str
    authorization: Sequence[bytes] = ()
    forwarded: Sequence[bytes] = ()
    names: Sequence[str] = ()
    size: int = 0


class Doors:
    """The rules of one serving process; on the event loop's thread.

    Args:
        bearers: Checks tokens, or ``None`` where nobody is asked who they are.
        certificates: Roles by ``KIND:NAME`` of a verified certificate.
        proxies: Networks whose forwarding header counts.
    """

    def __init__(
        self,
        *,
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        bearers: Bearers | None = None,
        certificates: Mapping[str, frozenset[str]] | None = None,
        rates: Rates | None = None,
        proxies: Sequence[Network] = (),
        forwarded_header: str = "x-forwarded-for",
    ) -> None:
        self._bearers, self._certificates = bearers, certificates or {}
        self._rates, self._proxies, self.forwarded_header = rates, tuple(proxies), forwarded_header
        self.forwarded_key = forwarded_header.encode()
        self._now, self._monotonic = now_ns, monotonic_ns
        self._known: dict[bytes, tuple[Caller, int]] = {}
        self._generation = -1

    def address(self, knock: Knock) -> str:
        """Where a request comes from."""
        if not self._proxies:
            return knock.peer
        return client_address(knock.peer, knock.forwarded, self._proxies, header=self.forwarded_header)

    def identify(self, knock: Knock) -> Caller | None:
        """Who sends it; ``None`` where nobody is asked.

        Raises:
            UnauthenticatedError: Nobody can tell.
            ForbiddenError: A certificate that holds, of somebody the site does not know.
        """
        if self._bearers is None:
            return None
        if knock.authorization:
            return self._bearer(knock.authorization)
        for name in knock.names:
            roles = self._certificates.get(name)
            if roles:
                return Caller(f"certificate:{name}", roles, "certificate")
        if knock.names:
            raise ForbiddenError("certificate: expected one that doors.certificates names, got another")
        raise UnauthenticatedError("caller: expected a token or a certificate, got neither", hint=_HINT)

    def verify(self, caller: Caller | None, action: str, address: str, size: int) -> None:
        """Pass only who may, and not too fast.

        Raises:
            ForbiddenError: No role of theirs allows it.
            RateError: Later.
        """
        if caller is not None and action != HEALTH:
            verify_allowed(caller, action)
        if self._rates is not None:
            self._rates.take(account_of(caller, address), size, self._monotonic())

    def ask(self, action: str, knock: Knock, refused: Refused) -> tuple[Caller | None, dict[str, str]]:
        """Who asks for something that is no inference, if they may; and what their entry commits to.

        Args:
            refused: Told of a refusal, before it is raised.

        Raises:
            AuthError, RateError: They may not, or not now.
        """
        address = self.address(knock)
        personal = {"address": address} if address else {}
        try:
            caller = self.identify(knock)
            if caller is not None:
                personal["caller"] = caller.identity
            self.verify(caller, action, address, knock.size)
        except (AuthError, RateError) as error:
            refused(action, error, personal)
            raise
        return caller, personal

    def charge(self, caller: Caller | None, address: str, size: int) -> None:
        """Count bytes that were not announced."""
        if self._rates is not None:
            self._rates.charge(account_of(caller, address), size, self._monotonic())

    # -- bearers ----------------------------------------------------------------------------------

    def _bearer(self, values: Sequence[bytes]) -> Caller:
        if len(values) != 1:
            raise UnauthenticatedError("authorization: expected once, got it twice")
        value = values[0]
        if len(value) > AUTHORIZATION_MAX:
            raise UnauthenticatedError(
                f"authorization: expected at most {AUTHORIZATION_MAX:,} bytes, got more"
            )
        bearers, now = self._bearers, self._now()
        assert bearers is not None
        if bearers.generation != self._generation:
            self._generation = bearers.generation
            self._known.clear()
        key = hashlib.sha256(value).digest()
        known = self._known.get(key)
        if known is not None and now < known[1]:
            return known[0]
        caller = bearers.find(bearer_of(value), now)
        self._remember(key, caller, now)
        return caller

    def _remember(self, key: bytes, caller: Caller, now: int) -> None:
        until = now + int(KNOWN_S * 1e9)
        if caller.until_ns:
            until = min(until, caller.until_ns)
        self._known.pop(key, None)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = (caller, until)


def account_of(caller: Caller | None, address: str) -> str:
    """Whose rate it is: the caller's, or where nobody is asked the address's."""
    return caller.identity if caller is not None else f"address:{address}"


def bearer_of(value: bytes) -> str:
    """Token of an ``Authorization`` header.

    Raises:
        UnauthenticatedError: Another scheme, or no token.
    """
    scheme, _, rest = value.partition(b" ")
    token = rest.strip(b" ")
    if scheme.lower() != b"bearer" or not token or not token.isascii() or not token.decode().isprintable():
        raise UnauthenticatedError("authorization: expected Bearer and a token, got another", hint=_HINT)
    return token.decode()
