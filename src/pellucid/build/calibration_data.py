"""A calibration set: rows by input name, chosen by the recipe's rule, each known by its digest.

Its file is an ``.npz`` with one array an input and, where the recipe names them, slices and times;
it stays outside the package, which keeps digests only. Source: spec/calibration.md, section 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np
import onnx

from pellucid.build.npz import plain_text, read_arrays
from pellucid.core.calibration import CalibrationSet, Sample, select
from pellucid.core.digest import format_digest, sha256
from pellucid.core.tensor import Tensor, TensorSpec, row_digest, rows
from pellucid.core.times import format_time, parse_time
from pellucid.errors import FormatError, RecipeError

ROWS_MAX: Final = 10**6  # limit: what one calibration holds in memory
_ARRAYS: Final = {
    onnx.TensorProto.BOOL: ("BOOL", "|b1"), onnx.TensorProto.UINT8: ("UINT8", "|u1"),
    onnx.TensorProto.UINT16: ("UINT16", "<u2"), onnx.TensorProto.UINT32: ("UINT32", "<u4"),
    onnx.TensorProto.UINT64: ("UINT64", "<u8"), onnx.TensorProto.INT8: ("INT8", "|i1"),
    onnx.TensorProto.INT16: ("INT16", "<i2"), onnx.TensorProto.INT32: ("INT32", "<i4"),
    onnx.TensorProto.INT64: ("INT64", "<i8"), onnx.TensorProto.FLOAT16: ("FP16", "<f2"),
    onnx.TensorProto.FLOAT: ("FP32", "<f4"), onnx.TensorProto.DOUBLE: ("FP64", "<f8"),
}  # fmt: skip
_DTYPES: Final = dict(_ARRAYS.values())


class Chosen(msgspec.Struct, frozen=True):
    """Rows to calibrate with.

    Attributes:
        arrays: Array ``[N, ...]`` of each input, the chosen rows only.
        batched: Rows may run together, along axis 0.
        described: What the package says of them.
    """

    arrays: Mapping[str, Any]
    batched: bool
    described: CalibrationSet

    @property
    def count(self) -> int:
        return len(self.described.samples)


def input_specs(model: onnx.ModelProto) -> list[TensorSpec]:
    """Inputs of a graph that are no constants; ``-1`` is a variable axis.

    Raises:
        RecipeError: An input whose datatype no ``.npz`` file holds.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    specs = []
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        name = _ARRAYS.get(kind.elem_type, ("", ""))[0]
        if not name:
            got = onnx.TensorProto.DataType.Name(kind.elem_type)
            raise RecipeError(
                f"calibration: input {value.name!r:.80}: expected a type that an .npz file holds, got {got}"
            )
        shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
        specs.append(TensorSpec(value.name, name, shape))
    return specs


