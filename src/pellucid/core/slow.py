"""One slow call: was it the model, the queue or the device? Said from its own entry.

The stages say where the time went; the mark says whether the engine took longer than its baseline;
the load of that moment says whether the machine was busy with something else meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

WAIT_PERMILLE: Final = 200  # limit: of the time, ready to run and without a processor
BUSY_PERMILLE: Final = 900  # limit: of the host's processors, or of a GPU, in use
_STAGES: Final = {
    "decode_ns": "decode", "queue_ns": "queue", "infer_ns": "compute", "rest_ns": "rest",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slow:
    """Where a call's time went.

    Attributes:
        part: ``model``, ``queue``, ``device``, ``decode``, ``rest`` (recording, rendering, waiting for
            the processor between stages), ``usual`` or ``none`` (it never ran).
        text: The same in a sentence.
        stages: Nanoseconds by stage; they add up to the whole.
    """

    part: str
    text: str
    stages: dict[str, int]

    def record(self) -> dict[str, Any]:
        """As one object for machines."""
        return {"part": self.part, "text": self.text, "stages": self.stages}


def find_slow(call: Mapping[str, Any], median_ns: int | None = None) -> Slow:
    """What took the time of a call.

    Args:
        call: ``data`` of its entry.
        median_ns: Median compute time of the baseline that its mark names, if known.
    """
    stages = {name: call["stages"][name] for name in ("decode_ns", "queue_ns", "infer_ns")}
    stages["rest_ns"] = max(0, call["stages"]["total_ns"] - sum(stages.values()))
    if call.get("slot") == -1:
        return Slow("none", f"it never ran: {call.get('outcome')}, {call.get('error')}", stages)
    mark = call.get("mark") or {}
    excess = stages | {"infer_ns": max(0, stages["infer_ns"] - (median_ns or 0))}
    if median_ns is None and not mark:
        excess["infer_ns"] = 0  # within its baseline, or there is none: what it took is what it takes
    worst = max(excess, key=lambda name: excess[name])
    if mark.get("deviation_milli", 0) > 0 and excess["infer_ns"] * 2 >= sum(excess.values()):
        return _computed(mark, stages, median_ns)
    if stages[worst] * 2 < call["stages"]["total_ns"] or excess[worst] < stages["infer_ns"]:
        return Slow("usual", f"no stage stands out: {_told(stages)}", stages)
    return Slow(_STAGES[worst], f"the {_STAGES[worst]} took {_share(stages, worst)}: {_told(stages)}", stages)


def _computed(mark: Mapping[str, Any], stages: dict[str, int], median_ns: int | None) -> Slow:
    usual = "" if median_ns is None else f" instead of {_ms(median_ns)}"
    beyond = f"{mark['deviation_milli'] / 1000:.1f} sigma beyond its baseline"
    took = f"the engine took {_ms(stages['infer_ns'])}{usual}, {beyond}"
    busy = _busy(mark.get("load") or {})
    if busy:
        return Slow("device", f"{took}, while {busy}", stages)
    return Slow("model", f"{took}, on a machine that was not busy with anything else", stages)


def _busy(load: Mapping[str, Any]) -> str:
    waited, host = load.get("cpu_wait_permille"), load.get("host_cpu_permille")
    if isinstance(waited, int) and waited >= WAIT_PERMILLE:
        return f"the process waited for a processor {waited / 10:.0f} % of the time"
    if isinstance(host, int) and host >= BUSY_PERMILLE:
        return f"the host's processors were {host / 10:.0f} % in use"
    for gpu in load.get("gpus") or []:
        if isinstance(gpu.get("permille"), int) and gpu["permille"] >= BUSY_PERMILLE:
            return f"GPU {gpu.get('uuid')} was {gpu['permille'] / 10:.0f} % in use"
    return ""


def _told(stages: Mapping[str, int]) -> str:
    return ", ".join(f"{_STAGES[name]} {_ms(took)}" for name, took in stages.items())


def _share(stages: Mapping[str, int], name: str) -> str:
    return f"{100 * stages[name] / max(1, sum(stages.values())):.0f} % of the time"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"
