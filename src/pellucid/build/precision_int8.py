"""INT8: the graph calibrated over chosen rows, then quantised symmetrically, Q/DQ around its operators.

One scheme, in the two forms that the two builders take (measured): TensorRT quantises what goes into
an operator and keeps its bias FP32, so that an activation behind it fuses; ONNX Runtime finds its
integer kernels only where what comes out is quantised too, the bias is INT32 and activations are
UINT8. Those are the same integers plus 128: values, scales and ranges are the same in both.
Source: spec/calibration.md, sections 4 to 6.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorData, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from pellucid import __version__
from pellucid.build import precision_graph as graph
from pellucid.build.calibration import BINS, LEVELS, Range, calibrate
from pellucid.build.calibration_data import Chosen, input_specs, read_calibration
from pellucid.build.precision_graph import Precise
from pellucid.build.precision_quantised import quantised, verify_float
from pellucid.core.calibration import MANIFEST_PATH, RANGES_PATH, make_manifest
from pellucid.core.calibration_ranges import (
    Ranges,
    TensorRange,
    differences,
    make_ranges,
    parse_ranges,
)
from pellucid.core.digest import sha256
from pellucid.core.words import counted
from pellucid.errors import FormatError, PrecisionError

_SHIFT: Final = 128  # zero point of the same integers as UINT8
_AT_OUTPUT: Final = "_QuantizeLinear_Input"  # what the library calls an output of the graph before Q/DQ
OPSET_MIN: Final = 13  # DequantizeLinear has an axis from here on
_REFUSALS: Final = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)


class Int8(msgspec.Struct, frozen=True):
    """A quantised graph and its documents.

    Attributes:
        prepared: The graph between: optimised at level BASIC, still FP32.
        nodes: ``{"name", "op"}`` of what computes with quantised values.
    """

    model: onnx.ModelProto
    prepared: bytes
    manifest: dict[str, Any]
    ranges: dict[str, Any]
    nodes: list[dict[str, Any]]
    scheme: dict[str, Any]
    is_reused: bool


def quantise(raw: bytes, recipe: Mapping[str, Any], files: Mapping[str, bytes]) -> Int8:
    """Quantise a canonical graph with the recipe's calibration set, or with an earlier artefact.

    Raises:
        PrecisionError: The graph cannot be quantised, or the artefact is not for this build.
        RecipeError, FormatError: The calibration set does not fit.
    """
    section, source = recipe["calibration"], graph.read(raw)
    verify_float(source, "int8")
    if graph.opset(source) < OPSET_MIN:
        raise PrecisionError(
            f"precision: int8: expected opset {OPSET_MIN} or later, got {graph.opset(source)}",
            hint="canonical: {opset: 17} in the recipe converts the model",
        )
    prepared = prepare(raw)
    chosen = read_calibration(files["calibration"], recipe, input_specs(prepared))
    scheme = scheme_of(recipe)
    bound = {
        "model": sha256(raw), "data": chosen.described.data, "samples": chosen.described.digest,
        "settings": settings_of(section) | scheme, "versions": versions(),
    }  # fmt: skip
    earlier = _earlier(files, bound, section["method"]) if section["artefact"] is not None else None
    ranges = _given(earlier) if earlier else _measured(prepared, chosen, section)
    quantised_model = _quantise(prepared, ranges, section, scheme)
    activations, weights = _tensor_ranges(prepared, quantised_model, ranges)
    found = Ranges(bound, section["method"], chosen.count, activations, weights)
    if earlier is not None and (found.tensors, found.weights) != (earlier.tensors, earlier.weights):
        raise _refused("ranges, scales and zero points that follow from one another, got others")
    return Int8(
        quantised_model, graph.encode(prepared), make_manifest(chosen.described), make_ranges(found),
        _quantised(quantised_model, _meant(prepared, section["operators"])), scheme, earlier is not None,
    )  # fmt: skip


def versions() -> dict[str, str]:
    """Versions that decide about ranges."""
    return {
        "numpy": np.__version__, "onnx": onnx.__version__, "onnxruntime": ort.__version__,
        "pellucid": __version__,
    }  # fmt: skip


def scheme_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The form that the recipe's builder takes."""
    is_ort = recipe["backend"] == "onnxruntime"
    return {
        "activations": "uint8 symmetric about 128" if is_ort else "int8 symmetric",
        "weights": "int8 symmetric", "bias": "int32" if is_ort else "fp32", "outputs_quantised": is_ort,
    }  # fmt: skip


def settings_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """What decides about ranges, besides the graph and the rows."""
    settings = {
        "per_channel": section["per_channel"], "operators": sorted(section["operators"]),
        "percentile": section["percentile"] if section["method"] == "percentile" else None,
        "bins": None if section["method"] == "minmax" else BINS,
    }  # fmt: skip
    return settings | {"levels": LEVELS if section["method"] == "entropy" else None}


# -- before ---------------------------------------------------------------------------------------


