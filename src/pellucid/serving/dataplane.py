"""The data plane, without any framework: bytes and names in, bytes out, every call recorded.

A door accepts a call (its number is reserved), then either hands over its body or refuses it for a
reason of its own. Whatever happens after, cancellation included, the number is closed exactly once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from pellucid import __version__
from pellucid.errors import PellucidError, UnavailableError
from pellucid.ports import Clock, Recorder
from pellucid.serving.call import OpenCall, Reply
from pellucid.serving.entropy import Entropy
from pellucid.serving.finite import verify_finite
from pellucid.serving.limits import Limits
from pellucid.serving.model import Model
from pellucid.serving.numbers import Numbers
from pellucid.serving.pool import Pool
from pellucid.serving.request import parse_infer
from pellucid.serving.response import Answer

NODE_CONTEXT: Final = 0  # the node itself, for calls that named no model we know
EXTENSIONS: Final = ("binary_tensor_data", "parameters")  # exactly what is served and tested
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


class Dataplane:
    """What every door of the server calls. Lives on one event loop's thread."""

    def __init__(self, pool: Pool, recorder: Recorder, *, clock: Clock, limits: Limits) -> None:
        self.pool, self.limits, self._recorder = pool, limits, recorder
        self._wall, self._now = clock.now_ns, clock.monotonic_ns
        self._entropy = Entropy()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.numbers = Numbers(recorder, limits, clock.now_ns, self._call_later)
        self.draining = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the running loop, once, on its thread."""
        self._loop = loop
        self.pool.attach(loop)

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_later(seconds, function)

    # -- calls ------------------------------------------------------------------------------------

    def accept(self, address: str, traceparent: bytes | None = None) -> OpenCall:
        """Reserve a number for a call, before anything of it is read.

        Raises:
            LedgerFullError: No number can be had; the call is counted.
        """
        accepted_ns = self._wall()
        n = self.numbers.take(accepted_ns)
        personal = {"address": address} if address else {}
        foreign = traceparent and _TRACEPARENT.fullmatch(traceparent)
        trace = None
        if foreign:
            personal["trace_id"] = foreign[1].decode()
        else:
            trace = self._entropy.take(16).hex()
        return OpenCall(n, NODE_CONTEXT, accepted_ns, self._now(), self._entropy.take(32), personal, trace)

    def key(self, call: OpenCall) -> str:
        """The call's key as its caller gets it; ``""`` when it was only counted."""
        return "" if call.counted else self._recorder.call_key(call.n)

    def refuse(self, call: OpenCall, error: PellucidError) -> None:
        """Close a call that never ran; nothing happens when a batcher has it or it is closed."""
        if call.closed or call.queued:
            return
        call.closed = True
        took = self._now() - call.started
        call.counted = not self.numbers.close_refused(call.refused(error, self._wall(), took))

    def abandon(self, call: OpenCall) -> None:
        """Last step of every door: a call that nobody closed was cancelled, or met a fault of ours."""
        if not (call.closed or call.queued):
            self.refuse(call, UnavailableError("call: expected to be read to its end, got a cancellation"))

    async def infer(
        self, call: OpenCall, model: str, version: str | None, body: bytes, header_length: int | None
    ) -> Answer:
        """Run a call.

        Raises:
            PellucidError: Why it was refused (the door then calls ``refuse``) or failed.
        """
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.start(call, model, version, body, header_length, reply)
        return await reply

    def start(
        self,
        call: OpenCall,
        model: str,
        version: str | None,
        body: bytes,
        header_length: int | None,
        reply: Reply,
    ) -> None:
        """Put a call into its batcher's queue; ``reply`` hears how it ended, later, on this thread.

        Raises:
            PellucidError: Why it was refused (the door then calls ``refuse``).
        """
        batcher = self.pool.find(model, version)
        call.context, call.nbytes = batcher.context, len(body)
        if self.draining:
            raise UnavailableError("server: expected to be serving, got a shutdown", hint="retry after 1 s")
        self._parse(call, batcher.model, body, header_length)
        call.reply = reply
        batcher.submit(call)
        call.queued = True

    def _parse(self, call: OpenCall, model: Model, body: bytes, header_length: int | None) -> None:
        request = parse_infer(body, header_length, model.signature, call.personal)
        call.parsed, call.shapes, call.nbytes = request, request.shapes, request.nbytes
        if not request.from_json and not model.allow_nonfinite:
            verify_finite(request.tensors)
        call.decoded = self._now()

    # -- what it says of itself -------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "pellucid", "version": __version__, "extensions": list(EXTENSIONS)}

    @property
    def is_ready(self) -> bool:
        return self.pool.is_ready and not self.draining

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new calls and let those in flight finish; True if all did."""
        self.draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while any(b.waiting for b in self.pool.batchers()) and loop.time() < until:
            await asyncio.sleep(0.005)
        self.numbers.settle()
        return not any(b.waiting for b in self.pool.batchers())
