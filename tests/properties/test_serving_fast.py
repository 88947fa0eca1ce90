"""The short ways say what the long ways say: known heads of requests and of HTTP, and the door's own."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pellucid.core.entry import complete_row
from pellucid.core.record import Call
from pellucid.core.tensor import TensorSpec
from pellucid.errors import PellucidError
from pellucid.serving.heads import HEAD_MAX, HEADS_MAX, SEEN_MAX, read_infer
from pellucid.serving.limits import Limits
from pellucid.serving.model import Signature, make_signature
from pellucid.serving.request import parse_infer
from pellucid.serving.shared_memory import Regions
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder

SPECS = {
    "one": (TensorSpec("x", "FP32", (-1, 3)),),
    "whole": (TensorSpec("x", "INT8", (-1, 3)),),
    "texts": (TensorSpec("x", "BYTES", (-1, 3)),),
    "flags": (TensorSpec("x", "BOOL", (-1, 3)),),
    "two": (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("y", "INT64", (-1, 1))),
}
SIZES = {"FP32": 4, "INT8": 1, "BYTES": 1, "BOOL": 1, "INT64": 8}
Sent = tuple[str, bytes, int | None]  # model, body, header length

numbers = st.one_of(
    st.sampled_from([0, 1, -0.0, 1.5, 127, 128, -128, 2**31, 2**53 + 1, 2**64, 1e39, 1e-45]),
    st.sampled_from([True, None, "1", "a]b", [1], {"data": 1}, 10**400]),
    st.integers(-200, 200),
    st.floats(width=32),
)
ids = st.sampled_from(["", "a", "b:c", 'q"uote', "back\\slash", "é", "e\x07", "x" * 257, 5, None, "data"])
members = st.sampled_from([{}, {"subject": "s"}, {"timeout": 10**9}, {"nonfinite": "literal"}, {"data": [1]}])


@st.composite
def asked(draw: st.DrawFn) -> Sent:
    """One request; most are right or nearly so."""
    model = draw(st.sampled_from([*SPECS, "one"]))
    rows = draw(st.sampled_from([1, 1, 1, 2, 9]))
    items, tail = [], b""
    for spec in SPECS[model]:
        item: dict[str, Any] = {
            "name": spec.name,
            "shape": [rows, *spec.shape[1:]],
            "datatype": spec.datatype,
        }
        count = rows * spec.shape[1]
        way = draw(st.sampled_from(["json", "binary", "shm"]))
        if way == "json":
            plain = st.booleans() if spec.datatype == "BOOL" else st.integers(0, 9)
            item["data"] = draw(
                st.lists(plain, min_size=count, max_size=count) | st.lists(numbers, min_size=3, max_size=3)
            )
        else:
            size = max(0, count * SIZES[spec.datatype] + draw(st.sampled_from([0, 0, 0, 0, 0, -1, 4])))
            if way == "binary":
                item["parameters"] = {"binary_data_size": size}
                tail += draw(st.binary(min_size=size, max_size=size) | st.just(bytes(size)))
            else:
                region = draw(st.sampled_from(["in", "in", "in", "small", "none"]))
                offset = draw(st.sampled_from([{}, {}, {"shared_memory_offset": 8}]))
                place = {"shared_memory_region": region, "shared_memory_byte_size": size}
                item["parameters"] = place | offset
        items.append(item)
    request: dict[str, Any] = {"inputs": items}
    if draw(st.booleans()):
        request["parameters"] = draw(members | st.just({"binary_data_output": True}))
    if draw(st.booleans()):
        request["outputs"] = draw(st.lists(outputs(), max_size=2))
    if draw(st.booleans()):
        request = {"id": draw(ids)} | request if draw(st.booleans()) else request | {"id": draw(ids)}
    dumps = draw(st.sampled_from([json.dumps, lambda v: json.dumps(v, separators=(",", ":"))]))
    head = dumps(request).encode()
    length = draw(st.sampled_from([len(head)] * 6 + [None, 0, len(head) - 1, len(head) + 1]))
    return model, head + tail, length if tail or draw(st.booleans()) else None


def outputs() -> st.SearchStrategy[dict[str, Any]]:
    where = {"shared_memory_region": "out", "shared_memory_byte_size": 64}
    parameters = st.sampled_from([{}, {"binary_data": True}, {"classification": 2}, where])
    names = st.sampled_from(["x_out", "x_out", "x"])
    return st.builds(lambda n, p: {"name": n} | ({"parameters": p} if p else {}), names, parameters)


def varied(body: bytes) -> Iterator[bytes]:
    """The same request, and others like it: another id, other numbers, a byte more or less, or changed."""
    yield from (body, body, body)
    yield body.replace(b'"a"', b'"b:c"')
    yield body.replace(b'"a"', b'"\\u0041"')
    yield body.replace(b'"a"', b'"a\\"')
    yield body.replace(b"[1, ", b"[-7.25, ").replace(b"[1,", b"[-7.25,")
    yield body.replace(b"[0", b'["]"')
    yield body.replace(b"[0", b"[[0]")
    yield body.replace(b"[0", b"[1e999")
    yield body + b"\0"
    yield body[:-1]
    yield body


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Regions:
    folder = tmp_path_factory.mktemp("shm")
    regions = Regions(folder, inputs_max_bytes=100)
    for name, size in (("in", 128), ("small", 6), ("out", 128)):
        (folder / name).write_bytes(struct.pack("<f", 0.5) * (size // 4) + b"\1" * (size % 4))
        regions.register(name, {"key": name, "offset": 0, "byte_size": size})
    return regions


def outcome(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except PellucidError as error:
        return type(error), error.message, error.hint


def signature_of(model: str) -> Signature:
    given = tuple(TensorSpec(spec.name + "_out", spec.datatype, spec.shape) for spec in SPECS[model])
    return make_signature(SPECS[model], given, 8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked(), st.booleans())
@example(
    ("one", b'{"id":"a","inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}', None), False
)
@example(
    (
        "one",
        b'{"data":[7,7,7],"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}',
        None,
    ),
    False,
)
def test_a_known_head_says_what_the_definition_says(shared: Regions, sent: Sent, has_regions: bool):
    model, body, length = sent
    fast, slow = signature_of(model), signature_of(model)
    regions = shared if has_regions else None
    for each in varied(body):
        personal: dict[str, str] = {}
        other: dict[str, str] = {}
        got = outcome(read_infer, each, length, fast, personal, regions)
        wanted = outcome(parse_infer, each, length, slow, other, regions)
        assert (got, personal) == (wanted, other)
        if length and length <= len(each):
            assert outcome(read_infer, each[:length], length, fast, {}, regions, each[length:]) == wanted


def test_what_is_remembered_has_limits_and_holds_no_values():
    signature = signature_of("one")
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.0, 77.5]}

    def ask(subject: str, request_id: str = "mine") -> Any:
        body = json.dumps({"id": request_id, "inputs": [item], "parameters": {"subject": subject}}).encode()
        return read_infer(body, None, signature, {})

    ask("a")
    assert not signature.heads
    ask("a", "yours")
    assert len(signature.heads) == 1
    (known,) = signature.heads.values()
    kept = [known._said, known._specs, known.plan, known.sources, *signature.heads]
    assert not any(
        word in repr(kept) for word in ("mine", "yours", "77.5", repr(struct.pack("<f", 77.5))[2:-1])
    )
    assert ask("a", "third").id == "third"
    for number in range(3 * HEADS_MAX):
        ask(f"s{number}")
        ask(f"s{number}")
        assert len(signature.heads) <= HEADS_MAX
    for number in range(SEEN_MAX + 100):
        ask(f"once{number}")
        assert len(signature.heads_seen) <= SEEN_MAX
    before = set(signature.heads)
    for _ in range(3):
        read_infer(json.dumps({"inputs": [item], "more": "x" * HEAD_MAX}).encode(), None, signature, {})
    assert set(signature.heads) == before


# -- the door -------------------------------------------------------------------------------------


def await_number(recorder: MemoryRecorder) -> None:
    """The head is read: the call has its number, before its body has come."""
    until = time.monotonic() + 20
    while not recorder.open:
        assert time.monotonic() < until


class World:
    """A door on a socket; every request goes there whole, in two pieces, and in chunks: the long way."""

    def __init__(self, port: int, recorder: MemoryRecorder) -> None:
        self.port, self.recorder = port, recorder
        self.whole, self.chunked = self._connect(), self._connect()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, sent: Sent, way: str, cut: int = 0) -> tuple[Any, ...]:
        """Status, what matters of the headers, body, and the ledger's record, without what always differs."""
        model, body, length = sent
        headers = {"x": "y"} | ({} if length is None else {"Inference-Header-Content-Length": str(length)})
        connection = self.chunked if way == "chunks" else self.whole
        path = f"/v2/models/{model}/infer"
        if way != "chunks":
            # one write: head and body come in one read
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            if connection.sock is None:
                connection.connect()
            request = head.encode() + lines.encode() + b"\r\n" + body
            if way == "pieces" and len(body) > 1:
                stop = len(request) - 1 - cut % (len(body) - 1)
                connection.sock.sendall(request[:stop])
                await_number(self.recorder)
                request = request[stop:]
            connection.sock.sendall(request)
            response = http.client.HTTPResponse(connection.sock, method="POST")
            response.begin()
        else:
            connection.request("POST", path, iter([body]), headers, encode_chunked=True)
            response = connection.getresponse()
        told = response.read()
        key = response.headers["pellucid-call"]
        length_told = response.headers["inference-header-content-length"]
        heads = [response.headers["content-type"], response.headers["connection"]]
        heads.append(str(int(length_told) - len(key)) if length_told else "")
        record = self._record(int(key.rpartition("/")[2]))
        return response.status, heads, told.replace(key.encode(), b"KEY"), record

    def _record(self, n: int) -> Any:
        (call,) = [call for call in self.recorder.calls()[-8:] if call.n == n]
        assert isinstance(call, Call)
        assert len(call.seed) == 32
        return msgspec.structs.replace(
            call, n=0, accepted_ns=0, closed_ns=0, stages=(0, 0, 0, 0), seed=b"", trace=None,
            rows=tuple(complete_row(row, {}) if row.value else row for row in call.rows),
        )  # fmt: skip


