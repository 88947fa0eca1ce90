"""The conformance list over HTTP, line by line: an id, a request on a real socket, the right answer.

Sections 2 to 7: what the specification and its extensions say, and where they are silent or a known
server answers 500 to a caller's mistake, a right 4xx. Stock clients and gRPC have files of their own.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pellucid.core.tensor import DATATYPES, TensorSpec
from pellucid.serving.limits import Limits
from pellucid.serving.shared_memory import Regions
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.repository import MemoryRepository

pytestmark = pytest.mark.e2e

INFER = "/v2/models/echo/infer"
X: dict[str, Any] = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def head(self) -> Any:
        return json.loads(self.body[: int(self.headers["inference-header-content-length"])])

    def tail(self) -> bytes:
        return self.body[int(self.headers["inference-header-content-length"]) :]


class Server:
    def __init__(self, port: int, recorder: MemoryRecorder, shm: Path) -> None:
        self.port, self.recorder, self.shm = port, recorder, shm

    def ask(self, method: str, path: str, body: bytes = b"", headers: Headers = ()) -> Reply:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            if body or method == "POST":
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            reply = connection.getresponse()
            told = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, told, reply.read())

    def raw(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while piece := connection.recv(65_536):
                received += piece
        return received


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    recorder, shm = MemoryRecorder(), tmp_path_factory.mktemp("shm")
    typed = [echo_model(kind.lower(), TensorSpec("x", kind, (-1, 2))) for kind in DATATYPES]
    two = echo_model("two", TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,)))
    models = [
        echo_model(), echo_model("old", version="1.0.0"), echo_model("old", version="2.0.0"),
        echo_model("any", allow_nonfinite=True), echo_model("spare"), two,
        echo_model("words", TensorSpec("x", "BYTES", (-1, 1))),
        echo_model("argmax", decision={"kind": "argmax", "output": "x_out", "labels": ["a", "b", "c"]}),
        echo_model("single", label_variance="variant", buckets=(1,)), *typed,
    ]  # fmt: skip
    repository = MemoryRepository({"spare": lambda: echo_model("spare"), "echo": echo_model})
    limits = Limits(body_max_bytes=100_000, refusals_burst=10_000)
    plane = make_plane(models, recorder, limits, repository=repository, regions=Regions(shm, 100_000))
    repository.pool = plane.pool
    with running(plane) as port:
        yield Server(port, recorder, shm)
    assert not recorder.open
    recorder.entries()  # each of them forms


# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A request and what must come back.

    ``wanted``: text that the error holds, JSON that the answer is, or a check of the reply.
    """

    method: str
    path: str
    status: int
    wanted: Any = None
    body: bytes = b""
    headers: Headers = field(default_factory=tuple)


def get(path: str, status: int = 200, wanted: Any = None) -> Row:
    return Row("GET", path, status, wanted)


def post(path: str, status: int, wanted: Any = None, members: Any = None, headers: Headers = ()) -> Row:
    body = members if isinstance(members, bytes) else b"" if members is None else json.dumps(members).encode()
    return Row("POST", path, status, wanted, body, headers)


def call(
    status: int, wanted: Any = None, path: str = INFER, headers: Headers = (), *, raw: bytes | None = None,
    **more: Any,
) -> Row:  # fmt: skip
    """An inference: the good one, with some members changed or (``...``) left out."""
    members = {"inputs": [X]} | more
    body = raw if raw is not None else {name: v for name, v in members.items() if v is not ...}
    return post(path, status, wanted, body, headers)


def one(status: int, wanted: Any = None, path: str = INFER, **changes: Any) -> Row:
    """An inference whose one input is changed."""
    item = {name: value for name, value in (X | changes).items() if value is not ...}
    return call(status, wanted, path, inputs=[item])


def value(kind: str, data: list[Any], wanted: Any) -> Row:
    """A JSON tensor of a datatype: data that come back, or (text) why they are refused."""
    item = {"name": "x", "shape": [1, 2], "datatype": kind, "data": data}
    path = f"/v2/models/{kind.lower()}/infer"
    if isinstance(wanted, str):
        return call(400, wanted, path, inputs=[item])
    return call(200, lambda reply: reply.json["outputs"][0]["data"] == wanted, path, inputs=[item])


def binary(
    status: int, wanted: Any, data: bytes, path: str = INFER, size: Any = ..., length: Any = ..., **more: Any
) -> Row:
    """An inference whose one input travels behind the JSON."""
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32"} | more.pop("item", {})
    item["parameters"] = {"binary_data_size": len(data) if size is ... else size}
    head = json.dumps({"inputs": [item]} | more).encode()
    shown = str(len(head) if length is ... else length)
    headers = [] if length is None else [("Inference-Header-Content-Length", shown)]
    return Row("POST", path, status, wanted, head + data, headers)


def typed(kind: str, data: bytes, status: int = 200, wanted: Any = None) -> Row:
    """Bytes of a datatype, in and out as binary."""
    item = {"datatype": kind, "shape": [1, 2]}
    more = {"parameters": {"binary_data_output": True}, "item": item}
    check = wanted if status != 200 else lambda reply: reply.tail() == data
    return binary(status, check, data, f"/v2/models/{kind.lower()}/infer", **more)


FLOATS = struct.pack("<3f", 1, 2, 3)
HEAD = "Inference-Header-Content-Length"
ASKED = {"outputs": [{"name": "x_out", "parameters": {"binary_data": True}}]}


def extensions(reply: Reply) -> bool:
    names = reply.json["extensions"]
    never = {"sequence", "cuda_shared_memory", "schedule_policy", "trace", "logging"}
    return {
        "classification", "model_configuration", "binary_tensor_data", "parameters", "statistics",
        "model_repository", "system_shared_memory",
    } <= set(names) and never.isdisjoint(names)  # fmt: skip


