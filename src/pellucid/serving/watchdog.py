"""The memory watchdog of a serving process: reads its resident memory, and says when it must go.

It never ends anything itself: it records a ``recycle`` entry that names engine and slope, and tells
the parent, which puts another process in its place first. Asked again only when nothing came of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.creep import READINGS_MAX, Reading, Suspect, rough_slope_per_s, slope_per_s, suspect
from pellucid.core.times import format_time
from pellucid.errors import PellucidError
from pellucid.ports import Clock, EventRecorder

AGAIN_NS: Final = 120 * 10**9  # how long the parent has to put another in our place
SPREAD_NS: Final = 500_000_000  # limit: readings closer together are one


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """When a process must go; 0: never for that reason.

    Attributes:
        resident_max_bytes: Resident memory.
        growth_max_bytes_per_h: Slope over the newest readings, once they span ``window_s``.
        window_s: So long a slope is watched before anything is made of it: warm-up grows as well.
    """

    resident_max_bytes: int = 0
    growth_max_bytes_per_h: int = 0
    window_s: float = 600.0


class Watchdog:
    """Watches one process.

    Args:
        resident: Reads resident memory, or ``None`` where the kernel does not say.
        calls: Calls answered so far by engine (``name:version``).
        engines: Digest of each.
    """

    def __init__(
        self,
        limits: WatchdogLimits,
        recorder: EventRecorder,
        *,
        clock: Clock,
        resident: Callable[[], int | None],
        calls: Callable[[], Mapping[str, int]],
        engines: Mapping[str, str],
    ) -> None:
        self._limits, self._recorder, self._clock = limits, recorder, clock
        self._resident, self._calls, self._engines = resident, calls, engines
        self._readings: deque[Reading] = deque(maxlen=READINGS_MAX)
        self._step_ns = max(SPREAD_NS, int(limits.window_s * 2e9) // READINGS_MAX)  # room for two
        self._asked_ns = 0

    def look(self) -> str:
        """Read once; why this process must go, or ``""``. Its entry is recorded then."""
        now, resident = self._clock.monotonic_ns(), self._resident()
        if resident is None or (self._asked_ns and now - self._asked_ns < AGAIN_NS):
            return ""
        newest = self._readings[-1].time_ns if self._readings else None
        if newest is None or now - newest >= self._step_ns:
            self._readings.append(Reading(now, resident, dict(self._calls())))
        if not self._may_go(resident):
            return ""
        readings = list(self._readings)
        slope, found = slope_per_s(readings), suspect(readings)
        reason = self._reason(resident, None if slope is None else round(slope * 3_600), found)
        if not reason:
            return ""
        self._asked_ns = now
        try:
            self._recorder.event("recycle", self._entry(reason, resident, slope, found))
        except PellucidError:
            return ""  # first the entry, then the deed: asked again later
        return reason

    def _may_go(self, resident: int) -> bool:
        """The cheap question, once a second on the calls' thread; the exact one follows where it says so."""
        limits = self._limits
        if limits.resident_max_bytes and resident > limits.resident_max_bytes:
            return True
        if not limits.growth_max_bytes_per_h or self._span_s() < limits.window_s:
            return False
        return rough_slope_per_s(list(self._readings)) * 3_600 * 2 > limits.growth_max_bytes_per_h

    def _reason(self, resident: int, per_h: int | None, found: Suspect) -> str:
        limits = self._limits
        told = "" if per_h is None else f", growing by {per_h:,} bytes an hour{_whose(found)}"
        if limits.resident_max_bytes and resident > limits.resident_max_bytes:
            return f"resident memory {resident:,} bytes, limit {limits.resident_max_bytes:,}{told}"
        if per_h is not None and per_h > limits.growth_max_bytes_per_h:
            return f"resident memory {resident:,} bytes{told}, limit {limits.growth_max_bytes_per_h:,}"
        return ""

    def _span_s(self) -> float:
        return (self._readings[-1].time_ns - self._readings[0].time_ns) / 1e9 if self._readings else 0.0

    def _entry(self, reason: str, resident: int, slope: float | None, found: Suspect) -> dict[str, Any]:
        first = self._readings[0]
        since = self._clock.now_ns() - (self._clock.monotonic_ns() - first.time_ns)
        name, _, version = (found.engine or "").partition(":")
        return {
            "reason": reason, "resident_bytes": resident,
            "growth_bytes_per_h": None if slope is None else round(slope * 3_600),
            "resident_max_bytes": self._limits.resident_max_bytes,
            "growth_max_bytes_per_h": self._limits.growth_max_bytes_per_h,
            "model": name or None, "version": version or None,
            "engine": self._engines.get(found.engine or ""), "attributed": found.how,
            "bytes_per_call": found.bytes_per_call, "readings": len(self._readings),
            "since": format_time(since),
        }  # fmt: skip


def _whose(found: Suspect) -> str:
    if found.engine is None:
        return "; which engine, its calls do not show"
    if found.how == "only":
        return f" with {found.engine}, the only engine here"
    return f", together with the calls of {found.engine}"
