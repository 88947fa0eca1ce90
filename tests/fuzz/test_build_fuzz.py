"""Bytes from outside raise only errors of the tree: recipes, meanings, validation sets, models."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pellucid.build.meaning import read_meaning
from pellucid.build.samples import read_validation
from pellucid.core.recipe import effective, encode_recipe, parse_recipe
from pellucid.core.tensor import TensorSpec
from pellucid.errors import PellucidError

VALID = yaml.safe_dump(
    {
        "name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "m.onnx",
        "gate": {"kl_mean_max": 0.01}, "reasons": [{"choice": "threads", "reason": "why", "reviewer": "who"}],
        "validation": {"data": "v.npz", "slices": ["a"]}, "limits": {"timeout_s": 5},
    }
).encode()  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted(effective(parse_recipe(VALID)))


def mutated(raw: bytes, at: int, byte: int, cut: int) -> bytes:
    at %= len(raw)
    return raw[:at] + bytes([byte]) + raw[at + cut :]


@given(raw=st.binary(max_size=200))
def test_any_bytes_as_a_recipe(raw: bytes) -> None:
    with contextlib.suppress(PellucidError):
        parse_recipe(raw)


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 8))
def test_a_damaged_recipe_is_read_whole_or_refused(at: int, byte: int, cut: int) -> None:
    with contextlib.suppress(PellucidError):
        said = effective(parse_recipe(mutated(VALID, at, byte, cut)))
        assert effective(parse_recipe(encode_recipe(said))) == said


@given(key=st.sampled_from(KEYS), value=values)
def test_any_value_of_any_key(key: str, value: object) -> None:
    raw = json.dumps(yaml.safe_load(VALID) | {key: value}).encode()  # JSON is YAML
    with contextlib.suppress(PellucidError):
        said = effective(parse_recipe(raw))
        assert effective(parse_recipe(encode_recipe(said))) == said


@given(raw=st.binary(max_size=100) | values.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_as_a_meaning(raw: bytes) -> None:
    with contextlib.suppress(PellucidError):
        read_meaning(raw, Path("/nonexistent"))


@given(part=st.sampled_from(["features", "decision", "preprocessing", "description"]), value=values)
def test_any_part_of_a_meaning(part: str, value: object) -> None:
    with contextlib.suppress(PellucidError):
        read_meaning(json.dumps({part: value}).encode(), Path("/nonexistent"))


@given(raw=st.binary(max_size=200) | st.text(alphabet='ab,"\n1', max_size=60).map(str.encode))
def test_any_bytes_as_a_validation_set(raw: bytes) -> None:
    recipe = {"validation": {"data": "v", "labels": "a", "slices": ["b"]}, "buckets": [1]}
    for data in (raw, b"PK\x03\x04" + raw):
        with contextlib.suppress(PellucidError):
            read_validation(data, recipe, {}, [TensorSpec("x", "FP32", (-1, 1))])
