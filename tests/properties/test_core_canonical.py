"""Canonical JSON, digests and times: one spelling each, and everything else is refused."""

from __future__ import annotations

import json

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical
from pellucid.core.digest import format_digest, parse_digest, sha256, verify_digest
from pellucid.core.times import format_time, parse_time
from pellucid.errors import DigestMismatchError, FormatError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.from_regex(r"[A-Za-z0-9_]{1,12}", fullmatch=True)
INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
PROFILE = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(PROFILE)
def test_equals_the_reference_encoder_of_rfc_8785(value):
    assert canonical.encode(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("start", range(0, 0x10000, 0x4000))
def test_every_character_of_the_basic_plane_is_written_as_rfc_8785_does(start):
    text = "".join(chr(c) for c in range(start, start + 0x4000) if not 0xD800 <= c < 0xE000)
    assert canonical.encode(text) == rfc8785.dumps(text)


@given(PROFILE)
def test_reads_back_what_it_wrote(value):
    assert canonical.decode(canonical.encode(value)) == value


@given(PROFILE)
def test_any_other_spelling_is_refused(value):
    raw = canonical.encode(value)
    for other in (json.dumps(value, indent=1).encode(), json.dumps(value).encode(), raw + b" ", b" " + raw):
        if other != raw:
            with pytest.raises(FormatError):
                canonical.decode(other)


@given(PROFILE)
def test_foreign_reader_takes_any_spelling(value):
    assert canonical.decode_foreign(json.dumps(value, indent=2).encode()) == value


@pytest.mark.parametrize("raw", [b'{"a":1,"a":2}', b"[NaN]", b"[-Infinity]", b"[" * 100_000, b"1" * 5000])
def test_foreign_reader_refuses(raw):
    with pytest.raises(FormatError):
        canonical.decode_foreign(raw)


@pytest.mark.parametrize(
    "value", [1.5, float("nan"), 2**53, -(2**53), 10**400, "\ud800", {"\ud800": 1}, {1: 2}, b"x", {1}]
)
def test_values_outside_the_profile_are_refused(value):
    with pytest.raises(FormatError):
        canonical.encode({"a": [value]})


def test_size_is_limited_before_anything_is_read():
    with pytest.raises(FormatError, match="at most 3 bytes"):
        canonical.decode(b"[1,2]", size_max=3)
    with pytest.raises(FormatError, match="at most 3 bytes"):
        canonical.decode_foreign(b"[1,2]", size_max=3)


@given(st.binary(min_size=32, max_size=32))
def test_digest_text_and_bytes_go_both_ways(raw):
    assert parse_digest(format_digest(raw)) == raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "sha256:" + "A" * 64,
        "sha512:" + "0" * 64,
        "sha256:" + "0" * 63,
        "sha256:" + "0" * 64 + "\n",
    ],
)
def test_digest_has_one_spelling(text):
    with pytest.raises(FormatError):
        parse_digest(text)


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(1, 255))
def test_changed_bytes_have_another_digest(data, where, change):
    assert verify_digest("data", data, sha256(data)) == data
    changed = bytearray(data or b"\x00")
    changed[where % len(changed)] ^= change
    with pytest.raises(DigestMismatchError, match="data: expected sha256:"):
        verify_digest("data", bytes(changed), sha256(data or b"\x00"))


def test_digest_to_compare_with_may_be_any_text():
    with pytest.raises(DigestMismatchError):
        verify_digest("data", b"", "é\ud800")


@given(st.integers(-(2**60), 2**62))
def test_time_text_goes_both_ways_and_sorts_like_time(ns):
    text = format_time(ns)
    assert len(text) == 30
    assert parse_time(text) == ns
    assert (format_time(ns + 1) > text) is True


@pytest.mark.parametrize(
    "text",
    ["", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00+01:00", "2026-01-01 00:00:00Z",
     "2026-01-01T24:00:01Z", "2026-01-01T00:00:60Z", "2026-01-01T00:00:00.1234567890Z",
     "٢٠٢٦-01-01T00:00:00Z",
     "2026-01-01T00:00:00.٣Z", "2026-01-01T00:00:00Z\n", None, 5],
)  # fmt: skip
def test_other_times_are_refused(text):
    with pytest.raises(FormatError):
        parse_time(text)


@pytest.mark.parametrize("ns", [10**21, -(10**21), 10**30])
def test_times_beyond_the_calendar_are_refused(ns):
    with pytest.raises(FormatError):
        format_time(ns)
