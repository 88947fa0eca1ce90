"""Bytes that claim to be a model raise only errors of the tree, whatever step reads them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pellucid.build.canonical_graph import canonicalise
from pellucid.build.canonical_read import parse
from pellucid.build.preflight import graph_findings
from pellucid.core.recipe import effective, parse_recipe
from pellucid.errors import ParseError, PellucidError
from pellucid.testing.models import MODELS, credit_like

RECIPE = effective(
    parse_recipe(
        b'{"name": "m", "version": "1", "backend": "onnxruntime", "target": "cpu", "model": "m.onnx"}'
    )
)
damage = st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4), st.integers(0, 8))


@given(name=st.sampled_from(sorted(MODELS)), cuts=st.lists(damage, min_size=1, max_size=4))
def test_a_damaged_model_is_canonical_or_refused(name: str, cuts: list[Any]) -> None:
    raw = MODELS[name]()
    for at, put, cut in cuts:
        at %= len(raw)
        raw = raw[:at] + put + raw[at + cut :]
    with contextlib.suppress(PellucidError):
        done = canonicalise(raw, RECIPE)
        assert canonicalise(done.compiled, RECIPE).compiled == done.compiled
    with contextlib.suppress(ParseError):
        for finding in graph_findings(parse(raw), RECIPE):
            assert finding.severity in ("refused", "risk", "note")


texts = st.text(max_size=20) | st.sampled_from(
    ["../x", "/etc/passwd", "w.bin", "a/../w.bin", "0", "-1", "9" * 30]
)


@given(
    said=st.dictionaries(st.sampled_from(["location", "offset", "length", "checksum"]), texts),
    dims=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    kind=st.integers(0, 40),
)
def test_any_words_about_a_file_beside_the_model(
    tmp_path_factory: Any, said: dict[str, str], dims: list[int], kind: int
) -> None:
    folder = Path(tmp_path_factory.getbasetemp()) / "beside"
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(b"\0" * 64)
    proto = onnx.load_model_from_string(credit_like())
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location, tensor.data_type = onnx.TensorProto.EXTERNAL, kind
    tensor.dims[:] = dims
    for key, text in said.items():
        tensor.external_data.add(key=key, value=text)
    with contextlib.suppress(PellucidError, DecodeError):
        canonicalise(proto.SerializeToString(), RECIPE, folder)


@given(
    shapes=st.dictionaries(
        st.sampled_from(["amount", "kind", "x"]), st.lists(st.integers(-1, 2**31 - 1), max_size=4)
    )
)
def test_any_shapes(shapes: dict[str, list[int]]) -> None:
    with contextlib.suppress(PellucidError):
        canonicalise(MODELS["two_inputs"](), RECIPE | {"shapes": shapes})
