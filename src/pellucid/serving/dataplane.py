"""The data plane, without any framework: bytes and names in, bytes out, every call recorded.

A door accepts a call (its number is reserved), then either hands over its body or refuses it for a
reason of its own. Whatever happens after, cancellation included, the number is closed exactly once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from pellucid.core.access import HEALTH, Caller
from pellucid.errors import PellucidError, UnavailableError
from pellucid.ports import Clock, Recorder
from pellucid.serving.answer import Answer
from pellucid.serving.baseline import SAMPLE_NS
from pellucid.serving.call import OpenCall, Reply
from pellucid.serving.doors import Doors, Knock
from pellucid.serving.entropy import Entropy
from pellucid.serving.finite import verify_finite
from pellucid.serving.heads import read_infer
from pellucid.serving.limits import Limits
from pellucid.serving.management import Management
from pellucid.serving.model import Model, Signature
from pellucid.serving.numbers import Numbers
from pellucid.serving.pool import Pool
from pellucid.serving.repository import Repository
from pellucid.serving.request import InferRequest
from pellucid.serving.shared_memory import Regions
from pellucid.serving.statistics import Peers

NODE_CONTEXT: Final = 0  # the node itself, for calls that named no model we know
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


_ORDERS: Final = frozenset({"repository", "shared_memory", "change_settings"})  # who gave one is an entry
Read = Callable[[Signature, dict[str, str]], InferRequest]


class Dataplane:
    """What every door of the server calls. Lives on one event loop's thread.

    A call by the short way, all on the loop's thread and without waiting: ``accept_from`` (its number),
    ``admit``, ``submit`` (in the batcher's queue, or it raises); ``abandon`` at the end of that turn,
    whatever happened. Then its ``Reply`` hears once, in a later turn, ``set_result`` or
    ``set_exception``, unless it says ``done``. Who hears an error, raised or told, calls ``refuse``,
    which closes calls that never ran, and tells the caller what that gives.

    Attributes:
        manage: What is asked besides inference.
        doors: Who may come in; ``None`` where nobody is asked and nothing is limited.
        on_drain: Called once, when new calls begin to be refused.
    """

    def __init__(
        self,
        pool: Pool,
        recorder: Recorder,
        *,
        clock: Clock,
        limits: Limits,
        repository: Repository | None = None,
        regions: Regions | None = None,
        peers: Peers | None = None,
        doors: Doors | None = None,
    ) -> None:
        self.doors = doors
        self.pool, self.limits, self._recorder, self.tracer = pool, limits, recorder, pool.tracer
        self._wall, self._now = clock.now_ns, clock.monotonic_ns
        self._entropy = Entropy()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.numbers = Numbers(recorder, limits, clock.now_ns, self._call_later)
        self.manage = Management(
            pool, recorder, limits=limits, repository=repository, regions=regions, peers=peers
        )
        self.refused: dict[str, int] = {}  # by code; calls for which no number could be had are in it
        self.draining = False
        self.on_drain: list[Callable[[], None]] = []

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the running loop, once, on its thread."""
        self._loop = loop
        self.pool.attach(loop)
        self._sample()

    def _sample(self) -> None:
        """Keep the load of the machine at hand, so that a slow call can say what it was."""
        self.pool.load.sample()
        self._call_later(SAMPLE_NS / 1e9, self._sample)

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
        try:
            n = self.numbers.take(accepted_ns)
        except PellucidError as error:
            self._count_refused(error)
            raise
        personal = {"address": address} if address else {}
        random = self._entropy.take(48)
        trace: str | None = random[32:].hex()
        if traceparent and (foreign := _TRACEPARENT.fullmatch(traceparent)):
            trace, personal["trace_id"] = None, foreign[1].decode()
            if self.tracer is not None:
                self.tracer.accepted(n, foreign[0])
        return OpenCall(n, NODE_CONTEXT, accepted_ns, self._now(), random[:32], personal, trace)

    def accept_from(self, knock: Knock, traceparent: bytes | None = None) -> OpenCall:
        """As ``accept``, from where the doors say that it comes."""
        return self.accept(knock.peer if self.doors is None else self.doors.address(knock), traceparent)

    def admit(self, call: OpenCall, knock: Knock) -> None:
        """Let a call in; its entry commits to who it is from, also when they may not.

        Raises:
            AuthError, RateError: The door then calls ``refuse``.
        """
        doors = self.doors
        if doors is None:
            return
        call.nbytes = knock.size
        call.caller = caller = doors.identify(knock)
        if caller is not None:
            call.personal["caller"] = caller.identity
        doors.verify(caller, "infer", call.personal.get("address", ""), knock.size)

    def charge(self, call: OpenCall, size: int) -> None:
        """Count bytes of a call that were not announced."""
        if self.doors is not None:
            self.doors.charge(call.caller, call.personal.get("address", ""), size)

    def ask(self, action: str, knock: Knock) -> Caller | None:
        """Who asks for something that is no inference, if they may; orders and refusals are entries.

        Raises:
            AuthError, RateError: They may not, or not now.
            PellucidError: The ledger cannot take the order.
        """
        doors = self.doors
        if doors is None or action == HEALTH:
            return None
        caller, personal = doors.ask(action, knock, self.numbers.tell_refused)
        if caller is not None and action in _ORDERS:
            self._recorder.event("config", {"change": f"{action}_asked"}, personal)
        return caller

    def key(self, call: OpenCall) -> str:
        """The call's key as its caller gets it; ``""`` when it was only counted."""
        return "" if call.counted else self._recorder.call_key(call.n)

    def refuse(self, call: OpenCall, error: PellucidError) -> None:
        """Close a call that never ran; nothing happens when a batcher has it or it is closed."""
        if call.closed or call.queued:
            return
        call.closed = True
        self._count_refused(error)
        took = self._now() - call.started
        record = call.refused(error, self._wall(), took)
        call.counted = not self.numbers.close_refused(record)
        if self.tracer is not None:
            named = [b.model for b in self.pool.batchers() if b.context == call.context]
            self.tracer.closed(record, *((named[0].name, named[0].version) if named else ("", "")))

    def told(self, call: OpenCall, error: PellucidError) -> PellucidError:
        """Record a refusal; what the caller is told: why, or that not even this could be recorded."""
        try:
            self.refuse(call, error)
        except PellucidError as worse:
            return worse
        return error

    def _count_refused(self, error: PellucidError) -> None:
        self.refused[error.code] = self.refused.get(error.code, 0) + 1

    def abandon(self, call: OpenCall) -> None:
        """Last step of every door: a call that nobody closed was cancelled, or met a fault of ours."""
        if not (call.closed or call.queued):
            self.refuse(call, UnavailableError("call: expected to be read to its end, got a cancellation"))

    async def infer(
        self, call: OpenCall, model: str, version: str | None, body: bytes, header_length: int | None
    ) -> Answer:
        """Run a call whose request is a body of JSON and binary tensors; raises as ``run``."""
        return await self.run(call, model, version, len(body), partial(self._read, body, header_length, None))

    async def run(self, call: OpenCall, model: str, version: str | None, size: int, read: Read) -> Answer:
        """Run a call.

        Args:
            size: Bytes of the request as it came.
            read: Gives the request for a model's signature; personal values go into the mapping as
                soon as they are known.

        Raises:
            PellucidError: Why it was refused (the door then calls ``refuse``) or failed.
        """
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(call, model, version, size, read, reply)
        return await reply

    def start(
        self,
        call: OpenCall,
        model: str,
        version: str | None,
        body: bytes,
        header_length: int | None,
        reply: Reply,
        tail: bytes | None = None,
    ) -> None:
        """Put a call into its batcher's queue; ``reply`` hears how it ended, later, on this thread.

        Args:
            tail: What follows the head, where ``body`` is no more than that.

        Raises:
            PellucidError: Why it was refused (the door then calls ``refuse``).
        """
        size = len(body) if tail is None else len(body) + len(tail)
        self.submit(call, model, version, size, partial(self._read, body, header_length, tail), reply)

    def submit(
        self, call: OpenCall, model: str, version: str | None, size: int, read: Read, reply: Reply
    ) -> None:
        """``run`` without a task or a future: as ``start``, whatever the request is made of."""
        batcher = self.pool.find(model, version)
        call.context, call.nbytes = batcher.context, size
        if self.draining:
            raise UnavailableError("server: expected to be serving, got a shutdown", hint="retry after 1 s")
        self._parse(call, batcher.model, read)
        call.reply = reply
        batcher.submit(call)
        call.queued = True

    def _read(
        self,
        body: bytes,
        header_length: int | None,
        tail: bytes | None,
        signature: Signature,
        personal: dict[str, str],
    ) -> InferRequest:
        return read_infer(body, header_length, signature, personal, self.manage.regions, tail)

    def _parse(self, call: OpenCall, model: Model, read: Read) -> None:
        request = read(model.signature, call.personal)
        call.parsed, call.shapes, call.nbytes = request, request.shapes, request.nbytes
        if not request.from_json and not model.allow_nonfinite:
            verify_finite(request.tensors)
        call.decoded = self._now()
        if request.timeout_us:
            wanted = call.started + request.timeout_us * 1000
            call.deadline = min(call.deadline, wanted) if call.deadline else wanted

    # -- readiness and the stop -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self.pool.is_ready and not self.draining

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new calls and let those in flight finish; True if all did."""
        self.refuse_new()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while (self.pool.waiting or self.pool.closing) and loop.time() < until:
            await asyncio.sleep(0.005)
        self.numbers.settle()
        return not self.pool.waiting

    def refuse_new(self) -> None:
        """Refuse calls that come from now on, and be not ready any more."""
        if not self.draining:
            self.draining = True
            for listener in self.on_drain:
                listener()
