"""From the model as given to the graph that builders see, one explicit step after the other.

Runs in the build worker, never in the caller's process: a hostile file may crash its reader. The
same bytes in give the same bytes out, and what came out goes through unchanged a second time. Only
steps that changed something are told of. Source: spec/package.md, section 'model/steps.json'.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pellucid import onnx_light
from pellucid.build import canonical_names as names_of
from pellucid.build.canonical_fold import NotTakenError, fold
from pellucid.build.canonical_foldable import nothing_to_fold
from pellucid.build.canonical_interface import inputs_of, verify_interface
from pellucid.build.canonical_names import nodes_of
from pellucid.build.canonical_opset import (
    foreign_domains,
    opset_of,
    raise_opset,
    weights_are_constants,
)
from pellucid.build.canonical_read import embed, parse
from pellucid.build.canonical_shapes import fix_shapes
from pellucid.core.digest import sha256
from pellucid.errors import ParseError

if TYPE_CHECKING:
    import onnx

RANDOM: Final = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
}  # fmt: skip
INVALID: Final = (
    onnx_light.ValidationError,
    onnx_light.InferenceError,
    RuntimeError,
    ValueError,
    TypeError,
)
_SPARSE: Final = "sparse weights are not followed by ONNX's own shape inference: write them dense at export"
_DOMAINS: Final = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
_ROUNDS_MAX: Final = 4  # measured: one round was enough for all 149 models of the onnx wheel


class Canonical(msgspec.Struct, frozen=True):
    """A graph fit to build.

    Attributes:
        compiled: ONNX bytes with safe, unique names.
        source: The model as given, with weights that lay outside the file put inside.
        names: ``{"nodes": [...], "tensors": [...]}`` of ``{"from", "to"}``, only what changed; what
            was folded away later is still in it.
        steps: ``{"step", "before", "after", "detail"}``, in order, each starting where the last ended.
        external: File name -> digest of weights that lay outside the model's file.
        notes: What a reader should know, in words.
        given: Operators of the graph as it was given, inner graphs' too.
    """

    compiled: bytes
    source: bytes
    names: dict[str, Any]
    steps: list[dict[str, Any]]
    external: dict[str, str]
    notes: list[str]
    given: int


class _Trail(msgspec.Struct):
    """The graph on its way, and the digests around each step."""

    model: onnx.ModelProto
    digest: str
    steps: list[dict[str, Any]] = msgspec.field(default_factory=list)

    def tell(self, step: str, detail: dict[str, Any]) -> None:
        """A step is over; it is kept when the bytes changed."""
        after = sha256(self.model.SerializeToString(deterministic=True))
        if after != self.digest:
            self.steps.append({"step": step, "before": self.digest, "after": after, "detail": detail})
        self.digest = after


def canonicalise(raw: bytes, recipe: Mapping[str, Any], folder: Path | None = None) -> Canonical:
    """Check and canonicalise a model's bytes for a recipe.

    Args:
        folder: Where files that the model names lie; without one all weights must be inside.

    Raises:
        ParseError: Not ONNX, invalid, weights that are not there, or an interface that the recipe
            cannot promise anything about.
    """
    trail = _Trail(parse(raw), sha256(raw))
    operators = sum(1 for _ in nodes_of(trail.model.graph))
    outside = embed(trail.model, folder)
    source = trail.model.SerializeToString(deterministic=True) if outside else raw
    files = [{"name": o.name, "digest": o.digest, "bytes": o.size, "tensors": o.tensors} for o in outside]
    trail.tell(*("external", {"files": files}) if outside else ("read", {}))
    _inline(trail)
    verify_valid(trail.model)
    if weights_are_constants(trail.model):
        trail.tell("constants", {"ir_version": trail.model.ir_version})
    fixed = fix_shapes(trail.model, recipe.get("shapes") or {})
    if fixed:  # where a step says that it did nothing, a large model is not written to see it
        trail.tell("shapes", {"fixed": fixed})
    batched = verify_interface(trail.model, recipe)
    wanted = recipe.get("canonical") or {"opset": None, "fold": False}
    given = onnx_light.ModelProto()
    if wanted["opset"] is not None or wanted["fold"]:
        given.CopyFrom(trail.model)
    notes = _opset(trail, wanted["opset"]) + _notes(trail.model)
    if names_of.drop_comments(trail.model):
        trail.tell("comments", {})
    names = names_of.rename(trail.model.graph)
    if any(names.values()):
        trail.tell("names", {kind: len(rows) for kind, rows in names.items()})
    if wanted["fold"]:
        _fold(trail, notes)
    # where a profile says what each axis may be, axes of one name need not be one batch
    named = names_of.name_axes(
        trail.model, inputs_of(trail.model), batched=batched and bool(recipe["buckets"])
    )
    if named:
        trail.tell("axes", {"named": named})
    if trail.steps:
        verify_valid(trail.model)
        notes += _compared(given, trail)
    compiled = trail.model.SerializeToString(deterministic=True)
    external = {o.name: o.digest for o in outside}
    return Canonical(compiled, source, names, trail.steps, external, notes, operators)


def _inline(trail: _Trail) -> None:
    functions = [f"{f.domain}:{f.name}" for f in trail.model.functions]
    if not functions:
        return
    import onnx.inliner  # seldom: not every model has functions

    try:
        trail.model = onnx.inliner.inline_local_functions(trail.model)
    except INVALID as error:
        raise ParseError(
            f"model: expected functions that can be written out, got: {' '.join(str(error).split())[:300]}"
        ) from error
    trail.tell("inline", {"functions": [f"{name!r:.100}" for name in functions]})


def verify_valid(model: onnx.ModelProto) -> None:
    """Refuse what ONNX's own checker refuses.

    Raises:
        ParseError: In the checker's words.
    """
    try:
        onnx_light.check(model)
    except INVALID as error:
        words = " ".join(str(error).split())[:300]
        hint = _SPARSE if model.graph.sparse_initializer else ""
        raise ParseError(f"model: expected valid ONNX, got: {words}", hint=hint) from error


def _opset(trail: _Trail, wanted: int | None) -> list[str]:
    now = opset_of(trail.model)
    if wanted is None or now >= wanted:
        return []
    strangers = foreign_domains(trail.model)
    if strangers:
        return [
            f"operator set {now} kept: the recipe asks for {wanted}, and the model has operators of "
            f"{', '.join(repr(name)[:60] for name in strangers)}, which the converter does not know"
        ]
    before = {node.op_type for node in nodes_of(trail.model.graph)}
    trail.model = raise_opset(trail.model, wanted)
    verify_valid(trail.model)
    after = {node.op_type for node in nodes_of(trail.model.graph)}
    trail.tell("opset", {"from": now, "to": wanted, "operators_gone": sorted(before - after)})
    return []


def _fold(trail: _Trail, notes: list[str]) -> None:
    """Fold until nothing changes, so that a second canonicalisation has nothing left to do."""
    for _ in range(_ROUNDS_MAX):
        if nothing_to_fold(trail.model):
            break
        try:
            folded = fold(trail.model)
        except NotTakenError as error:
            notes.append(f"constants not folded: onnxruntime does not take the graph: {error.message}")
            break
        if folded is None:
            notes.append("constants not folded: the whole graph is one constant")
            break
        trail.model = folded.model
        names_of.drop_comments(trail.model)
        names_of.rename(trail.model.graph)  # the library's own new names; no one's in the source
        before = trail.digest
        trail.tell("fold", folded.detail)
        if trail.digest == before:
            break


def _compared(given: onnx.ModelProto, trail: _Trail) -> list[str]:
    """Hold the graph against what it was before operators were touched."""
    if not {step["step"] for step in trail.steps} & {"opset", "fold"}:
        return []
    if any(node.op_type in RANDOM for node in nodes_of(given.graph)):
        return ["canonical graph not compared with the model by numbers: it draws random ones"]
    from pellucid.build.canonical_compare import compare  # runs both: seldom

    reason = compare(given, trail.model).reason
    return [f"canonical graph not compared with the model by numbers: {reason}"] if reason else []


def _notes(model: onnx.ModelProto) -> list[str]:
    notes = []
    for node in nodes_of(model.graph):
        if node.op_type in RANDOM:
            notes.append(
                f"node {node.name!r:.80}: {node.op_type} draws random numbers: replay cannot promise bits"
            )
        if node.domain not in _DOMAINS:
            notes.append(
                f"node {node.name!r:.80}: operator {node.op_type!r:.60} of domain {node.domain!r:.60}"
            )
    return notes
