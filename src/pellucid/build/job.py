"""The build job: reads the recipe, lets a worker build, writes the package, records how it went.

The package appears whole, by rename, or not at all. A build that failed leaves its log and stderr
in ``failed/`` beside the packages, and an entry either way.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pellucid.build import cancel, environment, left
from pellucid.build.files import read_model, read_plain
from pellucid.build.meaning import read_meaning
from pellucid.build.shelf import Shelf
from pellucid.build.stages import Opened, Progress, Staged, Stages
from pellucid.core import canonical
from pellucid.core.digest import Data, sha256
from pellucid.core.recipe import Recipe, effective, parse_recipe
from pellucid.core.recipe_choices import verify_judged
from pellucid.core.times import format_time
from pellucid.errors import (
    BuildError,
    DiskFullError,
    GateError,
    LimitError,
    PellucidError,
    RecipeError,
    UsageError,
)
from pellucid.ports import Clock, EventRecorder

if TYPE_CHECKING:
    from pellucid.build.package import Made

_FINDINGS_MAX: Final = 5  # limit: findings quoted in one error
FAILED: Final = "failed"


class BuildOutcome(msgspec.Struct, frozen=True):
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


class Job(msgspec.Struct, frozen=True):
    """What a build needs besides its recipe.

    Attributes:
        out: Folder that packages go into.
        entry: What the worker's process runs.
        meanwhile: Called while the children work: loads what the end of a build needs.
        ahead: Children that were started before the recipe was read, for the first stages.
    """

    out: Path
    recorder: EventRecorder
    clock: Clock
    progress: Progress = lambda phase: None
    entry: str = left.ENTRY
    meanwhile: Callable[[], None] = lambda: None
    ahead: list[Opened] = msgspec.field(default_factory=list)


def run_build(recipe_path: Path, job: Job) -> BuildOutcome:
    """Build a recipe's engine into a package folder.

    Raises:
        RecipeError, NotFoundError: The recipe or a file it names does not hold; nothing was built.
        LimitError: A file it names is larger than any that can be built from; recorded.
        ParseError, PrecisionError, BuildError: The model or the builder refused; its log is kept.
        GateError: The graph lost more than the recipe's gate allows, or its precision asks for a
            validation set and the recipe names none.
        BuilderCrashedError: A worker died, by signal or by time; its log is kept.
        UsageError: This version exists already.
    """
    written = read_input(recipe_path, "recipe")
    folder = recipe_path.resolve().parent  # after it was read: of a link that leads to itself there is none
    recipe = parse_recipe(written)
    started = job.clock.now_ns()
    stages = Stages(effective(recipe), job.progress, job.entry, ahead=job.ahead)
    try:
        verify_judged(stages.recipe)
        inputs = _inputs(recipe, folder) | {"recipe": written}
    except (GateError, LimitError) as error:
        raise _failed(error, recipe, written, stages, started, folder, job) from error
    meaning = read_meaning(inputs["meaning"], folder) if "meaning" in inputs else {}
    with ExitStack() as undone:
        try:
            with stages:
                made = _make(recipe, meaning, inputs, stages, started, folder, job)
                from pellucid.build.package import assemble

                name, files = assemble(made)
                cancel.current().verify()
                target = _write(job.out, name, files, stages.shelf)
                undone.callback(shutil.rmtree, target, ignore_errors=True)  # no package without its entry
        except PellucidError as error:
            raise _failed(error, recipe, written, stages, started, folder, job) from error
        except MemoryError as error:
            refused = BuildError("build: expected to have the memory it needs, got none left")
            raise _failed(refused, recipe, written, stages, started, folder, job) from error
        except OSError as error:
            raise _failed(_of_system(error), recipe, written, stages, started, folder, job) from error
        except Exception as error:  # a mistake of ours, or a child that answers nonsense: told whole
            unforeseen = BuildError(f"build: expected to go on, got {type(error).__name__}")
            _failed(unforeseen, recipe, written, stages, started, folder, job)
            raise
        try:
            outcome = _record(recipe, written, target, files, made, job)
        except OSError:  # the entry may stand, and one without its package is worse
            undone.pop_all()
            raise
        undone.pop_all()
    return outcome


def _of_system(error: OSError) -> PellucidError:
    """What the machine refused while a build was under way."""
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else BuildError
    place = error.filename if isinstance(error.filename, str) else "operating system"
    return kind(f"build: expected {place} to be usable, got {error.strerror or error}")


def read_input(path: Path, subject: str) -> bytes:
    """Bytes of a file that somebody named.

    Raises:
        NotFoundError: It is not there, or no plain file.
        LimitError: It is larger than any that can be built from.
    """
    return (read_model if subject == "source" else read_plain)(path, subject)


def _inputs(recipe: Recipe, folder: Path) -> dict[str, bytes]:
    """Files the recipe names, by role."""
    named = {"source": recipe.model, "meaning": recipe.meaning, "golden": recipe.golden["inputs"]}
    for role in ("validation", "reference", "calibration"):
        section = getattr(recipe, role)
        named[role] = section["data"] if section else None
    named["artefact"] = recipe.calibration["artefact"] if recipe.calibration else None
    return {role: read_input(folder / path, role) for role, path in named.items() if path is not None}


def _make(
    recipe: Recipe,
    meaning: dict[str, Any],
    inputs: dict[str, bytes],
    stages: Stages,
    started: int,
    folder: Path,
    job: Job,
) -> Made:
    said = effective(recipe)
    stages.open("prepare")
    stages.open("compile")  # its libraries load while the graph is made
    if _is_judged(recipe, inputs):
        stages.open("judge")  # likewise: what changes a graph takes longer than what loads
    prepared = stages.run("prepare", {
        "model": inputs["source"], "model_folder": str((folder / recipe.model).parent),
        "files": {role: inputs[role] for role in ("calibration", "artefact") if role in inputs},
    }, lambda: _hash(stages, inputs["source"]))  # fmt: skip
    source, graph = prepared.files.get("source", inputs["source"]), prepared.files["compiled"]
    state: list[environment.State] = []
    compiled = stages.run(
        "compile", {"compiled": graph, "golden": _golden_files(inputs)},
        lambda: state.append(_meanwhile(stages, graph, folder, job)),
    )  # fmt: skip
    from pellucid.build.package import Made

    result = compiled.result
    _verify_rows(recipe, result)
    _verify_meaning(meaning, result)
    documents = prepared.result["documents"]
    judged = _judge(recipe, meaning, inputs, stages, (source, graph), prepared, compiled)
    if judged is not None:
        documents |= judged["documents"]
    recorded, notes = _golden(inputs, stages, compiled)
    return Made(
        recipe=said, meaning=meaning, inputs=inputs, prepared=prepared.result, result=result,
        source=source, engine=compiled.files["engine"],
        compiled=graph, log=stages.log, stderr=stages.stderr,
        environment=environment.describe(_environment(prepared, compiled), compiled.ended, state[0]),
        documents=documents, golden=recorded, phases_ns=stages.phases_ns,
        notes=[*prepared.result["notes"], *(judged["notes"] if judged else []), *notes],
        started=format_time(started), finished=format_time(job.clock.now_ns()),
        digest=stages.hashed,
    )  # fmt: skip


def _hash(stages: Stages, data: Data) -> None:
    """What many documents will name, while a child works."""
    stages.hashed(data)


def _meanwhile(stages: Stages, graph: Data, folder: Path, job: Job) -> environment.State:
    """While the builder works: hash what it was given, import what the end of the build needs, ask git."""
    _hash(stages, graph)
    from pellucid.build import package
    from pellucid.core import model_signing

    assert package
    assert model_signing
    job.meanwhile()
    return environment.source_state(folder, os.environ)


def _is_judged(recipe: Recipe, inputs: dict[str, bytes]) -> bool:
    return "validation" in inputs or "reference" in inputs or recipe.precision != "fp32"


def _environment(prepared: Staged, compiled: Staged) -> dict[str, Any]:
    """What the builder's process reported, with the libraries that made the graph."""
    worker: dict[str, Any] = compiled.result["environment"]
    packages = {item["name"]: item for item in [*prepared.result["packages"], *worker["packages"]]}
    return worker | {"packages": [packages[name] for name in sorted(packages)]}


