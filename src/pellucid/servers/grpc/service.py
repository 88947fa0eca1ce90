"""The service of the gRPC door: every RPC, by name, over the same data plane as HTTP.

Messages arrive as bytes and are read here, after an inference call has its number: what is no message is
refused and recorded like any other bad call. Errors are the RPC's status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import grpc

from pellucid.errors import AuthError, LimitError, PellucidError, RateError, TooManyError, UnavailableError
from pellucid.servers.grpc.asked import ASKED, RefusedError
from pellucid.servers.grpc.callers import action_of, knock_of
from pellucid.servers.grpc.codec import read_request
from pellucid.servers.grpc.messages import SERVICE, InferRequest, StreamResponse, read_message
from pellucid.servers.grpc.statuses import STATUSES
from pellucid.serving.answer import Answer
from pellucid.serving.call import OpenCall
from pellucid.serving.dataplane import Dataplane
from pellucid.serving.doors import Knock

Context = Any  # grpc.aio.ServicerContext, which has no types
Method = Callable[[Any, Any], Awaitable[bytes]]
Metadata = tuple[tuple[str, str], ...]
RETRY_MS: Final = "1000"


class Service:
    """Answers RPCs; stateless but for the data plane.

    Attributes:
        busy: Messages being answered now; a stream that waits for its client's next one is not.
    """

    def __init__(self, plane: Dataplane) -> None:
        self._plane, self.busy = plane, 0

    def handler(self, guard: Callable[[Method], Method]) -> Any:
        """What a ``grpc.aio`` server takes in; ``guard`` wraps each method against faults of ours."""
        unary: dict[str, Method] = {name: partial(self._ask, name) for name in ASKED}
        unary["ModelInfer"] = self.infer
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(guard(method)) for name, method in unary.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self.stream)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _ask(self, name: str, raw: bytes, context: Context) -> bytes:
        kind, answer = ASKED[name]
        self.busy += 1
        try:
            self._plane.ask(action_of(name), knock_of(context, self._plane.doors, len(raw)))
            told = await answer(self._plane, read_message(kind, raw))
        except RefusedError as error:
            await context.abort(error.code, str(error))
        except PellucidError as error:
            await _abort(context, error)
        finally:
            self.busy -= 1
        done: bytes = told.SerializeToString()
        return done

    # -- inference --------------------------------------------------------------------------------

    async def infer(self, raw: bytes, context: Context) -> bytes:
        """One inference call, recorded whatever happens."""
        call, knock = await self._accept(context, len(raw))
        self.busy += 1
        try:
            try:
                answer = await self._run(call, knock, raw, context)
            except PellucidError as error:
                await _abort(context, self._refuse(call, error), self._marks(call))
            context.set_trailing_metadata((("pellucid-call", answer.call), ("pellucid-trace", answer.trace)))
            return answer.body
        finally:
            self.busy -= 1
            self._plane.abandon(call)

    async def stream(self, messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Inference calls one after the other; an error is an answer, and the stream goes on."""
        async for raw in messages:
            call, knock = await self._accept(context, len(raw))
            self.busy += 1
            try:
                told = await self._streamed(call, knock, raw, context)
            finally:
                self.busy -= 1
                self._plane.abandon(call)
            yield told

    async def _streamed(self, call: OpenCall, knock: Knock, raw: bytes, context: Context) -> bytes:
        reply = StreamResponse()
        try:
            answer = await self._run(call, knock, raw, context)
            reply.infer_response.MergeFromString(answer.body)
        except AuthError as error:  # of a stranger's stream there is nothing more to hear
            await _abort(context, self._refuse(call, error), self._marks(call))
        except PellucidError as error:
            reply.error_message = _text(self._refuse(call, error))
            reply.infer_response.id = call.personal.get("request_id", "")
            if key := self._plane.key(call):
                reply.infer_response.parameters["pellucid-call"].string_param = key
        reply.infer_response.parameters["triton_final_response"].bool_param = True
        done: bytes = reply.SerializeToString()
        return done

    async def _accept(self, context: Context, size: int) -> tuple[OpenCall, Knock]:
        sent = dict(context.invocation_metadata() or ())
        trace = sent.get("traceparent")
        knock = knock_of(context, self._plane.doors, size)
        try:
            call = self._plane.accept_from(knock, trace.encode() if isinstance(trace, str) else trace)
        except PellucidError as error:
            await _abort(context, error)
        return call, knock

    async def _run(self, call: OpenCall, knock: Knock, raw: bytes, context: Context) -> Answer:
        plane = self._plane
        plane.admit(call, knock)
        if len(raw) > plane.limits.body_max_bytes:
            raise LimitError(
                f"message: expected at most {plane.limits.body_max_bytes:,} bytes, got {len(raw):,}",
                hint="raise serving.body_max_bytes",
            )
        message = read_message(InferRequest, raw)
        left_s = context.time_remaining()
        if left_s is not None:
            call.deadline = call.started + int(left_s * 1e9)
        read = partial(read_request, message, plane.manage.regions)
        return await plane.run(call, message.model_name, message.model_version or None, len(raw), read)

    def _refuse(self, call: OpenCall, error: PellucidError) -> PellucidError:
        """Record a refusal; what the caller is told: why, or that not even this could be recorded."""
        try:
            self._plane.refuse(call, error)
        except PellucidError as worse:
            return worse
        return error

    def _marks(self, call: OpenCall) -> Metadata:
        key = self._plane.key(call)
        return (*((("pellucid-call", key),) if key else ()), ("pellucid-trace", call.shown))


def _text(error: PellucidError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


async def _abort(context: Context, error: PellucidError, marks: Metadata = ()) -> NoReturn:
    if isinstance(error, (UnavailableError, TooManyError)):
        wait_ms = str(error.retry_s * 1000) if isinstance(error, RateError) else RETRY_MS
        marks = (*marks, ("grpc-retry-pushback-ms", wait_ms))
    await context.abort(STATUSES[type(error)], _text(error), marks)
    raise AssertionError("abort raises")