@pytest.fixture(scope="module")
def world(shared: Regions) -> Iterator[World]:
    recorder = MemoryRecorder()
    models = [echo_model(name, *specs) for name, specs in SPECS.items()]
    with running(make_plane(models, recorder, Limits(refusals_burst=10**6), regions=shared)) as port:
        world = World(port, recorder)
        with contextlib.closing(world.whole), contextlib.closing(world.chunked):
            yield world


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked(), st.integers(0, 999))
def test_the_short_way_of_the_door_answers_and_records_as_the_long_one(world: World, sent: Sent, cut: int):
    long = world.ask(sent, "chunks")
    for way in ("whole", "pieces", "whole", "pieces", "whole"):
        assert world.ask(sent, way, cut) == long
    assert not world.recorder.open


# -- what chance may miss ---------------------------------------------------------------------------

ITEM = '{"name":"x","shape":[1,3],"datatype":"%s"%s}'
LEARNED = {
    "numbers": ("FP32", '{"id":"a","inputs":[%s]}', ',"data":[1,2,3]', b""),
    "last": ("FP32", '{"inputs":[%s],"id":"a"}', ',"data":[1,2,3]', b""),
    "bytes": ("FP32", '{"id":"a","inputs":[%s]}', ',"parameters":{"binary_data_size":12}', bytes(12)),
    "flags": ("BOOL", '{"id":"a","inputs":[%s]}', ',"parameters":{"binary_data_size":3}', b"\0\1\0"),
    "shared": (
        "FP32",
        '{"id":"a","inputs":[%s]}',
        ',"parameters":{"shared_memory_region":"in","shared_memory_byte_size":12}',
        b"",
    ),
}
CHANGES = [
    (b"", b""), (b'"a"', b'"b"'), (b'"a"', b'""'), (b'"a"', b'"' + b"x" * 257 + b'"'), (b'"a"', b'"\xff"'),
    (b'"a"', b'"\xe2\x80\xa8"'), (b'"a"', b'"a\\n"'), (b'"a"', b'"a\nb"'), (b'"a"', b"5"),
    (b"[1,2,3]", b"[true,2,3]"), (b"[1,2,3]", b"[1,2]"), (b"[1,2,3]", b"[1,2,1e39]"), (b"[1,2,3]", b"[1,2,]"),
    (b"[1,2,3]", b"[[1,2,3]]"), (b"[1,2,3]", b"[-0.0, 1E2 ,3e-46]"), (b"[1,2,3]", b'["1",2,3]'),
    (b"\0\1\0", b"\0\2\0"), (bytes(12), b"\0\0\xc0\x7f" * 3), (bytes(12), bytes(11)), (bytes(12), bytes(13)),
]  # fmt: skip


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("change", CHANGES)
def test_changes_to_a_head_that_is_known(shared: Regions, name: str, change: tuple[bytes, bytes]):
    kind, around, source, tail = LEARNED[name]
    spec = TensorSpec("x", kind, (-1, 3))
    fast, slow = make_signature((spec,), (spec,), 8), make_signature((spec,), (spec,), 8)
    head = (around % (ITEM % (kind, source))).encode()
    for _ in range(3):
        assert read_infer(head + tail, len(head), fast, {}, shared) == parse_infer(
            head + tail, len(head), slow, {}, shared
        )
    assert len(fast.heads) == (name != "flags")
    changed, behind = head.replace(*change), tail.replace(*change) if tail else tail
    for length in (len(changed), None):
        body, personal, other = changed + behind, {}, {}
        got = outcome(read_infer, body, length, fast, personal, shared)
        assert got == outcome(parse_infer, body, length, slow, other, shared)
        assert personal == other


