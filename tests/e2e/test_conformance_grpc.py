"""The conformance list over gRPC, line by line: section 8, and that HTTP and gRPC record the same.

The client here is a bare channel and our own messages; stock clients have a file of their own.
"""

from __future__ import annotations

import asyncio
import json
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pellucid.core.tensor import DATATYPES, TensorSpec
from pellucid.errors import UnavailableError
from pellucid.servers.grpc.messages import SERVICE, message_class
from pellucid.servers.grpc.serve import GrpcDoor
from pellucid.serving.dataplane import Dataplane
from pellucid.serving.limits import Limits
from pellucid.serving.shared_memory import Regions
from pellucid.testing.plane import echo_model, make_plane, running
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.repository import MemoryRepository
from pellucid.testing.session import EchoSession

pytestmark = pytest.mark.e2e

Infer = message_class("ModelInferRequest")
FLOATS = struct.pack("<3f", 1, 2, 3)
TIMEOUT_S = 20.0


class Client:
    """RPCs by name over one channel, messages by keyword."""

    def __init__(self, port: int, http: int, recorder: MemoryRecorder, plane: Dataplane, shm: Path) -> None:
        self.port, self.http, self.recorder, self.plane, self.shm = port, http, recorder, plane, shm
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1)])

    def ask(self, rpc: str, message: Any = None, **members: Any) -> Any:
        kind = message_class("ModelInferRequest" if rpc == "ModelInfer" else f"{rpc}Request")
        reply = message_class(f"{rpc}Response")
        call = self.channel.unary_unary(
            f"/{SERVICE}/{rpc}", lambda m: m.SerializeToString(), reply.FromString
        )
        return call(message or kind(**members), timeout=TIMEOUT_S)

    def refused(self, rpc: str, *args: Any, **members: Any) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(rpc, *args, **members)
        error = caught.value
        assert "expected" in error.details()
        assert "got" in error.details()
        return error

    def raw(self, rpc: str, data: bytes, **more: Any) -> Any:
        return self.channel.unary_unary(f"/{SERVICE}/{rpc}")(data, timeout=TIMEOUT_S, **more)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    recorder, shm = MemoryRecorder(), tmp_path_factory.mktemp("shm")
    models = [
        echo_model(), echo_model("old", version="1.0.0"), echo_model("old", version="2.0.0"),
        echo_model("any", allow_nonfinite=True), echo_model("spare"),
        echo_model("two", TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,))),
        *(echo_model(kind.lower(), TensorSpec("x", kind, (-1, 2))) for kind in DATATYPES),
    ]  # fmt: skip
    repository = MemoryRepository({"spare": lambda: echo_model("spare")})
    limits = Limits(body_max_bytes=100_000, refusals_burst=10_000)
    plane = make_plane(models, recorder, limits, repository=repository, regions=Regions(shm))
    repository.pool = plane.pool
    door = GrpcDoor("127.0.0.1", 0)
    with running(plane, [door]) as http:
        made = Client(door.port, http, recorder, plane, shm)
        yield made
        made.channel.close()
    assert not recorder.open
    recorder.entries()


def infer(model: str = "echo", **changes: Any) -> Any:
    """The good request, with members changed; ``input`` changes its one input."""
    given = {"name": "x", "datatype": "FP32", "shape": [1, 3]} | changes.pop("input", {})
    members = {"model_name": model, "inputs": [given], "raw_input_contents": [FLOATS]} | changes
    return Infer(**{name: value for name, value in members.items() if value is not ...})


def contents(kind: str, field: str, values: list[Any], shape: tuple[int, ...] = (1, 2), **more: Any) -> Any:
    given = {"datatype": kind, "shape": shape, "contents": {field: values, **more}}
    return infer(kind.lower(), input=given, raw_input_contents=...)


# -- health, metadata -----------------------------------------------------------------------------


def test_oip_200_live_and_ready(client: Client):
    assert client.ask("ServerLive").live
    assert client.ask("ServerReady").ready


