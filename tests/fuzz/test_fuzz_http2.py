"""Whatever comes on a gRPC connection: no exception leaves it, every number is closed, memory is bounded."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.servers.grpc.connection import FRAME_MAX
from pellucid.servers.grpc.frames import PREFACE, BrokenError, Code, Kind, frame
from pellucid.servers.grpc.heads import HeadReader, read_fields
from pellucid.servers.grpc.messages import InferRequest
from pellucid.servers.grpc.service import FAULT
from pellucid.servers.grpc.wire import RefusedError, inflate
from pellucid.testing.http2 import HELLO, block, call, connect, data, fields, headers, settle
from pellucid.testing.plane import echo_model, make_plane
from pellucid.testing.recorder import MemoryRecorder

GOOD = InferRequest(
    model_name="echo", inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 3]}],
    raw_input_contents=[struct.pack("<3f", 1, 2, 3)],
).SerializeToString()  # fmt: skip
streams = st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1])
frames = st.builds(
    frame, st.integers(0, 11), st.integers(0, 255) | st.sampled_from([0, 1, 4, 5]), streams,
    st.binary(max_size=40) | st.just(block(fields("ModelInfer"))) | st.just(b"\0\0\0\0\1\0"),
)  # fmt: skip
good = st.builds(call, st.sampled_from([1, 3, 5, 7, 9]), st.just("ModelInfer"), st.just(GOOD))
begun = st.builds(headers, streams, st.sampled_from(["ModelInfer", "ModelStreamInfer", "ServerLive", "x"]))
pieces = st.builds(data, streams, st.binary(max_size=30), end=st.booleans())
sent = st.lists(frames | good | begun | pieces | st.binary(max_size=20), max_size=12).map(b"".join)
starts = st.sampled_from([HELLO, HELLO, HELLO, PREFACE, b"", b"GET / HTTP/1.1\r\n\r\n"])


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    """In pieces, as a network may bring it."""
    at = sorted({place % (len(raw) + 1) for place in places} | {0, len(raw)})
    return [raw[begin:end] for begin, end in pairwise(at)]


async def converse(raw: list[bytes]) -> tuple[Any, MemoryRecorder]:
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    plane.attach(asyncio.get_running_loop())
    connection, wire = connect(plane)
    for piece in raw:
        if not wire.closed:
            connection.data_received(piece)
    assert len(connection._buffer) <= FRAME_MAX + 9
    await settle(connection)
    connection.connection_lost(None)
    await plane.drain(5)
    faults = [told for told in wire.ear.rpcs.values() if told.fields.get("grpc-message") == FAULT]
    assert not faults
    assert wire.ear.goaway is None or wire.ear.goaway.number != Code.INTERNAL_ERROR
    assert not connection.streams
    assert connection.held.bytes == 0
    return wire, recorder


@settings(deadline=None)
@given(starts, sent, st.lists(st.integers(0, 2_000), max_size=6))
def test_anything_on_a_connection(start: bytes, raw: bytes, places: list[int]):
    _, recorder = asyncio.run(converse(cut(start + raw, places)))
    assert not recorder.open
    recorder.entries()


@settings(deadline=None)
@given(st.lists(st.integers(0, 2_000), max_size=40), st.integers(1, 4))
def test_a_good_client_is_answered_however_its_bytes_are_cut(places: list[int], calls: int):
    ids = range(1, 2 * calls, 2)
    raw = HELLO + b"".join([call(stream, "ModelInfer", GOOD) for stream in ids])
    wire, recorder = asyncio.run(converse(cut(raw, places)))
    told = [wire.ear.rpcs[stream] for stream in ids]
    assert [each.status for each in told] == [0] * calls
    assert len({each.fields["pellucid-call"] for each in told}) == calls
    assert [record.outcome for record in recorder.calls()] == ["answered"] * calls


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_any_header_block(blocks: list[bytes]):
    reader, fresh = HeadReader(), HeadReader()
    with suppress(BrokenError):
        for raw in blocks:
            head = reader.read(raw)
            fresh._known.clear()
            assert head == fresh.read(raw), "what is remembered of a block is what it says"
            assert reader.read(raw) == fresh.read(raw)


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=6))
def test_any_headers(given_fields: list[tuple[bytes, bytes]]):
    head = read_fields(given_fields)
    assert head.problem or head.path


@given(st.binary(max_size=60), st.sampled_from([b"gzip", b"deflate", b"identity", b"br"]))
def test_any_compressed_message(raw: bytes, encoding: bytes):
    with suppress(RefusedError):
        assert len(inflate(raw, encoding, 100)) <= 100


def test_frames_are_what_they_say():
    assert frame(Kind.PING, 1, 0, b"12345678") == b"\0\0\x08\x06\x01\0\0\0\0" + b"12345678"
