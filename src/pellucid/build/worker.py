"""The build worker's side: one request on stdin, one stage of a build, files in its folder, the end.

Stages: ``prepare`` makes the graph that the builder gets, ``compile`` is the builder alone (so that
the same graph and recipe in a fresh process give the same bytes), ``judge`` measures what the graph
lost, ``golden`` records what an engine answers where that needs a device; on the processor a fork of
``compile`` does, made before anything was built. Order of writes: log lines as they come, files, then
``result`` by rename. A child that dies anywhere before leaves no result, and the parent reports a crash
with the log so far.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from pellucid.build.beside import Beside
from pellucid.build.frame import read_frame
from pellucid.build.guarded import guarded
from pellucid.build.left import LOG, NO_ROOM, RESULT
from pellucid.build.limits import keep_freed_memory, limit_self
from pellucid.build.loaded import loaded_packages
from pellucid.build.log import LogWriter
from pellucid.build.task import BackendFor, Task, write_file
from pellucid.errors import BuildError

if TYPE_CHECKING:
    from pellucid.core.tensor import TensorSpec
    from pellucid.ports import Backend, Built

CPU: Final = "cpu"  # the target whose engines run wherever they are built


def main(backend_for: BackendFor) -> int:
    """Take one request, do it, say how it went; gives the exit status.

    A request whose ``more`` is true comes in two parts: the first says which stage it will be, and
    what that stage imports is loaded while the parent still works on the second.
    """
    try:
        return _serve(backend_for)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return NO_ROOM  # not even the words for it can be left


def _serve(backend_for: BackendFor) -> int:
    requests, frames = take_streams()
    request = read_frame(requests)
    if not isinstance(request, dict):
        return 2
    folder = Path(request["folder"])
    limit_self(request["recipe"]["limits"])
    if request["stage"] != "compile" or request["recipe"]["target"] == CPU:
        keep_freed_memory()
    beside = None
    if request.pop("more", False):
        guarded(lambda: _load(backend_for, request))  # what fails here fails again, and is told then
        beside = _beside(backend_for, request)
        rest = read_frame(requests)
        if not isinstance(rest, dict):
            return 2
        request |= rest
    result = guarded(lambda: _run(backend_for, request | _shelved(request), folder, frames, beside))
    write_file(folder / RESULT, msgspec.msgpack.encode(result))
    return 0


def _shelved(request: Mapping[str, Any]) -> dict[str, bytes]:
    """Graphs and engines, which lie in files of the parent's.

    Raises:
        BuildError: One cannot be read; where it lies is not told, since what a child says is published.
    """
    return {name: _read(name, path) for name, path in request.get("shelved", {}).items()}


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BuildError(f"build worker: expected to read the file {name}, got {error.strerror}") from None


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Streams for messages; from here on whatever a library prints goes to stderr."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, frames


def _run(
    backend_for: BackendFor,
    request: Mapping[str, Any],
    folder: Path,
    frames: BinaryIO,
    beside: Beside | None,
) -> dict[str, Any]:
    with LogWriter(folder / LOG) as log:
        task = Task(request, backend_for, folder, log, frames, beside=beside)
        result = _STAGES[request["stage"]](task)
        task.phase("end")
    log.verify()
    return result | {"phases_ns": _spans(task.phases)}


def _load(backend_for: BackendFor, request: Mapping[str, Any]) -> dict[str, Any]:
    """Import what the stage needs; nothing is done yet."""
    stage = request["stage"]
    if stage in ("compile", "golden"):
        backend = backend_for(request["recipe"]["backend"])
    if stage == "compile":
        backend.load()
        if request["recipe"]["target"] == CPU:
            importlib.import_module("pellucid.build.golden")
    else:
        importlib.import_module(f"pellucid.build.{stage}")
    if stage == "prepare":
        from pellucid.build import precision

        precision.load(request["recipe"])
    return {}


def _beside(backend_for: BackendFor, request: Mapping[str, Any]) -> Beside | None:
    """Who will record golden cases of an engine that runs where it is built; forked before it is built.

    Its libraries are loaded already, and it has seen nothing of the graph.
    """
    recipe = request["recipe"]
    if request["stage"] != "compile" or recipe["target"] != CPU:
        return None
    return Beside(lambda asked: _run_again(asked | {"recipe": recipe}, backend_for))


def _run_again(request: Mapping[str, Any], backend_for: BackendFor) -> dict[str, Any]:
    """What a process that has not seen the graph answers to the golden cases."""
    from pellucid.build.golden import cases, outputs_of

    recipe = request["recipe"]
    session = backend_for(recipe["backend"]).open_made(Path(request["engine"]), recipe)
    return {"outputs": outputs_of(session, cases(request))}


def _record(request: Mapping[str, Any], backend_for: BackendFor) -> dict[str, Any]:
    from pellucid.build.golden import record

    document, notes = record(request, backend_for)
    return {"document": document, "notes": notes}


def _prepare(task: Task) -> dict[str, Any]:
    task.phase("prepare")
    from pellucid.build.prepare import prepare

    prepared = prepare(task)
    task.leave("compiled", prepared.compiled)
    if prepared.source is not task.request["model"]:
        task.leave("source", prepared.source)
    return {
        "names": prepared.names,
        "steps": prepared.steps,
        "external": prepared.external,
        "documents": prepared.documents,
        "graph": prepared.graph,
        "notes": prepared.notes,
        "given": prepared.given,
        "packages": loaded_packages(),
    }


def _compile(task: Task) -> dict[str, Any]:
    task.phase("load")
    backend = task.backend_for(task.request["recipe"]["backend"])
    task.phase("build")
    built = backend.build(
        task.request["recipe"], task.request["compiled"], task.log, task.step,
        lambda path, inputs: _made(task, path, inputs),
    )  # fmt: skip
    return {
        "engine_name": built.engine_name,
        "options": built.options,
        "facts": built.facts,
        "inputs": _rows(built.inputs),
        "outputs": _rows(built.outputs),
        "environment": backend.environment() | {"packages": loaded_packages()},
        "golden": _golden_beside(task, backend, built),
    }


def _made(task: Task, engine: Path, inputs: tuple[TensorSpec, ...]) -> Path:
    """There is an engine: its golden cases are recorded while its facts are read. Gives where it lies."""
    task.phase("write")
    path = task.give("engine", engine)
    if task.beside is not None and "golden" in task.request:
        files = task.request["golden"]
        task.beside.ask({"engine": str(path), "inputs": _rows(inputs), "files": files})
    task.phase("facts")
    return path


def _rows(specs: tuple[TensorSpec, ...]) -> list[Any]:
    return [[spec.name, spec.datatype, list(spec.shape)] for spec in specs]


def _golden_beside(task: Task, backend: Backend, built: Built) -> dict[str, Any] | None:
    """Golden cases by the session that the builder opened, held against those of the process beside."""
    if task.beside is None or "golden" not in task.request:
        return None
    task.phase("golden")
    from pellucid.build.golden import cases, compare, nothing_drawn, outputs_of

    recipe = task.request["recipe"]
    drawn = cases({"recipe": recipe, "inputs": _rows(built.inputs), "files": task.request["golden"]})
    session = built.session or backend.open(bytes(built.engine), recipe)
    first, second = outputs_of(session, drawn), task.beside.answer()["outputs"]
    document, notes = compare(recipe, drawn, first, second) if drawn else nothing_drawn()
    return {"document": document, "notes": notes}


def _judge(task: Task) -> dict[str, Any]:
    task.phase("judge")
    from pellucid.build.judge import judge

    judged = judge(task)
    return {"documents": judged.documents, "findings": judged.findings, "notes": judged.notes}


def _golden(task: Task) -> dict[str, Any]:
    task.phase("golden")
    return _record(task.request, task.backend_for)


def _preflight(task: Task) -> dict[str, Any]:
    task.phase("read")
    from pellucid.build.preflight import preflight

    return {"facts": preflight(task)}


_STAGES: Final[dict[str, Callable[[Task], dict[str, Any]]]] = {
    "prepare": _prepare,
    "compile": _compile,
    "judge": _judge,
    "golden": _golden,
    "preflight": _preflight,
}


def _spans(phases: dict[str, int]) -> dict[str, int]:
    names, times = list(phases), list(phases.values())
    return {name: after - before for name, before, after in zip(names, times, times[1:], strict=False)}
