"""Graphs that came quantised: what computes with integers, and what a builder would compute wrongly.

TensorRT knows symmetric INT8 only. It warns about UINT8 and INT32 zero points and computes INT8; its
parser refuses the rest in words about itself. Both are refused here, in words about the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pellucid.build import precision_graph as graph
from pellucid.core.words import counted
from pellucid.errors import PrecisionError
from pellucid.onnx_light import TensorProto

if TYPE_CHECKING:
    import onnx

QDQ: Final = ("QuantizeLinear", "DequantizeLinear")
_INTEGER: Final = {
    "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "QGemm",
    "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax",
    "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearWhere", "MatMulIntegerToFloat", "QAttention",
    "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QEmbedLayerNormalization", "MatMulNBits",
}  # fmt: skip
_QDQ_HINT: Final = (
    "quantise symmetrically to INT8: quantize_static with QuantType.QInt8 for activations and weights, "
    "ActivationSymmetric and WeightSymmetric true, QuantizeBias false; or give the FP32 model and say "
    "precision: int8"
)
_BIAS_HINT: Final = (
    "quantise with QuantizeBias=False: the bias stays FP32; or give the FP32 model and say precision: int8"
)
_INTEGER_HINT: Final = (
    "quantise with quant_format=QuantFormat.QDQ, or give the FP32 model and say precision: int8"
)


def integer_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes that quantise, dequantise, or compute with integers standing for decimals."""
    return [n for n in graph.nodes(model) if n.op_type in QDQ or n.op_type in _INTEGER]


def quantised(model: onnx.ModelProto) -> list[dict[str, Any]]:
    """``{"name", "op"}`` of what takes dequantised values, and of integer operators."""
    read = {name for n in graph.nodes(model) if n.op_type == "DequantizeLinear" for name in n.output}
    return [
        {"name": node.name, "op": node.op_type}
        for node in graph.nodes(model)
        if node.op_type in _INTEGER or (node.op_type not in QDQ and read & set(node.input))
    ]


def verify_float(model: onnx.ModelProto, precision: str) -> None:
    """Refuse to change the precision of a graph that is quantised already.

    Raises:
        PrecisionError: Names the first operators.
    """
    found = integer_nodes(model)
    if found:
        names = ", ".join(f"{n.name!r:.60} ({n.op_type})" for n in found[:3])
        raise PrecisionError(
            f"precision: {precision}: expected a model in FP32, got {len(found)} quantising operators: "
            f"{names}",
            hint="give the model as it was before it was quantised; or say precision: fp32, which keeps "
            "the types of the model",
        )


def verify_for_tensorrt(model: onnx.ModelProto) -> None:
    """Refuse quantisation that TensorRT computes otherwise than the graph says, or not at all.

    Raises:
        PrecisionError: UINT8 or INT32 zero points, a zero point other than 0, a quantised bias, or
            operators that compute with integers themselves; every kind, with its first node.
    """
    found = tensorrt_problems(model)
    if not found:
        return
    hints = list(dict.fromkeys(problem.hint for problem in found))
    if _QDQ_HINT in hints:  # says what to do of biases, too
        hints = [hint for hint in hints if hint != _BIAS_HINT]
    said = (f"node {problem.nodes[0].name!r:.80}: {problem.words}" for problem in found)
    raise PrecisionError("; ".join(said), hint="; ".join(hints))


class Problem(NamedTuple):
    """Nodes that TensorRT would compute otherwise, of one kind: the first in words, and what to change."""

    nodes: list[onnx.NodeProto]
    words: str
    hint: str


def tensorrt_problems(model: onnx.ModelProto) -> list[Problem]:
    """All quantisation that TensorRT does not know, one item a kind, by the first node of each."""
    constants = _constants(model)
    kinds: dict[str, Problem] = {}
    for node in graph.nodes(model):
        found = _problem(node, constants)
        if found is not None:
            kind, words, hint = found
            kinds.setdefault(kind, Problem([], words, hint)).nodes.append(node)
    return [p._replace(words=p.words + _others(len(p.nodes) - 1)) for p in kinds.values()]


def _others(count: int) -> str:
    return f" (and {counted(count, 'other node')} like it)" if count else ""


def _problem(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> tuple[str, str, str] | None:
    """Kind, words and hint of what is wrong with one node."""
    if node.op_type.startswith("QLinear") and node.op_type in _INTEGER:
        words = f"expected QuantizeLinear and DequantizeLinear around a float operator, got {node.op_type}"
        return "integer", words, _INTEGER_HINT
    if node.op_type not in QDQ:
        return None
    said = node.input[2] if len(node.input) > 2 else ""
    zero, value = constants.get(said), constants.get(node.input[0])
    kind = zero.data_type if zero is not None else value.data_type if value is not None else None
    if kind is None and not said and node.op_type == "QuantizeLinear" and not _output_type(node):
        kind = TensorProto.UINT8  # what the standard says where nothing is said
    if kind == TensorProto.INT32:
        return "bias", "expected an INT8 zero point, got INT32, as a quantised bias has it", _BIAS_HINT
    if kind == TensorProto.UINT8:
        words = "expected an INT8 zero point, got UINT8: this builder would compute INT8 without asking, "
        return "uint8", words + "and clip at 127", _QDQ_HINT
    if zero is not None and kind == TensorProto.INT8 and (found := _first(zero)):
        words = f"expected a zero point of 0, got {found}: this builder knows symmetric INT8 only"
        return "asymmetric", words, _QDQ_HINT
    return None


def _output_type(node: onnx.NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "output_dtype"), 0)


def _first(zero: onnx.TensorProto) -> int:
    """The first zero point that is not 0, or 0."""
    from onnx import numpy_helper  # loads NumPy: most graphs did not come quantised

    return next((int(value) for value in numpy_helper.to_array(zero).reshape(-1) if value), 0)


def _constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    found = {t.name: t for each in graph.graphs(model.graph) for t in each.initializer}
    for node in graph.nodes(model):
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = attribute.t
    return found
