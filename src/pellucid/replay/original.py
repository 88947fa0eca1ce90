"""The original input of a call, as the person who brings it has it.

Two forms: the request itself (Open Inference Protocol, JSON), or bare values (a JSON array, or numbers
separated by commas, spaces or lines) for a model with one input. Either may hold the whole call or one
row of it. Source: spec/replay.md, section 1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.tensor import Tensor, TensorSpec, element_count, pack_json, rows, verify_tensor
from pellucid.core.trust import TrustedPackage
from pellucid.errors import FormatError, TensorError, UsageError

ORIGINAL_MAX: Final = 256 * 2**20  # limit: what a person brings as one call


def parse_original(raw: bytes, specs: Sequence[TensorSpec]) -> list[Tensor]:
    """Input tensors in the model's order.

    Args:
        raw: Request or bare values.
        specs: The model's inputs; ``-1`` leads where there is a batch axis.

    Raises:
        FormatError, TensorError: Neither form, or not this model's inputs.
    """
    document = _read(raw)
    if isinstance(document, dict):
        return _from_request(document, specs)
    if len(specs) != 1:
        raise UsageError(
            f"input: expected a request with {len(specs)} named inputs, got bare values",
            hint="bring the request as it was sent: a JSON object with 'inputs'",
        )
    spec = specs[0]
    width = element_count(spec.shape[1:]) if spec.shape[:1] == (-1,) else element_count(spec.shape)
    flat = _flat(document)
    if not width or not flat or len(flat) % width:
        raise TensorError(f"input {spec.name!r:.80}: expected {width} values a row, got {len(flat):,}")
    shape = (len(flat) // width, *spec.shape[1:]) if spec.shape[:1] == (-1,) else spec.shape
    return [pack_json(spec.name, spec.datatype, shape, flat)]


def _read(raw: bytes) -> Any:
    try:
        return canonical.decode_foreign(raw, size_max=ORIGINAL_MAX)
    except FormatError as error:
        try:
            words = raw.decode("ascii").replace(",", " ").split()
            return [int(w) if w.lstrip("+-").isdigit() else float(w) for w in words]
        except ValueError:
            raise error from None


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"input: expected a request or an array of values, got {type(value).__name__}")
    flat: list[Any] = []
    stack = [iter(value)]
    while stack:
        item = next(stack[-1], stack)
        if item is stack:
            stack.pop()
        elif isinstance(item, list):
            stack.append(iter(item))
        else:
            flat.append(item)
    return flat


def _from_request(document: Mapping[str, Any], specs: Sequence[TensorSpec]) -> list[Tensor]:
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(item, dict) for item in inputs):
        raise FormatError("input: expected a request with 'inputs', got another object")
    given = {item.get("name"): item for item in inputs}
    names = [spec.name for spec in specs]
    if len(given) != len(inputs) or given.keys() != set(names):
        raise TensorError(f"inputs: expected {', '.join(names)}, got {', '.join(map(str, given))[:200]}")
    return [_tensor(given[spec.name], spec) for spec in specs]


def _tensor(item: Mapping[str, Any], spec: TensorSpec) -> Tensor:
    shape, data = item.get("shape"), item.get("data")
    if item.get("datatype") != spec.datatype or not isinstance(shape, list):
        raise TensorError(f"input {spec.name!r:.80}: expected {spec.datatype} with a shape, got another")
    if isinstance(data, str):  # exact bits, as golden inputs have them; the only way for FP16 and BF16
        try:
            bits = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise TensorError(f"input {spec.name!r:.80}: expected data in base64, got another text") from None
        element_count(shape, subject=f"input {spec.name!r:.80}")
        return verify_tensor(Tensor(spec.name, spec.datatype, tuple(shape), bits))
    return pack_json(spec.name, spec.datatype, shape, data)


def pick_rows(
    tensors: Sequence[Tensor], entry_data: Mapping[str, Any], row: int | None
) -> dict[int, Sequence[Tensor]]:
    """Rows by their number in the call.

    Args:
        tensors: Whole call, or one row of it.
        entry_data: The call entry's data.
        row: The one row to replay, or ``None`` for all.

    Raises:
        UsageError: The number of rows is neither the call's nor one.
    """
    if not entry_data["bucket"]:
        return {0: tuple(tensors)}  # no batch axis: the call is one row as a whole
    split = rows(tensors)
    count = entry_data["row_count"]
    if row is not None and not 0 <= row < count:
        raise UsageError(f"row: expected 0 to {count - 1}, got {row}")
    if len(split) == count:
        return dict(enumerate(split)) if row is None else {row: split[row]}
    if len(split) == 1 and row is not None:
        return {row: split[0]}
    raise UsageError(
        f"input: expected the {count} rows of the call, got {len(split)}",
        hint="bring the whole call, or one row of it with --row N",
    )


def input_specs(package: TrustedPackage) -> list[TensorSpec]:
    """The model's inputs in its order, from the package's golden cases.

    Raises:
        UsageError: The package has none.
    """
    try:
        case = package.golden["cases"][0]
        batched = bool(case["bucket"])
        return [
            TensorSpec(i["name"], i["datatype"], (-1, *i["shape"][1:]) if batched else tuple(i["shape"]))
            for i in case["inputs"]
        ]
    except (KeyError, IndexError, TypeError):
        raise UsageError("package: expected golden cases that name its inputs, got none") from None
