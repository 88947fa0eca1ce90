"""Buckets, slots and padding."""

from __future__ import annotations

import struct

from generator.keys import Case
from generator.tensor import tensor_json

from pellucid.core.bucket import bucket_for, place, slots_for
from pellucid.core.tensor import (
    Tensor,
    join_bytes_elements,
)


def bucket_cases() -> list[Case]:
    cases: list[Case] = []
    for rows in (1, 2, 8, 9, 32, 33, 0, -1):
        fails = not 1 <= rows <= 32
        case: Case = {"name": f"bucket_{rows}" + "_fail" * fails, "operation": "bucket", "rows": rows}
        case["sizes"] = [32, 1, 8]
        if not fails:
            case["expected"] = bucket_for(rows, case["sizes"])
        cases.append(case)
    cases.append({"name": "slots", "operation": "slots", "rows": [1, 3, 2], "expected": slots_for([1, 3, 2])})
    two = Tensor("x", "INT16", (2, 2), struct.pack("<4h", 1, 2, 3, 4))
    one = Tensor("x", "INT16", (1, 2), struct.pack("<2h", 5, 6))
    text = Tensor("x", "BYTES", (1, 2), join_bytes_elements([b"ab", b""]))
    other = Tensor("x", "INT16", (1, 3), bytes(6))
    cases += [
        place_case("place_together", [(0, two), (2, one)], 4),
        place_case("place_alone_as_replay_does", [(2, one)], 4),
        place_case("place_with_gap", [(0, one), (3, one)], 4),
        place_case("place_full", [(0, two)], 2),
        place_case("place_text", [(1, text)], 3),
        place_case("place_overlap_fail", [(0, two), (1, one)], 4),
        place_case("place_beyond_fail", [(3, two)], 4),
        place_case("place_other_shape_fail", [(0, one), (1, other)], 4),
    ]
    return cases


def place_case(name: str, parts: list[tuple[int, Tensor]], bucket: int) -> Case:
    case: Case = {"name": name, "operation": "place", "bucket": bucket}
    case["parts"] = [{"slot": slot, "tensor": tensor_json(tensor)} for slot, tensor in parts]
    if not name.endswith("_fail"):
        case["expected"] = tensor_json(place(parts, bucket))
    return case
