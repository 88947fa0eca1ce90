"""What would stand in a build's way: every finding at once, before anything is built.

The child's side. Each finding is sent the moment it is made, so that a file that crashes its reader
loses none of those before. Source: spec/recipe.md, section 'Preflight'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import onnx
import onnx.inliner

from pellucid.build.canonical_graph import INVALID, RANDOM, canonicalise, verify_valid
from pellucid.build.canonical_interface import inputs_of, problems, variable_axes
from pellucid.build.canonical_names import SAFE, dimensions_of, nodes_of, values_of
from pellucid.build.canonical_opset import opset_of
from pellucid.build.canonical_read import WHOLE_MAX, Outside, embed, parse
from pellucid.build.canonical_shapes import fix_shapes
from pellucid.build.frame import write_frame
from pellucid.build.preflight_types import QUANTISED, fp16_findings, quantised_findings, quantised_places
from pellucid.build.task import Task
from pellucid.core.digest import sha256
from pellucid.core.recipe_choices import verify_judged
from pellucid.core.words import counted
from pellucid.errors import GateError, ParseError
from pellucid.ports import PreflightFinding

_SHOWN: Final = 3  # limit: names spelled out of many that are renamed for one reason
_LARGE: Final = 2**30  # limit: half of what one ONNX file holds


def preflight(task: Task) -> dict[str, Any]:
    """Send every finding about ``task.request``; gives what the model is.

    The request holds ``recipe`` (effective), ``model``, ``model_folder``, and ``fit_buckets``: the
    recipe is a default one, so that a model without a batch axis is no contradiction.
    """
    request = task.request

    def tell(finding: PreflightFinding) -> None:
        found.append(finding)
        row = {name: getattr(finding, name) for name in ("severity", "rule", "where", "what", "fix")}
        write_frame(task.frames, {"finding": row})

    found: list[PreflightFinding] = []
    facts: dict[str, Any] = {"digest": sha256(request["model"]), "bytes": len(request["model"])}
    try:
        model = parse(request["model"])
    except ParseError as error:
        tell(PreflightFinding("refused", "format", "model", error.message, error.hint))
        return facts
    recipe = _fitted(request, model)
    try:
        verify_judged(recipe)
    except GateError as error:
        tell(PreflightFinding("refused", "validation", "recipe", error.message, error.hint))
    facts |= _facts(model)
    task.phase("weights")
    folder = Path(request["model_folder"])
    try:
        facts["external"] = [_row(tell, outside) for outside in embed(model, folder)]
    except ParseError as error:
        tell(PreflightFinding("refused", "external", "model", error.message, error.hint))
    task.phase("graph")
    for finding in graph_findings(model, recipe):
        tell(finding)
    if any(finding.severity == "refused" for finding in found):
        return facts
    task.phase("canonical")
    try:
        canonical = canonicalise(request["model"], recipe, folder)
    except ParseError as error:
        tell(PreflightFinding("refused", "canonical", "model", error.message, error.hint))
        return facts
    facts["steps"] = [step["step"] for step in canonical.steps]
    for note in canonical.notes:
        if "draws random numbers" not in note:
            tell(PreflightFinding("note", "canonical", "model", note))
    compiled = onnx.load_model_from_string(canonical.compiled)
    told = list(quantised_findings(compiled, recipe))
    for finding in told:
        tell(finding)
    named = quantised_places(compiled) if told else set()
    is_explained = any(finding.where in named for finding in told)
    task.phase("backend")
    backend = task.backend_for(recipe["backend"])
    ask = getattr(backend, "preflight", None)
    for finding in ask(recipe, canonical.compiled, task.log) if ask is not None else []:
        # the library's words about itself, of nodes that ours are about
        if finding.where not in named and not (is_explained and finding.rule == QUANTISED):
            tell(finding)
    return facts


def _fitted(request: Mapping[str, Any], model: onnx.ModelProto) -> dict[str, Any]:
    recipe = dict(request["recipe"])
    if request["fit_buckets"] and not any(0 in variable_axes(value) for value in inputs_of(model)):
        recipe["buckets"] = []
    return recipe


def _facts(model: onnx.ModelProto) -> dict[str, Any]:
    return {
        "operator_set": opset_of(model),
        "ir_version": int(model.ir_version),
        "nodes": sum(1 for _ in nodes_of(model.graph)),
        "inputs": [_spec(value) for value in inputs_of(model)],
        "outputs": [_spec(value) for value in model.graph.output],
        "external": [],
    }


def _spec(value: onnx.ValueInfoProto) -> dict[str, Any]:
    number = value.type.tensor_type.elem_type
    known = onnx.TensorProto.DataType.values()
    shape = [
        d.dim_value if d.HasField("dim_value") else d.dim_param[:60] or "?" for d in dimensions_of(value)
    ]
    return {
        "name": value.name[:200],
        "datatype": onnx.TensorProto.DataType.Name(number) if number in known else str(number),
        "shape": shape,
    }


def _row(tell: Any, outside: Outside) -> dict[str, Any]:
    what = f"{outside.size:,} bytes, {outside.digest}, {counted(outside.tensors, 'weight')}"
    tell(PreflightFinding("note", "external", f"file {outside.name!r:.120}", what))
    return {"name": outside.name, "digest": outside.digest, "bytes": outside.size, "tensors": outside.tensors}


def graph_findings(model: onnx.ModelProto, recipe: Mapping[str, Any]) -> Iterator[PreflightFinding]:
    """What the graph alone says, whatever builds it. The recipe's shapes are applied, in place."""
    yield from _size(model)
    yield from _names(model)
    yield from _random(model)
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        verify_valid(model)
        is_valid = True
    except (ParseError, *INVALID) as error:
        yield PreflightFinding("refused", "valid", "model", str(error)[:400], "export it again")
        is_valid = False
    if is_valid:
        try:
            fix_shapes(model, recipe.get("shapes") or {})
        except ParseError as error:
            yield PreflightFinding("refused", "shapes", "recipe", error.message, error.hint)
    for problem in problems(model, recipe):
        yield PreflightFinding("refused", problem.rule, problem.where, problem.message, problem.hint)
    if is_valid:
        yield from fp16_findings(model, recipe)