def prepare(raw: bytes) -> onnx.ModelProto:
    """The graph at ONNX Runtime's level BASIC, with the type of every tensor that can be told.

    What that level folds or joins must be gone before a quantised graph is laid around it.

    Raises:
        PrecisionError: The library does not take the graph.
    """
    with tempfile.TemporaryDirectory(prefix="pellucid-precision-") as scratch:
        path = Path(scratch) / "basic.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            ort.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
            model = onnx.load_model_from_string(path.read_bytes())
            model = onnx.shape_inference.infer_shapes(model, strict_mode=False)
        except (*_REFUSALS, OSError, onnx.shape_inference.InferenceError) as error:
            raise PrecisionError(
                f"precision: int8: expected a graph that onnxruntime takes, got {error!s:.300}"
            ) from error
    graph.name_nodes(model)
    return model


def _measured(model: onnx.ModelProto, chosen: Chosen, section: Mapping[str, Any]) -> dict[str, Range]:
    names = _candidates(model, section["operators"])
    if not names:
        raise PrecisionError(
            f"precision: int8: expected operators of {', '.join(section['operators'])}, got none",
            hint="calibration.operators names what is quantised",
        )
    return calibrate(model, names, chosen, section)


def _candidates(model: onnx.ModelProto, operators: list[str]) -> list[str]:
    """FP32 tensors that such operators read or write; constants have ranges of their own."""
    values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    floats -= {tensor.name for tensor in model.graph.initializer}
    meant = set(_meant(model, operators))
    beside = {name for n in model.graph.node if n.name in meant for name in (*n.input, *n.output)}
    return sorted(floats & beside)


def _meant(model: onnx.ModelProto, operators: Sequence[str]) -> list[str]:
    """Names of such operators that have weights; products of two activations stay FP32."""
    weights = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    return [n.name for n in model.graph.node if n.op_type in operators and weights & set(n.input)]


# -- an artefact of an earlier package ------------------------------------------------------------


def _earlier(files: Mapping[str, bytes], bound: Mapping[str, Any], method: str) -> Ranges:
    raw = files.get("artefact", b"")
    if not raw:
        raise _refused("the ranges of an earlier package, got no such file")
    try:
        found = parse_ranges(raw)
    except FormatError as error:
        raise PrecisionError(f"calibration.artefact: {error.message}", hint=error.hint) from error
    different = differences(found, bound, method)
    if different:
        raise _refused(f"ranges made for this build, got others: {'; '.join(different)}")
    return found


def _refused(words: str) -> PrecisionError:
    return PrecisionError(
        f"calibration.artefact: expected {words}",
        hint="take calibration/ranges.json of a package as it is, or say artefact: null and calibrate again",
    )


def _given(found: Ranges) -> dict[str, Range]:
    return {
        tensor.name: Range(np.float32(tensor.low[0]), np.float32(tensor.high[0])) for tensor in found.tensors
    }


# -- quantising -----------------------------------------------------------------------------------


def _quantise(
    model: onnx.ModelProto, ranges: Mapping[str, Range], section: Mapping[str, Any], scheme: Mapping[str, Any]
) -> onnx.ModelProto:
    operators = sorted(section["operators"])
    options: dict[str, Any] = {
        "ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": scheme["bias"] == "int32",
    }  # fmt: skip
    if not scheme["outputs_quantised"]:
        options["OpTypesToExcludeOutputQuantization"] = operators
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    data = {name: TensorData(lowest=_scalar(r.low), highest=_scalar(r.high)) for name, r in ranges.items()}
    try:
        quantizer = QDQQuantizer(
            copy, section["per_channel"], False, QuantType.QInt8, QuantType.QInt8,
            TensorsData(CalibrationMethod.MinMax, data), _meant(model, operators), [], operators, options,
        )  # fmt: skip
        quantizer.quantize_model()
    except _REFUSALS as error:
        raise PrecisionError(
            f"precision: int8: expected a graph that can be quantised, got {error!s:.300}",
            hint="fewer calibration.operators, or calibration.per_channel: false",
        ) from error
    done: onnx.ModelProto = quantizer.model.model
    if scheme["activations"].startswith("uint8"):
        _shift_activations(done)
        _separate_weights(done)
    del done.metadata_props[:]
    done.producer_name, done.producer_version = model.producer_name, model.producer_version
    graph.sort_nodes(done)
    graph.name_nodes(done)
    if not _quantised(done, _meant(model, operators)):
        raise PrecisionError(
            f"precision: int8: expected operators of {', '.join(operators)} with FP32 inputs, got none",
            hint="calibration.operators names what is quantised",
        )
    graph.verify(done, "precision: int8")
    return done


