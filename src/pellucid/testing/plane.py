"""A data plane and its HTTP door in one process: called directly, or behind a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pellucid.app.listening import SideDoor
from pellucid.core.tensor import TensorSpec
from pellucid.ports import LoadProbe, Recorder, Session
from pellucid.servers.http.app import HttpDoor, make_app
from pellucid.servers.http.serve import around, bind, run
from pellucid.serving.dataplane import Dataplane
from pellucid.serving.limits import Limits
from pellucid.serving.model import Model
from pellucid.serving.pool import Pool
from pellucid.testing.recorder import MemoryRecorder
from pellucid.testing.session import EchoSession


class StillProbe:
    """``ports.LoadProbe`` of a machine that does nothing else.

    Attributes:
        load: What it reads.
    """

    def __init__(self, **load: Any) -> None:
        still = {"host_cpu_permille": 0, "process_cpu_permille": 0, "cpu_wait_permille": 0}
        self.load: dict[str, Any] = (
            still | {"resident_bytes": 2**27, "gpus": None, "gpus_reason": "a fake"} | load
        )

    def read(self) -> dict[str, Any]:
        return dict(self.load)


class RealClock:
    """The system's clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        threading.Event().wait(seconds)


def echo_model(name: str = "echo", *specs: TensorSpec, session: Session | None = None, **more: Any) -> Model:
    """A model that answers with its inputs; ``[-1, 3]`` FP32 unless told otherwise."""
    session = session or EchoSession(specs or (TensorSpec("x", "FP32", (-1, 3)),))
    version = more.pop("version", "1.0.0")
    facts = {
        "model": name,
        "version": version,
        "package": "sha256:" + "0" * 64,
        "engine": "sha256:" + "1" * 64,
    }
    more = {"buckets": (1, 4, 8), "decision": {}, "label_variance": "bucket-invariant"} | more
    return Model(name, version, session, facts, **more)


def make_plane(
    models: Sequence[Model],
    recorder: Recorder | None = None,
    limits: Limits | None = None,
    clock: Any = None,
    probe: LoadProbe | None = None,
    **more: Any,
) -> Dataplane:
    """Data plane over models, not yet bound to a loop; ``more``: ``repository``, ``regions``."""
    recorder, limits, clock = recorder or MemoryRecorder(), limits or Limits(), clock or RealClock()
    pool = Pool(recorder, clock=clock, limits=limits, probe=probe or StillProbe())
    for model in models:
        pool.add(model)
    return Dataplane(pool, recorder, clock=clock, limits=limits, **more)


@dataclass
class Reply:
    """What came back: status, headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    plane: Dataplane,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Sequence[tuple[str, str]] = (),
    *,
    pieces: Sequence[bytes] | None = None,
) -> Reply:
    """One request through the ASGI door without a socket; ``pieces`` arrive one by one."""
    messages = [
        {"type": "http.request", "body": piece, "more_body": position < len(pieces or [body]) - 1}
        for position, piece in enumerate(pieces or [body])
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode().partition(b"?")[0],
        "client": ("127.0.0.1", 1),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    await make_app(HttpDoor(plane))(scope, receive, send)
    start, *rest = sent
    told = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Reply(start["status"], told, b"".join(message["body"] for message in rest))


def exchange(plane: Dataplane, requests: Sequence[tuple[Any, ...]]) -> list[Reply]:
    """Several requests that arrive together; each ``(method, path, body, headers)``."""

    async def all_at_once() -> list[Reply]:
        plane.attach(asyncio.get_running_loop())
        return await asyncio.gather(*(ask(plane, *request) for request in requests))

    return asyncio.run(all_at_once())


@contextmanager
def running(plane: Dataplane, beside: Sequence[SideDoor] = (), **more: Any) -> Iterator[int]:
    """The door on a free port of the loopback, on a thread of its own; gives the port.

    ``more``: ``tls`` and ``crowd`` of ``servers.http.serve.run``.
    """
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    stop: list[Any] = []

    def attach(loop: asyncio.AbstractEventLoop) -> None:
        plane.attach(loop)

    opened, closed = around(plane, beside)

    def serve() -> None:
        run(
            HttpDoor(plane),
            listener,
            attach=attach,
            started=ready.set,
            drain=lambda: plane.drain(5),
            on_server=stop.append,
            opened=opened,
            closed=closed,
            **more,
        )

    thread = threading.Thread(target=serve, name="door")
    thread.start()
    try:
        if not ready.wait(20):
            raise TimeoutError("the door did not open")
        yield listener.getsockname()[1]
    finally:
        for server in stop:
            server.should_exit = True
        thread.join(20)
        listener.close()
        plane.pool.close()