def test_oip_201_model_ready_knows_no_error(client: Client):
    assert client.ask("ModelReady", name="old", version="1.0.0").ready
    for name, version in (("nope", ""), ("echo", "9"), ("echo", "abc"), ("", "")):
        assert not client.ask("ModelReady", name=name, version=version).ready


def test_oip_202_metadata(client: Client):
    server = client.ask("ServerMetadata")
    assert server.name == "pellucid"
    assert "statistics" in server.extensions
    model = client.ask("ModelMetadata", name="old")
    assert (list(model.versions), model.platform) == (["1.0.0", "2.0.0"], "onnx_onnxv1")
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [("x", "FP32", [-1, 3])]
    for name, version in (("nope", ""), ("echo", "9")):
        error = client.refused("ModelMetadata", name=name, version=version)
        assert error.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(("model", "version"), [("nope", ""), ("", ""), ("echo", "9"), ("echo", "abc")])
def test_oip_203_unknown_models_and_versions(client: Client, model: str, version: str):
    error = client.refused("ModelInfer", infer(model, model_version=version))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert_recorded(client, error, "refused")


def assert_recorded(client: Client, told: Any, outcome: str) -> Any:
    """One entry, the last, under the key that the reply or the error carries."""
    key = dict(told.trailing_metadata())["pellucid-call"]
    call = client.recorder.calls()[-1]
    assert (client.recorder.call_key(call.n), call.outcome) == (key, outcome)
    return call


# -- inference ------------------------------------------------------------------------------------

RAW_REFUSED: dict[str, Any] = {
    "short": infer(raw_input_contents=[FLOATS[:-1]]),
    "missing": infer(raw_input_contents=...),
    "one too many": infer(raw_input_contents=[FLOATS, FLOATS]),
    "negative dimension": infer(input={"shape": [-1, 3]}),
    "zero dimension": infer(input={"shape": [0, 3]}, raw_input_contents=[b""]),
    "2^40 rows": infer(input={"shape": [2**40, 3]}),
    "wrong rank": infer(input={"shape": [3]}),
    "wrong name": infer(input={"name": "z"}),
    "wrong datatype": infer(input={"datatype": "INT32"}),
    "no inputs": infer(inputs=[], raw_input_contents=...),
    "NaN": infer(raw_input_contents=[struct.pack("<3f", float("nan"), 0, 0)]),
    "unknown output": infer(outputs=[{"name": "n"}]),
    "output twice": infer(outputs=[{"name": "x_out"}] * 2),
    "BYTES cut": infer(
        "bytes", input={"datatype": "BYTES", "shape": [1, 2]}, raw_input_contents=[b"\x09\0\0\0a"]
    ),
    "BOOL of 2": infer("bool", input={"datatype": "BOOL", "shape": [1, 2]}, raw_input_contents=[b"\x02\x00"]),
    "id with a line break": infer(id="a\nb"),
    "sequence": infer(parameters={"sequence_id": {"int64_param": 3}}),
    "priority": infer(parameters={"priority": {"uint64_param": 1}}),
    "timeout as text": infer(parameters={"timeout": {"string_param": "1"}}),
    "reserved": infer(parameters={"triton_x": {"bool_param": True}}),
    "parameter without value": infer(parameters={"a": {}}),
    "classification as text": infer(
        outputs=[{"name": "x_out", "parameters": {"classification": {"string_param": "1"}}}]
    ),
}


@pytest.mark.parametrize("name", RAW_REFUSED)
def test_oip_204_207_refused(client: Client, name: str):
    error = client.refused("ModelInfer", RAW_REFUSED[name])
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    call = assert_recorded(client, error, "refused")
    assert error.details().startswith(call.personal["message"])


