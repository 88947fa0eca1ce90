"""Variable axes fixed to the numbers of a recipe, and every shape that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pellucid import onnx_light
from pellucid.build.canonical_interface import inputs_of, variable_axes
from pellucid.build.canonical_names import SAFE, dimensions_of, values_of
from pellucid.errors import ParseError

if TYPE_CHECKING:
    import onnx

_HINT = "shapes: {INPUT: [-1, 3, 224, 224]}; -1 stays variable"


def fix_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Give inputs the dimensions of a recipe, in place; gives ``INPUT: [..]`` of those that changed.

    A name of an axis that is fixed is fixed everywhere. Shapes of all tensors are inferred again.

    Raises:
        ParseError: An input that the model has not, another rank, a number against the model's own,
            or two numbers for axes of one name: all at once.
    """
    inputs, wrong = {value.name: value for value in inputs_of(model)}, []
    fixed: dict[str, int] = {}
    changed = []
    for name, shape in shapes.items():
        if name not in inputs:
            wrong.append(f"expected one of the inputs {sorted(inputs)!s:.200}, got {name!r:.80}")
            continue
        found = _contradictions(inputs[name], shape, fixed)
        wrong += found
        if not found and _set(inputs[name], shape):
            changed.append(f"{name}: {list(shape)}")
    if wrong:
        raise ParseError(f"recipe: shapes: {'; '.join(wrong[:5])}", hint=_HINT)
    if changed:
        _spread(model, fixed)
    return changed


def _contradictions(value: onnx.ValueInfoProto, shape: Sequence[int], fixed: dict[str, int]) -> list[str]:
    if not value.type.HasField("tensor_type"):
        return [f"input {value.name!r:.80}: expected a tensor, got another kind"]
    dimensions, free = dimensions_of(value), variable_axes(value)
    if len(dimensions) != len(shape):
        return [f"input {value.name!r:.80}: expected {len(dimensions)} axes, got {len(shape)}"]
    wrong = []
    for axis, (dimension, size) in enumerate(zip(dimensions, shape, strict=True)):
        where = f"input {value.name!r:.80}: axis {axis}"
        if axis not in free:
            if dimension.dim_value != size:
                wrong.append(f"{where}: expected {dimension.dim_value}, which the model says, got {size}")
        elif size >= 0 and SAFE.fullmatch(dimension.dim_param):
            known = fixed.setdefault(dimension.dim_param, size)
            if known != size:
                wrong.append(
                    f"{where}: expected {known}, as another axis {dimension.dim_param!r} has, got {size}"
                )
    return wrong


def _set(value: onnx.ValueInfoProto, shape: Sequence[int]) -> bool:
    before = value.SerializeToString(deterministic=True)
    for dimension, size in zip(dimensions_of(value), shape, strict=True):
        if size >= 0:
            dimension.dim_value = size
    return bool(value.SerializeToString(deterministic=True) != before)


def _spread(model: onnx.ModelProto, fixed: Mapping[str, int]) -> None:
    for value in values_of(model.graph):
        for dimension in dimensions_of(value):
            if dimension.dim_param in fixed:
                dimension.dim_value = fixed[dimension.dim_param]
    del model.graph.value_info[:]
    try:
        inferred = onnx_light.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx_light.InferenceError, RuntimeError, ValueError) as error:
        raise ParseError(
            f"recipe: shapes: expected shapes that the graph takes, got: {' '.join(str(error).split()):.300}",
            hint="the numbers do not fit each other or the operators: see the model's documentation",
        ) from error
    model.graph.CopyFrom(inferred.graph)
