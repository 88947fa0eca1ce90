"""A build as OpenTelemetry spans: the build, its stages, their phases.

Off, and nothing imported, unless the standard variables name a collector. What a span says is what
the ledger says in the clear: model, version, backend, target, precision, outcome; never a path, a
message or a person. A collector that does not answer costs time, never the build.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from pellucid import __version__
from pellucid.build.files import read_plain
from pellucid.core.otlp import is_wanted, missing_library, resource_attributes
from pellucid.core.recipe import parse_recipe
from pellucid.errors import PellucidError

ATTRIBUTES: Final = ("name", "version", "backend", "target", "precision")  # of the recipe
_STAGES: Final = {  # first phase of a stage -> the stage
    "prepare": "prepare", "load": "compile", "judge": "judge", "golden": "golden",
}  # fmt: skip


class Spans:
    """Context manager around one build: ``phase`` as it goes on, the outcome at the end.

    Args:
        recipe: Its file; one that does not hold gives spans without attributes, because the build
            itself says why.
        said: Environment variables.

    Raises:
        MissingExtraError: A collector is named and the library is not installed.
        UsageError: A protocol this version does not speak.
    """

    def __init__(self, recipe: Path, said: Mapping[str, str] = os.environ) -> None:
        self._tracer: Any = None
        if is_wanted(said):
            self._open(_attributes(recipe), said)

    def _open(self, attributes: dict[str, str], said: Mapping[str, str]) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise missing_library(said, error.name) from error
        self._provider = TracerProvider(
            resource=Resource.create(resource_attributes(said, __version__)), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("pellucid.build", __version__)
        self._attributes = attributes
        carrier = {key: said[key.upper()] for key in ("traceparent", "tracestate") if said.get(key.upper())}
        caller = TraceContextTextMapPropagator().extract(carrier)
        self._build = self._tracer.start_span("build", context=caller, attributes=attributes)
        self._stage: Any = None
        self._phase: Any = None

    def phase(self, name: str) -> None:
        """A phase begins; the one before, and its stage where a new one begins, end."""
        if self._tracer is None:
            return
        self._end(self._phase)
        if name in _STAGES:
            self._end(self._stage)
            self._stage = self._start(f"stage {_STAGES[name]}", self._build)
        self._phase = self._start(f"phase {name}", self._stage or self._build)

    def _start(self, name: str, parent: Any) -> Any:
        from opentelemetry.trace import set_span_in_context

        return self._tracer.start_span(name, context=set_span_in_context(parent), attributes=self._attributes)

    def _end(self, span: Any, outcome: str = "") -> None:
        if span is None:
            return
        if outcome:
            span.set_attribute("pellucid.outcome", outcome)
        span.end()

    def __enter__(self) -> Spans:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._tracer is None:
            return
        from opentelemetry.trace import Status, StatusCode

        outcome = (
            "built" if error is None else error.code if isinstance(error, PellucidError) else "interrupted"
        )
        for span in (self._phase, self._stage, self._build):
            if span is not None and error is not None:
                span.set_status(Status(StatusCode.ERROR, outcome))
            self._end(span, outcome if error is not None or span is self._build else "")
        self._provider.shutdown()


def _attributes(recipe: Path) -> dict[str, str]:
    try:
        parsed = parse_recipe(read_plain(recipe, "recipe"))
    except PellucidError:
        return {}
    return {f"pellucid.{'model' if n == 'name' else n}": str(getattr(parsed, n)) for n in ATTRIBUTES}