@pytest.mark.parametrize("written", [' "data" :[1,2,3]', '"d\\u0061ta":[1,2,3]'])
@pytest.mark.parametrize("model", ["one", "two"])
def test_numbers_that_stand_in_no_hole_are_not_taken_from_behind_the_head(
    shared: Regions, model: str, written: str
):
    other = ',{"name":"y","shape":[1,1],"datatype":"INT64","parameters":{"shared_memory_region":"in",' + (
        '"shared_memory_byte_size":8}}'
    )
    numbers = ITEM % ("FP32", "," + written)
    head = ('{"inputs":[%s]}' % (numbers + (other if model == "two" else ""))).encode()
    fast, slow = signature_of(model), signature_of(model)
    for tail in (b"", b"", b"", bytes(12), b""):
        body = head + tail
        got = outcome(read_infer, body, len(head), fast, {}, shared)
        assert got == outcome(parse_infer, body, len(head), slow, {}, shared)
        assert outcome(read_infer, head, len(head), fast, {}, shared, tail) == outcome(
            parse_infer, head, len(head), slow, {}, shared, tail
        )


def test_a_known_head_asks_for_its_region_each_time(tmp_path: Path):
    (tmp_path / "seg").write_bytes(bytes(64))
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 12}
    where = {"shared_memory_region": "r", "shared_memory_byte_size": 12, "shared_memory_offset": 20}
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": place}
    body = json.dumps({"inputs": [item], "outputs": [{"name": "x_out", "parameters": where}]}).encode()
    fast, slow = signature_of("one"), signature_of("one")

    def both(regions: Regions | None) -> Any:
        got = outcome(read_infer, body, None, fast, {}, regions)
        assert got == outcome(parse_infer, body, None, slow, {}, regions)
        return got

    regions = Regions(tmp_path)
    regions.register("r", {"key": "seg", "offset": 0, "byte_size": 64})
    for _ in range(3):
        assert both(regions).places[0].offset == 20
    assert len(fast.heads) == 1
    assert isinstance(both(None), tuple)
    small = Regions(tmp_path, inputs_max_bytes=11)
    small.register("r", {"key": "seg", "offset": 0, "byte_size": 64})
    assert isinstance(both(small), tuple)
    (tmp_path / "seg").write_bytes(bytes(4))  # cut short by its owner
    assert isinstance(both(regions), tuple)
    (tmp_path / "seg").write_bytes(bytes(64))
    regions.unregister("r")
    assert isinstance(both(regions), tuple)
    regions.register("r", {"key": "seg", "offset": 0, "byte_size": 31})
    assert isinstance(both(regions), tuple)


