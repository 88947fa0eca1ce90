"""Strict JSON: what RFC 8259 does not allow, and members that stand twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.errors import FormatError
from pellucid.serving.strict import decode_strict

REFUSED = {
    "nothing": b"",
    "byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":[1,Infinity]}',
    "minus Infinity": b'{"a":-Infinity}',
    "huge number": b'{"a":1e400}',
    "trailing bytes": b'{"a":1}x',
    "trailing comma": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "comment": b'{"a":1}//',
    "leading zero": b'{"a":01}',
    "bare control character": b'{"a":"\x01"}',
    "not UTF-8": b'{"a":"\xff"}',
    "surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "lone surrogate": b'{"a":"\\ud800"}',
    "cut off": b'{"a":',
    "deep": b"[" * 100_000,
    "deep but whole": b"[" * 200 + b"]" * 200,
    "deep objects": b'{"a":' * 200 + b"1" + b"}" * 200,
    "twins": b'{"a":1,"a":2}',
    "twins, one escaped": b'{"a":1,"\\u0061":2}',
    "twins inside": b'{"x":[{"name":"a","name":"b"}]}',
    "twins behind an escaped colon": b'{"a":1,"a":2,"b":"\\u003a"}',
    "twins behind an escaped colon in capitals": b'{"a":1,"a":2,"b":"\\u003A"}',
    "twins in an object among numbers": b'{"data":[1,{"a":1,"a":2}]}',
    "twins in a dropped twin": b'{"a":{"b":1,"b":2},"a":3}',
    "empty names": b'{"":1,"":2}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_strict_json_is_refused(name: str):
    with pytest.raises(FormatError, match="expected"):
        decode_strict(REFUSED[name])


@pytest.mark.parametrize(
    "body",
    [
        b'{"a:b":"c:d","e":[1.5,2],"f":{"a:b":null}}',
        b'{"\\u003a":1}',
        b'{"data":["a:b","c"]}',
        b' {"a" : 1} ',
        b'{"a":[],"b":[[]],"c":{}}',
        b'{"data":[true,false],"x":"\\u0000"}',
        b'{"data":[1,"a:b"]}',
    ],
)
def test_colons_in_texts_are_no_members(body: bytes):
    assert decode_strict(body) == json.loads(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(':a\\"u03', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(":ab", max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_json, st.booleans())
def test_every_json_value_without_twins_comes_back(value: object, escape: bool):
    assert decode_strict(json.dumps(value, ensure_ascii=escape).encode()) == value


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ":", "c"]), _json), min_size=1, max_size=5))
def test_twins_never_pass(members: list[tuple[str, object]]):
    text = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in members) + "}"
    names = [name for name, _ in members]
    if len(set(names)) == len(names):
        assert decode_strict(text.encode()) == dict(members)
    else:
        with pytest.raises(FormatError, match="once"):
            decode_strict(text.encode())
