"""The ONNX Runtime backend.

The engine is the ONNX graph saved at level EXTENDED and served at level DISABLE_ALL (``portable``):
byte-identical over processes and CPUs, bit-identical results. ``native`` serves the same file at
level ALL: faster on convolutions, same bits on one machine only. Source: spec/recipe.md, section 4.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from pellucid.backends.onnxruntime import device, options
from pellucid.backends.onnxruntime.log import Log
from pellucid.backends.onnxruntime.session import REFUSALS, OrtSession, ProfiledOrtSession, spec_of
from pellucid.core.facts import map_layers
from pellucid.core.words import shortened
from pellucid.errors import BuildError, ParseError
from pellucid.ports import (
    BuildLog,
    BuildProgress,
    Built,
    EngineMade,
    PreflightFinding,
    unawaited,
    unwatched,
)

ENGINE_NAME: Final = "model.onnx"
_WARNING: Final = 2


class OnnxRuntimeBackend:
    """CPU execution provider, single precision, fixed threads."""

    name = "onnxruntime"

    def load(self) -> None:
        """Import what reads the facts: onnx, which no one who serves needs."""
        from pellucid.backends.onnxruntime import graph

        assert graph

    def build(
        self,
        recipe: Mapping[str, Any],
        model: bytes,
        log: BuildLog,
        progress: BuildProgress = unwatched,
        made: EngineMade = unawaited,
    ) -> Built:
        """Optimise the graph and save it; every message of the library goes to ``log``.

        Raises:
            ParseError: The library does not take the graph.
            BuildError: A setting did not hold, or the log lost a message.
        """
        lines = Log(log)
        threads = recipe["threads"]
        with tempfile.TemporaryDirectory() as scratch, lines:
            path = Path(scratch) / ENGINE_NAME
            asked = options.make_options(options.BUILD_LEVEL, threads, severity=0, save_to=str(path))
            session, optimise_ns = _timed_session(model, asked)
            lines.verify()
            settings = _verified_settings(session, lines, threads)
            inputs = tuple(spec_of(value) for value in session.get_inputs())
            outputs = tuple(spec_of(value) for value in session.get_outputs())
            del session
            engine = path.read_bytes()
            made(path, inputs)
            opened, placed, reload_ns = self._reopened(engine, recipe)
        lines.verify()
        facts = self._facts(model, engine, placed, lines)
        facts["phases_ns"] = {"optimise": optimise_ns, "reload": reload_ns}
        return Built(engine, ENGINE_NAME, model, settings, facts, inputs, outputs, opened)

    def _reopened(self, engine: bytes, recipe: Mapping[str, Any]) -> tuple[OrtSession, dict[str, str], int]:
        """The engine as it is served, and the provider of each of its nodes."""
        level = options.SERVE_LEVELS[recipe["serve_level"]]
        made = options.make_options(level, recipe["threads"], severity=0)
        session, spent = _timed_session(engine, made)
        placed = {
            node.name: part.ep_name
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        }
        return _verified(session, engine, level, recipe["threads"], "served"), placed, spent

    def _facts(self, model: bytes, engine: bytes, placed: Mapping[str, str], lines: Log) -> dict[str, Any]:
        from pellucid.backends.onnxruntime import graph  # needs onnx, which no one who serves needs

        source, built = graph.read(model), graph.read(engine)
        facts = map_layers(source.graph, built.graph, graph.renamed(source.graph, built.graph))
        for layer in facts["layers"]:
            layer["placement"] = placed.get("" if layer["name"] in built.unnamed else layer["name"])
        log_facts = lines.facts()
        facts["memory"] = log_facts.pop("memory") | {
            "weights_bytes": built.weights_bytes,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        facts["initializers_removed"] = sorted(set(source.initializers) - set(built.initializers))
        facts["inner_nodes"] = source.inner
        facts["fingerprint"] = built.fingerprint
        facts["tactics"] = "chosen at run time: this backend picks kernels by instruction set when it loads"
        return facts | log_facts

    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> OrtSession:
        """Session of verified engine bytes.

        Raises:
            BuildError: The library does not take them, or a setting did not hold.
        """
        return open_at(engine, options.SERVE_LEVELS[recipe["serve_level"]], recipe["threads"])

    def preflight(self, recipe: Mapping[str, Any], model: bytes, log: BuildLog) -> list[PreflightFinding]:
        """What the library would refuse of a graph: loaded without optimisation, not built."""
        from pellucid.backends.onnxruntime import preflight

        return preflight.findings(recipe, model, log)

    def open_profiled(self, engine: bytes, recipe: Mapping[str, Any]) -> ProfiledOrtSession:
        """The same session, with the library's profiler on.

        Raises:
            BuildError: As ``open``.
        """
        level, threads = options.SERVE_LEVELS[recipe["serve_level"]], recipe["threads"]
        folder = tempfile.TemporaryDirectory(prefix="pellucid-profile-")
        made = options.make_options(level, threads, severity=_WARNING)
        made.enable_profiling, made.profile_file_prefix = True, str(Path(folder.name) / "layers")
        session, _ = _timed_session(engine, made)
        return ProfiledOrtSession(session, {"backend": self.name}, engine, folder)

    def environment(self) -> dict[str, Any]:
        return device.environment()


def open_at(model: bytes, level: int, threads: int) -> OrtSession:
    """Session of a graph at an optimisation level, its settings read back."""
    session, _ = _timed_session(model, options.make_options(level, threads, severity=_WARNING))
    return _verified(session, model, level, threads, "read back")


def _verified(
    session: ort.InferenceSession, model: bytes, level: int, threads: int, source: str
) -> OrtSession:
    settings = options.read_back(session)
    options.verify_settings(options.wanted(level, threads), settings, source)
    facts = {
        "backend": "onnxruntime",
        "version": ort.__version__,
        "threads": threads,
        "settings": settings,
        "device": device.device(),
    }
    return OrtSession(session, facts, model)


def _timed_session(model: bytes, made: ort.SessionOptions) -> tuple[ort.InferenceSession, int]:
    start = time.monotonic_ns()
    try:
        session = ort.InferenceSession(model, made, providers=options.PROVIDERS)
    except REFUSALS as error:
        from pellucid.backends.onnxruntime import preflight

        raise ParseError(
            f"model: expected a graph that onnxruntime takes, got {shortened(str(error), 400)}",
            hint=preflight.hint_for(str(error)),
        ) from error
    return session, time.monotonic_ns() - start


def _verified_settings(session: ort.InferenceSession, lines: Log, threads: int) -> dict[str, Any]:
    asked = options.wanted(options.BUILD_LEVEL, threads)
    settings = options.read_back(session)
    options.verify_settings(asked, settings, "read back")
    if lines.trace is None:
        raise BuildError("onnxruntime: expected its line of session options in the log, got none")
    traced = options.read_trace(lines.trace) | {"providers": settings["providers"]}
    options.verify_settings(asked, traced, "logged")
    return settings
