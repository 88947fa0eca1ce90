"""What goes in and out of a graph, and whether a recipe can promise anything about it.

Every finding is gathered: ``problems`` gives all, and a build refuses with all of them at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pellucid import onnx_light
from pellucid.build.canonical_names import SAFE, dimensions_of
from pellucid.build.canonical_opset import STANDARD, opset_of
from pellucid.core.tensor import NBYTES_MAX, RANK_MAX
from pellucid.errors import ParseError

if TYPE_CHECKING:
    import onnx

_SHOWN: Final = 5  # limit: problems spelled out in one error


class Problem(msgspec.Struct, frozen=True):
    """Something that a build would refuse.

    Attributes:
        rule: Stable word.
        where: Input, output or key of the recipe.
        message: ``subject: expected X, got Y``.
        hint: What to change.
    """

    rule: str
    where: str
    message: str
    hint: str = ""


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Tensors that a caller sends; weights may stand among a graph's inputs, too."""
    constants = {t.name for t in model.graph.initializer}
    constants |= {s.values.name for s in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in constants]


def variable_axes(value: onnx.ValueInfoProto) -> list[int]:
    """Axes without a number."""
    return [
        i for i, d in enumerate(dimensions_of(value)) if not (d.HasField("dim_value") and d.dim_value >= 0)
    ]


def verify_interface(model: onnx.ModelProto, recipe: Mapping[str, Any]) -> bool:
    """Refuse what a recipe cannot promise; says whether the model has a batch axis.

    Raises:
        ParseError: Names of inputs that are not safe, inputs without a shape, variable axes that no
            profile covers, or buckets that do not fit the model: all findings at once.
    """
    found = list(problems(model, recipe))
    if found:
        said = "; ".join(problem.message for problem in found[:_SHOWN])
        raise ParseError(said, hint=next((p.hint for p in found if p.hint), ""))
    return any(0 in variable_axes(value) for value in inputs_of(model))


def problems(model: onnx.ModelProto, recipe: Mapping[str, Any]) -> Iterator[Problem]:
    """Everything about inputs and outputs that a build would refuse."""
    yield from _set_problems(model)
    if not model.graph.output:
        yield Problem(
            "interface", "graph", "model: expected at least one output, got none",
            "name what the model gives as an output where it is exported",
        )  # fmt: skip
    inputs = inputs_of(model)
    yield from _unsafe_names([*inputs, *model.graph.output])
    yield from _too_large([*inputs, *model.graph.output])
    shaped = [v for v in inputs if v.type.HasField("tensor_type") and v.type.tensor_type.HasField("shape")]
    yield from _without_shape([v for v in inputs if v not in shaped])
    profiles = recipe.get("profiles") or []
    if profiles:
        yield from _profile_problems(shaped, profiles, recipe["buckets"])
    else:
        yield from _free_axes(shaped)
    yield from _bucket_problems({v.name: 0 in variable_axes(v) for v in shaped}, recipe["buckets"])
    for value in model.graph.output if recipe["buckets"] else []:
        if value.type.tensor_type.HasField("shape") and 0 not in variable_axes(value):
            yield Problem(
                "axes", f"output {value.name!r:.80}",
                f"model: output {value.name!r:.80}: expected the batch axis first, got none",
                "a model whose outputs mix its rows cannot be batched",
            )  # fmt: skip


def _set_problems(model: onnx.ModelProto) -> Iterator[Problem]:
    """Operator sets that builders would read in two ways, or that nobody knows yet."""
    domains = Counter("" if one.domain in STANDARD else one.domain for one in model.opset_import)
    for domain, count in sorted(domains.items()):
        if count > 1:
            name = domain or "ai.onnx"
            yield Problem(
                "opset", "operator sets",
                f"model: expected each operator set once, got {name!r:.80} {count} times",
                "export it again: which of them is meant, builders would decide each for itself",
            )  # fmt: skip
    newest = onnx_light.opset_version()
    if (given := opset_of(model)) > newest:
        yield Problem(
            "opset", "operator sets", f"model: expected operator set {newest} at most, got {given}",
            "export it at operator set 17, which all builders know",
        )  # fmt: skip


def _unsafe_names(values: list[onnx.ValueInfoProto]) -> Iterator[Problem]:
    for value in values:
        if not SAFE.fullmatch(value.name):
            yield Problem(
                "names", f"tensor {value.name!r:.80}",
                f"model: input or output {value.name!r:.80}: expected a name of [A-Za-z0-9_./:+-]",
                "clients send these names: rename it where the model is exported",
            )  # fmt: skip


def _too_large(values: list[onnx.ValueInfoProto]) -> Iterator[Problem]:
    """Shapes of which no tensor could be sent, whatever the batch."""
    for value in values:
        sizes = [d.dim_value for d in dimensions_of(value)]
        row = math.prod(size for size in sizes if size > 0)
        if len(sizes) > RANK_MAX or row > NBYTES_MAX:
            yield Problem(
                "axes", f"tensor {value.name!r:.80}",
                f"model: input or output {value.name!r:.80}: expected at most {RANK_MAX} axes and "
                f"{NBYTES_MAX:,} elements, got {len(sizes)} axes and {row:,} elements",
                "a shape that no memory holds: the file is damaged, or the export wrong",
            )  # fmt: skip


