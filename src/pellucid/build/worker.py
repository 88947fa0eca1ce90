"""The build worker's side: one request on stdin, one build, files in its folder, then the end.

Order of writes: log lines as they come, engine and graphs, then ``result`` by rename. A child that
dies anywhere before leaves no result, and the parent reports a crash with the log so far.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from pellucid.build.child import limit_self
from pellucid.build.environment import loaded_packages
from pellucid.build.frame import read_frame, write_frame
from pellucid.build.log import LogWriter
from pellucid.core.digest import sha256
from pellucid.errors import BuildError, PellucidError
from pellucid.ports import Backend, LogLine

ENTRY: Final = "from pellucid.app.build import worker_main; worker_main()"
RESULT: Final = "result"
LOG: Final = "build.log.jsonl"


def main(backend_for: Callable[[str], Backend]) -> int:
    """Take one request, do it, say how it went; gives the exit status."""
    requests, frames = take_streams()
    request = read_frame(requests)
    if not isinstance(request, dict):
        return 2
    folder = Path(request["folder"])
    limit_self(request["recipe"]["limits"])
    result = guarded(lambda: _build(backend_for, request, folder, frames))
    _write(folder / RESULT, msgspec.msgpack.encode(result))
    return 0


def guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` gives, or ``{"error": ...}``: whatever a library raises must reach the parent."""
    try:
        return work()
    except PellucidError as error:
        return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    except Exception as error:
        traceback.print_exc()
        return {"error": {"code": BuildError.code, "message": f"builder: {_words(error)}", "hint": ""}}


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Streams for messages; from here on whatever a library prints goes to stderr."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, frames


def _words(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "expected to stay inside limits.memory_bytes, got out of memory"
    return f"expected an engine, got {type(error).__name__}: {error!s:.300}"


def _build(
    backend_for: Callable[[str], Backend], request: dict[str, Any], folder: Path, frames: BinaryIO
) -> dict[str, Any]:
    recipe, model = request["recipe"], request["model"]
    phases: dict[str, int] = {}
    with LogWriter(folder / LOG) as log:

        def phase(name: str) -> None:
            phases[name] = time.monotonic_ns()
            log(LogLine("INFO", time.time_ns(), f"phase {name}", "pellucid.build.worker"))
            write_frame(frames, {"phase": name})

        phase("load")
        backend = backend_for(recipe["backend"])
        phase("preflight")
        from pellucid.build.preflight import prepare

        prepared = prepare(model, recipe)
        phase("build")
        built = backend.build(recipe, prepared.compiled, log)
        phase("write")
        for name, data in (("engine", built.engine), ("compiled", built.compiled)):
            _write(folder / name, data)
        environment = backend.environment() | {"packages": loaded_packages()}
        phase("end")
    log.verify()
    return {
        "engine": sha256(built.engine),
        "engine_name": built.engine_name,
        "compiled": sha256(built.compiled),
        "options": built.options,
        "facts": built.facts
        | {"notes": prepared.notes, "phases_ns": built.facts["phases_ns"] | _spans(phases)},
        "names": prepared.names,
        "inputs": [[s.name, s.datatype, list(s.shape)] for s in built.inputs],
        "outputs": [[s.name, s.datatype, list(s.shape)] for s in built.outputs],
        "environment": environment,
    }


def _spans(phases: dict[str, int]) -> dict[str, int]:
    names, times = list(phases), list(phases.values())
    return {name: after - before for name, before, after in zip(names, times, times[1:], strict=False)}


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_bytes(data)
    temporary.replace(path)
