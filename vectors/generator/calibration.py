"""Which rows a calibration chooses, their one digest, and decimals of binary32."""

from __future__ import annotations

import struct
from typing import Any

from generator.keys import Case

from pellucid.core.calibration import samples_digest, select
from pellucid.core.calibration_ranges import float32_text
from pellucid.core.digest import sha256

VALUES = ["day", "night", "day", "dusk"] * 5
FLOATS = ("00000000", "00000080", "cdcccc3d", "01000000", "ffff7f7f", "0000803f", "dbb64900", "3a19fbc7")


def calibration_cases() -> list[Case]:
    cases = [
        select_case("all", "all", None),
        select_case("first", "first", 7),
        *[select_case(f"random_seed_{seed}", "random", 5, seed=seed) for seed in (0, 7, 2**32 - 1)],
        select_case("stratified_even", "stratified", 6),
        select_case("stratified_uneven", "stratified", 8, seed=3),
        select_case("more_than_there_are_fail", "random", 21),
        select_case("more_than_a_value_has_fail", "stratified", 18),
    ]
    digests = [sha256(name) for name in (b"one", b"two")]
    for name, given in (("two", digests), ("turned", digests[::-1]), ("one", digests[:1])):
        case: Case = {"name": f"samples_{name}", "operation": "samples", "digests": given}
        cases.append(case | {"expected": samples_digest(given)})
    cases.append({"name": "samples_short_fail", "operation": "samples", "digests": ["sha256:00"]})
    for bits in FLOATS:
        (value,) = struct.unpack("<f", bytes.fromhex(bits))
        cases.append(
            {"name": f"decimal_{bits}", "operation": "decimal", "hex": bits, "expected": float32_text(value)}
        )
    for name, bits in (("nan", "0000c07f"), ("infinity", "0000807f")):
        cases.append({"name": f"decimal_{name}_fail", "operation": "decimal", "hex": bits})
    return cases


def select_case(name: str, rule: str, count: int | None, *, seed: int = 0) -> Case:
    asked: dict[str, Any] = {
        "rule": rule, "count": count, "seed": seed, "slice": "light" if rule == "stratified" else None
    }  # fmt: skip
    case: Case = {"name": f"select_{name}", "operation": "select", "select": asked, "values": VALUES}
    return case if name.endswith("_fail") else case | {"expected": select(asked, len(VALUES), VALUES)}