def _without_shape(values: list[onnx.ValueInfoProto]) -> Iterator[Problem]:
    for value in values:
        kind = value.type.WhichOneof("value") or "nothing"
        if kind == "tensor_type":
            message, hint = "a shape, got none", "export it with one; axes may be variable"
        else:
            message = f"a tensor, got a {kind.removesuffix('_type')}"
            hint = "sequences, optionals and maps cannot be sent: split them at export"
        yield Problem(
            "axes", f"input {value.name!r:.80}", f"model: input {value.name!r:.80}: expected {message}", hint
        )


def _free_axes(inputs: list[onnx.ValueInfoProto]) -> Iterator[Problem]:
    for value in inputs:
        axes = variable_axes(value)
        free = [axis for axis in axes if axis]
        if free:
            now = [
                d.dim_value if i not in axes else -1 if i == 0 else "?"
                for i, d in enumerate(dimensions_of(value))
            ]
            shape = ", ".join(map(str, now))
            yield Problem(
                "axes", f"input {value.name!r:.80}",
                f"model: input {value.name!r:.80}: expected no variable axis but the batch, "
                f"got {'axis' if len(free) == 1 else 'axes'} {', '.join(map(str, free))}",
                f"fix them in the recipe, with numbers for the question marks: "
                f"shapes: {{{value.name}: [{shape}]}}; for TensorRT profiles may cover them instead",
            )  # fmt: skip


def _profile_problems(
    inputs: list[onnx.ValueInfoProto], profiles: list[Mapping[str, Any]], buckets: list[int]
) -> Iterator[Problem]:
    for profile in profiles:
        where, given = f"profile {profile['name']}", profile["inputs"]
        odd = sorted(given.keys() ^ {value.name for value in inputs})
        if odd:
            yield Problem(
                "profiles", where,
                f"recipe: {where}: expected shapes of exactly {[v.name for v in inputs]!s:.200}, "
                f"got another set: {', '.join(odd)!s:.200}",
                "profiles: every input by its own name, with min, opt and max",
            )  # fmt: skip
        for value in inputs:
            if value.name in given:
                yield from _shape_problems(where, value, given[value.name])
    for bucket in buckets:
        if all(variable_axes(v)[:1] == [0] for v in inputs) and not any(
            _takes(profile["inputs"], bucket) for profile in profiles
        ):
            yield Problem(
                "profiles", f"bucket {bucket}",
                f"recipe: bucket {bucket}: expected a profile that takes it on axis 0, got none",
                "widen a profile's min and max, or leave the bucket out",
            )  # fmt: skip


def _takes(shapes: Mapping[str, Any], bucket: int) -> bool:
    return all(s["min"] and s["min"][0] <= bucket <= s["max"][0] for s in shapes.values())


def _shape_problems(where: str, value: onnx.ValueInfoProto, shapes: Mapping[str, Any]) -> Iterator[Problem]:
    dimensions, axes = dimensions_of(value), variable_axes(value)
    subject = f"recipe: {where}: input {value.name!r:.80}"
    if len(shapes["min"]) != len(dimensions):
        yield Problem(
            "profiles", where,
            f"{subject}: expected {len(dimensions)} axes as the model has, got {len(shapes['min'])}",
        )  # fmt: skip
        return
    for axis, dimension in enumerate(dimensions):
        got = [shapes[key][axis] for key in ("min", "opt", "max")]
        if axis not in axes and got != [dimension.dim_value] * 3:
            yield Problem(
                "profiles", where,
                f"{subject}: axis {axis}: expected {dimension.dim_value}, which is fixed in the model, "
                f"got {', '.join(map(str, got))}",
            )  # fmt: skip


def _bucket_problems(batched: Mapping[str, bool], buckets: list[int]) -> Iterator[Problem]:
    if any(batched.values()) and not all(batched.values()):
        fixed = sorted(name for name, is_batched in batched.items() if not is_batched)
        yield Problem(
            "axes", f"inputs {fixed!s:.120}",
            f"model: expected a batch axis on every input or on none, got none on {fixed!s:.200}",
            "export it with the batch first on every input, or fix them all: shapes",
        )  # fmt: skip
        return
    has_batch = bool(batched) and all(batched.values())
    if has_batch and not buckets:
        yield Problem(
            "buckets", "buckets",
            "recipe: buckets: expected at least one for a model with a batch axis, got none",
            "buckets: [1, 8, 32], or fix the axis: shapes",
        )  # fmt: skip
    if not has_batch and buckets:
        yield Problem(
            "buckets", "buckets",
            f"recipe: buckets: expected [] for a model without a batch axis, got {buckets}",
            "each call runs alone with the model's own shape: buckets: []",
        )  # fmt: skip