def _judge(
    recipe: Recipe,
    meaning: dict[str, Any],
    inputs: dict[str, bytes],
    stages: Stages,
    graphs: tuple[Data, Data],
    prepared: Staged,
    compiled: Staged,
) -> dict[str, Any] | None:
    """What the graph lost; nothing to measure where nothing was changed and no data is named."""
    if not _is_judged(recipe, inputs):
        return None
    files = {role: inputs[role] for role in ("validation", "reference") if role in inputs}
    result = stages.run("judge", {
        "meaning": meaning, "source": graphs[0], "compiled": graphs[1],
        "names": prepared.result["names"], "facts": compiled.result["facts"],
        "inputs": compiled.result["inputs"], "outputs": compiled.result["outputs"],
        "files": files, "documents": prepared.result["documents"],
    }).result  # fmt: skip
    stages.measured |= result["documents"]
    if result["findings"]:
        shown = "; ".join(result["findings"][:_FINDINGS_MAX])
        raise GateError(
            f"accuracy gate: expected {recipe.name} {recipe.version} within its limits, got: {shown}",
            hint="better calibration data, another method, or fewer operators; or limits that you can defend",
        )
    return result


def _verify_rows(recipe: Recipe, result: dict[str, Any]) -> None:
    """Refuse an output of one number of rows whatever goes in, as the builder found it."""
    for name, _, shape in result["outputs"]:
        if max(recipe.buckets, default=1) > 1 and shape and shape[0] >= 0:
            raise BuildError(
                f"model: output {name!r:.80}: expected the batch axis first, got shape {shape}",
                hint="a model whose outputs mix its rows, or take no notice of them, cannot be batched",
            )


