"""One adapter for NVIDIA's builders: the library is handed in, its features decide what is set.

The precision is the one the ONNX graph has (strongly typed); TF32 is set or cleared by the recipe.
An engine that this backend built was never executed by its authors on a GPU that TensorRT-RTX
supports: none was at hand. Source: spec/recipe.md, section 5.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pellucid.backends.tensorrt import device, graph, options, profiles, session
from pellucid.backends.tensorrt.apart import apart
from pellucid.backends.tensorrt.collection import no_collection
from pellucid.backends.tensorrt.facts import read_facts
from pellucid.backends.tensorrt.library import Library
from pellucid.backends.tensorrt.log import Messages, hint_for, make_logger
from pellucid.backends.tensorrt.monitor import Watch, make_monitor
from pellucid.core.digest import parse_digest, sha256
from pellucid.core.words import shortened
from pellucid.errors import BuildError, ParseError
from pellucid.ports import (
    BuildLog,
    BuildProgress,
    Built,
    EngineMade,
    PreflightFinding,
    Session,
    unawaited,
    unwatched,
)

ENGINE_NAME: Final = "model.engine"
_ASK: Final = "pellucid preflight MODEL --recipe RECIPE names all that is known to stand in its way"
_NODES_MAX: Final = 5  # limit: refused nodes named in one error


class TensorRtBackend:
    """Builds with one of the libraries; ``rtx`` and ``classic`` say which."""

    name = "tensorrt"

    def __init__(self, library: Library) -> None:
        self._library = library

    def load(self) -> None:
        """Nothing more: the library is here, and reads graphs itself."""

    @apart
    @no_collection()
    def build(
        self,
        recipe: Mapping[str, Any],
        model: bytes,
        log: BuildLog,
        progress: BuildProgress = unwatched,
        made: EngineMade = unawaited,
    ) -> Built:
        """Compile a graph for the recipe's target; every message of the library goes to ``log``.

        Raises:
            DeviceUnavailableError: The library builds for the GPU at hand only, and that is another.
            ParseError: The library does not take the graph.
            PrecisionError: It would compute in other types than the model has.
            BuildCancelledError: ``progress`` asked for the end.
            BuildError: A setting did not hold, the builder gave up, or the log lost a message.
        """
        library, trt = self._library, self._library.trt
        source = graph.read(model, weights=False)
        graph.verify_no_double(source)
        if not library.features.cross_target:
            device.require(recipe["target"], "target", f"since {library.backend} builds for the GPU at hand")
        lines, watch = Messages(log, library.backend), Watch(progress)
        logger, monitor = make_logger(trt, lines), None
        start = time.monotonic_ns()
        builder = trt.Builder(logger)
        config = builder.create_builder_config()
        settings = self._verified(lines, options.configure, library, config, recipe)
        if library.features.progress:
            monitor = make_monitor(trt, watch)
            config.progress_monitor = monitor
        network = builder.create_network(options.network_flags(library))
        self._parse(network, logger, lines, model)
        lines.verify()
        inputs, outputs = graph.interface(trt, source, network)
        graph.verify_no_shape_inputs(network)
        _name_it(network, model)
        shapes = self._verified(lines, profiles.add_profiles, builder, config, network, recipe)
        parsed = time.monotonic_ns()
        engine = self._serialise(builder, network, config, lines, watch)
        built = time.monotonic_ns()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / ENGINE_NAME
            path.write_bytes(engine)
            made(path, inputs)
        settings |= {"network_name": network.name, "strongly_typed": True, "profiles": shapes}
        spent = {"parse": parsed - start, "compile": built - parsed}
        return Built(
            engine=engine, engine_name=ENGINE_NAME, compiled=model,
            options=settings | options.timing_cache_facts(library, config),
            facts=read_facts(lines.lines, source, library) | {"phases_ns": spent},
            inputs=inputs, outputs=outputs,
        )  # fmt: skip

    @no_collection()
    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> Session:
        """Bring an engine onto the GPU that it was built for.

        Raises:
            DeviceUnavailableError: Another GPU is here, or none; names both.
            BuildError: The library does not take the engine.
        """
        device.require(recipe["target"], "engine", "which it was built for")
        return session.open_session(self._library, engine)

    def open_made(self, engine: Path, recipe: Mapping[str, Any]) -> Session:
        """As ``open``, of a file."""
        return self.open(engine.read_bytes(), recipe)

    @no_collection()
    def preflight(self, recipe: Mapping[str, Any], model: bytes, log: BuildLog) -> list[PreflightFinding]:
        """What the library would refuse of a graph: parsed, not built."""
        from pellucid.backends.tensorrt import preflight  # needs all of onnx, which no build needs

        return preflight.findings(self._library, recipe, model, log)

    def environment(self) -> dict[str, Any]:
        return device.environment(self._library)

    def _verified(self, lines: Messages, step: Any, *arguments: Any) -> Any:
        """A step's answer; when it refuses, the library's own words go along."""
        try:
            return step(*arguments)
        except BuildError as error:
            if not lines.errors:
                raise
            words, hint = lines.reason()
            said = f"{error.message}; {self._library.backend} says: {words}"
            raise type(error)(said, hint=hint or error.hint) from error

    def _parse(self, network: Any, logger: Any, lines: Messages, model: bytes) -> None:
        parser = self._library.trt.OnnxParser(network, logger)
        if parser.parse(model) and not parser.num_errors:
            return
        found = [parser.get_error(i) for i in range(parser.num_errors)]
        places = [f"node {e.node_name() or e.node()!s} ({e.node_operator()})" for e in found if e.node() >= 0]
        said = list(dict.fromkeys(_said(e) for e in found[:_NODES_MAX]))
        words, hint = lines.reason()
        where = f" at {', '.join(dict.fromkeys(places[:_NODES_MAX]))}" if places else ""
        raise ParseError(
            f"model: expected a graph that {self._library.backend} takes, got{where}: "
            f"{'; '.join(said) or words}",
            hint=hint or hint_for("; ".join(said)) or _ASK,
        )

    def _serialise(self, builder: Any, network: Any, config: Any, lines: Messages, watch: Watch) -> bytes:
        plan = builder.build_serialized_network(network, config)
        lines.verify()
        watch.verify()
        if plan is None:
            words, hint = lines.reason()
            said = f"{self._library.backend}: expected an engine, got none: {words}"
            raise BuildError(said, hint=hint or _ASK)
        return bytes(memoryview(plan))


def _said(error: Any) -> str:
    """A parser's error in its own words, where it has any."""
    words = shortened(error.desc(), 300)
    return str(error.code().name) if words in ("", "false") else f"{error.code().name}: {words}"


def _name_it(network: Any, model: bytes) -> None:
    """Let the engine carry the digest of the very graph it was built from."""
    name = f"pellucid:{parse_digest(sha256(model)).hex()}"
    network.name = name
    if network.name != name:
        raise BuildError(f"network name: expected {name}, got {network.name!r:.100}")
