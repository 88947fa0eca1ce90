"""The caller's side of a preflight: a fresh child, its findings as they come, its end one of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pellucid.build import left, places
from pellucid.build.child import run_child
from pellucid.build.frame import verify_map
from pellucid.errors import BuildCancelledError, FormatError
from pellucid.ports import PreflightFinding

_ORDER: Final = {"refused": 0, "risk": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What one backend would make of a model.

    Attributes:
        findings: What was found, gravest first.
        facts: What the model is: ``digest``, ``bytes``, ``nodes``, ``inputs``, ``external``, ...
    """

    backend: str
    target: str
    findings: list[PreflightFinding]
    facts: dict[str, Any]

    @property
    def buildable(self) -> bool:
        return not any(finding.severity == "refused" for finding in self.findings)


def foresee(
    recipe: Mapping[str, Any], model: bytes, folder: Path, *, fit_buckets: bool, entry: str = left.ENTRY
) -> Foreseen:
    """Look at a model in a process of its own; a crash there is a finding.

    Args:
        recipe: Effective recipe.
        folder: Where files that the model names lie.
        fit_buckets: The recipe is a default one: a model without a batch axis gets no buckets.

    Raises:
        BuildCancelledError: Somebody asked for the end.
        DiskFullError: The temporary folder has no room for what the process leaves.
    """
    found: list[PreflightFinding] = []
    phases = ["start"]

    def take(frame: Any) -> None:
        message = verify_map(frame)
        if "finding" not in message:
            phases.append(str(message.get("phase")))
            return
        try:
            finding = msgspec.convert(places.hide_in(message["finding"], Path(scratch)), PreflightFinding)
        except msgspec.ValidationError as error:
            raise FormatError(f"preflight: expected a finding, got {error!s:.120}") from error
        if finding.severity not in _ORDER:
            raise FormatError(f"preflight: expected one of {list(_ORDER)}, got {finding.severity!r:.60}")
        found.append(finding)

    with tempfile.TemporaryDirectory(prefix="pellucid-preflight-") as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        request = {
            "stage": "preflight", "recipe": dict(recipe), "folder": str(out), "model": model,
            "model_folder": str(folder), "fit_buckets": fit_buckets,
        }  # fmt: skip
        ended = run_child(
            entry, request, Path(scratch), timeout_s=recipe["limits"]["timeout_s"], on_frame=take
        )
        path = out / left.RESULT
        result = msgspec.msgpack.decode(path.read_bytes()) if path.is_file() and ended.is_clean else None
        result = places.hide_in(result, Path(scratch))
    if ended.cancelled:
        raise BuildCancelledError("preflight: expected an answer, got a request to stop")
    if ended.code == left.NO_ROOM:
        raise left.no_room("preflight")
    if result is None:
        what = f"the process that read it ended by {ended.reason} in phase {phases[-1]}"
        fix = "raise limits.timeout_s" if ended.timed_out else "a file that kills its reader: export it again"
        found.append(PreflightFinding("refused", "crash", "model", what, fix))
    elif "error" in result:
        error = result["error"]
        found.append(PreflightFinding("refused", error["code"], "model", error["message"], error["hint"]))
    found.sort(key=lambda finding: _ORDER[finding.severity])
    facts = {} if result is None or "error" in result else result["facts"]
    return Foreseen(recipe["backend"], recipe["target"], found, facts)
