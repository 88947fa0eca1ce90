"""Doors and rates with clocks of their own: who is let in, what is remembered, when to come again."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.app.doors import verify_open
from pellucid.config import DoorsSection, parse_config
from pellucid.core.access import Caller, parse_networks
from pellucid.errors import ConfigError, ForbiddenError, RateError, UnauthenticatedError
from pellucid.serving.doors import Doors, Knock
from pellucid.serving.rates import CALLERS_MAX, Rates

SECOND = 1_000_000_000


class Bearers:
    """Knows what is in ``callers``; counts how often it was asked."""

    def __init__(self, **callers: Caller) -> None:
        self.callers, self.generation, self.asked = callers, 0, 0

    def find(self, text: str, now_ns: int) -> Caller:
        self.asked += 1
        if text not in self.callers:
            raise UnauthenticatedError("token: expected a valid one, got another")
        return self.callers[text]


class Clock:
    ns = 10**18

    def __call__(self) -> int:
        return self.ns


ANNA = Caller("token:anna", frozenset({"client"}), "token")


def make(clock: Clock | None = None, **more: object) -> Doors:
    clock = clock or Clock()
    return Doors(now_ns=clock, monotonic_ns=clock, **more)  # type: ignore[arg-type]


def test_a_bearer_is_checked_once_and_again_after_a_change_or_a_minute():
    clock, bearers = Clock(), Bearers(t=ANNA)
    doors = make(clock, bearers=bearers)
    knock = Knock("192.0.2.1", [b"Bearer t"])
    assert doors.identify(knock) is doors.identify(knock) is ANNA
    assert bearers.asked == 1
    bearers.generation += 1
    del bearers.callers["t"]
    with pytest.raises(UnauthenticatedError):
        doors.identify(knock)
    bearers.callers["t"] = ANNA
    doors.identify(knock)
    asked = bearers.asked
    clock.ns += 61 * SECOND
    doors.identify(knock)
    assert bearers.asked == asked + 1


def test_what_ends_is_not_remembered_beyond_its_end():
    clock = Clock()
    bearers = Bearers(t=Caller("jwt:x", frozenset(), "jwt", clock.ns + 5 * SECOND))
    doors = make(clock, bearers=bearers)
    doors.identify(Knock("", [b"Bearer t"]))
    clock.ns += 5 * SECOND
    doors.identify(Knock("", [b"Bearer t"]))
    assert bearers.asked == 2


@pytest.mark.parametrize(
    "values",
    [
        [], [b""], [b"Bearer"], [b"Bearer "], [b"Basic dDp0"], [b"t"], [b"Bearer t", b"Bearer t"],
        [b"Bearer t\x00"], [b"Bearer \xff"], [b"Bearer " + b"t" * 9_000], [b"Bearer\tt"], [b"Bearer t,t"],
    ],
)  # fmt: skip
def test_headers_that_bear_nothing(values: list[bytes]):
    doors = make(bearers=Bearers(t=ANNA))
    with pytest.raises(UnauthenticatedError):
        doors.identify(Knock("", values))


@given(st.lists(st.binary(max_size=60) | st.binary(max_size=40).map(b"Bearer ".__add__), max_size=3))
def test_any_authorization_is_refused_by_name_or_is_annas(values: list[bytes]):
    doors = make(bearers=Bearers(t=ANNA))
    with contextlib.suppress(UnauthenticatedError):
        assert doors.identify(Knock("", values)) is ANNA
        assert values[0].split() == [values[0][:6], b"t"]


def test_certificates_and_headers():
    doors = make(bearers=Bearers(t=ANNA), certificates={"DNS:a.example": frozenset({"sre"})})
    named = Knock("", names=("URI:spiffe://x", "DNS:a.example"))
    caller = doors.identify(named)
    assert caller is not None
    assert (caller.identity, caller.roles) == ("certificate:DNS:a.example", frozenset({"sre"}))
    with pytest.raises(ForbiddenError):
        doors.identify(Knock("", names=("CN:a.example",)))  # another kind of name is another name
    assert doors.identify(Knock("", [b"Bearer t"], names=("DNS:a.example",))) is ANNA
    with pytest.raises(UnauthenticatedError):
        doors.identify(Knock("", [b"Bearer wrong"], names=("DNS:a.example",)))


def test_nobody_is_asked_where_authentication_is_off():
    doors = make(proxies=parse_networks(["10.0.0.0/8"], "x"))
    assert doors.identify(Knock("10.0.0.1", [b"Bearer t"])) is None
    assert doors.address(Knock("10.0.0.1", forwarded=[b"192.0.2.9"])) == "192.0.2.9"
    doors.verify(None, "repository", "192.0.2.9", 0)


# -- rates ----------------------------------------------------------------------------------------


def test_requests_fill_again_with_time():
    rates, now = Rates(2, 0), 5 * SECOND
    for _ in range(4):  # two seconds' worth at once
        rates.take("a", 10**9, now)
    with pytest.raises(RateError) as caught:
        rates.take("a", 0, now)
    assert caught.value.retry_s == 1
    rates.take("b", 0, now)  # others have their own
    rates.take("a", 0, now + SECOND // 2)
    with pytest.raises(RateError):
        rates.take("a", 0, now + SECOND // 2)


def test_bytes_may_be_owed_and_then_have_to_be_paid():
    rates, now = Rates(0, 1_000), 5 * SECOND
    rates.take("a", 12_000, now)  # two seconds' worth are there: ten seconds are owed
    with pytest.raises(RateError) as caught:
        rates.take("a", 1, now)
    assert caught.value.retry_s == 11
    with pytest.raises(RateError):
        rates.take("a", 1, now + 10 * SECOND)
    rates.take("a", 1, now + 11 * SECOND)
    rates.charge("a", 5_000, now + 11 * SECOND)
    with pytest.raises(RateError):
        rates.take("a", 1, now + 12 * SECOND)


def test_a_clock_that_goes_back_gives_nothing():
    rates = Rates(1, 0)
    rates.take("a", 0, 100 * SECOND)
    rates.take("a", 0, 100 * SECOND)
    with pytest.raises(RateError):
        rates.take("a", 0, 1 * SECOND)


@given(st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=60))
def test_never_more_than_the_rate_and_one_burst(pauses: list[int]):
    rates, now, let_in = Rates(3, 0), 0, 0
    for pause in pauses:
        now += pause
        try:
            rates.take("a", 0, now)
            let_in += 1
        except RateError:
            pass
    assert let_in <= 3 * 2 + 3 * now / SECOND + 1


def test_memory_has_an_end():
    rates = Rates(1, 0)
    for number in range(CALLERS_MAX + 10):
        rates.take(str(number), 0, 0)
    assert len(rates._accounts) == CALLERS_MAX


# -- configuration --------------------------------------------------------------------------------


def test_beyond_loopback_somebody_has_to_say_so():
    both = DoorsSection(authenticate=True, certificate="c", key="k")
    verify_open(DoorsSection(), "127.0.0.1")
    verify_open(both, "0.0.0.0")
    verify_open(DoorsSection(unsafe_open=True), "0.0.0.0")
    for doors, missing in (
        (DoorsSection(), "doors.authenticate and doors.certificate"),
        (DoorsSection(authenticate=True), "doors.certificate"),
        (DoorsSection(certificate="c", key="k"), "doors.authenticate"),
    ):
        with pytest.raises(ConfigError, match=f"without {missing}") as caught:
            verify_open(doors, "0.0.0.0")
        assert "unsafe_open" in caught.value.hint


@pytest.mark.parametrize(
    "lines",
    [
        'certificate = "c.pem"',
        'client_ca = "ca.pem"',
        'authenticate = true\njwks = "jwks.json"',
        'authenticate = true\njwks = "http://idp/keys"\njwt_issuer = "i"\njwt_audience = "a"',
        'jwks = "k.json"\njwt_issuer = "i"\njwt_audience = "a"',
        'authenticate = true\ncertificates = { "DNS:x" = ["root"] }',
        'authenticate = true\ncertificates = { "x" = ["client"] }',
        'certificates = { "DNS:x" = ["client"] }',
        'authenticate = true\njwt_roles = { "g" = "root" }',
        'trusted_proxies = ["everyone"]',
        'forwarded_header = "x-real-ip"',
        "requests_per_s = -1",
        "connections_max = -1",
        "write_timeout_s = 0",
        "authentication = true",
    ],
)
def test_doors_that_are_none(lines: str):
    with pytest.raises(ConfigError):
        parse_config(f"[doors]\n{lines}\n".encode())