def read_calibration(raw: bytes, recipe: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Chosen:
    """Rows of a file's bytes that the recipe's ``calibration`` section chooses.

    Raises:
        FormatError: Not an ``.npz`` file.
        RecipeError: An input, a slice or the times are not in the file or do not fit, a number is
            not finite, or there are fewer rows than the rule asks for.
    """
    section, batched = recipe["calibration"], bool(recipe["buckets"])
    columns = read_arrays(raw, "calibration")
    arrays = {spec.name: _fit(spec, columns, batched=batched) for spec in specs}
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1 or not 0 < (count := counts.pop()) <= ROWS_MAX:
        raise RecipeError(
            f"calibration: expected the same number of rows, 1 to {ROWS_MAX:,}, for every input, got others"
        )
    slices = {name: _texts(columns, name, count) for name in section["slices"]}
    rule = section["select"]
    indices = select(rule, count, slices.get(rule["slice"], []))
    chosen = {name: np.ascontiguousarray(array[indices]) for name, array in arrays.items()}
    _verify_finite(chosen, indices)
    digests = sample_digests(chosen, specs)
    described = CalibrationSet(
        data=sha256(raw), rows=count, inputs=tuple(_described(specs, batched=batched)), select=dict(rule),
        samples=tuple(map(Sample, indices, digests)),
        slices=tuple(_counts(name, values, indices) for name, values in slices.items()),
        times=_time_range(columns, section["times"], count, indices),
        source=section["source"], licence=section["licence"],
    )  # fmt: skip
    return Chosen(chosen, batched, described)


def sample_digests(arrays: Mapping[str, Any], specs: Sequence[TensorSpec]) -> list[str]:
    """Row digest of every row: what a call with that row has in the ledger's commitments, too."""
    tensors = [
        Tensor(s.name, s.datatype, tuple(arrays[s.name].shape), arrays[s.name].tobytes()) for s in specs
    ]
    return [format_digest(row_digest(row)) for row in rows(tensors)]


def file_digests(raw: bytes, inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Row digests of an ``.npz`` file, for inputs as a package's calibration manifest describes them.

    Raises:
        FormatError: Not an ``.npz`` file.
        RecipeError: An input is not in the file or does not fit.
    """
    specs = [TensorSpec(i["name"], i["datatype"], (-1, *i["shape"])) for i in inputs]
    columns = read_arrays(raw, "sample")
    arrays = {spec.name: _fit(spec, columns, batched=True) for spec in specs}
    if len({len(array) for array in arrays.values()}) != 1:
        raise RecipeError("sample: expected the same number of rows for every input, got others")
    return sample_digests(arrays, specs)


def _fit(spec: TensorSpec, columns: Mapping[str, Any], *, batched: bool) -> Any:
    array = columns.get(spec.name)
    shape = spec.shape[1:] if batched else spec.shape
    is_fit = array is not None and array.dtype.str == _DTYPES.get(spec.datatype) and array.ndim > 0
    if array is None or not is_fit or array.shape[1:] != shape:
        got = "none" if array is None else f"{array.dtype} {list(array.shape)}"
        raise RecipeError(
            f"calibration: input {spec.name!r:.80}: expected {spec.datatype} {['N', *shape]}, got {got}",
            hint="an .npz file with one array an input, rows along axis 0",
        )
    return array


def _verify_finite(arrays: Mapping[str, Any], indices: Sequence[int]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        good = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
        if not good.all():
            row = indices[int(np.argmin(good))]
            raise RecipeError(
                f"calibration: input {name!r:.80}: expected finite numbers, got others in row {row:,}"
            )


def _described(specs: Sequence[TensorSpec], *, batched: bool) -> list[dict[str, Any]]:
    return [
        {"name": s.name, "datatype": s.datatype, "shape": list(s.shape[1:] if batched else s.shape)}
        for s in specs
    ]


def _column(columns: Mapping[str, Any], name: str, count: int) -> Any:
    array = columns.get(name, columns.get(f"slice_{name}"))
    if array is None or array.shape != (count,):
        raise RecipeError(f"calibration: expected {count:,} values of {name!r:.80}, got none or others")
    return array


def _texts(columns: Mapping[str, Any], name: str, count: int) -> list[str]:
    return [plain_text(value, "calibration") for value in _column(columns, name, count).tolist()]


def _counts(name: str, values: Sequence[str], indices: Sequence[int]) -> dict[str, Any]:
    whole, chosen = Counter(values), Counter(values[i] for i in indices)
    return {
        "name": name,
        "values": [{"value": v, "rows": whole[v], "selected": chosen[v]} for v in sorted(whole)],
    }


def _time_range(
    columns: Mapping[str, Any], name: str | None, count: int, indices: Sequence[int]
) -> dict[str, str] | None:
    if name is None:
        return None
    array = _column(columns, name, count)[list(indices)]
    times = [_unix_ns(value) for value in _plain(array)]
    return {"from": format_time(min(times)), "to": format_time(max(times))}


def _plain(array: Any) -> list[Any]:
    """Integers (seconds), or text; NumPy's own dates become text of nanoseconds in UTC."""
    if array.dtype.kind == "M":
        array = np.char.add(np.datetime_as_string(array, unit="ns"), "Z")
    return list(array.tolist())


def _unix_ns(value: Any) -> int:
    try:
        if type(value) is int:
            return value * 10**9
        if type(value) is str:
            if value.endswith("Z"):
                return parse_time(value)
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None or len(value) == len("2026-11-30"):
                whole = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                seconds = int(
                    (whole.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
                )
                return seconds * 10**9 + whole.microsecond * 1000
    except (ValueError, FormatError):
        pass
    raise RecipeError(
        f"calibration.times: expected RFC 3339 times, dates, or seconds since 1970, got {value!r:.60}",
        hint="a time without an offset is nobody's: write 2026-11-30T16:40:14Z",
    )