def classes(count: Any, **more: Any) -> dict[str, Any]:
    return {"outputs": [{"name": "x_out", "parameters": {"classification": count} | more}]}


TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
ROWS: dict[str, list[Row]] = {
    "OIP-001 live": [get("/v2/health/live", 200, {"live": True})],
    "OIP-002 ready": [get("/v2/health/ready", 200, {"ready": True})],
    "OIP-003 server metadata": [
        get(
            path,
            200,
            lambda r: r.json["name"] == "pellucid" and set(r.json) == {"name", "version", "extensions"},
        )
        for path in ("/v2", "/v2/")
    ],
    "OIP-004 extensions": [get("/v2", 200, extensions)],
    "OIP-005 model ready": [
        get("/v2/models/echo/ready", 200, {"name": "echo", "ready": True}),
        get("/v2/models/old/versions/1.0.0/ready", 200, {"name": "old", "ready": True}),
        get("/v2/models/nope/ready", 404, "unknown name"),
        get("/v2/models/echo/versions/9/ready", 404, "version"),
    ],
    "OIP-006 metadata": [
        get("/v2/models/echo", 200, lambda r: r.json["inputs"] == [TENSOR]),
        get("/v2/models/old", 200, lambda r: r.json["versions"] == ["1.0.0", "2.0.0"]),
        get("/v2/models/old/versions/1.0.0", 200, lambda r: r.json["versions"] == ["1.0.0"]),
        get("/v2/models/nope", 404, "unknown name"),
    ],
    "OIP-007 platform": [get("/v2/models/echo", 200, lambda r: r.json["platform"] == "onnx_onnxv1")],
    "OIP-008 versions are text": [
        get("/v2/models/old/versions/1", 404, "version"),
        get("/v2/models/old/versions/01.0.0", 404, "version"),
        call(200, lambda r: r.json["model_version"] == "2.0.0", "/v2/models/old/infer"),
        call(200, lambda r: r.json["model_version"] == "1.0.0", "/v2/models/old/versions/1.0.0/infer"),
    ],
    "OIP-009 names are decoded once": [
        get("/v2/models/%65cho", 200, lambda r: r.json["name"] == "echo"),
        get("/v2/models/%2565cho", 404, "unknown"),
        get("/v2/models/a%2Fb", 400, "plain name"),
        get("/v2/models/..", 400, "plain name"),
        get("/v2/models/a%00b", 400, "plain name"),
        get("/v2/models/a%0Ab", 400, "plain name"),
        get("/v2/models/%FF", 400, "UTF-8"),
    ],
    "OIP-010 query and slash": [
        get("/v2/health/live?a=1&b", 200, {"live": True}),
        get("/v2/health/live/", 404, "endpoint"),
        call(404, "endpoint", INFER + "/"),
        call(200, None, INFER + "?a=1"),
    ],
    "OIP-011 other methods and paths": [
        Row("DELETE", "/v2", 405, lambda r: r.headers["allow"] == "GET, HEAD"),
        get(INFER, 405, lambda r: r.headers["allow"] == "POST"),
        get("/v2/repository/index", 405, lambda r: r.headers["allow"] == "POST"),
        Row("PUT", "/v2/logging", 405, lambda r: r.headers["allow"] == "GET, HEAD, POST"),
        Row("HEAD", "/v2/health/live", 200, lambda r: r.body == b"" and r.headers["content-length"] == "13"),
        get("/", 404, "endpoint"),
        get("/v1/models", 404, "endpoint"),
    ],
    "OIP-012 documents": [
        get("/openapi.json", 200, lambda r: r.json["openapi"].startswith("3.")),
        get("/inference.proto", 200, lambda r: b"service GRPCInferenceService" in r.body),
        get("/metrics", 404, "endpoint"),
    ],
    "OIP-020 body": [
        call(400, "valid JSON", raw=b"{"),
        call(400, "object, got an array", raw=b"[]"),
        call(400, "object, got a string", raw=b'"x"'),
        call(400, "valid JSON", raw=b"{} x"),
        call(400, "inputs: expected an array", inputs=...),
        call(200, None, unknown_member={"a": None}),
    ],
    "OIP-021 content type": [
        call(200, None, headers=[("content-type", kind)])
        for kind in ("", "text/plain", "application/json; charset=utf-8", "application/octet-stream")
    ],
    "OIP-023 encoding": [
        call(400, "valid JSON", raw=b"\xef\xbb\xbf" + json.dumps({"inputs": [X]}).encode()),
        call(400, "valid JSON", raw=b'{"id": "\xff", "inputs": []}'),
        call(400, "valid JSON", raw=b'{"id": "\\ud800", "inputs": []}'),
    ],
    "OIP-024 twins": [call(400, "once", raw=b'{"inputs": [], "inputs": []}')],
    "OIP-025 id": [
        call(200, lambda r: r.json["id"] == "mine \u00e4\u4e16", id="mine \u00e4\u4e16"),
        call(200, lambda r: "id" not in r.json, id=""),
        call(200, lambda r: "id" not in r.json),
        call(400, "id: expected a string, got a number", id=1),
        call(400, "id: expected a string, got null", id=None),
    ],
    "OIP-026 parameters": [
        call(400, "parameters", parameters=None),
        call(400, "parameters", parameters=[]),
        call(400, "got an object", parameters={"a": {}}),
        call(400, "got null", parameters={"a": None}),
        call(200, None, parameters={"nobody_knows": 1.5, "b": "c", "d": True}),
        call(400, "reserved", parameters={"triton_x": 1}),
    ],
    "OIP-027 input members": [
        one(400, "name", name=...),
        one(400, "shape", shape=...),
        one(400, "datatype", datatype=...),
        one(400, "data, got none", data=...),
        one(400, "got both", parameters={"binary_data_size": 12}),
        one(400, "got both", parameters={"shared_memory_region": "r", "shared_memory_byte_size": 12}),
    ],
    "OIP-028 input names": [
        one(400, "'z' is not an input; 'x' is missing", name="z"),
        call(400, "twice", inputs=[X, X]),
        call(400, "got none", inputs=[]),
        call(400, "array", inputs={}),
    ],
    "OIP-029 datatype": [one(400, "FP32", datatype="INT8"), one(400, "FP32", datatype="FLOAT")],
    "OIP-030 shape": [
        one(400, "axis 0", shape=[-1, 3]),
        one(400, "axis 0", shape=[1.0, 3]),
        one(400, "axis 0", shape=["1", 3]),
        one(400, "axis 0", shape=[2**64, 3]),
        one(400, "2 dimensions", shape=[3]),
        one(400, "2 dimensions", shape=[]),
        one(400, "axis 1: expected 3", shape=[1, 4], data=[0] * 4),
        one(400, "axis 0", shape=[0, 3], data=[]),
        one(400, "axis 0", shape=[2**40, 3]),
    ],
    "OIP-031 batch over the limit": [one(400, "1 to 8 rows, got 9", shape=[9, 3], data=[0] * 27)],
    "OIP-032 data": [
        one(200, None, data=[[1, 2, 3]]),
        one(400, "axis 0", shape=[2, 3], data=[[1, 2], [3, 4], [5, 6]]),
        one(400, "axis", shape=[2, 3], data=[[1, 2, 3, 4], [5, 6]]),
        one(400, "3 elements", data=[1, 2]),
        one(400, "3 elements", data=[1, 2, 3, 4]),
        one(400, "array", data=1),
        one(400, "list", data=[1, [2], 3]),
    ],
    "OIP-033 outputs": [
        call(200, lambda r: len(r.json["outputs"]) == 1, outputs=[]),
        call(400, "outputs", outputs=None),
        call(400, "name", outputs=[{}]),
        call(400, "'n'", outputs=[{"name": "n"}]),
        call(400, "twice", outputs=[{"name": "x_out"}] * 2),
    ],
    "OIP-034 versions in the path": [
        call(404, "unknown name", "/v2/models/nope/infer"),
        call(404, "version", "/v2/models/echo/versions/9/infer"),
    ],
    "OIP-050 BOOL": [
        value("BOOL", [True, False], [True, False]),
        value("BOOL", [1, 0], "int"),
        value("BOOL", [1.0, 0], "float"),
        value("BOOL", ["a", "b"], "str"),
    ],
    "OIP-051 integers": [
        value("UINT8", [0, 255], [0, 255]),
        value("UINT8", [0, 256], "range"),
        value("UINT8", [-1, 0], "range"),
        value("INT8", [-128, 127], [-128, 127]),
        value("INT8", [0, 128], "range"),
        value("INT32", [0, 2**31], "range"),
        value("INT32", [0, 1.0], "float"),
        value("INT32", [0, True], "bool"),
        value("INT32", [0, "1"], "str"),
        value("UINT16", [0, 65_535], [0, 65_535]),
        value("INT16", [0, 40_000], "range"),
        value("UINT32", [0, 2**32 - 1], [0, 2**32 - 1]),
    ],
    "OIP-052 64 bits": [
        value("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        value("UINT64", [2**53 + 1, 2**64 - 1], [2**53 + 1, 2**64 - 1]),
        value("INT64", [2**63, 0], "range"),
        value("UINT64", [2**64, 0], "range"),
    ],
    "OIP-053 floats": [
        value("FP32", [1, 2], [1.0, 2.0]),
        value("FP64", [1, 0.1], [1.0, 0.1]),
        value("FP32", [1e39, 0], "range"),
        value("FP64", [None, 0], "NoneType"),
        value("FP64", ["1", 0], "str"),
        value("FP64", [True, 0], "bool"),
        call(
            400, "JSON", raw=b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1e400,0,0]}]}'
        ),
    ],
    "OIP-054 printing": [
        value("FP32", [0.1, 1e-45], [struct.unpack("<f", struct.pack("<f", v))[0] for v in (0.1, 1e-45)]),
        call(200, lambda r: b"-0.0" in r.body, inputs=[X | {"data": [-0.0, 0, 0]}]),
    ],
    "OIP-055 FP16 and BF16": [
        value("FP16", [1, 2], "binary data"),
        value("BF16", [1, 2], "binary data"),
        typed("FP16", struct.pack("<2e", 1.5, -0.0)),
        typed("BF16", b"\xc0\x3f\x00\x80"),
        binary(
            400,
            "binary output",
            b"\0" * 4,
            "/v2/models/fp16/infer",
            item={"datatype": "FP16", "shape": [1, 2]},
        ),
    ],
    "OIP-056 BYTES in JSON": [
        value("BYTES", ["", "\u4e16\u754c \U0001f600\u0000"], ["", "\u4e16\u754c \U0001f600\u0000"]),
        value("BYTES", [1, 2], "strings"),
        value("BYTES", [False, "a"], "strings"),
        binary(
            400,
            "UTF-8",
            b"\x01\0\0\0\xff",
            "/v2/models/words/infer",
            item={"datatype": "BYTES", "shape": [1, 1]},
        ),
    ],
    "OIP-057 BYTES raw": [
        typed("BYTES", b"\x00\0\0\0\x02\0\0\0\xff\x00"),
        typed("BYTES", b"\xff\xff\xff\xffab", 400, "element length"),
        typed("BYTES", b"\x01\0", 400, "4-byte length"),
        typed("BYTES", b"\0" * 4, 400, "2 BYTES elements"),
        typed("BYTES", b"\0" * 12, 400, "2 BYTES elements, got more"),
    ],
    "OIP-058 BOOL raw": [typed("BOOL", b"\x01\x00"), typed("BOOL", b"\x02\x00", 400, "0 or 1")],
    "OIP-059 byte order": [
        typed("INT32", struct.pack("<2i", 1, -2)),
        typed("FP64", struct.pack("<2d", 0.1, -0.0)),
    ],
    "OIP-060 NaN in": [
        call(400, "JSON", raw=b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[NaN,0,0]}]}'),
        call(
            400,
            "JSON",
            raw=b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[-Infinity,0,0]}]}',
        ),
        binary(400, "finite", struct.pack("<3f", float("nan"), 0, 0)),
        binary(
            200,
            lambda r: r.tail() == struct.pack("<3f", float("nan"), float("-inf"), 0),
            struct.pack("<3f", float("nan"), float("-inf"), 0),
            "/v2/models/any/infer",
            **ASKED,
        ),
    ],
    "OIP-061 NaN out": [
        binary(400, "finite", struct.pack("<3f", float("inf"), 0, 0), "/v2/models/any/infer"),
        binary(
            200,
            lambda r: b"[Infinity, NaN, 0.0]" in r.body,
            struct.pack("<3f", float("inf"), float("nan"), 0),
            "/v2/models/any/infer",
            parameters={"nonfinite": "literal"},
        ),
    ],
    "OIP-070 members of an answer": [
        call(
            200,
            lambda r: list(r.json) == ["model_name", "model_version", "id", "parameters", "outputs"],
            id="a",
        ),
        call(200, lambda r: r.json["parameters"]["pellucid-call"] == r.headers["pellucid-call"]),
    ],
    "OIP-071 outputs": [
        call(
            200,
            lambda r: [o["name"] for o in r.json["outputs"]] == ["a_out", "b_out"],
            "/v2/models/two/infer",
            inputs=[
                {"name": "b", "shape": [1], "datatype": "INT64", "data": [7]},
                {"name": "a", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]},
            ],
            outputs=[{"name": "b_out"}, {"name": "a_out"}],
        ),
        call(200, lambda r: r.json["outputs"][0]["data"] == [1.0, 2.0, 3.0]),
    ],
    "OIP-072 compressed requests": [
        call(
            200,
            None,
            raw=gzip.compress(json.dumps({"inputs": [X]}).encode()),
            headers=[("content-encoding", "gzip")],
        ),
        call(
            200,
            None,
            raw=zlib.compress(json.dumps({"inputs": [X]}).encode()),
            headers=[("content-encoding", "deflate")],
        ),
        call(400, "gzip", headers=[("content-encoding", "gzip")]),
        call(
            415,
            lambda r: r.headers["accept-encoding"] == "gzip, deflate",
            headers=[("content-encoding", "br")],
        ),
        call(413, "at most", raw=gzip.compress(b" " * 200_000), headers=[("content-encoding", "gzip")]),
    ],
    "OIP-073 compressed answers": [
        call(200, lambda r: "content-encoding" not in r.headers, headers=[("accept-encoding", "gzip")]),
        Row("GET", "/openapi.json", 200, lambda r: "content-encoding" not in r.headers),
    ],
    "OIP-080 binary request": [
        binary(200, lambda r: r.json["outputs"][0]["data"] == [1.0, 2.0, 3.0], FLOATS),
        binary(400, "bytes left", FLOATS[:-1], size=12),
        binary(400, "behind the last tensor", FLOATS + b"x", size=12),
        binary(400, "12 bytes", FLOATS[:8]),
        binary(400, "binary_data_size", FLOATS, size="12"),
        binary(400, "binary_data_size", FLOATS, size=-12),
        binary(400, "valid JSON", FLOATS, length=None),
        one(400, "inference-header-content-length", data=..., parameters={"binary_data_size": 12}),
    ],
    "OIP-081 the header's value": [
        binary(400, "digits", FLOATS, length=text) for text in ("abc", "-1", "+113", "1.0", " ", "1_0")
    ]
    + [binary(400, "expected 0 to", FLOATS, length=10**9), binary(400, "digits", FLOATS, length="9" * 30)],
    "OIP-082 binary answer asked for": [
        binary(200, lambda r: r.tail() == FLOATS, FLOATS, **ASKED),
        binary(200, lambda r: r.tail() == FLOATS, FLOATS, parameters={"binary_data_output": True}),
        call(
            200,
            lambda r: r.json["outputs"][0]["data"],
            parameters={"binary_data_output": True},
            outputs=[{"name": "x_out", "parameters": {"binary_data": False}}],
        ),
        call(400, "true or false", outputs=[{"name": "x_out", "parameters": {"binary_data": "true"}}]),
        call(400, "true or false", parameters={"binary_data_output": 1}),
    ],
    "OIP-083 binary answer": [
        call(
            200,
            lambda r: (
                r.headers["content-type"] == "application/octet-stream"
                and r.tail() == FLOATS
                and r.head()["outputs"][0]["parameters"] == {"binary_data_size": 12}
            ),
            **ASKED,
        ),
    ],
    "OIP-084 header equal to the body": [
        call(200, None, headers=[(HEAD, str(len(json.dumps({"inputs": [X]}))))]),
    ],
    "OIP-085 raw binary": [
        call(200, lambda r: r.tail() == FLOATS, raw=FLOATS, headers=[(HEAD, "0")]),
        call(400, "12 bytes", raw=FLOATS + b"x", headers=[(HEAD, "0")]),
        call(400, "one input", "/v2/models/two/infer", raw=FLOATS, headers=[(HEAD, "0")]),
        call(
            200,
            lambda r: r.tail() == b"\x05\0\0\0\x01\0\0\0a",
            "/v2/models/words/infer",
            raw=b"\x01\0\0\0a",
            headers=[(HEAD, "0")],
        ),
    ],
    "OIP-086 empty body": [call(400, "empty", raw=b"")],
    "OIP-104 CUDA": [
        get("/v2/cudasharedmemory/status", 200, []),
        get("/v2/cudasharedmemory/region/r/status", 404, "none"),
        post(
            "/v2/cudasharedmemory/region/r/register",
            400,
            "memory of a GPU",
            {"raw_handle": {"b64": "AA=="}, "device_id": 0, "byte_size": 8},
        ),
        post("/v2/cudasharedmemory/unregister", 200),
        post("/v2/cudasharedmemory/region/r/unregister", 200),
    ],
    "OIP-110 statistics": [
        get("/v2/models/echo/stats", 200, lambda r: [s["name"] for s in r.json["model_stats"]] == ["echo"]),
        get(
            "/v2/models/old/versions/1.0.0/stats",
            200,
            lambda r: r.json["model_stats"][0]["version"] == "1.0.0",
        ),
        get("/v2/models/old/stats", 200, lambda r: len(r.json["model_stats"]) == 2),
        get("/v2/models/stats", 200, lambda r: len(r.json["model_stats"]) > 10),
        get("/v2/models/nope/stats", 404, "unknown"),
        get("/v2/models/echo/versions/9/stats", 404, "version"),
    ],
    "OIP-115 configuration": [
        get(
            "/v2/models/echo/config",
            200,
            lambda r: (
                r.json["max_batch_size"] == 8
                and r.json["input"]
                == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3], "format": "FORMAT_NONE"}]
                and r.json["dynamic_batching"]["preferred_batch_size"] == [1, 4, 8]
                and {"name", "platform", "backend", "version_policy", "instance_group", "output"}
                <= set(r.json)
            ),
        ),
        get("/v2/models/words/config", 200, lambda r: r.json["input"][0]["data_type"] == "TYPE_STRING"),
        get("/v2/models/single/config", 200, lambda r: "dynamic_batching" not in r.json),
        get("/v2/models/nope/config", 404, "unknown"),
        get("/v2/models/old/versions/1.0.0/config", 200),
    ],
    "OIP-120 repository index": [
        post(
            "/v2/repository/index",
            200,
            lambda r: {m["state"] for m in r.json} == {"READY"} and all(m["reason"] == "" for m in r.json),
        ),
        post("/v2/repository/index", 200, None, {"ready": True}),
        post("/v2/repository/index", 400, "true or false", {"ready": "x"}),
        post("/v2/repository/index", 400, "JSON", b"{"),
        post("/v2/repository/index", 400, "object", []),
    ],
    "OIP-121 load": [
        post("/v2/repository/models/spare/load", 200, lambda r: r.body == b""),
        post("/v2/repository/models/spare/load", 200, None, {}),
        post("/v2/repository/models/nope/load", 404, "nope"),
        post("/v2/repository/models/spare/load", 403, "config", {"parameters": {"config": "{}"}}),
        post("/v2/repository/models/spare/load", 403, "file:", {"parameters": {"file:1/model.onnx": "AA=="}}),
        post("/v2/repository/models/spare/load", 400, "'x'", {"parameters": {"x": 1}}),
        post("/v2/repository/models/spare/load", 400, "JSON", b"{"),
    ],
    "OIP-130 trace": [
        get("/v2/trace/setting", 200, lambda r: r.json["trace_level"] == ["OFF"]),
        get("/v2/models/echo/trace/setting", 200),
        get("/v2/models/nope/trace/setting", 404, "unknown"),
        post("/v2/trace/setting", 200, lambda r: r.json["trace_rate"] == "1000", {"trace_rate": None}),
        post("/v2/trace/setting", 200, None, {"trace_level": ["OFF"]}),
        post("/v2/trace/setting", 400, "trace_level", {"trace_level": 1}),
        post("/v2/trace/setting", 400, "trace_level", {"trace_level": ["LOUD"]}),
        post("/v2/trace/setting", 400, "trace_rate", {"trace_rate": "x"}),
        post("/v2/trace/setting", 400, "'a'", {"a": "1"}),
        post("/v2/trace/setting", 403, "trace_file", {"trace_file": "/tmp/x"}),
        post("/v2/trace/setting", 403, "trace_level", {"trace_level": ["TENSORS"]}),
        post("/v2/models/echo/trace/setting", 403, "trace_level", {"trace_level": ["TIMESTAMPS"]}),
    ],
    "OIP-135 logging": [
        get("/v2/logging", 200, lambda r: r.json["log_verbose_level"] == 0),
        post("/v2/logging", 200, lambda r: "log_info" in r.json, {}),
        post("/v2/logging", 200, None, {"log_info": True}),
        post("/v2/logging", 400, "log_info", {"log_info": 1}),
        post("/v2/logging", 400, "'a'", {"a": 1}),
        post("/v2/logging", 400, "log_format", {"log_format": "xml"}),
        post("/v2/logging", 400, "log_verbose_level", {"log_info": False, "log_verbose_level": -1}),
        post("/v2/logging", 403, "log_file", {"log_file": "/tmp/x"}),
        post("/v2/logging", 403, "log_info", {"log_info": False}),
    ],
    "OIP-140 classification": [
        call(
            200,
            lambda r: (
                r.json["outputs"]
                == [
                    {
                        "name": "x_out",
                        "datatype": "BYTES",
                        "shape": [1, 2],
                        "data": ["3.000000:2", "2.000000:1"],
                    }
                ]
            ),
            **classes(2),
        ),
        call(
            200,
            lambda r: r.json["outputs"][0]["data"] == ["3.000000:2:c"],
            "/v2/models/argmax/infer",
            **classes(1),
        ),
        call(200, lambda r: r.json["outputs"][0]["shape"] == [1, 3], **classes(100)),
        call(200, lambda r: r.json["outputs"][0]["datatype"] == "FP32", **classes(0)),
        call(400, "classification", **classes(-1)),
        call(400, "classification", **classes("2")),
        call(200, lambda r: r.tail() == b"\x0a\0\0\x003.000000:2", **classes(1, binary_data=True)),
        call(
            200,
            lambda r: r.json["outputs"][0]["data"] == ["1.000000:0", "1.000000:1"],
            inputs=[X | {"data": [1, 1, 0]}],
            **classes(2),
        ),
        binary(400, "NaN", struct.pack("<3f", float("nan"), 0, 0), "/v2/models/any/infer", **classes(1)),
        call(
            400,
            "BYTES",
            "/v2/models/words/infer",
            inputs=[{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}],
            **classes(1),
        ),
        call(
            200,
            lambda r: (
                r.json["outputs"][0]
                == {
                    "name": "x_out",
                    "datatype": "BYTES",
                    "shape": [2, 1],
                    "data": ["3.000000:2", "6.000000:0"],
                }
            ),
            inputs=[X | {"shape": [2, 3], "data": [1, 2, 3, 6, 5, 4]}],
            **classes(1),
        ),
    ],
    "OIP-145 priority and timeout": [
        call(200, None, parameters={"priority": 0, "timeout": 0}),
        call(400, "priority", parameters={"priority": -1}),
        call(400, "priority", parameters={"priority": "high"}),
        call(400, "priority", parameters={"priority": 1}),
        call(400, "timeout", parameters={"timeout": -1}),
        call(400, "timeout", parameters={"timeout": "1"}),
        call(200, None, parameters={"timeout": 10_000_000}),
    ],
    "OIP-146 reserved parameters": [
        call(400, "reserved", parameters={"triton_anything": True}),
        call(200, None, parameters={"headers": "x"}),
    ],
    "OIP-150 sequences": [
        call(400, "sequence_id", parameters={"sequence_id": 3}),
        call(400, "sequence_id", parameters={"sequence_id": "a"}),
        call(400, "sequence_start", parameters={"sequence_start": True}),
        call(200, None, parameters={"sequence_id": 0, "sequence_start": False, "sequence_end": False}),
    ],
    "OIP-151 generate": [
        post("/v2/models/echo/generate", 404, "endpoint", {}),
        post("/v2/models/echo/generate_stream", 404, "endpoint", {}),
    ],
}
FLAT = [(name, number) for name, rows in ROWS.items() for number in range(len(rows))]


