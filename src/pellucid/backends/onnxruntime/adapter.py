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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from pellucid.core.digest import Data

ENGINE_NAME: Final = "model.onnx"
_WARNING: Final = 2


class OnnxRuntimeBackend:
    """CPU execution provider, single precision, fixed threads."""

    name = "onnxruntime"

    def load(self) -> None:
        """Import what opens the engine again and reads the facts: onnx, which no one who serves needs."""
        from pellucid.backends.onnxruntime import graph, light

        assert graph
        assert light

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
            start = time.monotonic_ns()
            session, engine, opened = _open_made(
                made(path, inputs), recipe, severity=0, copied=True, source="served"
            )
            placed = _placed(session)
            reload_ns = time.monotonic_ns() - start
        lines.verify()
        facts = self._facts(model, engine, placed, lines)
        facts["phases_ns"] = {"optimise": optimise_ns, "reload": reload_ns}
        return Built(engine, ENGINE_NAME, model, settings, facts, inputs, outputs, opened)

    def _facts(self, model: bytes, engine: Data, placed: Mapping[str, str], lines: Log) -> dict[str, Any]:
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

    def open_made(self, engine: Path, recipe: Mapping[str, Any]) -> OrtSession:
        """The same session of an engine's file, in a build; its weights stay where they lie in it.

        Raises:
            BuildError: As ``open``.
        """
        return _open_made(engine, recipe, severity=_WARNING, copied=False, source="read back")[2]

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


def _open_made(
    engine: Path, recipe: Mapping[str, Any], *, severity: int, copied: bool, source: str
) -> tuple[ort.InferenceSession, Data, OrtSession]:
    """The library's session of an engine's file, the file's bytes, and the session that is ours."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    from pellucid.backends.onnxruntime import light  # needs onnx, which no one who serves needs

    level, threads = options.SERVE_LEVELS[recipe["serve_level"]], recipe["threads"]
    raw, opened = light.contents(engine), None
    if level == options.SERVE_LEVELS["portable"]:  # any other looks at weights, and may change them
        asked = options.make_options(level, threads, severity=severity)
        with suppress(*REFUSALS, DecodeError):  # the plain way says what is wrong with an engine
            opened = light.open_light(engine, raw, asked, copied=copied)
    if opened is not None:
        return opened.session, raw, _verified(opened.session, raw, level, threads, source, opened)
    raw = bytes(raw)
    session, _ = _timed_session(raw, options.make_options(level, threads, severity=severity))
    return session, raw, _verified(session, raw, level, threads, source)


def _placed(session: ort.InferenceSession) -> dict[str, str]:
    """The provider of each of its nodes."""
    return {
        node.name: part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    }


def _verified(
    session: ort.InferenceSession,
    model: Data,
    level: int,
    threads: int,
    source: str,
    held: object = None,
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
    return OrtSession(session, facts, model, held)


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
