"""The last stage: what the graph that was compiled lost against its source, measured on this CPU.

No engine runs here: both graphs go through ONNX Runtime, unoptimised and on one thread, and every
document says so. Source: requirements B7 and B8; spec/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

import msgspec
import onnx

from pellucid.build.judge import edges, graphs, narrow, ranges, scores
from pellucid.build.judge.runs import Graph, Rows, rows_of
from pellucid.build.samples import read_validation
from pellucid.core import boundary, representativeness
from pellucid.core.accuracy import Samples, is_unjudged, measure
from pellucid.core.digest import sha256
from pellucid.core.recipe_keys import LOSSY
from pellucid.core.tensor import TensorSpec
from pellucid.errors import FormatError, RecipeError
from pellucid.ports import Backend

ACCURACY: Final = "accuracy.json"
REPRESENTATIVENESS: Final = "representativeness.json"
RANGES: Final = "calibration/ranges.json"
SAMPLES: Final = "calibration/manifest.json"
YARDSTICK: Final = "reference"


class Task(Protocol):
    """What is asked of the worker: its request, backends by name, and to say what begins."""

    @property
    def request(self) -> Mapping[str, Any]: ...
    @property
    def backend_for(self) -> Callable[[str], Backend]: ...
    def phase(self, name: str) -> None: ...


class Judged(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        documents: Path in the package -> value of the canonical profile.
        findings: What broke the gate, in words; any fails the build.
    """

    documents: dict[str, Any] = msgspec.field(default_factory=dict)
    findings: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class _Pair(msgspec.Struct, frozen=True):
    """Source and compiled graph.

    Attributes:
        source, compiled: Wiring of each as it is.
        runs: Models of each that run here: the same tensors, 16-bit types emulated.
        names: Compiled tensor -> source tensor, where they differ.
        emulated: The types concerned.
    """

    backend: Backend
    source: graphs.Wiring
    compiled: graphs.Wiring
    runs: tuple[onnx.ModelProto, onnx.ModelProto]
    names: dict[str, str]
    emulated: list[str]

    @classmethod
    def of(cls, task: Task) -> _Pair:
        source, compiled = (graphs.parse(task.request[name], name) for name in ("source", "compiled"))
        types = [narrow.narrow_types(model) for model in (source, compiled)]
        return cls(
            task.backend_for(YARDSTICK), graphs.wire(source), graphs.wire(compiled),
            (narrow.widen(source) if types[0] else source, narrow.widen(compiled) if types[1] else compiled),
            graphs.source_names(task.request["names"]), sorted({*types[0], *types[1]}),
        )  # fmt: skip

    def origin(self, tensor: str) -> str | None:
        """The source's tensor that a compiled one stands for."""
        return graphs.origin(tensor, self.compiled, self.source, self.names)


def judge(task: Task) -> Judged:
    """Accuracy of the compiled graph against the source, and how well the calibration set stands for it.

    ``task.request`` holds ``recipe``, ``meaning``, ``source`` and ``compiled`` (ONNX), ``names``,
    ``facts``, ``inputs`` and ``outputs`` (name, datatype, shape), ``files`` by role (``validation``,
    ``reference``) and ``documents`` of the prepare stage. A lossy precision without validation rows
    is a finding.

    Raises:
        RecipeError, FormatError: A data set is not what the recipe says.
        BuildError: The source does not run here.
    """
    request = task.request
    validation = _rows(request, "validation")
    pair = _Pair.of(task)
    documents, findings, notes = {}, [], []
    if validation is not None or request["recipe"]["precision"] in LOSSY:
        task.phase("accuracy")
        documents[ACCURACY] = _accuracy(task, pair, validation)
        findings += documents[ACCURACY]["findings"]
        notes += _seen_before(documents[ACCURACY], "validation")
    calibrated = request["documents"].get(RANGES)
    reference, role = _reference(request, validation)
    if calibrated is not None and reference is not None:
        task.phase("representativeness")
        found = _representativeness(task, pair, calibrated["tensors"], reference, role)
        documents[REPRESENTATIVENESS] = found
        findings += found["findings"]
        notes += found["warnings"]
        notes += _seen_before(found, role) if role != "validation" else []
    return Judged(documents, findings, notes)


# -- accuracy -------------------------------------------------------------------------------------


def _accuracy(task: Task, pair: _Pair, rows: Rows | None) -> dict[str, Any]:
    request, gate = task.request, task.request["recipe"]["gate"]
    report = (
        _unmeasured(gate, request["recipe"]["precision"]) if rows is None else _measured(task, pair, rows)
    )
    found = boundary.describe([], None)
    if rows is not None:
        task.phase("boundaries")
        layers: Sequence[Mapping[str, Any]] = request["facts"].get("layers") or []
        measured = edges.measure(pair.backend, pair.runs, pair.compiled, pair.origin, layers, rows)
        found = boundary.describe(measured, gate.get("boundary_error_max"))
    findings = [*report["findings"], *found["findings"]]
    return (
        _header(task, pair)
        | report
        | found
        | {
            "validation": _digest(request, "validation"),
            "calibration_rows": _calibration_rows(request, rows),
            "boundary_rows": 0 if rows is None else min(rows.data.count, edges.ROWS_MAX),
            "findings": findings,
            "passed": not findings,
        }
    )