def _size(model: onnx.ModelProto) -> Iterator[PreflightFinding]:
    size = model.ByteSize()
    if size > _LARGE:
        what = f"{size:,} bytes with its weights; one ONNX file holds at most {WHOLE_MAX:,}"
        yield PreflightFinding("risk", "size", "model", what, "export the weights in FP16")


def _random(model: onnx.ModelProto) -> Iterator[PreflightFinding]:
    for node in nodes_of(model.graph):
        if node.op_type in RANDOM:
            yield PreflightFinding(
                "risk", "random", f"node {node.name!r:.80} ({node.op_type})",
                "draws random numbers: replay cannot promise bits, and no golden case will repeat",
                "export the model without it, as for inference",
            )  # fmt: skip


def _names(model: onnx.ModelProto) -> Iterator[PreflightFinding]:
    """Names that will be replaced; inputs and outputs are judged with the interface."""
    nodes = [node.name for node in nodes_of(model.graph)]
    kept = {value.name for value in [*inputs_of(model), *model.graph.output]}
    tensors = {name for node in nodes_of(model.graph) for name in [*node.input, *node.output]}
    tensors |= {value.name for value in values_of(model.graph)}
    hostile = [("node", name) for name in dict.fromkeys(nodes) if name and not SAFE.fullmatch(name)]
    hostile += [("tensor", name) for name in sorted(tensors - kept) if name and not SAFE.fullmatch(name)]
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, name in hostile:
        groups.setdefault((kind, _why(name)), []).append(name)
    for (kind, why), names in groups.items():
        if len(names) == 1:
            yield PreflightFinding("note", "names", f"{kind} {names[0]!r:.80}", f"{why}: it will be renamed")
            continue
        shown = ", ".join(f"{name!r:.80}" for name in names[:_SHOWN])
        what = f"{why}: {len(names):,} names of {kind}s will be renamed, for example {shown}"
        yield PreflightFinding("note", "names", "model", what)
    twins = [name for name, times in Counter(nodes).items() if name and times > 1]
    if twins:
        shown = ", ".join(f"{name!r:.60}" for name in twins[:5])
        what = f"{counted(len(twins), 'name')} of several nodes each ({shown}): they will be numbered"
        yield PreflightFinding("note", "names", "model", what)
    if "" in nodes:
        what = f"{counted(nodes.count(''), 'node')} without a name: called by their outputs from here on"
        yield PreflightFinding("note", "names", "model", what)


def _why(name: str) -> str:
    if not name.isprintable():
        return "control characters, which could speak as the builder in its log"
    return "longer than 200 characters" if len(name) > 200 else "characters that are not safe in a log"
