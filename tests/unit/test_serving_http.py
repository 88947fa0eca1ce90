"""The HTTP door without a socket: paths, methods, headers, statuses, and what is recorded."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import zlib
from typing import Any

import pytest

from pellucid.core.tensor import TensorSpec
from pellucid.servers.http.body import answer_encoding
from pellucid.serving.limits import Limits
from pellucid.serving.management import EXTENSIONS
from pellucid.testing.plane import Reply, ask, echo_model, exchange, make_plane
from pellucid.testing.recorder import MemoryRecorder

URL = "/v2/models/echo/infer"
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
).encode()


def one(
    method: str, path: str, body: bytes = b"", headers: Any = (), *, recorder: MemoryRecorder | None = None,
    limits: Limits | None = None, models: Any = None,
) -> Reply:  # fmt: skip
    plane = make_plane(models or [echo_model(), echo_model(version="2.0.0")], recorder, limits)
    return exchange(plane, [(method, path, body, headers)])[0]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/echo/ready", {"name": "echo", "ready": True}),
        ("/v2/models/echo/versions/1.0.0/ready", {"name": "echo", "ready": True}),
        ("/v2/health/live?x=1", {"live": True}),
    ],
)
def test_health(method: str, path: str, body: dict[str, Any]):
    reply = one(method, path)
    assert (reply.status, reply.json) == (200, body)
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(path: str):
    reply = one("GET", path)
    assert reply.status == 200
    assert reply.json["name"] == "pellucid"
    assert reply.json["extensions"] == [*EXTENSIONS]


def test_model_metadata():
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    reply = one("GET", "/v2/models/echo")
    assert reply.json == {
        "name": "echo", "versions": ["1.0.0", "2.0.0"], "platform": "onnx_onnxv1",
        "inputs": [tensor], "outputs": [tensor | {"name": "x_out"}], "properties": {},
    }  # fmt: skip
    assert one("GET", "/v2/models/%65cho/versions/2.0.0").json["versions"] == ["2.0.0"]


STATUSES = {
    "OIP-003 slash": ("GET", "/v2/health/live/", 404),
    "root": ("GET", "/", 404),
    "v1": ("GET", "/v1/models", 404),
    "OIP-005 unknown model": ("GET", "/v2/models/nope/ready", 404),
    "OIP-005 unknown version": ("GET", "/v2/models/echo/versions/9/ready", 404),
    "OIP-006 unknown": ("GET", "/v2/models/nope", 404),
    "OIP-008 version 01": ("GET", "/v2/models/echo/versions/01.0.0", 404),
    "OIP-009 slash in name": ("GET", "/v2/models/a%2Fb", 400),
    "OIP-009 dots": ("GET", "/v2/models/..", 400),
    "OIP-009 encoded dots": ("GET", "/v2/models/%2e%2e/ready", 400),
    "OIP-009 NUL": ("GET", "/v2/models/a%00b", 400),
    "OIP-009 line break": ("GET", "/v2/models/a%0Ab", 400),
    "OIP-009 not UTF-8": ("GET", "/v2/models/%FF", 400),
    "OIP-009 decoded once": ("GET", "/v2/models/%2565cho", 404),
    "OIP-009 long": ("GET", "/v2/models/" + "a" * 300, 400),
    "empty name": ("GET", "/v2/models//ready", 400),
    "OIP-011 post to health": ("POST", "/v2/health/live", 405),
    "OIP-011 get on infer": ("GET", URL, 405),
    "OIP-011 delete": ("DELETE", "/v2/models/echo", 405),
    "OIP-151 generate": ("POST", "/v2/models/echo/generate", 404),
    "too deep": ("GET", "/v2/models/echo/versions/1.0.0/ready/x", 404),
    "no version": ("GET", "/v2/models/echo/versions", 404),
}


@pytest.mark.parametrize("name", STATUSES)
def test_other_paths_and_methods(name: str):
    method, path, status = STATUSES[name]
    recorder = MemoryRecorder()
    reply = one(method, path, recorder=recorder)
    assert reply.status == status
    assert set(reply.json) <= {"error", "hint"}
    assert reply.headers["content-type"] == "application/json"
    assert recorder.last == 0
    if status == 405:
        assert reply.headers["allow"] == ("POST" if path == URL else "GET, HEAD")


INFER_REFUSED: dict[str, tuple[str, bytes, list[tuple[str, str]], int]] = {
    "OIP-034 model": ("/v2/models/nope/infer", BODY, [], 404),
    "OIP-034 version": ("/v2/models/echo/versions/9/infer", BODY, [], 404),
    "OIP-009 name": ("/v2/models/a%2Fb/infer", BODY, [], 400),
    "OIP-020 JSON": (URL, b"{", [], 400),
    "OIP-086 empty": (URL, b"", [], 400),
    "OIP-081 text": (URL, BODY, [("Inference-Header-Content-Length", "abc")], 400),
    "OIP-081 plus": (URL, BODY, [("Inference-Header-Content-Length", "+5")], 400),
    "OIP-081 negative": (URL, BODY, [("Inference-Header-Content-Length", "-1")], 400),
    "OIP-081 huge": (URL, BODY, [("Inference-Header-Content-Length", "9" * 30)], 400),
    "OIP-081 beyond": (URL, BODY, [("Inference-Header-Content-Length", "100000")], 400),
    "OIP-081 twice": (URL, BODY, [("Inference-Header-Content-Length", "5")] * 2, 400),
    "OIP-072 br": (URL, BODY, [("Content-Encoding", "br")], 415),
    "OIP-072 two": (URL, BODY, [("Content-Encoding", "gzip, gzip")], 415),
    "OIP-072 broken gzip": (URL, BODY, [("Content-Encoding", "gzip")], 400),
    "OIP-072 cut gzip": (URL, gzip.compress(BODY)[:-4], [("Content-Encoding", "gzip")], 400),
    "OIP-072 two streams": (URL, gzip.compress(BODY) * 2, [("Content-Encoding", "gzip")], 400),
    "too large": (URL, b" " * 5000, [], 413),
    "too large, announced": (URL, BODY, [("Content-Length", "9" * 19)], 413),
    "inflates too far": (URL, gzip.compress(b" " * 100_000), [("Content-Encoding", "gzip")], 413),
}


@pytest.mark.parametrize("name", INFER_REFUSED)
def test_refused_calls_have_a_number_and_an_entry(name: str):
    path, body, headers, status = INFER_REFUSED[name]
    recorder = MemoryRecorder()
    reply = one("POST", path, body, headers, recorder=recorder, limits=Limits(body_max_bytes=4096))
    assert reply.status == status, reply.body
    (call,) = recorder.calls()
    assert (call.outcome, call.slot, call.bucket) == ("refused", -1, 0)
    assert reply.headers["pellucid-call"] == recorder.call_key(call.n)
    assert reply.headers["pellucid-trace"] == call.trace
    assert call.personal["message"] == reply.json["error"]
    if status == 404:
        assert call.context == 0  # the node's own: no model is known
    assert not recorder.open
    if status == 413:
        assert reply.headers["connection"] == "close"
    if status == 415:
        assert reply.headers["accept-encoding"] == "gzip, deflate"
    assert recorder.entries()


def test_the_version_is_the_one_asked_for_and_the_answer_names_it():
    assert one("POST", URL, BODY).json["model_version"] == "2.0.0"
    assert one("POST", "/v2/models/echo/versions/1.0.0/infer", BODY).json["model_version"] == "1.0.0"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP"])
def test_compressed_bodies(encoding: str):
    body = zlib.compress(BODY) if encoding == "deflate" else gzip.compress(BODY)
    assert one("POST", URL, body, [("Content-Encoding", encoding)]).status == 200


def test_answers_are_compressed_when_asked_and_large():
    model = echo_model("echo", TensorSpec("x", "FP32", (-1, 1000)))
    item = {"name": "x", "shape": [1, 1000], "datatype": "FP32", "data": [0.5] * 1000}
    body = json.dumps({"inputs": [item]}).encode()
    reply = one("POST", URL, body, [("Accept-Encoding", "br, gzip;q=0, deflate")], models=[model])
    assert reply.headers["content-encoding"] == "deflate"
    assert json.loads(zlib.decompress(reply.body))["outputs"][0]["data"] == [0.5] * 1000
    assert "content-encoding" not in one("POST", URL, BODY, [("Accept-Encoding", "gzip")]).headers


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [(b"gzip", b"gzip"), (b"identity", b""), (b"gzip;q=0", b""), (b"gzip; q=0.0", b""),
     (b"a, DEFLATE", b"deflate"), (b"gzip;q=0.5", b"gzip"), (b"", b"")],
)  # fmt: skip
def test_what_accept_encoding_means(accepted: bytes, chosen: bytes):
    assert answer_encoding(accepted) == chosen


def test_binary_both_ways():
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
            ],
            "outputs": [{"name": "x_out", "parameters": {"binary_data": True}}],
        }
    ).encode()
    data = struct.pack("<3f", 1, -0.0, 1e-45)
    reply = one("POST", URL, head + data, [("Inference-Header-Content-Length", str(len(head)))])
    size = int(reply.headers["inference-header-content-length"])
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.body[size:] == data
    (output,) = json.loads(reply.body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": 12}
    assert "data" not in output


def test_raw_binary():
    data = struct.pack("<3f", 1, 2, 3)
    reply = one("POST", URL, data, [("Inference-Header-Content-Length", "0")])
    assert reply.body.endswith(data)


def binary_nan(value: float, **more: Any) -> tuple[bytes, list[tuple[str, str]]]:
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
    head = json.dumps({"inputs": [item]} | more).encode()
    return head + struct.pack("<3f", 1, value, 2), [("Inference-Header-Content-Length", str(len(head)))]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_refused_before_they_share_a_batch(value: float):
    recorder = MemoryRecorder()
    reply = one("POST", URL, *binary_nan(value), recorder=recorder)
    assert reply.status == 400
    assert "expected finite values" in reply.json["error"]
    assert [c.outcome for c in recorder.calls()] == ["refused"]


def test_where_they_are_allowed_json_answers_still_cannot_hold_them():
    recorder = MemoryRecorder()
    models = [echo_model(allow_nonfinite=True)]
    reply = one("POST", URL, *binary_nan(float("nan")), recorder=recorder, models=models)
    assert reply.status == 400
    assert "binary" in reply.json["hint"]
    (call,) = recorder.calls()
    assert (call.outcome, call.error) == ("failed", "tensor")
    assert call.rows[0].output  # committed to either way
    asked = {"parameters": {"nonfinite": "literal"}}
    reply = one("POST", URL, *binary_nan(float("inf"), **asked), models=models)
    assert b"Infinity" in reply.body
    asked = {"parameters": {"binary_data_output": True}}
    assert one("POST", URL, *binary_nan(float("inf"), **asked), models=models).status == 200


def test_bytes_that_are_no_text_need_a_binary_answer():
    models = [echo_model("echo", TensorSpec("x", "BYTES", (-1, 1)))]
    item = {"name": "x", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
    head = json.dumps({"inputs": [item]}).encode()
    headers = [("Inference-Header-Content-Length", str(len(head)))]
    reply = one("POST", URL, head + b"\x01\0\0\0\xff", headers, models=models)
    assert reply.status == 400
    assert "UTF-8" in reply.json["error"]
    assert one("POST", URL, head + b"\x01\0\0\0a", headers, models=models).json["outputs"][0]["data"] == ["a"]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_trace_id_from_outside_is_personal():
    recorder = MemoryRecorder()
    headers = [("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")]
    reply = one("POST", URL, BODY, headers, recorder=recorder)
    (call,) = recorder.calls()
    assert reply.headers["pellucid-trace"] == TRACE
    assert call.personal["trace_id"] == TRACE
    assert call.trace is None
    assert all(TRACE.encode() not in formed.entry for formed in recorder.entries())


@pytest.mark.parametrize(
    "value",
    [f"00-{'0' * 32}-00f067aa0ba902b7-01", f"ff-{TRACE}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01",
     "x", f"00-{TRACE.upper()}-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7-01\n"],
)  # fmt: skip
def test_a_broken_trace_id_is_no_trace_id(value: str):
    recorder = MemoryRecorder()
    reply = one("POST", URL, BODY, [("traceparent", value)], recorder=recorder)
    assert reply.headers["pellucid-trace"] == recorder.calls()[0].trace != TRACE


def test_nothing_of_a_request_stands_in_the_clear_in_its_entry():
    recorder = MemoryRecorder()
    secret = "secret-7f3a"
    body = json.dumps(
        {
            "id": secret,
            "parameters": {"subject": secret, secret: secret},
            "inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}],
        }
    ).encode()
    bad = body.replace(b'"x"', f'"{secret}"'.encode())
    exchange(
        make_plane([echo_model()], recorder),
        [("POST", URL, body), ("POST", URL, bad), ("POST", f"/v2/models/{secret}/infer", body)],
    )
    assert len(recorder.calls()) == 3
    assert [c.personal.get("request_id") for c in recorder.calls()].count(secret) == 2
    assert all(secret.encode() not in formed.entry for formed in recorder.entries())


def test_bodies_in_pieces_and_bodies_that_never_end():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, Limits(body_max_bytes=1000))

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        reply = await ask(plane, "POST", URL, pieces=[BODY[:10], BODY[10:20], BODY[20:]])
        assert reply.status == 200
        assert (await ask(plane, "POST", URL, pieces=[b" " * 600] * 3)).status == 413

    asyncio.run(go())
    assert [c.outcome for c in recorder.calls()] == ["answered", "refused"]


def test_a_client_that_leaves_in_the_middle_of_its_body_is_recorded():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    from pellucid.servers.http.app import HttpDoor, make_app

    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"method": "POST", "raw_path": URL.encode(), "client": ("10.0.0.9", 1), "headers": []}
        await make_app(HttpDoor(plane))(scope, receive, send)

    asyncio.run(go())
    (call,) = recorder.calls()
    assert (call.outcome, call.error) == ("refused", "deadline")
    assert call.personal["address"] == "10.0.0.9"


def test_cancelled_before_its_body_was_read():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    from pellucid.servers.http.app import HttpDoor, make_app

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())

        async def never(*_: Any) -> Any:
            await asyncio.Event().wait()

        scope = {"method": "POST", "raw_path": URL.encode(), "client": None, "headers": []}
        task = asyncio.ensure_future(make_app(HttpDoor(plane))(scope, never, never))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert [(c.outcome, c.error) for c in recorder.calls()] == [("refused", "unavailable")]
    assert not recorder.open


def test_while_stopping_calls_are_refused_and_recorded():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder)
    plane.draining = True
    ready, infer = exchange(plane, [("GET", "/v2/health/ready"), ("POST", URL, BODY)])
    assert (ready.status, infer.status) == (503, 503)
    assert infer.headers["retry-after"] == "1"
    assert [c.outcome for c in recorder.calls()] == ["refused"]


def test_a_missing_model_makes_the_server_not_ready_and_the_others_are_served():
    plane = make_plane([echo_model()])
    plane.pool.missing["packages/other.tar.gz"] = "policy_denied: no"
    ready, infer = exchange(plane, [("GET", "/v2/health/ready"), ("POST", URL, BODY)])
    assert (ready.status, infer.status) == (503, 200)
    assert "other" in ready.json["error"]


def test_a_refusal_that_a_halted_ledger_cannot_take_is_answered_as_the_ledgers_error():
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, None)
    recorder.broken = "journal: fdatasync failed"
    reply = exchange(plane, [("POST", URL, b"{}", ())])[0]
    assert reply.status == 500
    assert "fdatasync failed" in reply.json["error"]