def test_a_head_that_a_connection_knows_means_one_whole_request():
    recorder = MemoryRecorder()
    body = b'{"id":"%s","inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'
    limits = Limits(body_max_bytes=1_000)

    def request(text: bytes) -> bytes:
        head = b"POST /v2/models/one/infer HTTP/1.1\r\nhost: a\r\nContent-Length: %d\r\nx: y\r\n\r\n"
        return head % len(text) + text

    plane = make_plane([echo_model("one", *SPECS["one"])], recorder, limits)
    with running(plane) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        told = client.makefile("rb")

        def hear() -> tuple[int, bytes]:
            status = int(told.readline().split()[1])
            headers = {}
            while (line := told.readline().strip()) != b"":
                name, _, value = line.partition(b": ")
                headers[name] = value
            return status, told.read(int(headers[b"content-length"]))

        for _ in range(3):
            client.sendall(request(body % b"a"))
            assert hear()[0] == 200
        client.sendall(request(body % b"one") + request(body % b"another"))
        assert [b'"one"' in hear()[1], b'"another"' in hear()[1]] == [True, True]
        client.sendall(request(body % b"whole"))
        assert b'"whole"' in hear()[1]
        whole = request(body % b"in pieces")
        client.sendall(whole[:-10])
        await_number(recorder)
        client.sendall(whole[-10:] + request(body % b"right behind"))
        assert [b'"in pieces"' in hear()[1], b'"right behind"' in hear()[1]] == [True, True]
        client.sendall(whole[:-10])
        await_number(recorder)
        client.sendall(whole[-10:-5])
        client.sendall(whole[-5:])
        assert b'"in pieces"' in hear()[1]
        client.sendall(request(body % (b"x" * 1_000)))
        assert hear()[0] == 413
        assert told.read() == b""
    assert [call.outcome for call in recorder.calls()] == ["answered"] * 9 + ["refused"]
