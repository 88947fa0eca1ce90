"""An old graph brought to the operator set that builders know best, by ONNX's own converter."""

from __future__ import annotations

from typing import Final

import onnx
import onnx.version_converter

from pellucid.build.canonical_names import nodes_of
from pellucid.errors import ParseError

STANDARD: Final = ("", "ai.onnx")
IR_MIN: Final = 8  # precedent: that of operator set 17; below 4 every weight had to be an input, too
_REFUSALS: Final = (onnx.version_converter.ConvertError, RuntimeError, ValueError, TypeError, IndexError)


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operators; 0 where the model imports none."""
    return max((int(o.version) for o in model.opset_import if o.domain in STANDARD), default=0)


def foreign_domains(model: onnx.ModelProto) -> list[str]:
    """Domains of operators outside the standard."""
    return sorted({node.domain for node in nodes_of(model.graph) if node.domain not in STANDARD})


def raise_opset(model: onnx.ModelProto, wanted: int) -> onnx.ModelProto:
    """The same graph at a higher operator set; nodes keep their names.

    Raises:
        ParseError: The converter does not know how.
    """
    now = opset_of(model)
    try:
        converted = onnx.version_converter.convert_version(model, wanted)
    except _REFUSALS as error:
        words = " ".join(str(error).split())[:300]
        raise ParseError(
            f"model: expected to bring operator set {now} to {wanted}, got: {words}",
            hint=f"export the model at operator set {wanted}, or keep its own: canonical: {{opset: null}}",
        ) from error
    converted.ir_version = max(converted.ir_version, IR_MIN)
    _keep_names(model, converted)
    return converted


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
