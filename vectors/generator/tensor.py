"""Tensors, their packing and their digests."""

from __future__ import annotations

import struct
from typing import Any

from generator.keys import Case

from pellucid.core.tensor import (
    DATATYPES,
    Tensor,
    encode_tensor,
    join_bytes_elements,
    pack_json,
    row_digest,
    tensor_digest,
)

SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "FP32": [1.5, -0.0],
    "FP64": [0.1, 16777217],
    "BYTES": ["", "né"],
} | {
    f"{sign}INT{bits}": [2 ** (bits - (not sign)) - 1, 0 if sign else -(2 ** (bits - 1))]
    for sign in ("U", "")
    for bits in (8, 16, 32, 64)
}
RAW = {  # bits that no number says: NaN payloads, infinities, half formats
    "fp32_nan_payload": ("FP32", "0100807f"),
    "fp32_nan_quiet": ("FP32", "0000c07f"),
    "fp64_infinity": ("FP64", "000000000000f07f"),
    "fp16_one": ("FP16", "003c"),
    "bf16_one": ("BF16", "803f"),
    "fp32_minus_zero": ("FP32", "00000080"),
}


def tensor_cases() -> list[Case]:
    cases = [pack_case(f"pack_{kind}", kind, [2], data) for kind, data in sorted(SAMPLES.items())]
    cases += [
        pack_case("pack_nested", "INT32", [2, 3], [[1, 2, 3], [4, 5, 6]]),
        pack_case("pack_flat_of_two_axes", "INT32", [2, 3], [1, 2, 3, 4, 5, 6]),
        pack_case("pack_empty", "FP32", [0, 4], []),
        pack_case("pack_rounds_to_nearest", "FP32", [3], [0.1, 16777217, 1e-50]),
        pack_case("pack_large_integer_as_fp64", "FP64", [1], [2**53 + 1]),
        pack_case("ragged_fail", "INT32", [2, 2], [[1, 2], [3]]),
        pack_case("nesting_other_than_shape_fail", "INT32", [2, 3], [[1, 2], [3, 4], [5, 6]]),
        pack_case("half_nested_fail", "INT32", [2, 1], [[1], 2]),
        pack_case("too_few_fail", "INT32", [3], [1, 2]),
        pack_case("too_many_fail", "INT32", [1], [1, 2]),
        pack_case("uint8_wraps_fail", "UINT8", [1], [256]),
        pack_case("uint64_negative_fail", "UINT64", [1], [-1]),
        pack_case("int64_too_large_fail", "INT64", [1], [2**63]),
        pack_case("float_as_integer_fail", "INT32", [1], [1.0]),
        pack_case("boolean_as_integer_fail", "INT32", [1], [True]),
        pack_case("boolean_as_float_fail", "FP32", [1], [True]),
        pack_case("integer_as_boolean_fail", "BOOL", [1], [1]),
        pack_case("fp32_overflow_fail", "FP32", [1], [3.5e38]),
        pack_case("text_as_number_fail", "FP32", [1], ["1"]),
        pack_case("number_as_text_fail", "BYTES", [1], [1]),
        pack_case("null_fail", "FP32", [1], [None]),
        pack_case("fp16_by_json_fail", "FP16", [1], [1.0]),
        pack_case("bf16_by_json_fail", "BF16", [1], [1.0]),
        pack_case("unknown_datatype_fail", "FP8", [1], [1.0]),
        pack_case("negative_dimension_fail", "INT32", [-1], [1]),
        pack_case("scalar_data_fail", "INT32", [1], 1),
    ]
    for name, (kind, hexed) in RAW.items():
        cases.append(digest_case(f"digest_{name}", Tensor("x", kind, (1,), bytes.fromhex(hexed))))
    for kind in sorted(DATATYPES):
        cases.append(digest_case(f"digest_{kind}", sample(kind)))
    cases.append(digest_case("digest_name_matters", Tensor("y", "FP32", (1,), bytes(4))))
    cases.append(digest_case("digest_shape_matters", Tensor("x", "FP32", (1, 1), bytes(4))))
    cases.append(digest_case("digest_scalar", Tensor("x", "FP32", (), bytes(4))))
    cases.append(digest_case("digest_name_not_ascii", Tensor("Größe", "FP32", (1,), bytes(4))))
    row = (Tensor("age", "FP32", (1, 2), struct.pack("<2f", 1, 2)), sample("BYTES", "job", (1, 2)))
    for name, tensors in {
        "row_two_inputs": row,
        "row_order_matters": row[::-1],
        "row_of_one": row[:1],
    }.items():
        cases.append(
            {"name": name, "operation": "row", "tensors": [tensor_json(t) for t in tensors],
             "expected": row_digest(tensors).hex()}
        )  # fmt: skip
    cases += [
        check_case("check_bytes", Tensor("x", "BYTES", (2,), join_bytes_elements([b"", b"\xff"]))),
        check_case("check_too_short_fail", Tensor("x", "FP32", (2,), bytes(7))),
        check_case("check_too_long_fail", Tensor("x", "FP32", (2,), bytes(9))),
        check_case("check_bool_of_two_fail", Tensor("x", "BOOL", (1,), b"\x02")),
        check_case("check_bytes_length_beyond_fail", Tensor("x", "BYTES", (1,), b"\xff\xff\xff\xff")),
        check_case("check_bytes_too_few_fail", Tensor("x", "BYTES", (2,), bytes(4))),
        check_case("check_bytes_too_many_fail", Tensor("x", "BYTES", (1,), bytes(8))),
        check_case("check_bytes_cut_length_fail", Tensor("x", "BYTES", (1,), bytes(3))),
        check_case("check_product_overflow_fail", Tensor("x", "INT8", (2**39, 2**39), b"")),
        check_case("check_rank_33_fail", Tensor("x", "INT8", (1,) * 33, b"\x00")),
    ]
    return cases


def sample(kind: str, name: str = "x", shape: tuple[int, ...] = (2,)) -> Tensor:
    if kind in SAMPLES:
        return pack_json(name, kind, shape, SAMPLES[kind])
    return Tensor(name, kind, shape, bytes(range(2 * DATATYPES[kind].itemsize)))


def tensor_json(tensor: Tensor) -> Case:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
        "data_hex": bytes(tensor.data).hex(),
    }


def pack_case(name: str, kind: str, shape: list[int], data: Any) -> Case:
    case = {"name": name, "operation": "pack", "datatype": kind, "shape": shape, "data": data}
    if not name.endswith("_fail"):
        case["expected"] = bytes(pack_json("x", kind, shape, data).data).hex()
    return case


def digest_case(name: str, tensor: Tensor) -> Case:
    encoded = encode_tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    return {"name": name, "operation": "digest", "tensor": tensor_json(tensor),
            "encoded_hex": encoded.hex(), "expected": tensor_digest(tensor).hex()}  # fmt: skip


def check_case(name: str, tensor: Tensor) -> Case:
    return {"name": name, "operation": "check", "tensor": tensor_json(tensor)}
