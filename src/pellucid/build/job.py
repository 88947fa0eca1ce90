"""The build job: reads the recipe, lets a worker build, writes the package, records how it went.

The package appears whole, by rename, or not at all. A build that failed leaves its log and stderr
in ``failed/`` beside the packages, and an entry either way.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from pellucid.build import environment, golden, worker
from pellucid.build.child import Ended, run_child
from pellucid.build.meaning import read_meaning
from pellucid.build.package import Made, assemble
from pellucid.core.digest import sha256, verify_digest
from pellucid.core.model_signing import file_digests, root_digest
from pellucid.core.recipe import Recipe, effective, parse_recipe
from pellucid.core.tensor import Tensor, TensorSpec
from pellucid.core.times import format_time
from pellucid.errors import (
    BuilderCrashedError,
    BuildError,
    NotFoundError,
    PellucidError,
    RecipeError,
    UsageError,
    by_code,
)
from pellucid.ports import Clock, EventRecorder, Isolated

Progress = Callable[[str], None]
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """A build that worked.

    Attributes:
        folder: The package, unsigned.
        package: Package digest, which attestations will name.
        entry: Key of the ``build`` entry.
    """

    folder: Path
    name: str
    version: str
    package: str
    engine: str
    log: str
    facts: dict[str, Any]
    entry: str


@dataclass(frozen=True, slots=True)
class Job:
    """What a build needs besides its recipe.

    Attributes:
        out: Folder that packages go into.
        entry: What the worker's process runs.
    """

    out: Path
    isolated: Isolated
    recorder: EventRecorder
    clock: Clock
    progress: Progress = lambda phase: None
    entry: str = worker.ENTRY


@dataclass(frozen=True, slots=True)
class _Worked:
    """What the worker left, read before its folder goes."""

    ended: Ended
    log: bytes
    result: dict[str, Any] | None
    engine: bytes
    compiled: bytes


def run_build(recipe_path: Path, job: Job) -> BuildOutcome:
    """Build a recipe's engine into a package folder.

    Raises:
        RecipeError, NotFoundError: The recipe or a file it names does not hold; nothing was built.
        ParseError, BuildError: The builder refused; its log is kept.
        BuilderCrashedError: The worker died, by signal or by time; its log is kept.
        UsageError: This version exists already.
    """
    folder = recipe_path.resolve().parent
    written = _read(recipe_path, "recipe")
    recipe = parse_recipe(written)
    inputs = _inputs(recipe, folder) | {"recipe": written}
    meaning = read_meaning(inputs["meaning"], folder) if "meaning" in inputs else {}
    started = job.clock.now_ns()
    worked = _work(effective(recipe), inputs["source"], job)
    try:
        made = _collect(recipe, meaning, inputs, worked, started, folder, job)
        name, files = assemble(made)
        target = _write(job.out, name, files)
    except PellucidError as error:
        raise _failed(error, recipe, written, worked, started, job) from error
    return _record(recipe, written, target, files, made, job)


def _read(path: Path, subject: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"{subject}: expected a file at {path}, got {error.strerror}") from error


def _inputs(recipe: Recipe, folder: Path) -> dict[str, bytes]:
    """Files the recipe names, by role."""
    named = {"source": recipe.model, "meaning": recipe.meaning, "golden": recipe.golden["inputs"]}
    if recipe.validation:
        named["validation"] = recipe.validation["data"]
    return {role: _read(folder / path, role) for role, path in named.items() if path is not None}


def _work(recipe: dict[str, Any], model: bytes, job: Job) -> _Worked:
    with tempfile.TemporaryDirectory(prefix="pellucid-build-") as scratch:
        folder = Path(scratch) / "out"
        folder.mkdir()
        request = {"recipe": recipe, "model": model, "folder": str(folder)}
        ended = run_child(
            job.entry, request, Path(scratch), timeout_s=recipe["limits"]["timeout_s"],
            on_frame=lambda frame: job.progress(str(frame.get("phase"))),
        )  # fmt: skip
        parts = {name: _part(folder / name) for name in (worker.RESULT, worker.LOG, "engine", "compiled")}
    raw = parts[worker.RESULT]
    result = msgspec.msgpack.decode(raw) if raw and ended.code == 0 else None
    return _Worked(ended, parts[worker.LOG], result, parts["engine"], parts["compiled"])


def _part(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _verify_result(worked: _Worked) -> dict[str, Any]:
    result = worked.result
    if result is None:
        hint = "killed from outside: often the machine ran out of memory" if worked.ended.code == -9 else ""
        if worked.ended.timed_out:
            hint = "raise limits.timeout_s in the recipe"
        raise BuilderCrashedError(f"build worker: expected an engine, got {worked.ended.reason}", hint=hint)
    if "error" in result:
        error = result["error"]
        raise by_code(error["code"], BuildError)(error["message"], hint=error["hint"])
    verify_digest("engine", worked.engine, result["engine"])
    verify_digest("compiled.onnx", worked.compiled, result["compiled"])
    return result


def _collect(
    recipe: Recipe,
    meaning: dict[str, Any],
    inputs: dict[str, bytes],
    worked: _Worked,
    started: int,
    folder: Path,
    job: Job,
) -> Made:
    result, said = _verify_result(worked), effective(recipe)
    _verify_meaning(meaning, result)
    job.progress("golden")
    cases = _golden_cases(recipe, inputs, result)
    recorded, notes = golden.record(cases, job.isolated, recipe.backend, worked.engine, said)
    return Made(
        recipe=said, meaning=meaning, inputs=inputs, result=result, engine=worked.engine,
        compiled=worked.compiled, log=worked.log, stderr=worked.ended.stderr,
        environment=environment.describe(result["environment"], worked.ended, folder),
        golden=recorded, notes=notes,
        started=format_time(started), finished=format_time(job.clock.now_ns()),
    )  # fmt: skip


def _verify_meaning(meaning: dict[str, Any], result: dict[str, Any]) -> None:
    output = (meaning.get("decision") or {}).get("output")
    names = [name for name, _, _ in result["outputs"]]
    if output is not None and output not in names:
        raise RecipeError(f"meaning: decision.output: expected one of {names}, got {output!r:.80}")
    features, width = meaning.get("features"), result["inputs"][0][2][-1:]
    if features and len(result["inputs"][0][2]) == 2 and width != [len(features)]:
        raise RecipeError(f"meaning: features: expected {width[0]} as the model takes, got {len(features)}")


def _golden_cases(
    recipe: Recipe, inputs: dict[str, bytes], result: dict[str, Any]
) -> list[tuple[int, list[Tensor]]]:
    specs = [TensorSpec(name, kind, tuple(shape)) for name, kind, shape in result["inputs"]]
    if "golden" not in inputs:
        return golden.draw(specs, recipe.buckets, count=recipe.golden["count"], seed=recipe.golden["seed"])
    try:
        with np.load(io.BytesIO(inputs["golden"]), allow_pickle=False) as arrays:
            return golden.from_arrays(specs, recipe.buckets, dict(arrays))
    except (ValueError, OSError) as error:
        raise RecipeError(f"golden.inputs: expected an .npz file, got {error!s:.120}") from error


def _write(out: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write the package whole; its folder appears by rename."""
    target = out / name
    if target.exists():
        raise UsageError(
            f"package: expected a new version, got {name}, which exists", hint="raise the version"
        )
    temporary = out / f".building-{name}-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        for path, data in files.items():
            place = temporary / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        temporary.rename(target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise BuildError(f"package {name}: expected to write it, got {error.strerror}") from error
    return target


def _failed(
    error: PellucidError, recipe: Recipe, written: bytes, worked: _Worked, started: int, job: Job
) -> PellucidError:
    """Keep the log, record the outcome, and say where the log is."""
    stamp = format_time(started)[:19].replace(":", "")
    kept = job.out / FAILED / f"{recipe.name}-v{recipe.version}-{stamp}"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "build.log.jsonl").write_bytes(worked.log)
    (kept / "build.stderr").write_bytes(worked.ended.stderr)
    job.recorder.event(
        "build",
        _entry(recipe, written, worked.log)
        | {
            "outcome": error.code,
            "reason": error.message[:500],
            "ended": worked.ended.reason,
            "stderr": sha256(worked.ended.stderr),
        },
    )
    where = f"the whole log: {kept / 'build.log.jsonl'}"
    return type(error)(error.message, hint=f"{error.hint}; {where}" if error.hint else where)


def _entry(recipe: Recipe, written: bytes, log: bytes) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "version": recipe.version,
        "backend": recipe.backend,
        "target": recipe.target,
        "precision": recipe.precision,
        "recipe": sha256(written),
        "log": sha256(log),
    }


def _record(
    recipe: Recipe, written: bytes, target: Path, files: dict[str, bytes], made: Made, job: Job
) -> BuildOutcome:
    package, engine = root_digest(file_digests(files)), sha256(made.engine)
    entry = job.recorder.event(
        "build",
        _entry(recipe, written, made.log)
        | {
            "outcome": "built",
            "package": package,
            "engine": engine,
            "source": sha256(made.inputs["source"]),
            "started": made.started,
            "finished": made.finished,
        },
    )
    return BuildOutcome(
        target, recipe.name, recipe.version, package, engine, sha256(made.log), made.result["facts"], entry
    )
