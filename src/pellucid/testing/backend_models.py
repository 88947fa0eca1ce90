"""The models of ONNX's own backend test, each tried for real: foreseen, made canonical, built.

Many in one child, which is what they can afford; where a model kills its child, that is its outcome
and another child goes on behind it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pellucid.app.processes import backend_for
from pellucid.build.canonical_graph import Canonical, canonicalise
from pellucid.build.canonical_interface import inputs_of, variable_axes
from pellucid.build.canonical_read import parse
from pellucid.build.child import run_child
from pellucid.build.frame import read_frame, write_frame
from pellucid.build.preflight import graph_findings
from pellucid.build.worker import take_streams
from pellucid.core.recipe import effective, parse_recipe
from pellucid.errors import PellucidError
from pellucid.ports import LogLine

FOLDERS: Final = ("simple", "pytorch-converted", "pytorch-operator")
ENTRY: Final = "from pellucid.testing.backend_models import survey_main; survey_main()"
_RECIPES: Final = {
    "onnxruntime": '{"name": "m", "version": "1", "backend": "onnxruntime", "target": "cpu", "model": "m"}',
    "tensorrt-rtx": '{"name": "m", "version": "1", "backend": "tensorrt-rtx", "target": "sm89", '
    '"model": "m", "licence_ack": true}',
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model.

    Attributes:
        built: An engine came out.
        foreseen: Findings of severity ``refused``: ``[where, what, fix]``.
        stage: Where it ended: ``canonical``, ``build``, or ``crash``; ``""`` when built.
        reason, hint: Of its end.
    """

    model: str
    built: bool
    foreseen: list[list[str]]
    stage: str = ""
    reason: str = ""
    hint: str = ""


def model_paths(folders: Sequence[str] = FOLDERS) -> list[tuple[str, Path]]:
    """``folder/name`` and file of each model in the installed onnx package, sorted."""
    import onnx.backend

    base = Path(onnx.backend.__file__).parent / "test" / "data"
    found = [(f"{path.parent.parent.name}/{path.parent.name}", path) for path in base.glob("*/*/model.onnx")]
    found += [(f"light/{path.stem}", path) for path in base.glob("light/*.onnx")]
    return sorted((name, path) for name, path in found if name.partition("/")[0] in folders)


def survey(
    backend: str,
    models: Sequence[tuple[str, Path]],
    *,
    changes: Mapping[str, Any] | None = None,
    timeout_s: float = 300.0,
    entry: str = ENTRY,
) -> list[Outcome]:
    """Try each model with a backend, in order, in as few processes as they leave alive.

    Args:
        changes: Keys of the default recipe that are others.
    """
    done: list[Outcome] = []
    while len(done) < len(models):
        waiting = [(name, path.read_bytes()) for name, path in models[len(done) :]]
        before = len(done)
        request = {"backend": backend, "models": waiting, "changes": dict(changes or {})}
        with tempfile.TemporaryDirectory(prefix="pellucid-survey-") as scratch:
            ended = run_child(
                entry, request, Path(scratch), timeout_s=timeout_s,
                on_frame=lambda frame: done.append(Outcome(**frame)),
            )  # fmt: skip
        if len(done) < len(models) and (ended.code != 0 or len(done) == before):
            done.append(Outcome(models[len(done)][0], False, [], "crash", ended.reason))
    return done


def survey_main() -> None:
    """The child's side."""
    requests, frames = take_streams()
    request = read_frame(requests)
    assert isinstance(request, dict)
    backend = backend_for(request["backend"])
    for name, raw in request["models"]:
        recipe = recipe_for(request["backend"], raw) | request["changes"]
        write_frame(frames, _tried(backend, recipe, name, raw))
    sys.exit(0)


def _tried(backend: Any, recipe: dict[str, Any], name: str, raw: bytes) -> dict[str, Any]:
    foreseen = [_row(f) for f in graph_findings(parse(raw), recipe) if f.severity == "refused"]
    outcome: dict[str, Any] = {"model": name, "built": False, "foreseen": foreseen}
    stage = "canonical"
    try:
        canonical: Canonical = canonicalise(raw, recipe)
        found = backend.preflight(recipe, canonical.compiled, _ignore)
        foreseen += [_row(f) for f in found if f.severity == "refused"]
        stage = "build"
        backend.build(recipe, canonical.compiled, _ignore)
    except PellucidError as error:
        return outcome | {"stage": stage, "reason": error.message, "hint": error.hint}
    return outcome | {"built": True}


def recipe_for(backend: str, raw: bytes) -> dict[str, Any]:
    """The backend's default recipe, its buckets as the model has a batch axis or none."""
    has_batch = any(0 in variable_axes(value) for value in inputs_of(parse(raw)))
    return effective(parse_recipe(_RECIPES[backend].encode())) | {"buckets": [1, 4] if has_batch else []}


def _row(finding: Any) -> list[str]:
    return [finding.where, finding.what, finding.fix]


def _ignore(line: LogLine) -> None:
    pass


def summary(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, int, int, int]]:
    """Folder, models, built, refused; crashes are neither."""
    for folder in sorted({o.model.partition("/")[0] for o in outcomes}):
        rows = [o for o in outcomes if o.model.startswith(f"{folder}/")]
        built = sum(o.built for o in rows)
        yield folder, len(rows), built, sum(not o.built and o.stage != "crash" for o in rows)
