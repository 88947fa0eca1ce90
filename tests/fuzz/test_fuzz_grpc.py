"""Messages from outside raise only errors of the tree, and every number is closed exactly once."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import DATATYPES
from pellucid.servers.grpc.asked import ASKED
from pellucid.servers.grpc.messages import InferRequest, message_class
from pellucid.servers.grpc.statuses import StatusCode
from pellucid.serving.limits import Limits
from pellucid.serving.shared_memory import Regions
from pellucid.testing.http2 import exchange
from pellucid.testing.plane import echo_model, make_plane
from pellucid.testing.recorder import MemoryRecorder

RIGHT = {
    StatusCode.OK, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.PERMISSION_DENIED,
    StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNIMPLEMENTED, StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


names = st.sampled_from(
    ["x", "echo", "", "shared_memory_region", "classification", "timeout", "triton_x"]
) | st.text(max_size=5)
parameters = st.dictionaries(
    names,
    st.sampled_from(
        [{}, {"bool_param": True}, {"int64_param": -1}, {"string_param": "x"}, {"uint64_param": 2**64 - 1},
         {"double_param": float("nan")}]
    ),
    max_size=2,
)  # fmt: skip
shapes = st.lists(st.sampled_from([1, 3, 0, -1, 2**62]), max_size=3) | st.just([1, 3])
contents = st.dictionaries(
    st.sampled_from(["fp32_contents", "fp64_contents"]), st.lists(st.floats(width=32), max_size=4), max_size=2
) | st.dictionaries(
    st.sampled_from(["int_contents", "int64_contents"]), st.lists(st.integers(-9, 9), max_size=4), max_size=2
)
tensors = st.fixed_dictionaries(
    {"name": names, "datatype": st.sampled_from([*DATATYPES, ""]), "shape": shapes},
    optional={"parameters": parameters, "contents": contents},
)
messages = st.fixed_dictionaries(
    {"model_name": st.sampled_from(["echo", "nope"])},
    optional={
        "id": st.text(max_size=5),
        "inputs": st.lists(tensors, max_size=2),
        "outputs": st.lists(
            st.fixed_dictionaries({"name": names}, optional={"parameters": parameters}), max_size=2
        ),
        "parameters": parameters,
        "raw_input_contents": st.lists(
            st.binary(max_size=13) | st.just(struct.pack("<3f", 1, 2, 3)), max_size=2
        ),
    },
)


@given(st.lists(st.binary(max_size=60) | messages, min_size=1, max_size=4))
def test_any_inference_message(sent: list[Any]):
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, Limits(body_max_bytes=500), regions=Regions())
    raw = [each if isinstance(each, bytes) else InferRequest(**each).SerializeToString() for each in sent]

    async def go() -> list[Any]:
        plane.attach(asyncio.get_running_loop())
        return await exchange(plane, "ModelInfer", raw)

    told = asyncio.run(go())
    assert {each.status for each in told} <= RIGHT
    assert all(each.status == 0 or "expected" in each.fields["grpc-message"] for each in told)
    assert not recorder.open
    assert sorted(call.n for call in recorder.calls()) == list(range(1, len(sent) + 1))
    recorder.entries()


@given(st.sampled_from(sorted(ASKED)), st.binary(max_size=60))
def test_any_other_message(rpc: str, data: bytes):
    plane = make_plane([echo_model()])

    async def go() -> None:
        plane.attach(asyncio.get_running_loop())
        (told,) = await exchange(plane, rpc, [data])
        assert told.status in RIGHT
        if told.status == StatusCode.OK:
            message_class(f"{rpc}Response").FromString(told.data[5:])

    asyncio.run(go())
