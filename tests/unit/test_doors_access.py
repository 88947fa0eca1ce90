"""Roles, addresses and names of certificates: tables, and the rule about proxies by property."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.config import parse_config
from pellucid.core.access import (
    ACTIONS,
    ROLES,
    Caller,
    client_address,
    is_allowed,
    is_loopback,
    parse_networks,
    verify_allowed,
)
from pellucid.errors import ConfigError, ForbiddenError
from pellucid.servers.grpc.asked import ASKED
from pellucid.servers.grpc.callers import action_of as grpc_action
from pellucid.servers.http.callers import action_of
from pellucid.servers.http.routes import ENDPOINTS

# the whole table once more, by hand: a change of rights is a change of this test
ALLOWED = {
    "client": {"infer", "metadata", "whoami", "shared_memory"},
    "ml-engineer": {"infer", "metadata", "whoami", "shared_memory", "statistics", "settings"},
    "sre": {
        "metadata", "whoami", "statistics", "settings", "metrics", "repository", "change_settings",
    },
    "security": {"metadata", "whoami", "statistics", "settings", "metrics"},
    "compliance": {"metadata", "whoami", "statistics", "settings"},
    "auditor": {"metadata", "whoami", "statistics", "settings", "metrics"},
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_what_it_needs_and_nothing_else(role: str):
    assert {action for action in ACTIONS if is_allowed([role], action)} == ALLOWED[role]
    assert not is_allowed([role], "an action of tomorrow")


@pytest.mark.parametrize("roles", [(), ("root",), ("Client",), ("client ",)])
def test_words_that_are_no_role_give_nothing(roles: tuple[str, ...]):
    caller = Caller("token:x", frozenset(roles), "token")
    for action in ACTIONS:
        with pytest.raises(ForbiddenError, match="got none"):
            verify_allowed(caller, action)


def test_every_route_and_rpc_asks_for_an_action_that_somebody_may():
    asked = {action_of(kind, method) for kind, methods in ENDPOINTS.values() for method in methods}
    asked |= {grpc_action(name) for name in ASKED}
    assert asked - {"health"} <= set(ACTIONS)
    assert action_of("load", "POST") == grpc_action("RepositoryModelLoad") == "repository"
    assert action_of("shm_register", "POST") == grpc_action("SystemSharedMemoryRegister") == "shared_memory"
    assert action_of("cuda_register", "POST") == grpc_action("CudaSharedMemoryRegister") == "shared_memory"
    assert (action_of("logging", "GET"), action_of("logging", "POST")) == ("settings", "change_settings")
    assert {kind for kind, _ in ENDPOINTS.values() if action_of(kind, "GET") == "health"} == {"live", "ready"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("::ffff:127.0.0.1", True),
     ("0.0.0.0", False), ("::", False), ("", False), ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool):
    assert is_loopback(host) is expected


# -- proxies --------------------------------------------------------------------------------------

PROXIES = parse_networks(["10.0.0.0/8", "fd00::/8"], "test")


@pytest.mark.parametrize(
    ("peer", "sent", "expected"),
    [
        ("10.0.0.1", [b"1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", [b"6.6.6.6, 1.2.3.4"], "1.2.3.4"),  # what a client wrote itself
        ("10.0.0.1", [b"6.6.6.6", b"1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", [b"1.2.3.4, 10.0.0.2"], "1.2.3.4"),
        ("10.0.0.1", [b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # nobody but proxies: the first
        ("1.2.3.4", [b"10.0.0.1"], "1.2.3.4"),  # a stranger's word counts for nothing
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b""], "10.0.0.1"),
        ("10.0.0.1", [b"1.2.3.4, garbage"], "10.0.0.1"),
        ("10.0.0.1", [b"garbage, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", [b"1.2.3.4:5555"], "1.2.3.4"),
        ("10.0.0.1", [b"[2001:db8::1]:5555"], "2001:db8::1"),
        ("10.0.0.1", [b"2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", [b"::ffff:1.2.3.4"], "1.2.3.4"),
        ("::ffff:10.0.0.1", [b"1.2.3.4"], "1.2.3.4"),
        ("fd00::1", [b"1.2.3.4"], "1.2.3.4"),
        ("", [b"1.2.3.4"], ""),
        ("10.0.0.1", [b"1.2.3.4\xff"], "10.0.0.1"),
        ("10.0.0.1", [b"," * 5_000], "10.0.0.1"),
    ],
)
def test_x_forwarded_for(peer: str, sent: list[bytes], expected: str):
    assert client_address(peer, sent, PROXIES, header="x-forwarded-for") == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"for=1.2.3.4", "1.2.3.4"),
        (b'for="[2001:db8::1]:4711";proto=https', "2001:db8::1"),
        (b"proto=https; For=1.2.3.4:80 ;by=10.0.0.1", "1.2.3.4"),
        (b"for=6.6.6.6, for=1.2.3.4;proto=http, for=10.0.0.9", "1.2.3.4"),
        (b"for=_hidden", "10.0.0.1"),
        (b"for=unknown", "10.0.0.1"),
        (b"1.2.3.4", "10.0.0.1"),
        (b"before=1.2.3.4", "10.0.0.1"),
    ],
)
def test_forwarded(sent: bytes, expected: str):
    assert client_address("10.0.0.1", [sent], PROXIES, header="forwarded") == expected


@given(
    st.lists(st.ip_addresses(v=4), max_size=5),
    st.ip_addresses(v=4).filter(lambda a: not any(a in n for n in PROXIES)),
    st.lists(st.ip_addresses(v=4, network="10.0.0.0/8"), max_size=5),
    st.lists(st.text(max_size=8).filter(lambda t: "," not in t), max_size=3),
)
def test_whatever_a_client_writes_the_address_that_the_first_proxy_saw_is_told(
    forged: list[object], client: object, proxies: list[object], noise: list[str]
):
    hops = [*noise, *map(str, forged), str(client), *map(str, proxies)]
    sent = [", ".join(hops).encode()]
    told = client_address("10.255.0.1", sent, PROXIES, header="x-forwarded-for")
    assert told == str(client)


@given(st.binary(max_size=200), st.sampled_from(["x-forwarded-for", "forwarded"]))
def test_any_bytes_give_an_address(raw: bytes, header: str):
    told = client_address("10.0.0.1", [raw], PROXIES, header=header)
    assert ipaddress.ip_address(told)


def test_networks_that_are_none():
    with pytest.raises(ConfigError, match="trusted_proxies"):
        parse_networks(["10.0.0.1/8"], "doors.trusted_proxies")  # bits behind the mask


# -- the page -------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/secure-the-doors.md").read_text()


def test_the_how_to_says_what_the_table_says():
    wanted = {
        "inference, shared memory": {"infer", "shared_memory"},
        "metadata, index, documents, `/whoami`": {"metadata", "whoami"},
        "statistics, trace and log settings": {"statistics", "settings"},
        "load, unload, changes of settings": {"repository", "change_settings"},
    }
    for title, actions in wanted.items():
        (row,) = re.findall(rf"(?m)^\| {re.escape(title)} \|(.*)\|$", PAGE)
        said = {role for role, cell in zip(ROLES, row.split("|"), strict=True) if cell.strip() == "yes"}
        for action in actions:
            assert said == ACTIONS[action], action


def test_the_settings_of_the_how_to_are_settings():
    lines = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)
    config = parse_config("".join(lines).encode())
    assert config.doors.authenticate
    assert config.doors.jwt_roles["apps"] == "client"
    assert config.doors.requests_per_s == 200
