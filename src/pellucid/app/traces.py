"""Calls as OpenTelemetry spans: one of kind server for each call, below the caller's where it named one.

Off, and nothing imported, unless the standard variables name a collector. A span says what the ledger
says in the clear, and the key of the entry that says the rest; never an address, a caller or a value.
It is made when the call is closed, from the stages that were measured anyway. A collector that does
not answer costs memory up to the exporter's queue, never a call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pellucid import __version__
from pellucid.core.otlp import is_wanted, missing_library, resource_attributes

if TYPE_CHECKING:
    from pellucid.core.record import Call

OPEN_MAX: Final = 65_536  # limit: callers' contexts that are kept while their calls are open


def open_traces(source: str, said: Mapping[str, str] = os.environ) -> Traces | None:
    """Traces of a serving process, or ``None`` where nobody wants them.

    Args:
        source: First part of its call keys.

    Raises:
        MissingExtraError: A collector is named and the library is not installed.
        UsageError: A protocol this version does not speak.
    """
    if not is_wanted(said):
        return None
    try:
        ids = _ids()
        return Traces(source, _provider(source, said, ids), ids)
    except ModuleNotFoundError as error:
        raise missing_library(said, error.name) from error


def _ids() -> Any:
    """Random ids, but for a trace whose id was drawn when the call was accepted."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    def generate_trace_id(self: Any) -> int:
        return int(self.trace or RandomIdGenerator.generate_trace_id(self))

    return type("Ids", (RandomIdGenerator,), {"trace": 0, "generate_trace_id": generate_trace_id})()


def _provider(source: str, said: Mapping[str, str], ids: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = resource_attributes(said, __version__) | {"service.instance.id": source}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False, id_generator=ids)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Traces:
    """``ports.CallTracer`` over OpenTelemetry's library. Used on the event loop's thread."""

    def __init__(self, source: str, provider: Any, ids: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api: Any = trace
        self._source, self._provider, self._ids = source, provider, ids
        self._tracer = provider.get_tracer("pellucid.serving", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._parents: dict[int, str] = {}
        self._made: dict[int, bytes] = {}

    def accepted(self, n: int, traceparent: bytes) -> None:
        """Remember a caller's context until the call is closed."""
        if len(self._parents) < OPEN_MAX:
            self._parents[n] = traceparent.decode("latin-1")

    def closed(self, record: Call, model: str, version: str) -> None:
        """Make the span of a closed call."""
        caller = self._parents.pop(record.n, None)
        self._ids.trace = int(record.trace, 16) if record.trace else 0  # a trace that begins here has our id
        named = {"pellucid.model": model, "pellucid.version": version} if model else {}
        span = self._tracer.start_span(
            f"infer {model}" if model else "infer", kind=self._api.SpanKind.SERVER,
            context=self._extract({"traceparent": caller} if caller else {}),
            start_time=record.accepted_ns, attributes=named | self._attributes(record),
        )  # fmt: skip
        decode, queue, infer, total = record.stages
        if record.slot >= 0:
            at = record.accepted_ns + decode
            inside = self._api.set_span_in_context(span)
            for name, took in (("queue", queue), ("compute", infer)):
                stage = self._tracer.start_span(name, context=inside, start_time=at)
                at += took
                stage.end(at)
        self._finish(span, record, total)
        own = span.get_span_context()
        made = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        self._made[record.n] = made.encode()
        if len(self._made) > OPEN_MAX:
            self._made.pop(next(iter(self._made)))  # of a caller that left before its answer

    def take(self, n: int) -> bytes:
        """The call's own ``traceparent``, once; ``b""`` when it has none."""
        return self._made.pop(n, b"")

    def _attributes(self, record: Call) -> dict[str, Any]:
        found: dict[str, Any] = {
            "pellucid.call": f"{self._source}/{record.n}", "pellucid.outcome": record.outcome,
            "pellucid.bucket": record.bucket, "pellucid.slot": record.slot, "pellucid.rows": len(record.rows),
        }  # fmt: skip
        if record.mark is not None:
            found["pellucid.deviation_milli"] = record.mark["deviation_milli"]
            load = record.mark["load"]
            found |= {f"pellucid.load.{name}": value for name, value in load.items() if type(value) is int}
        return found

    def _finish(self, span: Any, record: Call, total: int) -> None:
        if record.error is not None:
            span.set_attribute("error.type", record.error)
            if record.outcome == "failed":  # what the caller did wrong is not the server's error
                span.set_status(self._api.Status(self._api.StatusCode.ERROR, record.error))
        span.end(record.accepted_ns + total)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