def _measured(task: Task, pair: _Pair, rows: Rows) -> dict[str, Any]:
    source, compiled = (Graph(pair.backend, model.SerializeToString()) for model in pair.runs)
    samples = scores.compare(source, compiled, rows, task.request["meaning"])
    source.close()
    compiled.close()
    gate, precision = task.request["recipe"]["gate"], task.request["recipe"]["precision"]
    report = measure(samples, gate)
    if precision in LOSSY and not report["findings"] and is_unjudged(report, gate):
        finding = f"accuracy: expected a limit that can be measured for {precision}, got none: the model"
        finding += " neither decides nor gives a distribution; say gate: {psnr_db_min: ..} or {error_max: ..}"
        report |= {"findings": [finding], "passed": False}
    return report


def _unmeasured(gate: Mapping[str, Any], precision: str) -> dict[str, Any]:
    report = measure(Samples((), (), (), ()), gate)
    finding = f"samples: expected a validation set for {precision}, which changes numbers, got none"
    return report | {"findings": [f"{finding}: name one in the recipe, validation: {{data: FILE.npz}}"]}


# -- representativeness ---------------------------------------------------------------------------


def _reference(request: Mapping[str, Any], validation: Rows | None) -> tuple[Rows | None, str]:
    """The reference set; where none is named, the validation set stands in for it."""
    if "reference" in request["files"]:
        return _rows(request, "reference"), "reference"
    return validation, "validation"


def _representativeness(
    task: Task, pair: _Pair, calibrated: Sequence[Mapping[str, Any]], rows: Rows, role: str
) -> dict[str, Any]:
    held = ranges.measure(pair.backend, pair.runs[0], pair.source, pair.origin, calibrated, rows)
    gate = task.request["recipe"]["gate"]
    limit, unmeasured = gate.get("out_of_range_max"), gate.get("out_of_range_unmeasured_max", "0")
    found = representativeness.describe(held, limit, unmeasured)
    return (
        _header(task, pair)
        | found
        | {
            "reference": _digest(task.request, role),
            "reference_is": f"the recipe's {role} set"
            + ("" if role == "reference" else ": it names no reference set"),
            "samples": rows.data.count,
            "calibration_rows": _calibration_rows(task.request, rows),
            "out_of_range_max": limit,
            "out_of_range_unmeasured_max": unmeasured,
            "passed": not found["findings"],
        }
    )


# -- both -----------------------------------------------------------------------------------------


def _header(task: Task, pair: _Pair) -> dict[str, Any]:
    request = task.request
    return {
        "measured_on": measured_on(request["recipe"]["backend"], pair.emulated),
        "precision": request["recipe"]["precision"],
        "emulated": pair.emulated,
        "source": sha256(request["source"]),
        "compiled": sha256(request["compiled"]),
    }


def measured_on(backend: str, emulated: Sequence[str]) -> str:
    """What ran, and what did not, in plain words."""
    engine = "the engine on its GPU" if backend.startswith("tensorrt") else "the engine as it is served"
    release = ".".join(version("onnxruntime").split(".")[:2])
    rounded = f", {' and '.join(emulated)} by rounding each operator's result" if emulated else ""
    return f"the graph that was compiled, by ONNX Runtime {release} on this CPU{rounded}; not {engine}"


def _calibration_rows(request: Mapping[str, Any], rows: Rows | None) -> int | None:
    """How many rows were calibrated with; ``None`` where nothing was calibrated or no rows ran."""
    if rows is None or SAMPLES not in request["documents"]:
        return None
    from pellucid.build.calibration_data import sample_digests

    made = request["documents"][SAMPLES]
    used = {sample["digest"] for sample in made["samples"]}
    specs = [TensorSpec(i["name"], i["datatype"], (-1, *i["shape"])) for i in made["inputs"]]
    if not all(spec.name in rows.data.inputs for spec in specs):
        return None
    return sum(digest in used for digest in sample_digests(rows.data.inputs, specs))


def _seen_before(document: Mapping[str, Any], role: str) -> list[str]:
    seen = document["calibration_rows"]
    if not seen:
        return []
    return [f"{role}: {seen:,} of {document['samples']:,} rows are rows that it was calibrated with, "
            "which fit better than others will"]  # fmt: skip


def _digest(request: Mapping[str, Any], role: str) -> str | None:
    return sha256(request["files"][role]) if role in request["files"] else None


def _rows(request: Mapping[str, Any], role: str) -> Rows | None:
    """Rows of a data set that the recipe names.

    Raises:
        RecipeError, FormatError: It is not what the recipe says.
    """
    if role not in request["files"]:
        return None
    recipe = request["recipe"]
    specs = tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in request["inputs"])
    section = {"labels": None} | recipe[role]
    try:
        data = read_validation(
            request["files"][role], recipe | {"validation": section}, request["meaning"], specs
        )
    except (RecipeError, FormatError) as error:
        message = f"{role}:{error.message.removeprefix('validation:')}"
        raise type(error)(message, hint=error.hint) from error
    return rows_of(data, specs, recipe["buckets"])
