"""The services of the gRPC door: every RPC, by its path, over the same data plane as HTTP.

Messages arrive as bytes and are read here, after an inference call has its number: what is no message is
refused and recorded like any other bad call. Errors are the RPC's status. An inference call needs no task
between the socket and the batcher.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from pellucid.errors import AuthError, LimitError, PellucidError, RateError, TooManyError, UnavailableError
from pellucid.servers.grpc.asked import ASKED
from pellucid.servers.grpc.callers import action_of, knock_of
from pellucid.servers.grpc.heads import LIST_MAX, Head
from pellucid.servers.grpc.health import Health, HealthMethod
from pellucid.servers.grpc.known import Messages
from pellucid.servers.grpc.messages import SERVICE, StreamResponse, read_message
from pellucid.servers.grpc.rpc import Marks, Method, Rpc
from pellucid.servers.grpc.statuses import STATUSES, StatusCode
from pellucid.servers.grpc.wire import ENCODINGS, NO_GRPC_HEAD, OK_TAIL, RefusedError, field, other_encoding
from pellucid.serving.answer import Answer
from pellucid.serving.call import OpenCall
from pellucid.serving.dataplane import Dataplane, Read
from pellucid.serving.doors import Knock

RETRY_MS: Final = "1000"
FAULT: Final = "server: expected an answer, got a fault of its own"
STOPS: Final = "server: expected to be serving, got a shutdown"
_HEALTH: Final = "grpc.health.v1.Health"
_CONTENT_TYPES: Final = frozenset([b"application/grpc", b"application/grpc+proto"])  # not -web, not +json


class Service:
    """Answers RPCs; stateless but for the data plane and its health."""

    def __init__(self, plane: Dataplane, health: Health | None = None) -> None:
        self.plane, self._messages = plane, Messages()
        health = health or Health()
        self._methods: dict[bytes, Method] = {
            f"/{SERVICE}/ModelInfer".encode(): _Infer(self),
            f"/{SERVICE}/ModelStreamInfer".encode(): _StreamInfer(self),
            f"/{_HEALTH}/Check".encode(): HealthMethod(health, watches=False),
            f"/{_HEALTH}/Watch".encode(): HealthMethod(health, watches=True),
        }
        for name in ASKED:
            self._methods[f"/{SERVICE}/{name}".encode()] = _Ask(self, name)
        self._tasks: set[asyncio.Task[None]] = set()

    def method(self, head: Head) -> Method:
        """What an RPC calls; where it calls nothing, what tells it so."""
        if head.oversized:
            return _Refuse(
                StatusCode.RESOURCE_EXHAUSTED, f"metadata: expected at most {LIST_MAX:,} bytes, got more"
            )
        if not (head.is_post and head.content_type.partition(b";")[0].rstrip() in _CONTENT_TYPES):
            return _NoGrpc()
        if head.timeout_ns < 0:
            return _Refuse(
                StatusCode.INTERNAL, "grpc-timeout: expected digits and a unit, got something else"
            )
        if head.encoding != b"identity" and head.encoding not in ENCODINGS:
            return _Refuse(StatusCode.UNIMPLEMENTED, other_encoding(head.encoding))
        method = self._methods.get(head.path)
        if method is None:
            text = f"method: expected one of {SERVICE} or of health, got {head.path.decode('latin-1')!r:.120}"
            return _Refuse(StatusCode.UNIMPLEMENTED, text)
        return method

    def start(self, rpc: Rpc, work: Callable[[], Awaitable[None]], *, cancels: bool = False) -> None:
        """Answer an RPC in a task; a fault of ours in it is its status.

        Args:
            cancels: What nobody waits for any more need not be done.
        """
        task = asyncio.get_running_loop().create_task(self._guarded(rpc, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if cancels:
            rpc.on_lost = task.cancel

    async def _guarded(self, rpc: Rpc, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            self.fault(rpc)

    def fault(self, rpc: Rpc) -> None:
        """Report a fault of ours, and say that there was one."""
        traceback.print_exc(file=sys.stderr)
        rpc.end(StatusCode.INTERNAL, FAULT)

    # -- inference --------------------------------------------------------------------------------

    def accept(self, rpc: Rpc, size: int) -> tuple[OpenCall, Knock | None]:
        """A number for a message; raises ``LedgerFullError``."""
        plane, connection, trace = self.plane, rpc.connection, rpc.head.trace
        if plane.doors is None:
            return plane.accept(connection.peer, trace), None
        knock = knock_of(rpc.head, connection.peer, connection.names, plane.doors, size)
        return plane.accept_from(knock, trace), knock

    def prepare(
        self, rpc: Rpc, call: OpenCall, knock: Knock | None, raw: bytes
    ) -> tuple[str, str | None, Read]:
        """Which model a call that may come in asks for, its version, and what reads its message.

        Raises:
            PellucidError: It may not, is too large or no message.
        """
        plane = self.plane
        if knock is not None:
            plane.admit(call, knock)
        if len(raw) > plane.limits.body_max_bytes:
            raise LimitError(
                f"message: expected at most {plane.limits.body_max_bytes:,} bytes, got {len(raw):,}",
                hint="raise serving.body_max_bytes",
            )
        left_s = rpc.time_left()
        if left_s is not None:
            call.deadline = max(1, call.started + int(left_s * 1e9))
        return self._messages.open(raw, plane.manage.regions)

    def marks(self, call: OpenCall) -> Marks:
        """Under what a refused call is found."""
        key = self.plane.key(call)
        return (*((("pellucid-call", key),) if key else ()), ("pellucid-trace", call.shown))


class _Refuse:
    """An RPC that calls nothing."""

    is_stream = False

    def __init__(self, code: StatusCode, text: str) -> None:
        self._code, self._text = code, text

    def begin(self, rpc: Rpc) -> None:
        rpc.end(self._code, self._text)

    def take(self, rpc: Rpc, message: bytes) -> None: ...


class _NoGrpc(_Refuse):
    """A request of HTTP/2 that is none of gRPC."""

    def __init__(self) -> None: ...

    def begin(self, rpc: Rpc) -> None:
        rpc.end_with(NO_GRPC_HEAD)


class _Ask:
    """Everything but inference."""

    is_stream = False

    def __init__(self, service: Service, name: str) -> None:
        self._service, self._name = service, name

    def begin(self, rpc: Rpc) -> None: ...

    def take(self, rpc: Rpc, message: bytes) -> None:
        rpc.busy = True
        self._service.start(rpc, partial(self._answer, rpc, message))

    async def _answer(self, rpc: Rpc, raw: bytes) -> None:
        kind, answer = ASKED[self._name]
        plane, connection = self._service.plane, rpc.connection
        try:
            knock = knock_of(rpc.head, connection.peer, connection.names, plane.doors, len(raw))
            plane.ask(action_of(self._name), knock)
            told = await answer(plane, read_message(kind, raw))
        except RefusedError as error:
            rpc.end(error.code, str(error))
        except PellucidError as error:
            end_with_error(rpc, error)
        else:
            rpc.answer(told.SerializeToString(), OK_TAIL)


class _Infer:
    """One inference call, recorded whatever happens."""

    is_stream = False

    def __init__(self, service: Service) -> None:
        self._service = service

    def begin(self, rpc: Rpc) -> None: ...

    def take(self, rpc: Rpc, message: bytes) -> None:
        service = self._service
        rpc.busy = True
        call: OpenCall | None = None
        waiting = _Waiting(service, rpc)
        try:
            call, knock = service.accept(rpc, len(message))
            waiting.call = call
            model, version, read = service.prepare(rpc, call, knock, message)
            service.plane.submit(call, model, version, len(message), read, waiting)
        except PellucidError as error:
            waiting.set_exception(error)
        except Exception:
            service.fault(rpc)
        finally:
            if call is not None:
                service.plane.abandon(call)


class _Waiting:
    """Who waits for a call's outcome, as its batcher tells it."""

    __slots__ = ("_rpc", "_service", "call")

    def __init__(self, service: Service, rpc: Rpc) -> None:
        self._service, self._rpc = service, rpc
        self.call: OpenCall | None = None

    def done(self) -> bool:
        """True when nobody waits any more."""
        return self._rpc.is_over

    def set_result(self, answer: Answer) -> None:
        """Send the answer."""
        self._rpc.answer(answer.body, b"".join([
            OK_TAIL, field(b"pellucid-call", answer.call.encode()),
            field(b"pellucid-trace", answer.trace.encode()),
        ]))  # fmt: skip

    def set_exception(self, error: PellucidError) -> None:
        """Record the refusal where the call did not run, and say why."""
        if self.call is None:
            end_with_error(self._rpc, error)
        else:
            told = self._service.plane.told(self.call, error)
            end_with_error(self._rpc, told, self._service.marks(self.call))


