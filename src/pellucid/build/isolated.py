"""Engines in processes of their own, thrown away after: for qualification and replay.

The child gets the engine's bytes over a pipe, never a path, and a person's inputs touch no disk.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pellucid.build.child import run_child
from pellucid.build.frame import pack_tensors, read_frame, unpack_tensors, write_frame
from pellucid.build.guarded import guarded, unguarded
from pellucid.build.limits import limit_self
from pellucid.build.worker import take_streams
from pellucid.core.recipe import DEFAULT_LIMITS
from pellucid.core.tensor import Tensor
from pellucid.errors import BuildCancelledError, BuilderCrashedError
from pellucid.ports import Backend, IsolatedRun

_WARMUP: Final = 5  # precedent: first runs plan memory
_TIMES_MIN: Final = 20  # limit: fewer say nothing about a tail
ENTRY: Final = "from pellucid.app.processes import isolated_main; isolated_main()"


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of one batch, run many times in one process.

    Attributes:
        times_ns: Duration of each run, warm-up left out.
    """

    times_ns: list[int]
    rss_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class ChildIsolated:
    """``ports.Isolated`` by one child a call.

    Attributes:
        entry: What the child runs.
        timeout_s: Longest life of a child.
    """

    entry: str = ENTRY
    timeout_s: float = 600.0

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun:
        """Outputs of each batch, in order, from one fresh session.

        Raises:
            TensorError, BuildError: As the session raised them.
            BuilderCrashedError: The child died or did not answer in time.
            BuildCancelledError: Somebody asked for the end.
        """
        reply = self._ask(backend, engine, recipe, batches, repeats=0, budget_ns=0)
        outputs = [unpack_tensors(batch) for batch in reply["outputs"]]
        return IsolatedRun(outputs, reply["environment"], reply["describe"])

    def measure(
        self,
        backend: str,
        engine: bytes,
        recipe: Mapping[str, Any],
        batches: Sequence[Sequence[Tensor]],
        *,
        repeats: int,
        budget_ns: int,
    ) -> list[Measured]:
        """Run each batch up to ``repeats`` times, or until the budget is spent, and time it.

        Raises as ``infer``.
        """
        reply = self._ask(backend, engine, recipe, batches, repeats=repeats, budget_ns=budget_ns)
        return [Measured(*item) for item in reply["measured"]]

    def _ask(
        self,
        backend: str,
        engine: bytes,
        recipe: Mapping[str, Any],
        batches: Sequence[Sequence[Tensor]],
        **more: int,
    ) -> dict[str, Any]:
        request = {
            "backend": backend,
            "engine": engine,
            "recipe": dict(recipe),
            "batches": [pack_tensors(list(batch)) for batch in batches],
            **more,
        }
        with tempfile.TemporaryDirectory(prefix="pellucid-") as scratch:
            ended = run_child(self.entry, request, Path(scratch), timeout_s=self.timeout_s)
        if ended.cancelled:
            raise BuildCancelledError("engine process: expected an answer, got a request to stop")
        if ended.code != 0 or len(ended.frames) != 1:
            raise BuilderCrashedError(
                f"engine process: expected an answer, got {ended.reason}",
                hint=ended.stderr.decode("utf-8", "replace").strip()[-300:],
            )
        return unguarded(ended.frames[0])


def main(backend_for: Callable[[str], Backend]) -> int:
    """The child's side: one request on stdin, one answer on stdout."""
    requests, frames = take_streams()
    request = read_frame(requests)
    if not isinstance(request, dict):
        return 2
    limit_self(DEFAULT_LIMITS | request["recipe"].get("limits", {}))
    write_frame(frames, guarded(lambda: _answer(backend_for(request["backend"]), request)))
    return 0


def _answer(backend: Backend, request: dict[str, Any]) -> dict[str, Any]:
    session = backend.open(request["engine"], request["recipe"])
    batches = [unpack_tensors(batch) for batch in request["batches"]]
    reply: dict[str, Any] = {"environment": backend.environment(), "describe": session.describe()}
    if request["repeats"]:
        reply["measured"] = [
            _timed(session.infer, batch, request["repeats"], request["budget_ns"]) for batch in batches
        ]
    else:
        reply["outputs"] = [pack_tensors(session.infer(batch)) for batch in batches]
    session.close()
    return reply


def _timed(
    infer: Callable[[list[Tensor]], Any], batch: list[Tensor], repeats: int, budget_ns: int
) -> list[Any]:
    for _ in range(_WARMUP):
        infer(batch)
    times: list[int] = []
    began = time.perf_counter_ns()
    while len(times) < repeats:
        start = time.perf_counter_ns()
        infer(batch)
        times.append(time.perf_counter_ns() - start)
        if len(times) >= _TIMES_MIN and time.perf_counter_ns() - began > budget_ns:
            break
    rss = _rss()
    return [times, rss, max(rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)]


def _rss() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()
