"""What the library would refuse of a graph, all at once: its parser's errors, and what it hides.

The parser stops early at some nodes, so that every operator is asked for by name, too. Parsing is
no build: what only the builder knows (kernels for a target, memory) stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from pellucid.backends.tensorrt import graph, options
from pellucid.backends.tensorrt.library import Library
from pellucid.backends.tensorrt.log import TURING_HINT, Messages, hint_for, make_logger
from pellucid.core.words import shortened
from pellucid.errors import BuildError, ParseError, PrecisionError
from pellucid.ports import BuildLog, PreflightFinding

QUANTISED: Final = "types.quantised"  # rule: it would compute INT8 where the model says UINT8
_STANDARD: Final = ("", "ai.onnx")
_OTHER: Final = "replace it at export, or build with onnxruntime"
_MATRIX: Final = ("MatMul", "Gemm", "LSTM")  # measured, whatever their shapes; convolutions are taken
WORKSPACE_FLOOR: Final = 16 * 2**20  # measured for small models: 4 MiB is too little, this is enough
_INT32: Final = np.iinfo(np.int32)
_BOUNDS: Final = ("Slice",)  # its ends are often the largest number there is, and are clamped by definition
_STRANGE: Final = (  # known to fail or to be wrong, whatever the library says of its support
    ("NonZero", "refused", "this library has no kernel for it", _OTHER),
    ("DynamicQuantizeLinear", "refused", "this library has no kernel for it",
     "quantise statically, or build with onnxruntime"),
    ("If", "risk", "branches that differ in shape or type fail inside the builder",
     "fix the shapes, so that folding takes the branch away: shapes, canonical: {fold: true}"),
    ("Loop", "risk", "loops that carry other tensors than plain arrays are refused",
     "write the loop out at export where its length is known"),
)  # fmt: skip


def findings(
    library: Library, recipe: Mapping[str, Any], model: bytes, log: BuildLog
) -> list[PreflightFinding]:
    """Everything that would stop or change a build of this graph."""
    source = graph.read(model)
    found = [
        PreflightFinding("refused", "types.fp64", name, "FP64", graph.DOUBLE_HINT)
        for name in graph.doubles(source)
    ]
    found += _wide_integers(source)
    found += _no_matrix_kernels(library, recipe, model)
    found += _small_workspace(recipe)
    found += _parsed(library, recipe, model, source, log)
    refused = {item.where for item in found}
    found += [item for item in _operators(library, source) if item.where not in refused]
    return list(dict.fromkeys(found))


def _no_matrix_kernels(
    library: Library, recipe: Mapping[str, Any], model: bytes
) -> Iterator[PreflightFinding]:
    """FP32 matrix products, for which there are no kernels of the oldest architecture."""
    if recipe["target"] != "sm75" or recipe["precision"] != "fp32" or not library.features.cross_target:
        return
    source = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(model))
    float32 = _named_floats(source)
    for node in graph.nodes_of(source.graph):
        if node.op_type in _MATRIX and node.domain in _STANDARD and node.input[0] in float32:
            what = "an FP32 matrix product, for which this library has no kernel on sm75"
            yield PreflightFinding("refused", "target", _where(node), what, TURING_HINT)


def _named_floats(model: onnx.ModelProto) -> set[str]:
    graphs = [model.graph]
    for node in graph.nodes_of(model.graph):
        graphs += [a.g for a in node.attribute if a.HasField("g")]
    single = onnx.TensorProto.FLOAT
    values = [value for one in graphs for value in [*one.input, *one.output, *one.value_info]]
    weights = [tensor for one in graphs for tensor in one.initializer]
    return {v.name for v in values if v.type.tensor_type.elem_type == single} | {
        t.name for t in weights if t.data_type == single
    }


def _small_workspace(recipe: Mapping[str, Any]) -> Iterator[PreflightFinding]:
    size = recipe["workspace_bytes"]
    if size is not None and size < WORKSPACE_FLOOR:
        what = f"{size:,} bytes: kernels of matrix products were refused 4 MiB and took {WORKSPACE_FLOOR:,}"
        yield PreflightFinding("risk", "workspace", "workspace_bytes", what, "leave it out, or raise it")


def _where(node: Any) -> str:
    return f"node {node.name} ({node.op_type})"


def _operators(library: Library, model: onnx.ModelProto) -> Iterator[PreflightFinding]:
    parser = _supports(library)
    support: dict[str, bool] = {}
    strange = {name: row for name, *row in _STRANGE}
    for node in graph.nodes_of(model.graph):
        if node.domain not in _STANDARD:
            yield PreflightFinding(
                "refused", "operator", _where(node), f"operator of domain {node.domain!r:.60}", _OTHER
            )
            continue
        if node.op_type in strange:
            severity, what, fix = strange[node.op_type]
            yield PreflightFinding(severity, "operator", _where(node), what, fix)
            continue
        known = support.setdefault(node.op_type, bool(parser.supports_operator(node.op_type)))
        if not known:
            yield PreflightFinding(
                "refused", "operator", _where(node), f"{library.backend} has no such operator", _OTHER
            )


def _supports(library: Library) -> Any:
    trt = library.trt
    logger = make_logger(trt, Messages(lambda line: None, library.backend))
    network = trt.Builder(logger).create_network(options.network_flags(library))
    return trt.OnnxParser(network, logger)


def _parsed(
    library: Library, recipe: Mapping[str, Any], model: bytes, source: onnx.ModelProto, log: BuildLog
) -> Iterator[PreflightFinding]:
    trt, lines = library.trt, Messages(log, library.backend)
    logger = make_logger(trt, lines)
    builder = trt.Builder(logger)
    try:
        options.configure(library, builder.create_builder_config(), recipe)
    except BuildError as error:
        yield PreflightFinding("refused", "target", f"target {recipe['target']}", error.message, error.hint)
    network = builder.create_network(options.network_flags(library))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model) or parser.num_errors:
        for index in range(parser.num_errors):
            yield _error(parser.get_error(index), lines, library.backend)
        if not parser.num_errors:
            words, hint = lines.reason()
            yield PreflightFinding("refused", "parser", "model", words, hint)
        return
    for name in graph.shape_inputs(network):
        what = "its values decide the shape of another tensor"
        yield PreflightFinding("refused", "shapes", f"input {name}", what, graph.SHAPES_HINT)
    steps: list[tuple[str, Callable[[], Any]]] = [(QUANTISED, lines.verify)]
    if not graph.doubles(source):  # which it takes for FP32, and which are named already
        steps.append(("types", lambda: graph.interface(trt, source, network)))
    for rule, step in steps:
        try:
            step()
        except (ParseError, PrecisionError) as error:
            yield PreflightFinding("refused", rule, "model", error.message, error.hint)


def _error(error: Any, lines: Messages, backend: str) -> PreflightFinding:
    said = " ".join(error.desc().split())
    place = error.node_name() or f"number {error.node()}"
    where = f"node {place} ({error.node_operator()})" if error.node() >= 0 else "model"
    words = said if said not in ("", "false") else f"{backend} does not take this node"
    hint = hint_for(f"{error.code().name} {said}") or lines.reason()[1] or _OTHER
    return PreflightFinding(
        "refused", "operator", where, f"{error.code().name}: {shortened(words, 300)}", hint
    )


def _wide_integers(model: onnx.ModelProto) -> Iterator[PreflightFinding]:
    """INT64 constants beyond INT32: index arithmetic of the library is 32 bits wide."""
    bounds = {
        name for node in graph.nodes_of(model.graph) if node.op_type in _BOUNDS for name in node.input[1:]
    }
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.INT64 or tensor.name in bounds:
            continue
        values = numpy_helper.to_array(tensor)
        wide = values[(values > _INT32.max) | (values < _INT32.min)]
        if wide.size:
            yield PreflightFinding(
                "risk", "types.int64", f"tensor {tensor.name}",
                f"{wide.size} of {values.size} values beyond INT32, for example {int(wide.flat[0])}",
                "TensorRT narrows INT64 where it computes shapes and indices: export it as INT32, if it fits",
            )  # fmt: skip
