"""Canonical JSON."""

from __future__ import annotations

from typing import Any

from generator.keys import Case

from pellucid.core import canonical


def canonical_cases() -> list[Case]:
    values = {
        "empty_object": {},
        "keys_sorted": {"b": 1, "a": 2, "B": 3, "_": 4, "a1": 5, "10": 6, "9": 7},
        "nested": {"a": [1, [2, {"c": None, "b": [True, False]}]]},
        "integer_limits": [2**53 - 1, -(2**53 - 1), 0, -1],
        "text_escapes": 'quote " backslash \\ slash / \b\f\n\r\t \x00\x1f\x7f',
        "text_unicode": "é € 𝄞 \u2028 \ufeff",
        "scalar_null": None,
        "empty_text": "",
        "deep_32": nested(32),
    }
    wrong = {
        "float_fail": 1.5,
        "float_whole_fail": 1.0,
        "integer_too_large_fail": 2**53,
        "integer_too_small_fail": -(2**53),
        "key_with_space_fail": {"a b": 1},
        "key_empty_fail": {"": 1},
        "key_not_ascii_fail": {"é": 1},
        "deep_33_fail": nested(33),
    }
    inputs = {
        "decode_plain": b'{"a":[1,"\xc3\xa9"],"b":null}',
        "white_space_fail": b'{"a": 1}',
        "final_newline_fail": b'{"a":1}\n',
        "unsorted_fail": b'{"b":1,"a":2}',
        "duplicate_key_fail": b'{"a":1,"a":1}',
        "escaped_ascii_fail": b'"\\u0041"',
        "escaped_slash_fail": b'"\\/"',
        "upper_case_escape_fail": b'"\\u001F"',
        "lone_surrogate_fail": b'"\\ud800"',
        "encoded_surrogate_fail": b'"\xed\xa0\x80"',
        "not_utf8_fail": b'"\xff"',
        "byte_order_mark_fail": b"\xef\xbb\xbf{}",
        "nan_fail": b"NaN",
        "exponent_fail": b"1e3",
        "float_in_fail": b"1.5",
        "minus_zero_fail": b"-0",
        "leading_zero_fail": b"01",
        "truncated_fail": b'{"a":1',
        "two_values_fail": b"1 2",
        "empty_fail": b"",
    }
    cases = [
        {"name": name, "operation": "encode", "value": value, "expected": canonical.encode(value).decode()}
        for name, value in values.items()
    ]
    cases += [{"name": name, "operation": "encode", "value": value} for name, value in wrong.items()]
    for name, raw in inputs.items():
        case: Case = {"name": name, "operation": "decode", "input_hex": raw.hex()}
        if not name.endswith("_fail"):
            case["expected"] = canonical.decode(raw)
        cases.append(case)
    return cases


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