CONTENTS: dict[str, tuple[Any, bytes]] = {
    "BOOL": (contents("BOOL", "bool_contents", [True, False]), b"\x01\x00"),
    "INT8": (contents("INT8", "int_contents", [-128, 127]), b"\x80\x7f"),
    "INT16": (
        contents("INT16", "int_contents", [-(2**15), 2**15 - 1]),
        struct.pack("<2h", -(2**15), 2**15 - 1),
    ),
    "INT32": (
        contents("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        struct.pack("<2i", -(2**31), 2**31 - 1),
    ),
    "INT64": (
        contents("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        struct.pack("<2q", -(2**63), 2**63 - 1),
    ),
    "UINT8": (contents("UINT8", "uint_contents", [0, 255]), b"\x00\xff"),
    "UINT16": (contents("UINT16", "uint_contents", [0, 65_535]), b"\0\0\xff\xff"),
    "UINT32": (contents("UINT32", "uint_contents", [0, 2**32 - 1]), struct.pack("<2I", 0, 2**32 - 1)),
    "UINT64": (contents("UINT64", "uint64_contents", [0, 2**64 - 1]), struct.pack("<2Q", 0, 2**64 - 1)),
    "FP32": (contents("FP32", "fp32_contents", [0.1, -0.0]), struct.pack("<2f", 0.1, -0.0)),
    "FP64": (contents("FP64", "fp64_contents", [0.1, -0.0]), struct.pack("<2d", 0.1, -0.0)),
    "BYTES": (contents("BYTES", "bytes_contents", [b"", b"\xff\x00"]), b"\0\0\0\0\x02\0\0\0\xff\0"),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_oip_205_206_contents_in_and_raw_out(client: Client, kind: str):
    message, raw = CONTENTS[kind]
    answer = client.ask("ModelInfer", message)
    assert list(answer.raw_output_contents) == [raw]
    assert not answer.outputs[0].HasField("contents")
    assert (answer.outputs[0].name, list(answer.outputs[0].shape)) == ("x_out", [1, 2])
    message.inputs[0].ClearField("contents")
    message.raw_input_contents.append(raw)
    assert client.ask("ModelInfer", message).raw_output_contents == answer.raw_output_contents
    first, second = client.recorder.calls()[-2:]
    assert first.rows[0].input == second.rows[0].input


@pytest.mark.parametrize("kind", ["FP16", "BF16"])
def test_oip_205_fp16_and_bf16_travel_raw_only(client: Client, kind: str):
    given = {"datatype": kind, "shape": [1, 2]}
    data = b"\x00\x3c\x00\x80"
    answer = client.ask("ModelInfer", infer(kind.lower(), input=given, raw_input_contents=[data]))
    assert list(answer.raw_output_contents) == [data]
    error = client.refused("ModelInfer", contents(kind, "fp32_contents", [1.0, 2.0]))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


CONTENTS_REFUSED: dict[str, Any] = {
    "INT8 300": contents("INT8", "int_contents", [300, 0]),
    "UINT8 256": contents("UINT8", "uint_contents", [256, 0]),
    "INT16 40000": contents("INT16", "int_contents", [40_000, 0]),
    "wrong field": contents("INT32", "int64_contents", [1, 2]),
    "two fields": contents("INT32", "int_contents", [1, 2], fp32_contents=[1.0]),
    "wrong count": contents("INT32", "int_contents", [1, 2, 3]),
    "wrong count of BYTES": contents("BYTES", "bytes_contents", [b"a"]),
    "NaN": contents("FP32", "fp32_contents", [float("nan"), 0.0]),
    "both": infer(input={"contents": {"fp32_contents": [1.0, 2.0, 3.0]}}),
}


@pytest.mark.parametrize("name", CONTENTS_REFUSED)
def test_oip_205_contents_refused(client: Client, name: str):
    error = client.refused("ModelInfer", CONTENTS_REFUSED[name])
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert_recorded(client, error, "refused")


def test_non_finite_values_pass_where_they_are_allowed(client: Client):
    data = struct.pack("<3f", float("nan"), float("inf"), float("-inf"))
    assert client.ask("ModelInfer", infer("any", raw_input_contents=[data])).raw_output_contents[0] == data


def test_inputs_in_any_order_and_outputs_in_the_models(client: Client):
    inputs = [
        {"name": "b", "datatype": "INT64", "shape": [1]}, {"name": "a", "datatype": "FP32", "shape": [1, 2]},
    ]  # fmt: skip
    raw = [struct.pack("<q", 7), struct.pack("<2f", 1, 2)]
    message = Infer(
        model_name="two",
        inputs=inputs,
        raw_input_contents=raw,
        outputs=[{"name": "b_out"}, {"name": "a_out"}],
    )
    answer = client.ask("ModelInfer", message)
    assert [output.name for output in answer.outputs] == ["a_out", "b_out"]
    assert list(answer.raw_output_contents) == raw[::-1]


def test_oip_207_every_kind_of_parameter_and_the_id(client: Client):
    kinds = {
        "a": {"bool_param": True},
        "b": {"int64_param": -1},
        "c": {"string_param": "x"},
        "d": {"double_param": 0.5},
        "e": {"uint64_param": 2**64 - 1},
        "timeout": {"uint64_param": 10_000_000},
        "priority": {"uint64_param": 0},
        "binary_data_output": {"bool_param": False},
    }
    answer = client.ask("ModelInfer", infer(parameters=kinds, id="mine ä"))
    assert answer.id == "mine ä"
    assert answer.raw_output_contents[0] == FLOATS
    assert client.ask("ModelInfer", infer()).id == ""


def test_classification(client: Client):
    wanted = [{"name": "x_out", "parameters": {"classification": {"int64_param": 2}}}]
    answer = client.ask("ModelInfer", infer(outputs=wanted))
    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("BYTES", [1, 2])
    assert answer.raw_output_contents[0] == b"\x0a\0\0\x003.000000:2\x0a\0\0\x002.000000:1"


def test_what_is_no_message_is_refused_and_recorded(client: Client):
    for data in (b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe"):  # the last: a name that is no UTF-8
        with pytest.raises(grpc.RpcError) as caught:
            client.raw("ModelInfer", data)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert_recorded(client, caught.value, "refused")


def test_oip_208_a_stream_answers_in_order_and_survives_errors(client: Client):
    reply = message_class("ModelStreamInferResponse")
    stream = client.channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer", lambda m: m.SerializeToString(), reply.FromString
    )
    sent = [infer(id="a"), infer("nope", id="b"), infer(raw_input_contents=[b"x"], id="c"), infer(id="d")]
    before = len(client.recorder.calls())
    got = list(stream(iter(sent), timeout=TIMEOUT_S))
    assert [bool(each.error_message) for each in got] == [False, True, True, False]
    assert [each.infer_response.id for each in got] == ["a", "", "c", "d"]  # without a model nothing is read
    assert all(each.infer_response.parameters["triton_final_response"].bool_param for each in got)
    assert got[3].infer_response.raw_output_contents[0] == FLOATS
    outcomes = [call.outcome for call in client.recorder.calls()[before:]]
    assert outcomes == ["answered", "refused", "refused", "answered"]


# -- what HTTP answers, too -----------------------------------------------------------------------


def over_http(client: Client, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{client.http}{path}", timeout=TIMEOUT_S) as reply:
        return json.load(reply)


def test_oip_209_configuration_and_statistics(client: Client):
    config = client.ask("ModelConfig", name="echo").config
    assert (config.name, config.max_batch_size) == ("echo", 8)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("x", 11, [3])]
    assert list(config.dynamic_batching.preferred_batch_size) == [1, 4, 8]
    client.ask("ModelInfer", infer("old", model_version="1.0.0"))
    (stats,) = client.ask("ModelStatistics", name="old", version="1.0.0").model_stats
    told = over_http(client, "/v2/models/old/versions/1.0.0/stats")["model_stats"][0]
    assert stats.inference_count == told["inference_count"] == 1
    assert stats.inference_stats.success.ns == told["inference_stats"]["success"]["ns"] > 0
    assert len(client.ask("ModelStatistics").model_stats) > 10
    for rpc in ("ModelConfig", "ModelStatistics"):
        assert client.refused(rpc, name="nope").code() == grpc.StatusCode.NOT_FOUND


def test_oip_210_repository(client: Client):
    def index(**members: Any) -> dict[str, str]:
        return {m.name: m.state for m in client.ask("RepositoryIndex", **members).models}

    assert index()["spare"] == "READY"
    client.ask(
        "RepositoryModelUnload", model_name="spare", parameters={"unload_dependents": {"bool_param": True}}
    )
    assert index()["spare"] == "UNAVAILABLE"
    assert "spare" not in index(ready=True)
    assert not client.ask("ModelReady", name="spare").ready
    client.ask("RepositoryModelLoad", model_name="spare")
    assert index()["spare"] == "READY"
    for rpc in ("RepositoryModelLoad", "RepositoryModelUnload"):
        assert client.refused(rpc, model_name="nope").code() == grpc.StatusCode.NOT_FOUND
        wrong = client.refused(rpc, model_name="spare", repository_name="r")
        assert wrong.code() == grpc.StatusCode.UNIMPLEMENTED
    assert client.refused("RepositoryIndex", repository_name="r").code() == grpc.StatusCode.UNIMPLEMENTED
    for name in ("config", "file:1/model.onnx"):
        brought = {name: {"bytes_param": b"x"}}
        error = client.refused("RepositoryModelLoad", model_name="spare", parameters=brought)
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED


def test_oip_211_shared_memory(client: Client):
    segment = client.shm / "seg"
    segment.write_bytes(FLOATS + bytes(52))
    client.ask("SystemSharedMemoryRegister", name="r", key="/seg", offset=0, byte_size=64)
    status = client.ask("SystemSharedMemoryStatus").regions
    assert (status["r"].key, status["r"].byte_size) == ("/seg", 64)
    place = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 12}}
    wanted = [{"name": "x_out", "parameters": place | {"shared_memory_offset": {"int64_param": 16}}}]
    answer = client.ask(
        "ModelInfer", infer(input={"parameters": place}, outputs=wanted, raw_input_contents=...)
    )
    assert segment.read_bytes()[16:28] == FLOATS
    assert list(answer.raw_output_contents) == [b""]
    error = client.refused("ModelInfer", infer(input={"parameters": place}))  # raw beside it: one too many
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert client.refused("SystemSharedMemoryStatus", name="s").code() == grpc.StatusCode.NOT_FOUND
    bad = client.refused("SystemSharedMemoryRegister", name="s", key="/a/b", offset=0, byte_size=8)
    assert bad.code() == grpc.StatusCode.INVALID_ARGUMENT
    client.ask("SystemSharedMemoryUnregister", name="nope")
    client.ask("SystemSharedMemoryUnregister")
    assert not client.ask("SystemSharedMemoryStatus").regions
    assert not client.ask("CudaSharedMemoryStatus").regions
    cuda = client.refused("CudaSharedMemoryRegister", name="c", raw_handle=b"x", device_id=0, byte_size=8)
    assert cuda.code() == grpc.StatusCode.INVALID_ARGUMENT
    client.ask("CudaSharedMemoryUnregister")


def test_oip_212_trace_and_log_settings(client: Client):
    told = client.ask("TraceSetting").settings
    assert list(told["trace_level"].value) == ["OFF"]
    assert list(client.ask("TraceSetting", settings={"trace_rate": {}}).settings["trace_rate"].value) == [
        "1000"
    ]
    log = client.ask("LogSettings", settings={"log_info": {"bool_param": True}}).settings
    assert log["log_info"].bool_param
    assert log["log_verbose_level"].uint32_param == 0
    refused = {
        "rate": client.refused("TraceSetting", settings={"trace_rate": {"value": ["x"]}}),
        "unknown": client.refused("TraceSetting", settings={"loud": {"value": ["x"]}}),
        "two": client.refused("TraceSetting", settings={"trace_rate": {"value": ["1", "2"]}}),
        "type": client.refused("LogSettings", settings={"log_info": {"string_param": "yes"}}),
        "none": client.refused("LogSettings", settings={"log_info": {}}),
    }
    assert {error.code() for error in refused.values()} == {grpc.StatusCode.INVALID_ARGUMENT}
    denied = client.refused("LogSettings", settings={"log_file": {"string_param": "/tmp/x"}})
    assert denied.code() == grpc.StatusCode.PERMISSION_DENIED
    assert client.refused("TraceSetting", model_name="nope").code() == grpc.StatusCode.NOT_FOUND


# -- health, limits, deadlines --------------------------------------------------------------------


def test_oip_213_health(client: Client):
    stub = health_pb2_grpc.HealthStub(client.channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ("", SERVICE):
        asked = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(asked, timeout=TIMEOUT_S).status == serving
        watched = stub.Watch(asked, timeout=TIMEOUT_S)
        assert next(watched).status == serving
        watched.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="foreign"), timeout=TIMEOUT_S)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_oip_213_no_reflection(client: Client):
    rpc = client.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    with pytest.raises(grpc.RpcError) as caught:
        list(rpc(iter([b""]), timeout=TIMEOUT_S))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_oip_214_215_message_size_and_compression(client: Client):
    model = {"model_name": "bytes", "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 2]}]}

    def message(size: int) -> Any:
        return Infer(**model, raw_input_contents=[struct.pack("<I", size) + b"a" * size + bytes(4)])

    big = client.ask("ModelInfer", message(90_000))
    assert len(big.raw_output_contents[0]) == 90_008
    error = client.refused("ModelInfer", message(200_000))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert_recorded(client, error, "refused")
    data = message(90_000).SerializeToString()
    assert client.raw("ModelInfer", data, compression=grpc.Compression.Gzip)
    before = len(client.recorder.calls())
    with pytest.raises(grpc.RpcError) as caught:  # inflated beyond all limits: it never becomes a call
        client.raw("ModelInfer", message(5_000_000).SerializeToString(), compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(client.recorder.calls()) == before


def test_a_trace_id_from_outside_is_personal(client: Client):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    metadata = [("traceparent", f"00-{trace}-00f067aa0ba902b7-01")]
    call = client.channel.unary_unary(f"/{SERVICE}/ModelInfer").with_call
    _, told = call(infer().SerializeToString(), metadata=metadata, timeout=TIMEOUT_S)
    assert dict(told.trailing_metadata())["pellucid-trace"] == trace
    assert client.recorder.calls()[-1].personal["trace_id"] == trace
    assert client.recorder.calls()[-1].personal["address"] == "127.0.0.1"


def test_the_same_call_over_both_doors_is_the_same_record(client: Client):
    client.ask("ModelInfer", infer(id="same", parameters={"subject": {"string_param": "s"}}))
    item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"id": "same", "inputs": [item], "parameters": {"subject": "s"}}).encode()
    url = f"http://127.0.0.1:{client.http}/v2/models/echo/infer"
    urllib.request.urlopen(urllib.request.Request(url, body), timeout=TIMEOUT_S).close()
    one, other = client.recorder.calls()[-2:]
    for name in ("context", "outcome", "error", "slot", "bucket", "shapes", "personal", "nbytes"):
        assert getattr(one, name) == getattr(other, name), name
    assert [row.input for row in one.rows] == [row.input for row in other.rows]