@pytest.mark.parametrize(("name", "number"), FLAT, ids=[f"{n} #{i}" for n, i in FLAT])
def test_line(server: Server, name: str, number: int):
    row = ROWS[name][number]
    before = len(server.recorder.calls())
    reply = server.ask(row.method, row.path, row.body, row.headers)
    assert reply.status == row.status, reply.body[:500]
    if row.method == "POST" and row.path.partition("?")[0].endswith("/infer"):
        assert_recorded(server, before, reply)
    if reply.status != 200 and row.method != "HEAD":
        assert reply.headers["content-type"] == "application/json"
        assert set(reply.json) <= {"error", "hint"}
        assert "expected" in reply.json["error"]
        assert "got" in reply.json["error"]
    if isinstance(row.wanted, str):
        assert row.wanted in reply.json["error"]
    elif callable(row.wanted):
        check: Callable[[Reply], Any] = row.wanted
        assert check(reply), reply.body[:2_000]
    elif row.wanted is not None:
        assert reply.json == row.wanted
    assert reply.status != 200 or b":null" not in reply.body  # optional means absent


def assert_recorded(server: Server, before: int, reply: Reply) -> None:
    """The call has one entry, under the key it was answered with."""
    (made,) = server.recorder.calls()[before:]
    assert server.recorder.call_key(made.n) == reply.headers["pellucid-call"]
    assert (made.outcome == "answered") == (reply.status == 200)


