"""Golden inputs: synthetic batches with the engine's own bits recorded, run again at every load.

Never a person's data: drawn from a seed, or from a file the recipe names for that purpose.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pellucid.build.frame import pack_tensors, unpack_tensors
from pellucid.build.npz import read_arrays
from pellucid.build.task import BackendFor
from pellucid.build.twice import twice
from pellucid.core.tensor import Tensor, TensorSpec, datatype, element_count, join_bytes_elements
from pellucid.errors import BuildError, DeviceUnavailableError, FormatError, RecipeError
from pellucid.ports import Session

BYTES_MAX: Final = 2**28  # limit: inputs of all golden cases, which stand in the package
Case = tuple[int, list[Tensor]]  # bucket, or 0 for a model's own fixed shape, and a batch
_FLOATS: Final = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}

_ARRAYS: Final = {
    "BOOL": "b1", "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1",
    "INT16": "i2", "INT32": "i4", "INT64": "i8", "FP16": "f2", "FP32": "f4", "FP64": "f8",
}  # fmt: skip


def synthetic(spec: TensorSpec, bucket: int, generator: np.random.Generator) -> Tensor:
    """One batch of an input: normal numbers for floats, zeros and ones for the rest.

    Integers are often positions in a table, so that anything larger could be out of range.
    """
    shape = (bucket, *spec.shape[1:]) if bucket else spec.shape
    count = element_count(shape)
    if spec.datatype == "BYTES":
        data = join_bytes_elements([b"ab"[: 1 + i] for i in generator.integers(0, 2, count)])
    elif spec.datatype == "BF16":
        wide = generator.standard_normal(count).astype("<f4").view("<u4")
        data = (wide >> 16).astype("<u2").tobytes()
    elif spec.datatype in _FLOATS:
        data = generator.standard_normal(count).astype(_FLOATS[spec.datatype]).tobytes()
    else:
        size = datatype(spec.datatype).itemsize
        values = generator.integers(0, 2, count).astype(np.uint8)
        data = np.pad(values[:, None], ((0, 0), (0, size - 1))).tobytes()  # little-endian
    return Tensor(spec.name, spec.datatype, shape, data)


def tuned(specs: Sequence[TensorSpec], profiles: Sequence[Mapping[str, Any]]) -> list[TensorSpec]:
    """Inputs with variable axes behind the batch as the first profile, if any, is tuned for them."""
    found = []
    for spec in specs:
        best = profiles[0]["inputs"][spec.name]["opt"] if profiles else spec.shape
        shape = tuple(best[axis] if axis and size < 0 else size for axis, size in enumerate(spec.shape))
        found.append(TensorSpec(spec.name, spec.datatype, shape))
    return found


def draw(
    specs: Sequence[TensorSpec], buckets: Sequence[int], *, count: int, seed: int, bytes_max: float = math.inf
) -> list[Case]:
    """``count`` batches for each bucket (bucket 0: the model's own fixed shape), as far as they fit.

    Batches beyond ``bytes_max`` in all are left out.
    """
    generator = np.random.default_rng(seed)
    cases: list[Case] = []
    left = bytes_max
    for bucket in [bucket for bucket in buckets or [0] for _ in range(count)]:
        left -= batch_bytes(specs, bucket)
        if left < 0:
            break  # larger buckets would be larger still
        cases.append((bucket, [synthetic(spec, bucket, generator) for spec in specs]))
    return cases


def batch_bytes(specs: Sequence[TensorSpec], bucket: int) -> int:
    """What one batch of all inputs takes, drawn; a large shape costs nothing to declare."""
    shapes = [(bucket, *spec.shape[1:]) if bucket else spec.shape for spec in specs]
    sizes = [max(datatype(spec.datatype).itemsize, 1) for spec in specs]
    return sum(math.prod(shape) * size for shape, size in zip(shapes, sizes, strict=True))


def from_arrays(specs: Sequence[TensorSpec], buckets: Sequence[int], arrays: Mapping[str, Any]) -> list[Case]:
    """One batch for each bucket, its rows taken from named arrays, again and again.

    Raises:
        RecipeError: An array is missing, or has another shape or type than the input.
    """
    return [(bucket, [_tiled(spec, bucket, arrays) for spec in specs]) for bucket in buckets or [0]]


def _tiled(spec: TensorSpec, bucket: int, arrays: Mapping[str, Any]) -> Tensor:
    array = arrays.get(spec.name)
    wanted = _ARRAYS.get(spec.datatype)
    shape = spec.shape[1:] if bucket else spec.shape
    if (
        array is None
        or (bucket and array.shape[:1] in ((), (0,)))
        or (array.shape[1:] if bucket else array.shape) != shape
    ):
        raise RecipeError(
            f"golden.inputs: {spec.name!r:.80}: expected rows of shape {list(shape)}, got others"
        )
    if wanted is None or array.dtype.str[1:] != wanted:
        raise RecipeError(f"golden.inputs: {spec.name!r:.80}: expected {spec.datatype}, got {array.dtype}")
    rows = array[np.arange(bucket) % len(array)] if bucket else array
    return Tensor(spec.name, spec.datatype, tuple(rows.shape), np.ascontiguousarray(rows).tobytes())


def record(request: Mapping[str, Any], backend_for: BackendFor) -> tuple[dict[str, Any], list[str]]:
    """Run every case in two processes; keeps those whose bits repeat.

    Without a device that the engine runs on there are no cases, and the document says why.

    Args:
        request: ``recipe``; ``engine``, its bytes; ``inputs``, its name, datatype and shape of each;
            ``files``, what the recipe names for it; ``at_once``, as for ``twice``.

    Returns:
        The golden document, and what a reader should know.

    Raises:
        RecipeError: The recipe's own inputs do not hold.
        BuildError: An output has not a row for each row that went in.
        BuilderCrashedError: A process died.
    """
    recipe = request["recipe"]
    drawn = cases(request)
    if not drawn:
        return nothing_drawn()
    backend, engine = backend_for(recipe["backend"]), request["engine"]
    try:
        first, second = twice(
            lambda: {"outputs": outputs_of(backend.open(engine, recipe), drawn)}, at_once=request["at_once"]
        )
    except DeviceUnavailableError as error:
        return without_cases(error.message)
    return compare(recipe, drawn, first["outputs"], second["outputs"])


def outputs_of(session: Session, drawn: Sequence[Case]) -> list[Any]:
    """What a session answers to every case, as a message's value."""
    return [pack_tensors(session.infer(batch)) for _, batch in drawn]


def compare(
    recipe: Mapping[str, Any], drawn: Sequence[Case], first: Sequence[Any], second: Sequence[Any]
) -> tuple[dict[str, Any], list[str]]:
    """The golden document of what two processes answered: the cases whose bits repeat.

    Raises:
        BuildError: An output has not a row for each row that went in.
    """
    for (bucket, _), outputs in zip(drawn, first, strict=True):
        verify_rows(bucket, unpack_tensors(outputs))
    kept = [
        {"bucket": bucket, "inputs": _texts(batch), "outputs": _texts(unpack_tensors(outputs))}
        for (bucket, batch), outputs, again in zip(drawn, first, second, strict=True)
        if outputs == again
    ]
    notes = []
    if left_out := len(drawn) - len(kept):
        notes.append(f"golden: {left_out} of {len(drawn)} cases do not repeat and are left out")
    if lost := sorted(set(recipe["buckets"]) - {bucket for bucket, _ in drawn}):
        notes.append(f"golden: no case for buckets {lost}: inputs of all cases would be too large")
    return {"cases": kept}, notes


def verify_rows(bucket: int, outputs: Sequence[Tensor]) -> None:
    """Every output of a bucket's batch has a row for each row of it.

    Raises:
        BuildError: An output does not follow the batch axis, so that no row has a part of its own.
    """
    for output in outputs if bucket else ():
        if output.shape[:1] != (bucket,):
            raise BuildError(
                f"model: output {output.name!r:.80}: expected {bucket} rows for {bucket} rows in, "
                f"got shape {list(output.shape)}",
                hint="a model whose outputs mix its rows, or take no notice of them, cannot be batched: "
                "give it buckets: [1]",
            )


def nothing_drawn() -> tuple[dict[str, Any], list[str]]:
    """The document where not even one batch may be drawn."""
    return without_cases(f"inputs: expected at most {BYTES_MAX:,} bytes for a drawn batch, got more")


def without_cases(reason: str) -> tuple[dict[str, Any], list[str]]:
    """A document that says why it holds none."""
    return {"cases": [], "reason": reason}, [f"golden: no case recorded: {reason}"]


def cases(request: Mapping[str, Any]) -> list[Case]:
    """Batches that a recipe wants run: its own, or drawn; the same ones each time.

    Raises:
        RecipeError: The recipe's own inputs do not hold.
    """
    recipe, files = request["recipe"], request["files"]
    given = [TensorSpec(name, kind, tuple(shape)) for name, kind, shape in request["inputs"]]
    specs = tuned(given, recipe.get("profiles") or ())
    if "golden" in files:
        try:
            arrays = read_arrays(files["golden"], "golden.inputs")
        except FormatError as error:
            raise RecipeError(error.message, hint=error.hint) from error
        return from_arrays(specs, recipe["buckets"], arrays)
    said = recipe["golden"]
    return draw(specs, recipe["buckets"], count=said["count"], seed=said["seed"], bytes_max=BYTES_MAX)


def _texts(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "data": base64.b64encode(tensor.data).decode(),
        }
        for tensor in tensors
    ]
