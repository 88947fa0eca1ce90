"""Bytes from outside raise only errors of the tree: calibration sets, manifests, artefacts, models."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.build import precision
from pellucid.build.calibration_data import file_digests, input_specs, read_calibration
from pellucid.core import canonical
from pellucid.core.calibration import parse_manifest
from pellucid.core.calibration_ranges import parse_ranges
from pellucid.core.digest import sha256
from pellucid.errors import PellucidError
from pellucid.testing.models import credit_like

ROWS = np.random.default_rng(0).standard_normal((6, 20)).astype(np.float32)
SECTION: dict[str, Any] = {
    "data": "c.npz", "method": "minmax", "percentile": "99.99", "per_channel": True,
    "operators": ["Gemm", "MatMul"], "select": {"rule": "all", "count": None, "seed": 0, "slice": None},
    "slices": ["light"], "times": "seen", "source": None, "licence": None, "artefact": None,
}  # fmt: skip
RECIPE: dict[str, Any] = {
    "backend": "onnxruntime", "precision": "int8", "buckets": [1], "calibration": SECTION,
}  # fmt: skip


def _npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, features=ROWS, light=np.array(list("aabbab")), seen=np.arange(6))
    return file.getvalue()


DATA = _npz()
BUILT = precision.apply(credit_like(), RECIPE, {"calibration": DATA})
RANGES = canonical.encode(BUILT.documents["calibration/ranges.json"])
MANIFEST = canonical.encode(BUILT.documents["calibration/manifest.json"])
SPECS = input_specs(onnx.load_model_from_string(credit_like()))
scalars = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["0.1", "1e999", "nan"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def mutated(raw: bytes, at: int, byte: int, cut: int) -> bytes:
    at %= len(raw)
    return raw[:at] + bytes([byte]) + raw[at + cut :]


def replaced(raw: bytes, value: Any, path: list[int]) -> bytes:
    """The document with one part of it another value, and an honest digest where it has one."""
    document = json.loads(raw)
    part: Any = document
    for step in path[:-1]:
        inner = part[sorted(part)[step % len(part)]] if type(part) is dict and part else None
        inner = part[step % len(part)] if type(part) is list and part else inner
        if type(inner) not in (dict, list) or not inner:
            break
        part = inner
    key = sorted(part)[path[-1] % len(part)] if type(part) is dict else path[-1] % len(part)
    part[key] = value
    if "digest" in document:
        del document["digest"]
        document["digest"] = sha256(canonical.encode(document))
    return canonical.encode(document)


@given(raw=st.binary(max_size=200), at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 8))
def test_any_bytes_as_a_document(raw: bytes, at: int, byte: int, cut: int) -> None:
    for parse, good in ((parse_ranges, RANGES), (parse_manifest, MANIFEST)):
        for data in (raw, mutated(good, at, byte, cut)):
            with contextlib.suppress(PellucidError):
                parse(data)


@settings(max_examples=300)
@given(value=values, path=st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_any_value_anywhere_in_a_document(value: Any, path: list[int]) -> None:
    for parse, good in ((parse_ranges, RANGES), (parse_manifest, MANIFEST)):
        with contextlib.suppress(PellucidError):
            parse(replaced(good, value, path))


@settings(max_examples=40, deadline=None)
@given(value=values, path=st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_any_artefact_gives_the_same_graph_or_is_refused(value: Any, path: list[int]) -> None:
    recipe = RECIPE | {"calibration": SECTION | {"artefact": "r.json"}}
    with contextlib.suppress(PellucidError):
        raw = replaced(RANGES, value, path)
        again = precision.apply(credit_like(), recipe, {"calibration": DATA, "artefact": raw})
        assert again.model == BUILT.model


@given(raw=st.binary(max_size=200), at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 8))
def test_any_bytes_as_a_calibration_set(raw: bytes, at: int, byte: int, cut: int) -> None:
    inputs = [{"name": "features", "datatype": "FP32", "shape": [20]}]
    for data in (raw, b"PK\x03\x04" + raw, mutated(DATA, at, byte, cut)):
        with contextlib.suppress(PellucidError):
            read_calibration(data, RECIPE, SPECS)
        with contextlib.suppress(PellucidError):
            file_digests(data, inputs)
