"""One side of a comparison: what a package, or a log alone, says about a build.

What is missing stays missing (``None`` or empty), and the comparison says so instead of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pellucid.core import canonical, strict_yaml
from pellucid.core.digest import sha256
from pellucid.core.facts import lowest
from pellucid.core.tensorrt_classic import ClassicLayer, ClassicLog
from pellucid.core.tensorrt_layers import DEFERRED, Layer
from pellucid.core.tensorrt_log import LogFacts
from pellucid.errors import FormatError

_DOCUMENT_MAX: Final = 256 * 2**20
_LOW: Final = ("low", "min", "minimum")
_HIGH: Final = ("high", "max", "maximum")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One layer of an engine, as far as a comparison needs it.

    Attributes:
        nodes: ONNX nodes that it computes; empty for one that only moves data.
        tactic: The kernel's name, ``deferred to run time``, or ``""`` where the builder named none.
        formats: Memory layout of each input, then of each output, as printed.
        time_ms: Measured time, or ``None``.
        size: Elements that it reads, holds and writes, one row of a batch.
        timed: Tactics the builder timed for it: name or number -> milliseconds as printed.
        why: How the choice is known, where that is not plain.
    """

    name: str
    op: str
    nodes: frozenset[str]
    tactic: str
    precision: str | None
    formats: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    time_ms: Decimal | None = None
    size: int = 0
    is_reformat: bool = False
    timed: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """What one build is known by.

    Attributes:
        title: How to call it in a table.
        digests: ``engine``, ``source``, ``compiled``, where known.
        kernels: Its layers, or ``None`` where nothing lists them.
        nodes: ONNX node -> operator, names as in the model that was given.
        ranges: Tensor -> (low, high) of the calibration, or ``None``.
        accuracy: Name of a measure -> number, or ``None``.
        warnings: Kind -> count.
        fingerprint: Of the layers, or ``None``.
    """

    title: str
    digests: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    kernels: tuple[Kernel, ...] | None = None
    nodes: Mapping[str, str] | None = None
    ranges: Mapping[str, tuple[Decimal, Decimal]] | None = None
    accuracy: Mapping[str, Decimal] | None = None
    memory: Mapping[str, int | None] | None = None
    warnings: Mapping[str, int] | None = None
    fingerprint: str | None = None


def package_side(
    title: str, files: Mapping[str, bytes], qualifications: Sequence[Mapping[str, Any]] = ()
) -> Side:
    """What a package says; its files are believed as they are, so verify them before.

    Args:
        qualifications: Predicates of its verified qualifications.

    Raises:
        FormatError: A document that is not of its form.
    """
    try:
        return _package_side(title, files, qualifications)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(
            f"package {title!r:.120}: expected documents as spec/package.md says, got {error!r:.120}"
        ) from error


def _package_side(
    title: str, files: Mapping[str, bytes], qualifications: Sequence[Mapping[str, Any]]
) -> Side:
    facts = _document(files, "facts.json") or {}
    names = _document(files, "model/names.json") or {}
    recipe = strict_yaml.load(files["recipe.yaml"], subject="recipe.yaml") if "recipe.yaml" in files else None
    known = {item["to"]: item["from"] for item in names.get("nodes", []) if item.get("from")}
    layers = [_kernel(layer, known) for layer in facts.get("layers", [])]
    engines = [data for path, data in files.items() if path.startswith("engine/")]
    models = {"source": "model/source.onnx", "compiled": "model/compiled.onnx"}
    return Side(
        title=title,
        digests={role: sha256(files[path]) for role, path in models.items() if path in files}
        | ({"engine": sha256(engines[0])} if engines else {}),
        recipe=recipe, environment=_document(files, "environment.json"), options=facts.get("options"),
        kernels=tuple(layers) if layers else None,
        nodes={known.get(n["name"], n["name"]): n["op"] for n in facts.get("nodes", [])} or None,
        ranges=_ranges(_document(files, "calibration/ranges.json")),
        accuracy=_accuracy(_document(files, "accuracy.json"), qualifications),
        memory=facts.get("memory"),
        warnings={w["kind"]: w["count"] for w in facts["warnings"]} if "warnings" in facts else None,
        fingerprint=facts.get("fingerprint"),
    )  # fmt: skip


def _document(files: Mapping[str, bytes], path: str) -> dict[str, Any] | None:
    if path not in files:
        return None
    value = canonical.decode(files[path], size_max=_DOCUMENT_MAX)
    return value if isinstance(value, dict) else None


