"""One rule a datatype: whatever bits go in come out, by every way a tensor can travel, and are recorded.

Ways: JSON, bytes behind JSON, raw and typed gRPC contents, shared memory. A way either carries the value
exactly or refuses it.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensor import DATATYPES, Tensor, TensorSpec, join_bytes_elements, unpack_elements
from pellucid.errors import PellucidError
from pellucid.servers.grpc.codec import FIELDS, read_request
from pellucid.servers.grpc.messages import InferRequest, InferResponse
from pellucid.serving.shared_memory import Regions
from pellucid.testing.plane import ask, echo_model, make_plane
from pellucid.testing.recorder import MemoryRecorder

KINDS = sorted(DATATYPES)
COUNT = 3
texts = st.text(max_size=8)


def bits(kind: str) -> st.SearchStrategy[bytes]:
    """Any bits at all of three elements."""
    if kind == "BYTES":
        return st.lists(st.binary(max_size=9) | texts.map(str.encode), min_size=COUNT, max_size=COUNT).map(
            join_bytes_elements
        )
    size = DATATYPES[kind].itemsize
    if kind == "BOOL":
        return st.lists(st.sampled_from([b"\0", b"\1"]), min_size=COUNT, max_size=COUNT).map(b"".join)
    special = [bytes(size), b"\xff" * size, bytes(size - 1) + b"\x80", b"\xff" * (size - 1) + b"\x7f"]
    one = st.binary(min_size=size, max_size=size) | st.sampled_from(special)
    return st.lists(one, min_size=COUNT, max_size=COUNT).map(b"".join)


class World:
    """One model of a datatype, and every way to it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.shm = kind, folder / "seg"
        self.recorder = MemoryRecorder()
        model = echo_model("m", TensorSpec("x", kind, (-1, COUNT)), allow_nonfinite=True)
        self.plane = make_plane([model], self.recorder, regions=Regions(folder))
        self.item = {"name": "x", "datatype": kind, "shape": [1, COUNT]}

    async def http(self, item: dict[str, Any], tail: bytes = b"", **more: Any) -> Any:
        head = json.dumps({"inputs": [self.item | item]} | more).encode()
        headers = [("Inference-Header-Content-Length", str(len(head)))]
        return await ask(self.plane, "POST", "/v2/models/m/infer", head + tail, headers)

    async def binary(self, data: bytes) -> bytes:
        reply = await self.http(
            {"parameters": {"binary_data_size": len(data)}}, data, parameters={"binary_data_output": True}
        )
        assert reply.status == 200, reply.body
        return reply.body[int(reply.headers["inference-header-content-length"]) :]

    async def shared(self, data: bytes) -> bytes:
        self.shm.write_bytes(data + bytes(len(data)))
        self.plane.manage.regions.register("r", {"key": "seg", "offset": 0, "byte_size": 2 * len(data)})
        place = {"shared_memory_region": "r", "shared_memory_byte_size": len(data)}
        wanted = [{"name": "x_out", "parameters": place | {"shared_memory_offset": len(data)}}]
        reply = await self.http({"parameters": place}, outputs=wanted)
        self.plane.manage.regions.unregister(None)
        assert reply.status == 200, reply.body
        return self.shm.read_bytes()[len(data) :]

    async def grpc(self, **more: Any) -> bytes:
        given = self.item | more.pop("item", {})
        raw = InferRequest(model_name="m", inputs=[given], **more).SerializeToString()
        message = InferRequest.FromString(raw)
        call = self.plane.accept("")

        def read(signature: Any, personal: dict[str, str]) -> Any:
            return read_request(message, self.plane.manage.regions, signature, personal)

        try:
            answer = await self.plane.run(call, "m", None, len(raw), read)
        except PellucidError as error:
            self.plane.refuse(call, error)
            raise
        finally:
            self.plane.abandon(call)
        (data,) = InferResponse.FromString(answer.body).raw_output_contents
        return bytes(data)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_bits_come_back_whatever_way_they_went(kind: str, data: st.DataObject):
    sent = data.draw(bits(kind))

    async def go(world: World) -> None:
        world.plane.attach(asyncio.get_running_loop())
        assert await world.binary(sent) == sent
        assert await world.grpc(raw_input_contents=[sent]) == sent
        assert await world.shared(sent) == sent

    with tempfile.TemporaryDirectory() as folder:
        world = World(kind, Path(folder))
        asyncio.run(go(world))
    calls = world.recorder.calls()
    assert [call.outcome for call in calls] == ["answered"] * 3
    assert len({call.rows[0].input for call in calls}) == 1  # the digest does not know how they travelled
    world.recorder.entries()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_values_come_back_as_text_and_as_contents_or_are_refused(kind: str, data: st.DataObject):
    sent = data.draw(bits(kind))
    values = unpack_elements(Tensor("x", kind, (1, COUNT), sent))

    async def go(world: World) -> None:
        world.plane.attach(asyncio.get_running_loop())
        await as_json(world, values, sent)
        await as_contents(world, values, sent)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(go(World(kind, Path(folder))))


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


async def as_json(world: World, values: list[Any], sent: bytes) -> None:
    kind = world.kind
    if kind == "BYTES":
        shown, fits = [v.decode("utf-8", "replace") for v in values], all(map(is_text, values))
    else:
        shown = values
        fits = kind not in ("FP16", "BF16") and all(math.isfinite(v) for v in values)
    reply = await world.http({"data": shown})
    if not fits and kind != "BYTES":
        assert reply.status == 400
        return
    assert reply.status == 200, reply.body
    if fits:
        told = json.loads(reply.body)["outputs"][0]["data"]
        if kind == "BYTES":
            assert join_bytes_elements([text.encode() for text in told]) == sent
        else:
            assert struct.pack(f"<{COUNT}{DATATYPES[kind].code}", *told) == sent


async def as_contents(world: World, values: list[Any], sent: bytes) -> None:
    field = FIELDS.get(world.kind)
    if field is None:
        with pytest.raises(PellucidError, match="raw_input_contents"):
            await world.grpc(item={"contents": {"fp32_contents": [0.0] * COUNT}})
        return
    got = await world.grpc(item={"contents": {field: values}})
    if world.kind in ("FP32", "FP64"):
        # a NaN stays one, but its payload is not promised on the way through a number
        told = unpack_elements(Tensor("x", world.kind, (1, COUNT), got))
        for value, back in zip(values, told, strict=True):
            assert (math.isnan(value) and math.isnan(back)) or struct.pack("<d", value) == struct.pack(
                "<d", back
            )
    else:
        assert got == sent


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_elements_are_refused_by_every_way(kind: str, tmp_path: Path):
    world = World(kind, tmp_path)

    async def go() -> None:
        world.plane.attach(asyncio.get_running_loop())
        for item in ({"data": []}, {"parameters": {"binary_data_size": 0}}):
            reply = await world.http({"shape": [0, COUNT]} | item)
            assert (reply.status, "1 or more" in reply.json["error"]) == (400, True)
        with pytest.raises(PellucidError, match="1 or more"):
            await world.grpc(item={"shape": [0, COUNT]}, raw_input_contents=[b""])

    asyncio.run(go())
    assert [call.outcome for call in world.recorder.calls()] == ["refused"] * 3