def _verify_meaning(meaning: dict[str, Any], result: dict[str, Any]) -> None:
    output = (meaning.get("decision") or {}).get("output")
    names = [name for name, _, _ in result["outputs"]]
    if output is not None and output not in names:
        raise RecipeError(f"meaning: decision.output: expected one of {names}, got {output!r:.80}")
    features, width = meaning.get("features"), result["inputs"][0][2][-1:]
    if features and len(result["inputs"][0][2]) == 2 and width != [len(features)]:
        raise RecipeError(f"meaning: features: expected {width[0]} as the model takes, got {len(features)}")


def _golden(inputs: dict[str, bytes], stages: Stages, compiled: Staged) -> tuple[dict[str, Any], list[str]]:
    """Golden cases; without any device no process is started only to say so."""
    if compiled.result["golden"] is not None:
        return compiled.result["golden"]["document"], compiled.result["golden"]["notes"]
    device = compiled.result["environment"]["device"]
    if device is None and "golden" not in inputs:
        said = compiled.result["environment"]["null_reasons"]
        why = next(r["reason"] for r in said if r["field"] == "device")
        target = stages.recipe["target"]
        reason = f"engine: expected a GPU of {target}, which it was built for, got {why}"
        return {"cases": [], "reason": reason}, [f"golden: no case recorded: {reason}"]
    result = stages.run("golden", {
        "engine": compiled.files["engine"], "inputs": compiled.result["inputs"],
        "files": _golden_files(inputs),
        "at_once": device is not None and device["kind"] == "cpu",
    }).result  # fmt: skip
    return result["document"], result["notes"]


def _golden_files(inputs: dict[str, bytes]) -> dict[str, bytes]:
    return {role: inputs[role] for role in ("golden",) if role in inputs}


def _write(out: Path, name: str, files: Mapping[str, Data], shelf: Shelf) -> Path:
    """Write the package whole; its folder appears by rename."""
    target = out / name
    if target.exists():
        raise _exists(name)
    # drawn: in two containers that share the folder the processes may have one number
    temporary = out / f".building-{name}-{os.urandom(8).hex()}"
    try:
        temporary.mkdir(parents=True)
        for path, data in files.items():
            place = temporary / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shelf.write(place, data)
        temporary.rename(target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise _exists(name) from error  # another build was faster
        raise _of_system(error) from error
    return target


def _exists(name: str) -> UsageError:
    return UsageError(f"package: expected a new version, got {name}, which exists", hint="raise the version")


def _failed(
    error: PellucidError,
    recipe: Recipe,
    written: bytes,
    stages: Stages,
    started: int,
    folder: Path,
    job: Job,
) -> PellucidError:
    """Keep the log, record the outcome, and say where the log is."""
    try:
        where = f"the whole log: {_keep(recipe, stages, started, job) / 'build.log.jsonl'}"
    except OSError as failure:
        where = f"its log could not be kept: {failure.filename or job.out}: {failure.strerror}"
    try:
        job.recorder.event(
            "build",
            _entry(recipe, written, stages.log)
            | {
                "outcome": error.code,
                "reason": _told(error.message, folder, job)[:500],
                "ended": stages.ended,
                "stderr": sha256(stages.stderr),
            },
        )
    except (PellucidError, OSError) as failure:  # why it failed is what its caller asked for
        where += f"; it could NOT be recorded: {failure}"
    if stages.measured:
        where += f"; what was measured, beside it: {', '.join(stages.measured)}"
    return type(error)(error.message, hint=f"{error.hint}; {where}" if error.hint else where)


def _told(message: str, folder: Path, job: Job) -> str:
    """An error's words for the ledger, which others read: files without the folders they lie in."""
    for place in (str(job.out), str(folder)):
        message = message.replace(f"{place}/", "")
    return message


def _keep(recipe: Recipe, stages: Stages, started: int, job: Job) -> Path:
    """Write what a failed build leaves; a folder of its own for each, also for two in one second."""
    stamp = format_time(started)[:19].replace(":", "")
    first = kept = job.out / FAILED / f"{recipe.name}-v{recipe.version}-{stamp}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        try:
            kept.mkdir()
            break
        except FileExistsError:
            number += 1
            kept = first.with_name(f"{first.name}-{number}")
    (kept / "build.log.jsonl").write_bytes(stages.log)
    (kept / "build.stderr").write_bytes(stages.stderr)
    for path, document in stages.measured.items():
        (kept / path).write_bytes(canonical.encode(document))
    return kept


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
    recipe: Recipe, written: bytes, target: Path, files: Mapping[str, Data], made: Made, job: Job
) -> BuildOutcome:
    from pellucid.core.model_signing import file_digests, root_digest

    package, engine = root_digest(file_digests(files, made.digest)), made.digest(made.engine)
    facts = canonical.decode(bytes(files["facts.json"]))  # what can fail comes before the entry
    entry = job.recorder.event(
        "build",
        _entry(recipe, written, made.log)
        | {
            "outcome": "built",
            "package": package,
            "engine": engine,
            "source": made.digest(made.inputs["source"]),
            "started": made.started,
            "finished": made.finished,
        },
    )
    return BuildOutcome(
        target,
        recipe.name,
        recipe.version,
        package,
        engine,
        sha256(made.log),
        facts,
        entry,
    )