def slow(gate: Any) -> tuple[Dataplane, MemoryRecorder, GrpcDoor]:
    session = EchoSession((TensorSpec("x", "FP32", (-1, 3)),))
    recorder = MemoryRecorder()
    plane = make_plane([echo_model(session=session)], recorder, Limits(inline_max_ns=0))
    session.gate = gate
    return plane, recorder, GrpcDoor("127.0.0.1", 0)


def test_oip_145_216_deadlines_in_the_queue_and_callers_that_give_up():
    import threading

    gate = threading.Event()
    plane, recorder, door = slow(gate)
    with running(plane, [door]) as http:
        client = Client(door.port, http, recorder, plane, Path())
        runs = client.channel.unary_unary(f"/{SERVICE}/ModelInfer").future
        first = runs(infer().SerializeToString(), timeout=TIMEOUT_S)  # runs, and holds the engine
        wait_for(lambda: plane.pool.waiting == 1)
        error = client.refused("ModelInfer", infer(parameters={"timeout": {"int64_param": 1000}}))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert_recorded(client, error, "failed")
        item = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        body = json.dumps({"inputs": [item], "parameters": {"timeout": 1000}}).encode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/models/echo/infer", body, timeout=TIMEOUT_S)
        assert caught.value.code == 504
        assert "expected its turn within 1,000 us" in json.load(caught.value)["error"]
        with pytest.raises(grpc.RpcError) as late:  # the RPC's own deadline
            client.channel.unary_unary(f"/{SERVICE}/ModelInfer")(infer().SerializeToString(), timeout=0.05)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for(lambda: plane.pool.waiting == 1)  # the caller's clock may ring before the server's
        left = runs(infer().SerializeToString(), timeout=TIMEOUT_S)
        wait_for(lambda: plane.pool.waiting == 2)
        left.cancel()
        wait_for(lambda: len(recorder.calls()) == 3)
        gate.set()
        assert first.result(TIMEOUT_S)
        wait_for(lambda: len(recorder.calls()) == 5)
    assert [(c.outcome, c.error) for c in recorder.calls()].count(("failed", "deadline")) == 3
    assert not recorder.open
    failed = [c for c in recorder.calls() if c.outcome == "failed"]
    assert {(c.slot, c.bucket, len(c.rows)) for c in failed} == {(-1, 0, 1)}
    recorder.entries()
    (told,) = plane.pool.statistics("echo", None)
    assert told["inference_stats"]["fail"]["count"] == 3


