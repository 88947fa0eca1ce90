"""The validation set: rows by input name, true labels, slices. Its file stays outside the package.

``.npz``: one array an input (by the input's name), labels and slices by the names the recipe gives
(a slice may also be stored as ``slice_NAME``). ``.csv``: a header; features are the columns that
``meaning.json`` names, in its order. Labels are words, or positions in the decision's labels.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from pellucid.build.npz import plain_text, read_arrays
from pellucid.core.tensor import Tensor, TensorSpec
from pellucid.errors import FormatError, RecipeError

ROWS_MAX: Final = 10**6  # limit: what one qualification run holds in memory
_ARRAYS: Final = {
    "BOOL": "|b1", "UINT8": "|u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "|i1",
    "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


class Validation(msgspec.Struct, frozen=True):
    """Rows ready to run.

    Attributes:
        inputs: Array ``[N, ...]`` of each input, in the input's datatype.
        truth: True label of each row, or ``()``.
        slices: Name -> value of each row, as text.
    """

    inputs: Mapping[str, Any]
    truth: tuple[str, ...] = ()
    slices: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(next(iter(self.inputs.values()))) if self.inputs else 0

    def row(self, specs: Sequence[TensorSpec], index: int, *, batched: bool) -> list[Tensor]:
        """One row as tensors: leading dimension 1, or the model's own shape without a batch axis."""
        arrays = [
            self.inputs[s.name][index : index + 1] if batched else self.inputs[s.name][index] for s in specs
        ]
        return [
            Tensor(s.name, s.datatype, tuple(a.shape), a.tobytes())
            for s, a in zip(specs, arrays, strict=True)
        ]


def read_validation(
    raw: bytes, recipe: Mapping[str, Any], meaning: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> Validation:
    """Validation set of a file's bytes, as the recipe's ``validation`` section names its parts.

    Raises:
        FormatError: Neither ``.npz`` nor ``.csv``.
        RecipeError: An input, the labels or a slice is not in the file or does not fit.
    """
    section = recipe["validation"]
    if raw[:4] in (b"PK\x03\x04", b"PK\x05\x06"):  # with files in it, and without any
        columns = read_arrays(raw, "validation")
        inputs = {spec.name: _fit(spec, columns, bool(recipe["buckets"])) for spec in specs}
    else:
        columns = _read_csv(raw)
        inputs = _features(columns, section, meaning, specs)
    counts = {len(array) for array in inputs.values()}
    if len(counts) != 1 or not 0 < (count := counts.pop()) <= ROWS_MAX:
        raise RecipeError(
            f"validation: expected the same number of rows, 1 to {ROWS_MAX:,}, for every input, got others"
        )
    labels = (meaning.get("decision") or {}).get("labels") or []
    truth = (
        tuple(_label(v, labels) for v in _column(columns, section["labels"], count))
        if section["labels"]
        else ()
    )
    slices = {
        name: tuple(plain_text(v, "validation") for v in _column(columns, name, count))
        for name in section["slices"]
    }
    return Validation(inputs, truth, slices)


def _read_csv(raw: bytes) -> dict[str, Any]:
    try:
        rows = list(csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"validation: expected an .npz or .csv file, got {error!s:.120}") from error
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows) or len(set(rows[0])) != len(rows[0]):
        raise FormatError(
            "validation: expected a header of different names and rows as long as it, got others"
        )
    return {name: np.array([row[i] for row in rows[1:]]) for i, name in enumerate(rows[0])}


def _fit(spec: TensorSpec, columns: Mapping[str, Any], batched: bool) -> Any:
    array, wanted = columns.get(spec.name), _ARRAYS.get(spec.datatype)
    shape = spec.shape[1:] if batched else spec.shape
    if wanted is None:
        raise RecipeError(
            f"validation: input {spec.name!r:.80}: {spec.datatype} cannot stand in an .npz file"
        )
    if array is None or array.dtype.str != wanted or not array.ndim or array.shape[1:] != shape:
        got = "none" if array is None else f"{array.dtype} {list(array.shape)}"
        raise RecipeError(
            f"validation: input {spec.name!r:.80}: expected {spec.datatype} {['N', *shape]}, got {got}"
        )
    return np.ascontiguousarray(array)


def _features(
    columns: Mapping[str, Any],
    section: Mapping[str, Any],
    meaning: Mapping[str, Any],
    specs: Sequence[TensorSpec],
) -> dict[str, Any]:
    spec, aside = specs[0], {section["labels"], *section["slices"]}
    names = [f["name"] for f in meaning.get("features", [])] or [n for n in columns if n not in aside]
    missing = [name for name in names if name not in columns]
    if len(specs) != 1 or len(spec.shape) != 2 or spec.shape[1] != len(names) or missing:
        raise RecipeError(
            f"validation: expected columns for one input of {spec.shape[-1]} features, "
            f"got {len(names)} ({', '.join(missing)[:80] or 'none'} missing)",
            hint="models of other shapes take an .npz file",
        )
    try:
        table = np.stack([columns[name].astype(np.float64) for name in names], axis=1)
    except ValueError as error:
        raise RecipeError(f"validation: expected numbers in the features, got {error!s:.120}") from error
    return {spec.name: np.ascontiguousarray(table.astype(_ARRAYS[spec.datatype]))}


def _column(columns: Mapping[str, Any], name: str, count: int) -> list[Any]:
    array = columns.get(name, columns.get(f"slice_{name}"))
    if array is None or array.shape != (count,):
        raise RecipeError(f"validation: expected {count:,} values of {name!r:.80}, got none or others")
    values: list[Any] = array.tolist()
    return values


def _label(value: Any, labels: Sequence[str]) -> str:
    """A word of the decision, or the word at that position; without a decision the word or whole number.

    Raises:
        RecipeError: Neither: it would count as wrong for every graph alike, and hide what one loses.
    """
    is_whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    text = str(int(value)) if is_whole else plain_text(value, "validation")
    if text in labels or not (labels or (isinstance(value, float) and not is_whole)):
        return text
    if labels and re.fullmatch(r"[0-9]{1,9}", text) and int(text) < len(labels):
        return labels[int(text)]
    expected = f"one of {list(labels)!s:.120} or its position" if labels else "words or whole numbers"
    raise RecipeError(f"validation.labels: expected {expected}, got {value!r:.60}")
