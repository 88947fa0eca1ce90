"""Constants computed ahead, dead branches taken away: ONNX Runtime's BASIC level, saved as ONNX.

Of that level only what computes nothing anew: its fusions are left out, since the builder makes its
own and says so in its log, and so is all that moves quantisation. No operator of the library's own
may appear; inputs and outputs stay as they are.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pellucid import onnx_light
from pellucid.build.canonical_interface import inputs_of
from pellucid.build.canonical_names import nodes_of
from pellucid.build.canonical_opset import STANDARD
from pellucid.errors import ParseError

if TYPE_CHECKING:
    import onnx

CONSTANT_MAX: Final = 2**20  # limit: a larger constant stays the operation that makes it
_HINT: Final = "canonical: {fold: false} builds the graph as it is"
_LEFT_ALONE: Final = (  # by the library's own names
    # fusions: the builder's own, in its own log
    "ConvActivationFusion", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "DivMulFusion",
    "FuseReluClip", "GeluFusionL1", "GemmSumFusion", "GemmTransposeFusion", "LabelEncoderFusion",
    "LayerNormFusionL1", "MatMulAddFusion", "MatMul_BatchNormalization_Fusion", "NotWhereFusion",
    "Pad_Fusion", "PadFusion", "MatmulBNFusion", "ReshapeFusion", "SliceConcatToSpaceToDepthFusion",
    "CommonSubexpressionElimination", "ConstantSharing", "TransposeOptimizer", "CastFloat16Transformer",
    "RemoveDuplicateCastTransformer",
    # how a quantised graph stands decides what a builder makes of it
    "QDQPropagationTransformer", "WeightBiasQuantization", "EnsureUniqueDQForNodeUnit", "ClipQuantRewrite",
    "ReluQuantRewrite", "DoubleQDQPairsRemover", "ConstantFoldingDQ", "WhereDummyDq",
)  # fmt: skip

_CASTS: Final = ("InsertedPrecisionFreeCast_", "InsertedCast_")  # how the library names its own casts
_REFUSALS: Final = (  # the binding's classes share no parent of their own
    "EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel",
    "NoSuchFile", "NotImplemented", "RuntimeException",
)  # fmt: skip


class NotTakenError(ParseError):
    """The library that folds does not take the graph; a builder still may."""


class Folded(msgspec.Struct, frozen=True):
    """A graph with its constants computed.

    Attributes:
        detail: What changed, canonical profile.
    """

    model: onnx.ModelProto
    detail: dict[str, Any]


def fold(model: onnx.ModelProto) -> Folded | None:
    """The graph with everything constant computed, or ``None`` when it is one constant altogether.

    Raises:
        NotTakenError: The library does not take the graph.
        ParseError: It gave one with another interface or with operators of its own.
    """
    folded = onnx_light.parse(_optimised(model.SerializeToString(deterministic=True)))
    if not folded.graph.node:
        return None
    _verify_same_precision(model, folded)
    _verify_same_interface(model, folded)
    _verify_still_onnx(model, folded)
    # the library refines what it infers; what callers see stays what the model says
    for kind in ("input", "output"):
        folded.graph.ClearField(kind)
        getattr(folded.graph, kind).extend(getattr(model.graph, kind))
    folded.ClearField("opset_import")
    used = {node.domain for node in nodes_of(folded.graph)}
    folded.opset_import.extend(o for o in model.opset_import if o.domain in used or o.domain in STANDARD)
    return Folded(folded, _detail(model, folded))


def refusals() -> tuple[type[Exception], ...]:
    """Everything that the library raises at a graph that it does not take."""
    import onnxruntime as ort

    binding = ort.capi.onnxruntime_pybind11_state
    return (RuntimeError, ValueError, TypeError, *(getattr(binding, name) for name in _REFUSALS))


def _optimised(raw: bytes) -> bytes:
    import tempfile

    import onnxruntime as ort

    options = ort.SessionOptions()
    options.logid = "pellucid"
    options.log_severity_level = 4  # what it refuses is raised
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    limit = str(CONSTANT_MAX)
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", limit)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(
                raw, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_LEFT_ALONE)
            )
        except refusals() as error:
            raise NotTakenError(" ".join(str(error).split())[:300]) from error
        return path.read_bytes()


def _verify_same_precision(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Where the library has no FP16 kernel it computes in FP32 and saves that: a step must not."""
    given, made = (
        {name for node in nodes_of(m.graph) for name in (node.name, *node.output)} for m in (before, after)
    )
    if any(name.startswith(_CASTS) for name in made - given):
        raise NotTakenError("it has no kernels for the model's precision and would compute in another")


def _verify_same_interface(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    for kind, old, new in (
        ("inputs", inputs_of(before), inputs_of(after)),
        ("outputs", before.graph.output, after.graph.output),
    ):
        expected, got = (
            [(v.name, v.type.WhichOneof("value"), v.type.tensor_type.elem_type) for v in values]
            for values in (old, new)
        )
        if expected != got:
            raise ParseError(
                f"model: {kind}: expected folding to keep {expected!s:.200}, got {got!s:.200}", hint=_HINT
            )


def _verify_still_onnx(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    known = {node.domain for node in nodes_of(before.graph)} | set(STANDARD)
    strange = [f"{n.domain}.{n.op_type}" for n in nodes_of(after.graph) if n.domain not in known]
    if strange:
        got = ", ".join(sorted(set(strange)))
        raise ParseError(
            f"model: expected folding to keep to the model's operators, got {got:.200}", hint=_HINT
        )


def _detail(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, Any]:
    was, now = (Counter(node.op_type for node in nodes_of(m.graph)) for m in (before, after))
    names = [{node.name for node in nodes_of(m.graph)} for m in (before, after)]
    return {
        "operators": [
            {"operator": name, "before": was[name], "after": now[name]}
            for name in sorted(was | now)
            if was[name] != now[name]
        ],
        "removed": sorted(names[0] - names[1]),
        "constant_max_bytes": CONSTANT_MAX,
    }
