"""Who calls, what they may do, and where they call from. Deny by default.

One table from actions to roles; every door asks it through ``serving.doors``. Source: requirement E4.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from pellucid.errors import ConfigError, ForbiddenError

ROLES: Final = ("client", "ml-engineer", "sre", "security", "compliance", "auditor")
_EVERYONE: Final = frozenset(ROLES)
_WATCHERS: Final = frozenset({"ml-engineer", "sre", "security", "compliance", "auditor"})
_USERS: Final = frozenset({"client", "ml-engineer"})
HEALTH: Final = "health"  # what a kubelet asks; it says nothing but yes or no
ACTIONS: Final[Mapping[str, frozenset[str]]] = {
    "infer": _USERS,
    "metadata": _EVERYONE,
    "whoami": _EVERYONE,
    "statistics": _WATCHERS,
    "settings": _WATCHERS,
    "metrics": frozenset({"sre", "security", "auditor"}),
    "repository": frozenset({"sre"}),
    "shared_memory": _USERS,
    "change_settings": frozenset({"sre"}),
}
IDENTITY_MAX: Final = 256  # limit: characters of a caller's identity; it is one value of an entry
HOPS_MAX: Final = 32  # limit: addresses of a forwarding header that are looked at
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_FORWARDED: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^;\s]+)', re.IGNORECASE)


class Caller(msgspec.Struct, frozen=True):
    """Somebody whose word was checked.

    Attributes:
        identity: ``token:NAME``, ``jwt:SUBJECT`` or ``certificate:KIND:NAME``.
        roles: What the site gives them; other words give nothing.
        how: ``token``, ``jwt`` or ``certificate``.
        until_ns: Wall clock at which this is worth nothing any more; 0: never.
    """

    identity: str
    roles: frozenset[str]
    how: str
    until_ns: int = 0


def is_allowed(roles: Iterable[str], action: str) -> bool:
    """True if one of the roles may; False for an action that nobody knows."""
    return not ACTIONS.get(action, frozenset()).isdisjoint(roles)


def verify_allowed(caller: Caller, action: str) -> Caller:
    """The caller, if they may.

    Raises:
        ForbiddenError: None of their roles allows it.
    """
    if is_allowed(caller.roles, action):
        return caller
    wanted = " or ".join(role for role in ROLES if role in ACTIONS.get(action, frozenset()))
    got = ", ".join(role for role in ROLES if role in caller.roles)
    raise ForbiddenError(f"{action}: expected role {wanted or 'of nobody'}, got {got or 'none'}")


def verify_roles(names: Iterable[str], subject: str) -> frozenset[str]:
    """Roles of their names.

    Raises:
        ConfigError: None, or one that is not known.
    """
    given = frozenset(names)
    unknown = sorted(given - _EVERYONE)
    if unknown or not given:
        raise ConfigError(
            f"{subject}: expected roles of {', '.join(ROLES)}, got {', '.join(unknown)[:80] or 'none'}"
        )
    return given


# -- addresses ------------------------------------------------------------------------------------


def parse_networks(texts: Iterable[str], subject: str) -> tuple[Network, ...]:
    """Networks of ``10.0.0.0/8``, ``::1`` and the like.

    Raises:
        ConfigError: One is none.
    """
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise ConfigError(f"{subject}: expected networks like 10.0.0.0/8, got {text!r:.60}") from None
    return tuple(found)


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


@lru_cache(maxsize=4_096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_trusted(address: str, proxies: Sequence[Network]) -> bool:
    """True if the address lies in one of the networks."""
    parsed = _address(address)
    return parsed is not None and any(parsed in network for network in proxies)


def client_address(peer: str, sent: Sequence[bytes], proxies: Sequence[Network], *, header: str) -> str:
    """Address of the client: the right-most one that is no trusted proxy.

    Each proxy writes the address it saw to the right of what came before, so what stands left of the
    right-most stranger is that stranger's own word. What a trusted proxy wrote and is no address
    ends the walk: the last one known is told.

    Args:
        peer: The other end of the connection.
        sent: Values of the forwarding header, in the order in which they came.
        header: ``x-forwarded-for`` or ``forwarded`` (RFC 7239).
    """
    known = peer
    if not (sent and is_trusted(peer, proxies)):
        return known
    hops = [hop for value in sent for hop in value.decode("latin-1").split(",")]
    for hop in reversed(hops[-HOPS_MAX:]):
        address = _address(_hop_of(hop, header))
        if address is None:
            return known
        known = str(address)
        if not is_trusted(known, proxies):
            return known
    return known


def _hop_of(text: str, header: str) -> str:
    """Address of one hop, without a port."""
    text = text.strip()
    if header == "forwarded":
        found = _FORWARDED.search(text)
        text = found[1].strip('"') if found else ""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
