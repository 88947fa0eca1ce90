"""Baselines of one served model: made of its first executions, or frozen before; every execution judged.

On the event loop's thread. An execution within two standard deviations costs a look-up and two
comparisons; one beyond is marked with what the machine did at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pellucid.core.baseline import NEAR_NS, Baseline, Share, make_baseline
from pellucid.core.canonical import INTEGER_MAX
from pellucid.errors import PellucidError
from pellucid.ports import LoadProbe, Recorder
from pellucid.serving.limits import BaselineLimits
from pellucid.serving.model import Model

SAMPLE_NS = 100_000_000  # how old a reading of the load may be


class Load:
    """The newest reading of a probe, at most ``SAMPLE_NS`` old when somebody asks at a mark."""

    def __init__(self, probe: LoadProbe, monotonic_ns: Callable[[], int]) -> None:
        self._probe, self._now = probe, monotonic_ns
        self._read_ns, self._last = monotonic_ns(), probe.read()

    def sample(self) -> None:
        """Read again where the last reading is old; called ten times a second while calls come."""
        now = self._now()
        if now - self._read_ns >= SAMPLE_NS * 9 // 10:  # timers ring a little early
            self._read_ns, self._last = now, self._probe.read()

    def last(self) -> dict[str, Any]:
        """What it was at this moment."""
        self.sample()
        return self._last


class _Track:
    """One bucket: warming up, being measured, or frozen.

    Attributes:
        executions: All; the first ``skip`` count neither for a baseline nor for the share of marks.
        base: Executions before the baseline was frozen.
        judged_before, near_before: What was counted against baselines that others have replaced.
        until: Executions at which the window is over.
    """

    __slots__ = (
        "base", "baseline", "executions", "far", "high", "judged_before", "low", "marked", "near_before",
        "near_high", "near_low", "share", "skip", "times", "until",
    )  # fmt: skip

    def __init__(self, skip: int, baseline: Baseline | None) -> None:
        self.executions = self.base = self.marked = self.far = self.until = 0
        self.skip, self.judged_before, self.near_before = skip, 0, 0
        self.times: list[int] = []
        self.baseline: Baseline | None = None
        self.share: Share | None = None
        # until it is frozen every time is unusual: the common way needs no other question
        self.low, self.high, self.near_low, self.near_high = 1, 0, 1, 0
        if baseline is not None:
            self.freeze(baseline)

    def judged(self) -> int:
        """Executions held against a baseline."""
        return self.judged_before + (0 if self.baseline is None else self.executions - self.base)

    def near(self) -> int:
        """Of these, near its median."""
        return self.near_before + (0 if self.baseline is None else self.executions - self.base - self.far)

    def freeze(self, baseline: Baseline) -> None:
        self.judged_before, self.near_before = self.judged(), self.near()
        self.baseline, self.share, self.times = baseline, Share(baseline), []
        self.base, self.far = self.executions, 0
        self.until = max(self.base, self.skip) + self.share.window
        self.low, self.high = baseline.mean_ns - 2 * baseline.std_ns, baseline.mean_ns + 2 * baseline.std_ns
        self.near_low, self.near_high = baseline.median_ns - NEAR_NS, baseline.median_ns + NEAR_NS


class Baselines:
    """Judges the executions of one model.

    Args:
        frozen: Baselines by bucket that this engine has on this device.
    """

    def __init__(
        self,
        model: Model,
        recorder: Recorder,
        *,
        load: Load,
        limits: BaselineLimits,
        frozen: Mapping[int, Baseline],
    ) -> None:
        self._model, self._recorder, self._load, self._limits = model, recorder, load, limits
        self._wanted = limits.executions > 0
        self._tracks = {bucket: _Track(limits.skip, baseline) for bucket, baseline in frozen.items()}

    def judge(self, bucket: int, infer_ns: int) -> dict[str, Any] | None:
        """Mark of an execution that is beyond two standard deviations, as its calls' entries say it."""
        track = self._tracks.get(bucket)
        if track is None:
            track = self._tracks[bucket] = _Track(self._limits.skip, None)
        track.executions = executions = track.executions + 1
        if not track.near_low <= infer_ns <= track.near_high:
            track.far += 1
        if track.low <= infer_ns <= track.high:
            if executions >= track.until:
                self._end_window(bucket, track)
            return None
        if track.baseline is None or track.share is None:
            self._measure(bucket, track, infer_ns)
            return None
        track.marked += 1
        if executions > track.skip:
            track.share.marked += 1
        if track.share.is_due(executions - track.until + track.share.window):
            self._end_window(bucket, track)
        deviation = track.baseline.deviation(infer_ns)
        return {
            "baseline": track.baseline.key,
            "deviation_milli": max(-INTEGER_MAX, min(INTEGER_MAX, deviation)),
            "load": self._load.last(),
        }

    def _measure(self, bucket: int, track: _Track, infer_ns: int) -> None:
        if track.executions <= track.skip or not self._wanted:
            return
        track.times.append(infer_ns)
        if len(track.times) < self._limits.executions:
            return
        made = make_baseline(track.times)
        try:
            key = self._recorder.event("stage", self._entry(bucket, made))
        except PellucidError:
            track.times = []  # the ledger cannot take it now: measured anew, and frozen then
            return
        track.freeze(Baseline(**made.record(), key=key))

    def _entry(self, bucket: int, made: Baseline) -> dict[str, Any]:
        return baseline_data(
            self._model.facts, bucket, made, how="first_executions", skipped=self._limits.skip
        )

    def _end_window(self, bucket: int, track: _Track) -> None:
        share = track.share
        assert share is not None
        executions = track.executions - track.until + share.window
        if share.leaves(executions):
            self._alert(bucket, track, executions)
        share.marked, track.until = 0, track.executions + share.window

    def _alert(self, bucket: int, track: _Track, executions: int) -> None:
        assert track.share is not None
        assert track.baseline is not None
        share = track.share
        data = {
            "kind": "baseline_share", "baseline": track.baseline.key, "bucket": bucket,
            "executions": executions, "marked": share.marked, "expected": [share.low, share.high],
            "window": share.window, "load": self._load.last(),
        }  # fmt: skip
        data |= {name: self._model.facts.get(name) for name in ("model", "version", "package", "engine")}
        try:
            self._recorder.event("alert", data)
        except PellucidError:
            share.is_out = False  # it is told with the next window

    def totals(self) -> dict[str, dict[str, int]]:
        """By bucket: executions; those judged, marked, and within 3 ms of the baseline's median."""
        return {
            str(bucket): {
                "executions": track.executions,
                "judged": track.judged(),
                "marked": track.marked,
                "near": track.near(),
            }
            for bucket, track in self._tracks.items()
        }

    def adopt(self, frozen: Mapping[int, Baseline]) -> None:
        """Go by these from the next execution on, where they are others than before."""
        for bucket, baseline in frozen.items():
            track = self._tracks.get(bucket)
            if track is None:
                self._tracks[bucket] = _Track(self._limits.skip, baseline)
            elif track.baseline is None or track.baseline.key != baseline.key:
                track.freeze(baseline)

    def frozen(self) -> dict[int, Baseline]:
        """Baselines in force, by bucket."""
        return {bucket: t.baseline for bucket, t in self._tracks.items() if t.baseline is not None}


def baseline_data(
    facts: Mapping[str, Any], bucket: int, made: Baseline, *, how: str, skipped: int
) -> dict[str, Any]:
    """Data of the ``stage`` entry that freezes a baseline."""
    named = ("model", "version", "package", "engine", "device", "environment", "precision", "threads")
    said = {name: facts.get(name) for name in named}
    return said | made.record() | {"stage": "baseline", "bucket": bucket, "how": how, "skipped": skipped}