# -- lines that take more than one request --------------------------------------------------------

LINES = {
    "OIP-022 transfer", "OIP-035 busy", "OIP-036 caller gives up", "OIP-037 ambiguous framing",
    "OIP-074 one write", "OIP-100 shm register", "OIP-101 shm status", "OIP-102 shm unregister",
    "OIP-103 shm tensors", "OIP-111 inference_stats", "OIP-122 unload",
}  # fmt: skip


def test_every_line_of_the_list_is_here():
    """Sections 2 to 7; each of ``LINES`` is a test below, or in the file of hostile sockets."""
    ids = {name.split(" ")[0] for name in (*ROWS, *LINES)}
    spans = [(1, 12), (20, 37), (50, 61), (70, 74), (80, 86), (100, 104), (110, 111), (120, 122)]
    alone = [115, 130, 135, 140, 145, 146, 150, 151]
    assert ids == {f"OIP-{n:03}" for first, last in spans for n in range(first, last + 1)} | {
        f"OIP-{n}" for n in alone
    }


def test_oip_111_counters_count_elements_runs_and_stages(server: Server):
    def stats() -> Any:
        return server.ask("GET", "/v2/models/single/stats").json["model_stats"][0]

    assert stats()["inference_count"] == 0
    body = json.dumps({"inputs": [X]}).encode()
    for _ in range(3):
        assert server.ask("POST", "/v2/models/single/infer", body).status == 200
    assert server.ask("POST", "/v2/models/single/infer", b"{}").status == 400  # refused: counts nowhere
    told = stats()
    assert (told["inference_count"], told["execution_count"]) == (3, 3)
    assert told["last_inference"] > 1_600_000_000_000
    inference = told["inference_stats"]
    assert {name for name, took in inference.items() if took["count"] == 3} == {
        "success", "queue", "compute_input", "compute_infer", "compute_output",
    }  # fmt: skip
    assert inference["fail"] == {"count": 0, "ns": 0}
    assert inference["success"]["ns"] >= inference["compute_infer"]["ns"] > 0
    (batch,) = told["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (1, 3)
    before = server.ask("GET", "/v2/models/echo/stats").json["model_stats"][0]["inference_count"]
    body = json.dumps({"inputs": [X | {"shape": [3, 3], "data": [0] * 9}]}).encode()
    assert server.ask("POST", INFER, body).status == 200
    told = server.ask("GET", "/v2/models/echo/stats").json["model_stats"][0]
    assert told["inference_count"] == before + 3
    assert 3 in [batch["batch_size"] for batch in told["batch_stats"]]  # real rows, not the bucket of 4


def test_oip_122_unload_and_load_again(server: Server):
    url, body = "/v2/models/spare/infer", json.dumps({"inputs": [X]}).encode()
    assert server.ask("POST", url, body).status == 200
    reply = server.ask(
        "POST", "/v2/repository/models/spare/unload", b'{"parameters": {"unload_dependents": true}}'
    )
    assert (reply.status, reply.body) == (200, b"")
    assert server.ask("POST", url, body).status == 404
    gone = server.ask("GET", "/v2/models/spare")
    assert gone.status == 404
    assert "no available versions" in gone.json["error"]
    assert server.ask("GET", "/v2/models/spare/ready").status == 503
    assert server.ask("GET", "/v2/health/ready").status == 200  # unloaded on purpose
    index = {m["name"]: m for m in server.ask("POST", "/v2/repository/index").json}
    assert index["spare"]["state"] == "UNAVAILABLE"
    assert index["spare"]["reason"] == "unloaded"
    ready = server.ask("POST", "/v2/repository/index", b'{"ready": true}').json
    assert "spare" not in {m["name"] for m in ready}
    assert server.ask("POST", "/v2/repository/models/spare/unload").status == 200  # again
    assert server.ask("POST", "/v2/repository/models/nope/unload").status == 404
    assert server.ask("POST", "/v2/repository/models/spare/unload", b'{"parameters": {"a": 1}}').status == 400
    assert server.ask("POST", "/v2/repository/models/spare/load").status == 200
    assert server.ask("POST", url, body).status == 200
    stats = server.ask("GET", "/v2/models/spare/stats").json["model_stats"]
    assert stats[0]["inference_count"] == 1  # counters are of what is loaded


# -- system shared memory -------------------------------------------------------------------------


def region(name: str, verb: str) -> str:
    return f"/v2/systemsharedmemory/region/{name}/{verb}"


def register(server: Server, name: str, **members: Any) -> Reply:
    given = {"key": "/seg", "offset": 0, "byte_size": 64} | members
    body = {key: value for key, value in given.items() if value is not ...}
    return server.ask("POST", region(name, "register"), json.dumps(body).encode())


@pytest.fixture
def segment(server: Server) -> Iterator[Path]:
    path = server.shm / "seg"
    path.write_bytes(bytes(64))
    yield path
    assert server.ask("POST", "/v2/systemsharedmemory/unregister").status == 200


@pytest.mark.usefixtures("segment")
def test_oip_100_101_102_regions(server: Server):
    assert server.ask("GET", "/v2/systemsharedmemory/status").json == []
    assert (register(server, "r").status, register(server, "r").status) == (200, 400)
    assert register(server, "s", key="seg", offset=1, byte_size=63).status == 200
    told = server.ask("GET", "/v2/systemsharedmemory/status").json
    assert told[0] == {"name": "r", "key": "/seg", "offset": 0, "byte_size": 64}
    assert server.ask("GET", region("s", "status")).json == [told[1]]
    assert server.ask("GET", region("t", "status")).status == 404
    assert server.ask("POST", region("s", "unregister")).status == 200
    assert server.ask("POST", region("s", "unregister")).status == 200  # unknown, too
    assert len(server.ask("GET", "/v2/systemsharedmemory/status").json) == 1


BAD_REGIONS: dict[str, tuple[dict[str, Any], int]] = {
    "no key": ({"key": ...}, 400),
    "no offset": ({"offset": ...}, 400),
    "no size": ({"byte_size": ...}, 400),
    "key of two parts": ({"key": "/a/b"}, 400),
    "key above": ({"key": "/.."}, 400),
    "key empty": ({"key": ""}, 400),
    "key a number": ({"key": 1}, 400),
    "key with NUL": ({"key": "a\0b"}, 400),
    "no such object": ({"key": "/nope"}, 404),
    "a link": ({"key": "/link"}, 400),
    "a folder": ({"key": "/folder"}, 400),
    "size 0": ({"byte_size": 0}, 400),
    "size beyond": ({"byte_size": 65}, 400),
    "offset beyond": ({"offset": 1}, 400),
    "offset negative": ({"offset": -1}, 400),
    "offset true": ({"offset": True}, 400),
    "size 2^63": ({"byte_size": 2**63}, 400),
}


@pytest.mark.parametrize("name", BAD_REGIONS)
def test_oip_100_regions_that_are_none(server: Server, segment: Path, name: str):
    members, status = BAD_REGIONS[name]
    if not (server.shm / "link").is_symlink():
        (server.shm / "link").symlink_to(segment)
        (server.shm / "folder").mkdir()
    reply = register(server, "bad", **members)
    assert reply.status == status, reply.body
    assert "expected" in reply.json["error"]
    assert server.ask("GET", region("bad", "status")).status == 404


def shared(**parameters: Any) -> dict[str, Any]:
    given = {"shared_memory_region": "r", "shared_memory_byte_size": 12} | parameters
    return {"parameters": {name: value for name, value in given.items() if value is not ...}}


def shared_call(server: Server, *, given: Any = None, wanted: Any = None) -> Reply:
    item = {name: value for name, value in X.items() if name != "data"} | (given or shared())
    body: dict[str, Any] = {"inputs": [item]}
    if wanted is not None:
        body["outputs"] = [{"name": "x_out"} | wanted]
    return server.ask("POST", INFER, json.dumps(body).encode())


def test_oip_103_tensors_in_and_out(server: Server, segment: Path):
    segment.write_bytes(b"?" * 8 + FLOATS + bytes(44))
    assert register(server, "r").status == 200
    reply = shared_call(
        server,
        given=shared(shared_memory_offset=8),
        wanted=shared(shared_memory_offset=32, shared_memory_byte_size=20),
    )
    assert reply.status == 200, reply.body
    (output,) = reply.json["outputs"]
    assert output == {"name": "x_out", "datatype": "FP32", "shape": [1, 3]}
    assert segment.read_bytes() == b"?" * 8 + FLOATS + bytes(12) + FLOATS + bytes(20)
    call = server.recorder.calls()[-1]
    inline = server.ask("POST", INFER, json.dumps({"inputs": [X]}).encode())
    assert inline.status == 200
    again = server.recorder.calls()[-1]
    assert (call.rows[0].input, call.outcome) == (
        again.rows[0].input,
        "answered",
    )  # what was read is what is recorded


BAD_PLACES: dict[str, tuple[dict[str, Any], int]] = {
    "not registered": ({"given": shared(shared_memory_region="t")}, 404),
    "region no text": ({"given": shared(shared_memory_region=1)}, 400),
    "no region": ({"given": shared(shared_memory_region=...)}, 400),
    "no size": ({"given": shared(shared_memory_byte_size=...)}, 400),
    "negative size": ({"given": shared(shared_memory_byte_size=-12)}, 400),
    "outside": ({"given": shared(shared_memory_offset=53)}, 400),
    "far outside": ({"given": shared(shared_memory_offset=2**62)}, 400),
    "size unlike the shape": ({"given": shared(shared_memory_byte_size=16)}, 400),
    "with binary size": ({"given": shared(binary_data_size=12)}, 400),
    "output not registered": ({"wanted": shared(shared_memory_region="t")}, 404),
    "output too small": ({"wanted": shared(shared_memory_byte_size=8)}, 400),
    "output outside": ({"wanted": shared(shared_memory_offset=60)}, 400),
    "output with binary_data": ({"wanted": shared(binary_data=True)}, 400),
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_oip_103_places_that_are_none(server: Server, segment: Path, name: str):
    more, status = BAD_PLACES[name]
    assert register(server, "r").status == 200
    before = len(server.recorder.calls())
    reply = shared_call(server, **more)
    assert reply.status == status, reply.body
    assert_recorded(server, before, reply)
    assert segment.read_bytes() == bytes(64)


def test_oip_103_limits_hold_before_anything_is_read(server: Server):
    with (server.shm / "huge").open("wb") as sparse:
        sparse.truncate(2**40)
    assert register(server, "huge", key="huge", byte_size=2**40).status == 200
    item = {"name": "x", "shape": [1, 1], "datatype": "BYTES"}
    reply = server.ask(
        "POST",
        "/v2/models/words/infer",
        json.dumps(
            {"inputs": [item | shared(shared_memory_region="huge", shared_memory_byte_size=2**40)]}
        ).encode(),
    )
    assert reply.status == 413
    assert "at most 100,000 bytes" in reply.json["error"]
    reply = shared_call(server, given=shared(shared_memory_region="huge", shared_memory_byte_size=2**40))
    assert reply.status == 400
    assert "expected 12 bytes" in reply.json["error"]
    assert server.ask("POST", region("huge", "unregister")).status == 200


def test_oip_103_a_region_cut_short_is_an_error_and_no_end(server: Server, segment: Path):
    assert register(server, "r").status == 200
    segment.write_bytes(bytes(4))
    reply = shared_call(server)
    assert reply.status == 400
    assert "12 bytes in region" in reply.json["error"]
    reply = server.ask(
        "POST", INFER, json.dumps({"inputs": [X], "outputs": [{"name": "x_out"} | shared()]}).encode()
    )
    assert reply.status == 400
    assert len(segment.read_bytes()) == 4
    segment.unlink()
    assert shared_call(server).status == 400
    assert server.ask("GET", "/v2/health/live").status == 200


def test_what_is_off_is_403_and_not_advertised(tmp_path: Path):
    with running(make_plane([echo_model()])) as port:
        off = Server(port, MemoryRecorder(), tmp_path)
        names = off.ask("GET", "/v2").json["extensions"]
        assert not {"system_shared_memory", "model_repository"} & set(names)
        assert register(off, "r").status == 403
        assert off.ask("GET", "/v2/systemsharedmemory/status").json == []
        assert shared_call(off).status == 403
        for verb in ("load", "unload"):
            assert off.ask("POST", f"/v2/repository/models/echo/{verb}").status == 403
        assert off.ask("POST", "/v2/repository/index").json[0]["state"] == "READY"