def _shift_activations(model: onnx.ModelProto) -> None:
    """The same integers as UINT8: where two operators read one tensor, INT8 keeps both from their kernels."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            zero = tensors[node.input[2]]
            shifted = np.full(numpy_helper.to_array(zero).shape, _SHIFT, np.uint8)
            zero.CopyFrom(numpy_helper.from_array(shifted, zero.name))


def _separate_weights(model: onnx.ModelProto) -> None:
    """A weight of its own for every operator: ONNX Runtime rewrites a shared one twice, and fails."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    taken: set[str] = set()
    for node in list(model.graph.node):
        for position, name in enumerate(node.input):
            maker = makers.get(name)
            if maker is None or maker.input[0] not in tensors:
                continue
            if name not in taken:
                taken.add(name)
                continue
            copy, tag = onnx.NodeProto(), f"_of_{node.name}_{position}"
            copy.CopyFrom(maker)
            copy.name, copy.output[0] = copy.name + tag, name + tag
            for part in (0, 2):  # the weight and its zero point
                tensor = onnx.TensorProto()
                tensor.CopyFrom(tensors[maker.input[part]])
                tensor.name = copy.input[part] = tensor.name + tag
                model.graph.initializer.append(tensor)
            model.graph.node.append(copy)
            node.input[position] = copy.output[0]


def _quantised(model: onnx.ModelProto, meant: Sequence[str]) -> list[dict[str, Any]]:
    """Of what reads quantised values (a Relu between two operators may, too), the operators meant."""
    names = set(meant)
    return [node for node in quantised(model) if node["name"] in names]


def _scalar(value: Any) -> Any:
    return np.array(value, dtype=np.float32)


# -- what came out --------------------------------------------------------------------------------


def _tensor_ranges(
    before: onnx.ModelProto, after: onnx.ModelProto, ranges: Mapping[str, Range]
) -> tuple[tuple[TensorRange, ...], tuple[TensorRange, ...]]:
    """Range, scale and zero point of every activation and weight that the graph quantises, read off it."""
    constants = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    given = {t.name: numpy_helper.to_array(t) for t in before.graph.initializer}
    users: dict[str, set[str]] = {}
    for node in before.graph.node:
        for name in (*node.input, *node.output):
            users.setdefault(name, set()).add(node.name)
    activations: dict[str, TensorRange] = {}
    weights: dict[str, TensorRange] = {}
    for node in after.graph.node:
        name = node.input[0].removesuffix("_quantized") if node.input else ""
        if node.op_type == "QuantizeLinear" and name not in ranges:
            name = name.removesuffix(_AT_OUTPUT)
        nodes = tuple(sorted(users.get(name, ())))
        if node.op_type == "QuantizeLinear" and name in ranges:
            reach = [float(ranges[name].low)], [float(ranges[name].high)]
            activations[name] = _range(name, nodes, None, reach, node, constants)
        elif node.op_type == "DequantizeLinear" and name in given and _is_int8(node, constants):
            axis = _axis(node, constants)
            weights[name] = _range(name, nodes, axis, _by_channel(given[name], axis), node, constants)
    return (
        tuple(activations[name] for name in sorted(activations)),
        tuple(weights[name] for name in sorted(weights)),
    )


def _is_int8(node: onnx.NodeProto, constants: Mapping[str, Any]) -> bool:
    """A weight; a bias of INT32 has a scale that follows from those of weight and input."""
    array = constants.get(node.input[0])
    return array is not None and array.dtype == np.int8


def _range(
    name: str,
    nodes: tuple[str, ...],
    axis: int | None,
    reach: tuple[list[float], list[float]],
    node: onnx.NodeProto,
    constants: Mapping[str, Any],
) -> TensorRange:
    scale, zero = (constants[part].reshape(-1) for part in node.input[1:3])
    low, high = map(tuple, reach)
    return TensorRange(name, nodes, axis, low, high, tuple(map(float, scale)), tuple(map(int, zero)))


def _axis(node: onnx.NodeProto, constants: Mapping[str, Any]) -> int | None:
    """Axis of the channels; none where one scale stands for all."""
    if constants[node.input[1]].ndim == 0:
        return None
    value = constants.get(node.input[0])
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
    return axis + value.ndim if axis < 0 and value is not None else axis


def _by_channel(weight: Any, axis: int | None) -> tuple[list[float], list[float]]:
    if axis is None:
        return [float(weight.min())], [float(weight.max())]
    rest = tuple(i for i in range(weight.ndim) if i != axis)
    return [float(v) for v in weight.min(axis=rest)], [float(v) for v in weight.max(axis=rest)]


def as_precise(raw: bytes, found: Int8) -> Precise:
    """The outcome, with its steps and documents."""
    after = graph.encode(found.model)
    count = len(found.nodes)
    how = "with the ranges of an earlier package" if found.is_reused else "calibrated"
    over = f"{found.ranges['method']} over {found.ranges['samples']:,} rows"
    detail = f"{counted(count, 'operator')} of the graph quantised to INT8, {how}: {over}"
    return Precise(
        after,
        [
            graph.step("precision.basic", raw, found.prepared, "onnxruntime's level BASIC, still FP32"),
            graph.step("precision.int8", found.prepared, after, detail),
        ],
        {MANIFEST_PATH: found.manifest, RANGES_PATH: found.ranges},
        [f"precision: {detail}"],
    )
