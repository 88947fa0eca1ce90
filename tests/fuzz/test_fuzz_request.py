"""Bytes from outside: a request either fits the model exactly or is refused by the tree's own errors."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import TensorSpec, verify_tensor
from pellucid.errors import PellucidError
from pellucid.servers.http.body import answer_encoding, inflate
from pellucid.servers.http.routes import find_route
from pellucid.serving.limits import Limits
from pellucid.serving.model import make_signature
from pellucid.serving.request import parse_infer
from pellucid.testing.plane import echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder

SIGNATURES = [
    make_signature((TensorSpec("x", kind, (-1, 3)),), (TensorSpec("y", "FP32", (-1, 1)),), 8)
    for kind in ("FP32", "INT8", "BYTES", "BOOL")
] + [
    make_signature(
        (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,))),
        (TensorSpec("y", "FP16", (-1, 1)),),
        8,
    ),
    make_signature((TensorSpec("x", "FP64", (3,)),), (TensorSpec("y", "FP32", (1,)),), 1),
]

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    | st.sampled_from(["x", "a", "b", "y", "FP32", "INT64", "BYTES", 1, 2, 3, 12, -1, 2**64])
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
parameters = st.dictionaries(
    st.sampled_from(
        ["binary_data_size", "binary_data", "binary_data_output", "classification", "subject", "z"]
    ),
    scalars,
    max_size=3,
)
items = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "a", "b", "y"]) | scalars,
        "shape": st.lists(st.sampled_from([1, 2, 3, 8, 9]), max_size=3) | values,
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "INT64", "FP64"]) | scalars,
        "data": values | st.lists(st.integers(0, 1), min_size=3, max_size=6),
        "parameters": parameters | scalars,
    },
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "id": scalars,
        "inputs": st.lists(items, max_size=3) | values,
        "outputs": st.lists(items, max_size=3) | values,
        "parameters": parameters | values,
    },
)


def outcome(function: Any, *given: Any) -> Any:
    """What it gives, or the error of the tree; anything else fails the test."""
    try:
        return function(*given)
    except PellucidError as error:
        return error


def check(body: bytes, length: int | None, signature: Any) -> None:
    request = outcome(parse_infer, body, length, signature)
    if isinstance(request, PellucidError):
        assert "expected" in request.message
        assert len(request.message.encode()) < 4_000
        return
    assert [t.name for t in request.tensors] == [s.name for s in signature.inputs]
    for tensor, spec in zip(request.tensors, signature.inputs, strict=True):
        verify_tensor(tensor)
        assert tensor.datatype == spec.datatype
        for axis, (got, declared) in enumerate(zip(tensor.shape, spec.shape, strict=True)):
            assert got == declared or (declared == -1 and 0 < got <= (8 if axis == 0 else 2**40))
        if signature.batched:
            assert tensor.shape[0] == request.rows <= signature.rows_max


@given(requests, st.binary(max_size=40), st.none() | st.integers(0, 300), st.sampled_from(SIGNATURES))
def test_requests_that_look_like_requests(value: Any, tail: bytes, length: int | None, signature: Any):
    head = json.dumps(value).encode()
    check(head, None, signature)
    check(head + tail, len(head), signature)
    check(head + tail, length, signature)


@given(st.binary(max_size=200), st.none() | st.integers(0, 300), st.sampled_from(SIGNATURES))
def test_any_bytes_at_all(body: bytes, length: int | None, signature: Any):
    check(body, length, signature)


@given(st.binary(max_size=60) | st.builds(lambda b: b"/v2/models/" + b, st.binary(max_size=40)))
def test_any_path(raw: bytes):
    route = find_route(raw)
    assert route.problem is None or isinstance(outcome(route.verify), PellucidError)
    assert route.problem is not None or "/" not in route.model


@given(st.binary(max_size=200), st.sampled_from([b"gzip", b"deflate"]), st.integers(0, 50))
def test_any_compressed_body(body: bytes, encoding: bytes, size_max: int):
    plain = outcome(inflate, body, encoding, size_max)
    assert isinstance(plain, PellucidError) or len(plain) <= size_max


@given(st.binary(max_size=60))
def test_any_accept_encoding(value: bytes):
    assert answer_encoding(value) in (b"", b"gzip", b"deflate")


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=60) | st.builds(lambda v: json.dumps(v).encode(), requests),
            st.lists(
                st.tuples(
                    st.sampled_from(
                        [
                            "Inference-Header-Content-Length",
                            "Content-Encoding",
                            "traceparent",
                            "content-length",
                        ]
                    ),
                    st.text("0123456789abc-+gzip, ", max_size=12),
                ),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_number_is_closed_once_whatever_comes(sent: list[tuple[bytes, list[tuple[str, str]]]]):
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, Limits(body_max_bytes=10_000))
    replies = exchange(plane, [("POST", "/v2/models/echo/infer", body, headers) for body, headers in sent])
    assert all(reply.status == 200 or 400 <= reply.status < 500 for reply in replies)
    assert not recorder.open
    assert sorted(call.n for call in recorder.calls()) == list(range(1, len(sent) + 1))
    recorder.entries()