def _kernel(layer: Mapping[str, Any], known: Mapping[str, str]) -> Kernel:
    edges = [*layer.get("inputs", []), *layer.get("outputs", [])]
    tensors = [*edges, *layer.get("constants", [])]
    shapes = tuple(tuple(t.get("shape") or ()) for t in tensors)
    types = [t.get("datatype") for t in edges]
    return Kernel(
        name=layer["name"], op=layer["op"],
        nodes=frozenset(known.get(name, name) for name in layer["nodes"]),
        tactic=layer.get("tactic") or "",
        precision=layer["precision"] if "precision" in layer else lowest(types) or None,
        formats=tuple(t.get("format", "") for t in edges), shapes=shapes[: len(edges)],
        size=sum(map(_elements, shapes)), is_reformat=layer.get("reformat") is True,
    )  # fmt: skip


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for axis in shape:
        count *= axis if axis > 0 else 1
    return count


def _ranges(document: Mapping[str, Any] | None) -> dict[str, tuple[Decimal, Decimal]] | None:
    """Ranges by tensor, from any list of the document whose items have a name and two ends."""
    if document is None:
        return None
    found = {}
    for value in document.values():
        for item in value if isinstance(value, list) else []:
            name = item.get("tensor", item.get("name")) if isinstance(item, dict) else None
            low, high = (_first(item, keys) if name else None for keys in (_LOW, _HIGH))
            if name and low is not None and high is not None:
                found[str(name)] = (low, high)
    return found


def _first(item: Mapping[str, Any], keys: Sequence[str]) -> Decimal | None:
    return next((_number(item[key]) for key in keys if key in item), None)


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _accuracy(
    document: Mapping[str, Any] | None, qualifications: Sequence[Mapping[str, Any]]
) -> dict[str, Decimal] | None:
    found: dict[str, Decimal] = {}
    for prefix, value in (
        ("graphs", document), *(("device", q.get("accuracy")) for q in qualifications[:1])
    ):  # fmt: skip
        for key, item in (value or {}).items():
            number = _number(item)
            if number is not None:
                found[f"{prefix}.{key}"] = number
    return found or None


def log_side(title: str, log: LogFacts | ClassicLog) -> Side:
    """What a log alone says: no recipe, no environment, no accuracy."""
    said = log.said
    if isinstance(log, ClassicLog):
        kernels: tuple[Kernel, ...] | None = tuple(_classic_kernel(layer) for layer in log.layers)
        fingerprint = None
    else:
        kernels = tuple(_log_kernel(layer) for layer in log.kernels) or None
        fingerprint = log.layer_fingerprint
    warnings: dict[str, int] = {}
    for issue in said.warnings:
        warnings[issue.kind] = warnings.get(issue.kind, 0) + 1
    memory = {name: values[0] for name, values in said.memory.items() if len(set(values)) == 1}
    return Side(
        title=title, kernels=kernels, nodes=dict(said.nodes) or None, memory=memory, warnings=warnings,
        fingerprint=fingerprint,
    )  # fmt: skip


def _classic_kernel(layer: ClassicLayer) -> Kernel:
    timed = {t.name or t.tactic: t.time_ms for t in sorted(layer.timed, key=lambda t: -Decimal(t.time_ms))}
    return Kernel(
        name=layer.name, op=layer.runner, nodes=frozenset(layer.nodes),
        tactic=layer.name_of_tactic or layer.tactic, precision=layer.precision, formats=(layer.format,),
        time_ms=Decimal(layer.time_ms) if layer.time_ms else None, timed=timed, why=layer.why,
    )  # fmt: skip


def _log_kernel(layer: Layer) -> Kernel:
    edges = (*layer.inputs, *layer.outputs)
    return Kernel(
        name=layer.name, op=layer.type, nodes=frozenset(layer.onnx_layers), tactic=layer.tactic,
        precision=layer.precision, formats=tuple(t.format.strip() for t in edges),
        shapes=tuple(t.dimensions for t in edges),
        size=sum(_elements(t.dimensions) for t in (*edges, *layer.constants)), is_reformat=layer.is_reformat,
    )  # fmt: skip


def is_deferred(kernel: Kernel) -> bool:
    """The GPU of the run picks its kernel."""
    return kernel.tactic == DEFERRED
