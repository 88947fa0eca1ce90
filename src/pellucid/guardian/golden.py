"""Golden inputs: shipped, synthetic, with recorded bits; run at every load before a call may come.

Exact bits where the environment is the one they were recorded in; elsewhere a difference is
reported and the policy's environment rule decides. Source: spec/package.md, section 'golden'.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.finding import Finding
from pellucid.core.tensor import Tensor, unpack_elements, verify_tensor
from pellucid.errors import FormatError, PellucidError
from pellucid.ports import Session

CASES_MAX: Final = 256
RULE: Final = "golden_inputs"


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded run."""

    bucket: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def parse_golden(document: Mapping[str, Any]) -> list[Case]:
    """Cases of ``golden/golden.json``.

    Raises:
        FormatError, TensorError: Not cases of tensors.
    """
    cases = document.get("cases")
    if not isinstance(cases, list) or not 0 < len(cases) <= CASES_MAX:
        raise FormatError(f"golden.json: expected 1 to {CASES_MAX} cases, got something else")
    return [_parse_case(number, case) for number, case in enumerate(cases)]


def _parse_case(number: int, case: Any) -> Case:
    if not isinstance(case, dict) or type(case.get("bucket")) is not int:
        raise FormatError(f"golden.json: case {number}: expected a bucket and tensors, got something else")
    inputs, outputs = (
        tuple(_parse_tensor(number, item) for item in _list(number, case.get(key)))
        for key in ("inputs", "outputs")
    )
    return Case(case["bucket"], inputs, outputs)


def _list(number: int, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise FormatError(f"golden.json: case {number}: expected tensors, got something else")
    return value


def _parse_tensor(number: int, item: Any) -> Tensor:
    try:
        name, datatype, shape = str(item["name"]), item["datatype"], tuple(item["shape"])
        data = base64.b64decode(item["data"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise FormatError(f"golden.json: case {number}: expected a tensor, got {error!r:.120}") from error
    return verify_tensor(Tensor(name, datatype, shape, data))


def judge_golden(session: Session, document: Mapping[str, Any], *, severity: str) -> list[Finding]:
    """Run every case; one finding for all of them, naming the first that differs.

    Args:
        session: The session about to be admitted.
        document: ``golden/golden.json`` of the verified package; ``{}`` when it has none.
        severity: Of a difference.
    """
    expected = "recorded inputs giving their recorded bits"
    if not document:
        return [Finding(RULE, False, expected, "a package without golden inputs", severity)]
    try:
        cases = parse_golden(document)
        different = next(filter(None, (_run(session, n, case) for n, case in enumerate(cases))), "")
    except PellucidError as error:
        # recorded inputs that cannot even run say that this is not the engine they were recorded on
        return [Finding(RULE, False, expected, error.message)]
    return [
        Finding(RULE, not different, expected, different or f"{len(cases)} cases, the same bits", severity)
    ]


def _run(session: Session, number: int, case: Case) -> str:
    outputs = session.infer(case.inputs)
    where = f"bucket {case.bucket}, case {number}"
    if [t.name for t in outputs] != [t.name for t in case.outputs]:
        return f"{where}: outputs {[t.name for t in outputs]!r:.120}, not those recorded"
    for got, wanted in zip(outputs, case.outputs, strict=True):
        if (got.datatype, got.shape, bytes(got.data)) != (wanted.datatype, wanted.shape, bytes(wanted.data)):
            return f"{where}, output {got.name!r:.80}: {_difference(wanted, got)}"
    return ""


def _difference(wanted: Tensor, got: Tensor) -> str:
    if (wanted.datatype, wanted.shape) != (got.datatype, got.shape):
        return f"{got.datatype} {list(got.shape)} where {wanted.datatype} {list(wanted.shape)} was recorded"
    was, now = unpack_elements(wanted), unpack_elements(got)
    return _first(was, now)


def _first(was: Sequence[Any], now: Sequence[Any]) -> str:
    for index, (a, b) in enumerate(zip(was, now, strict=True)):
        if repr(a) != repr(b):
            return f"element {index} is {b!r:.40} where {a!r:.40} was recorded"
    return "other bits of equal value (NaN payload or sign)"
