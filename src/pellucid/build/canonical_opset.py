"""An old graph brought to the operator set that builders know best, by ONNX's own converter.

That converter leaves some defaults as they stand although a later version reads them otherwise
(measured with onnx 1.23: Resize, Upsample, RoiAlign, PRelu, Hardmax); those are put right here, or
refused. What comes out is compared with what went in by numbers, too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pellucid import onnx_light
from pellucid.build.canonical_names import dimensions_of, nodes_of, values_of
from pellucid.errors import ParseError

if TYPE_CHECKING:
    import onnx

STANDARD: Final = ("", "ai.onnx")
IR_MIN: Final = 8  # precedent: that of operator set 17; below 4 every weight had to be an input, too


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operators; 0 where the model imports none."""
    return max((int(o.version) for o in model.opset_import if o.domain in STANDARD), default=0)


def foreign_domains(model: onnx.ModelProto) -> list[str]:
    """Domains of operators outside the standard."""
    return sorted({node.domain for node in nodes_of(model.graph) if node.domain not in STANDARD})


def raise_opset(model: onnx.ModelProto, wanted: int) -> onnx.ModelProto:
    """The same graph at a higher operator set; nodes keep their names.

    Raises:
        ParseError: The converter does not know how, or would change what the graph computes.
    """
    import onnx.version_converter  # seldom: the recipe asks for it

    now = opset_of(model)
    refusals = (onnx.version_converter.ConvertError, RuntimeError, ValueError, TypeError, IndexError)
    try:
        converted = onnx.version_converter.convert_version(model, wanted)
    except refusals as error:
        words = " ".join(str(error).split())[:300]
        raise ParseError(
            f"model: expected to bring operator set {now} to {wanted}, got: {words}",
            hint=f"export the model at operator set {wanted}, or keep its own: canonical: {{opset: null}}",
        ) from error
    converted.ir_version = max(converted.ir_version, IR_MIN)
    _keep_names(model, converted)
    _keep_meaning(model, converted, now, wanted)
    return converted


def _keep_meaning(before: onnx.ModelProto, after: onnx.ModelProto, now: int, wanted: int) -> None:
    """Operators whose defaults or shapes changed between versions, which the converter leaves as they are.

    Raises:
        ParseError: One that cannot be put right.
    """
    for node in nodes_of(after.graph):
        if node.op_type == "Resize" and now <= 10 < wanted:  # what Upsample and the first Resize computed
            _default(node, "coordinate_transformation_mode", "asymmetric")
            _default(node, "nearest_mode", "floor")
        elif node.op_type == "RoiAlign" and now < 16 <= wanted:
            _default(node, "coordinate_transformation_mode", "output_half_pixel")
        elif node.op_type == "Hardmax" and now < 13 <= wanted:
            raise _lost(node, now, wanted, "its axis means another thing there")
    slopes = [node for node in nodes_of(after.graph) if node.op_type == "PRelu"]
    if slopes and now < 7 <= wanted:
        _slopes_by_channel(before, after, slopes, now, wanted)


def _lost(node: onnx.NodeProto, now: int, wanted: int, why: str) -> ParseError:
    return ParseError(
        f"model: node {node.name!r:.80} ({node.op_type}): expected to bring operator set {now} to {wanted}, "
        f"got an operator whose meaning would change: {why}",
        hint=f"export the model at operator set {wanted}, or keep its own: canonical: {{opset: null}}",
    )


def _default(node: onnx.NodeProto, name: str, value: str) -> None:
    if not any(attribute.name == name for attribute in node.attribute):
        import onnx.helper

        node.attribute.append(onnx.helper.make_attribute(name, value))


def _slopes_by_channel(
    before: onnx.ModelProto, after: onnx.ModelProto, nodes: list[onnx.NodeProto], now: int, wanted: int
) -> None:
    """Slopes of one axis were the channels'; since version 7 they would be those of the last axis."""
    inferred = onnx_light.infer_shapes(before)
    ranks = {value.name: len(dimensions_of(value)) for value in values_of(inferred.graph)}
    weights = {tensor.name: tensor for tensor in after.graph.initializer}
    used = Counter(name for node in nodes_of(after.graph) for name in node.input)
    for node in nodes:
        slope, rank = weights.get(node.input[1]), ranks.get(node.input[0], 0)
        if slope is not None and (len(slope.dims) != 1 or slope.dims[0] == 1):
            continue
        if slope is None or used[slope.name] > 1 or rank < 2:
            raise _lost(node, now, wanted, "its slopes would belong to another axis")
        slope.dims.extend([1] * (rank - 2))


def _keep_names(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """An operator that the converter replaced speaks for the one whose output it makes."""
    names = {out: node.name for node in nodes_of(before.graph) for out in node.output if out}
    taken = {node.name for node in nodes_of(after.graph)}
    for node in nodes_of(after.graph):
        known = next((names[out] for out in node.output if out in names), "")
        if not node.name and known not in taken:
            node.name = known
            taken.add(known)


def weights_are_constants(model: onnx.ModelProto) -> bool:
    """Take weights off the list of inputs, in place; says whether any stood there.

    Before IR version 4 they had to; now it would mean that a caller may replace them.
    """
    weights = {t.name for t in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in weights]
    changed = len(kept) != len(model.graph.input)
    if changed:
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.ir_version = max(model.ir_version, IR_MIN)
    return changed