def wait_for(reached: Callable[[], bool]) -> None:
    import threading
    import time

    until = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < until
        threading.Event().wait(0.005)


def test_while_stopping_it_is_not_serving_and_calls_are_refused():
    plane, recorder, door = slow(None)
    with running(plane, [door]) as http:
        client = Client(door.port, http, recorder, plane, Path())
        stub = health_pb2_grpc.HealthStub(client.channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        loop = plane._loop
        assert loop is not None
        loop.call_soon_threadsafe(plane.refuse_new)
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        error = client.refused("ModelInfer", infer())
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
        assert not client.ask("ServerReady").ready
        watched.cancel()
    assert [call.outcome for call in recorder.calls()] == ["refused"]


def test_streams_and_watches_that_only_wait_do_not_delay_a_stop_and_calls_in_flight_are_answered():
    import queue
    import threading
    import time

    gate = threading.Event()
    plane, recorder, door = slow(gate)
    waiting: Any = queue.Queue()
    with running(plane, [door]) as http:
        client = Client(door.port, http, recorder, plane, Path())
        stub = health_pb2_grpc.HealthStub(client.channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        stream = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        idle = stream(iter(waiting.get, None), timeout=60)
        runs = client.channel.unary_unary(f"/{SERVICE}/ModelInfer").future
        flying = runs(infer().SerializeToString(), timeout=60)
        wait_for(lambda: plane.pool.waiting == 1)

        def when_it_stops() -> None:
            assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
            gate.set()

        watcher = threading.Thread(target=when_it_stops)
        watcher.start()
        began = time.monotonic()
    assert time.monotonic() - began < 10  # far below the grace of 30 s
    assert flying.result(1)
    watcher.join(TIMEOUT_S)
    waiting.put(None)
    for each in (watched, idle):
        with pytest.raises(grpc.RpcError):
            list(each)
    assert [call.outcome for call in recorder.calls()] == ["answered"]


def test_a_fault_of_ours_is_internal_and_the_number_is_closed(
    client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pellucid.servers.grpc.known.Messages.open", broken)
    error = client.refused("ModelInfer", infer())
    assert error.code() == grpc.StatusCode.INTERNAL
    assert error.details() == "server: expected an answer, got a fault of its own"
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert not client.recorder.open


def test_a_port_that_is_taken_is_said(client: Client):
    with pytest.raises(UnavailableError, match="for gRPC"):
        asyncio.run(GrpcDoor("127.0.0.1", client.port).open(make_plane([echo_model()])))
