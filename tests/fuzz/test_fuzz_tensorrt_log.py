"""Bytes of a TensorRT log raise only errors of the tree, and one message costs no more than its length."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensorrt_dump import parse_layers
from pellucid.core.tensorrt_log import Message, decode_log, parse_log, read_messages
from pellucid.core.tensorrt_messages import _ROWS
from pellucid.errors import PellucidError

rows = st.sampled_from([text for _, text in _ROWS]).flatmap(st.from_regex)
severities = st.sampled_from(["VERBOSE", "INFO", "WARNING", "ERROR", "INTERNAL_ERROR", "?"])
VALID = (
    b'{"severity": "INFO", "message": "Total Weights Memory: 9 bytes"}\n'
    b'{"severity": "VERBOSE", "message": "Layers:\\nName: a, LayerType: gemm, Inputs: [], Outputs: [],'
    b' TacticName: , Metadata: [ONNX Layer: n]\\n\\nI/O Tensors:\\n"}\n'
)


@given(raw=st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    with contextlib.suppress(PellucidError):
        parse_log(decode_log(raw))


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 9))
def test_a_damaged_log(at: int, byte: int, cut: int) -> None:
    at %= len(VALID)
    with contextlib.suppress(PellucidError):
        parse_log(decode_log(VALID[:at] + bytes([byte]) + VALID[at + cut :]), ["n"])


@given(st.lists(st.builds(Message, severities, rows | st.text(max_size=40)), max_size=8))
def test_any_sequence_of_lines(lines: list[Message]) -> None:
    said = read_messages(lines)
    assert said.messages == len(lines)
    json.dumps(said.kinds)
    with contextlib.suppress(PellucidError):
        parse_log(lines)


@given(st.text(st.sampled_from(list("[]{}, :\nName\x1f0")), max_size=200))
def test_any_dump(text: str) -> None:
    with contextlib.suppress(PellucidError):
        parse_layers("Layers:\n" + text)


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        ("Found ", " to be part of a"),
        ("Parsing node: ", " [a"),
        ("", " [a] inputs: "),
        ("After ", "a "),
        ("Layer: ", " Host Persistent: 1 bytes Device Persistent: 1"),
        ("--------------- Timing Runner: ", " (a[0x1"),
        ("Marking ", " as output: "),
        ("Adding network input: ", " with dtype: a, dimensions: (1"),
        ("Layers:\n", "[{"),
        ("Layers:\nName: ", ", a: [ { }]"),
    ],
)
def test_a_long_message_takes_no_quadratic_time(start: str, repeated: str) -> None:
    message = start + repeated * (400_000 // len(repeated))
    begun = time.process_time()
    with contextlib.suppress(PellucidError):
        parse_log([Message("VERBOSE", message)])
    assert time.process_time() - begun < 5  # measured: under 0.1; quadratic would take minutes
