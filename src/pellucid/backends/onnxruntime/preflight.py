"""What the library would refuse of a graph, all at once: operators without a kernel, then a session.

A session is made without optimisation; it names the first thing that it does not take, the table of
kernels names the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import onnx
import onnxruntime as ort

from pellucid.backends.onnxruntime import options
from pellucid.backends.onnxruntime.log import Log
from pellucid.backends.onnxruntime.session import REFUSALS, spec_of
from pellucid.core.words import shortened
from pellucid.errors import BuildError
from pellucid.ports import BuildLog, PreflightFinding

_binding: Final = ort.capi.onnxruntime_pybind11_state
_NODE: Final = re.compile(r"[Nn]ode(?: with name)?[ :]*\(?'?(?P<name>[A-Za-z0-9_./:+-]{1,200})'?\)?")
_STANDARD: Final = ("", "ai.onnx")
_FIX: Final = "replace it at export"
_NEWER: Final = "bring the model to a later operator set: canonical: {opset: 17}"
_HINTS: Final = (
    ("Could not find an implementation", f"the operator, or its version, is not there: {_NEWER}"),
    ("is not a registered function/op", _FIX),
    ("locale", "install the locale en_US.UTF-8 on the machine that builds and serves"),
)


def findings(recipe: Mapping[str, Any], model: bytes, log: BuildLog) -> list[PreflightFinding]:
    """Everything that would stop a build of this graph."""
    read = onnx.load_model_from_string(model)
    found = list(_without_kernel(read))
    refused = _session(recipe, model, log)
    names = {item.where for item in found}
    return found + [item for item in refused if item.where not in names]


def hint_for(words: str) -> str:
    """What to change, where these words of the library are known; else ``""``."""
    return next((hint for text, hint in _HINTS if text in words), "")


def _without_kernel(model: onnx.ModelProto) -> Iterator[PreflightFinding]:
    kernels: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for kernel in _binding.get_all_opkernel_def():
        if kernel.provider in options.PROVIDERS:
            kernels.setdefault((kernel.domain, kernel.op_name), []).append(kernel.version_range)
    opsets = {o.domain: int(o.version) for o in model.opset_import}
    for node in _nodes(model.graph):
        domain = "" if node.domain in _STANDARD else node.domain
        known = kernels.get((domain, node.op_type), [])
        version = opsets.get(node.domain, opsets.get("ai.onnx", 1))
        if (domain and known) or node.op_type == "Constant":
            continue  # constants are read, never run
        since, is_written_out = _schema(node.op_type, domain, version)
        if is_written_out or any(low <= since <= high for low, high in known):
            continue
        what = f"no kernel of onnxruntime {ort.__version__} for {domain or 'ai.onnx'} {node.op_type}"
        fix = _NEWER if any(low > since for low, _ in known) else _FIX
        yield PreflightFinding(
            "refused", "operator", f"node {node.name} ({node.op_type})", f"{what}, version {since}", fix
        )


def _schema(operator: str, domain: str, version: int) -> tuple[int, bool]:
    """Version of the operator that is in force, and whether it is written out in others."""
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return version, False
    return schema.since_version, schema.has_function or schema.has_context_dependent_function


def _nodes(top: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in top.node:
        yield node
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _nodes(inner)


def _session(recipe: Mapping[str, Any], model: bytes, log: BuildLog) -> list[PreflightFinding]:
    lines = Log(log)
    try:
        with lines:
            made = options.make_options(0, recipe["threads"], severity=2)
            session = ort.InferenceSession(model, made, providers=options.PROVIDERS)
    except REFUSALS as error:
        return [_refusal(model, shortened(str(error), 400))]
    found = []
    for value in [*session.get_inputs(), *session.get_outputs()]:
        try:
            spec_of(value)
        except BuildError as error:
            where = f"tensor {value.name}"
            found.append(PreflightFinding("refused", "types", where, error.message, error.hint or _FIX))
    return found


def _refusal(model: bytes, words: str) -> PreflightFinding:
    by_name = {node.name: node.op_type for node in _nodes(onnx.load_model_from_string(model).graph)}
    named = next((m["name"] for m in _NODE.finditer(words) if m["name"] in by_name), None)
    where = "model" if named is None else f"node {named} ({by_name[named]})"
    if named is None:
        # a kernel that fails to start names its own source file only
        kinds = [n for n, op in by_name.items() if op.lower() in words.replace("_", "").lower()]
        where = f"node {kinds[0]} ({by_name[kinds[0]]})" if kinds else where
    return PreflightFinding("refused", "operator", where, words, hint_for(words) or _FIX)