class _StreamInfer:
    """Inference calls one after the other; an error is an answer, and the stream goes on."""

    is_stream = True

    def __init__(self, service: Service) -> None:
        self._service = service

    def begin(self, rpc: Rpc) -> None:
        self._service.start(rpc, partial(self._in_time, rpc), cancels=True)

    def take(self, rpc: Rpc, message: bytes) -> None: ...

    async def _in_time(self, rpc: Rpc) -> None:
        try:
            async with asyncio.timeout(rpc.time_left()):
                await self._answer(rpc)
        except TimeoutError:
            rpc.end(StatusCode.DEADLINE_EXCEEDED, "stream: expected its end in time, got none")

    async def _answer(self, rpc: Rpc) -> None:
        service = self._service
        while (raw := await rpc.next()) is not None:
            if service.plane.draining:  # else who goes on sending would hold the stop for all of its grace
                rpc.end(StatusCode.UNAVAILABLE, STOPS)
                return
            try:
                call, knock = service.accept(rpc, len(raw))
            except PellucidError as error:
                end_with_error(rpc, error)
                return
            rpc.busy = True
            try:
                told = await self._one(rpc, call, knock, raw)
            finally:
                rpc.busy = False
                service.plane.abandon(call)
            if told is None:
                return
            rpc.send(told)
            await rpc.drain()
        rpc.end(StatusCode.OK)

    async def _one(self, rpc: Rpc, call: OpenCall, knock: Knock | None, raw: bytes) -> bytes | None:
        """The answer to one message; ``None`` when the stream has ended with it."""
        service, reply = self._service, StreamResponse()
        try:
            model, version, read = service.prepare(rpc, call, knock, raw)
            answer = await service.plane.run(call, model, version, len(raw), read)
            reply.infer_response.MergeFromString(answer.body)
        except AuthError as error:  # of a stranger's stream there is nothing more to hear
            end_with_error(rpc, service.plane.told(call, error), service.marks(call))
            return None
        except PellucidError as error:
            reply.error_message = _text(service.plane.told(call, error))
            reply.infer_response.id = call.personal.get("request_id", "")
            if key := service.plane.key(call):
                reply.infer_response.parameters["pellucid-call"].string_param = key
        reply.infer_response.parameters["triton_final_response"].bool_param = True
        done: bytes = reply.SerializeToString()
        return done


def _text(error: PellucidError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def end_with_error(rpc: Rpc, error: PellucidError, marks: Marks = ()) -> None:
    """The status that an error is."""
    if isinstance(error, (UnavailableError, TooManyError)):
        wait_ms = str(error.retry_s * 1000) if isinstance(error, RateError) else RETRY_MS
        marks = (*marks, ("grpc-retry-pushback-ms", wait_ms))
    rpc.end(STATUSES[type(error)], _text(error), marks)
