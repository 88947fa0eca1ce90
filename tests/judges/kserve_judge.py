"""Runs under the judge's own Python: the KServe client, over HTTP or gRPC.

    kserve_judge.py http | grpc HOST:PORT

Prints one JSON object, step to "ok" or to what went wrong.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

KIND, ADDRESS = sys.argv[1:]
MODEL = "credit"
ROWS = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20)
URL = f"http://{ADDRESS}"
steps: dict[str, str] = {}


def request(rows: Any = ROWS, *, binary: bool) -> InferRequest:
    tensor = InferInput("features", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows, binary_data=binary)
    return InferRequest(model_name=MODEL, infer_inputs=[tensor], request_id="mine")


async def note(name: str, check: Awaitable[Any]) -> None:
    try:
        assert await check, "expected true"
        steps[name] = "ok"
    except Exception as error:
        steps[name] = f"{type(error).__name__}: {error}"


async def fails(call: Awaitable[Any], *words: str) -> bool:
    try:
        await call
    except Exception as error:
        return all(word in str(error) for word in words)
    return False


def is_answer(reply: Any) -> bool:
    scores = reply.outputs[0].as_numpy()
    return reply.id == "mine" and scores.shape == (3, 2) and np.allclose(scores.sum(axis=1), 1)


async def rest() -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=20))

    async def infer(**how: Any) -> bool:
        return is_answer(await client.infer(URL, request(**how), model_name=MODEL))

    async def unknown() -> bool:
        return await fails(client.infer(URL, request(binary=False), model_name="nope"), "404")

    async def wrong() -> bool:
        return await fails(client.infer(URL, request(ROWS[:, :19], binary=False), model_name=MODEL), "400")

    await note("live", client.is_server_live(URL))
    await note("ready", client.is_server_ready(URL))
    await note("model ready", client.is_model_ready(URL, MODEL))
    await note("infer JSON", infer(binary=False))
    await note("infer binary", infer(binary=True))
    await note("unknown model", unknown())
    await note("wrong shape", wrong())
    await client.close()


async def grpc() -> None:
    client = InferenceGRPCClient(url=ADDRESS, retries=0)

    async def infer(**how: Any) -> bool:
        return is_answer(await client.infer(request(**how)))

    async def unknown() -> bool:
        asked = request(binary=True)
        asked.model_name = "nope"
        return await fails(client.infer(asked), "NOT_FOUND")

    await note("live", client.is_server_live())
    await note("ready", client.is_server_ready())
    await note("model ready", client.is_model_ready(MODEL))
    await note("infer contents", infer(binary=False))
    await note("infer raw", infer(binary=True))
    await note("unknown model", unknown())
    await note("wrong shape", fails(client.infer(request(ROWS[:, :19], binary=True)), "INVALID_ARGUMENT"))
    await client.close()


asyncio.run(rest() if KIND == "http" else grpc())
print(json.dumps(steps))
