"""An engine in a process of its own: one request on stdin, one answer on stdout, the end.

The process loads this and its backend, and nothing of its caller's.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pellucid.build.frame import pack_tensors, read_frame, unpack_tensors, write_frame
from pellucid.build.guarded import guarded
from pellucid.build.limits import limit_self
from pellucid.build.worker import take_streams
from pellucid.core.recipe_keys import DEFAULT_LIMITS
from pellucid.core.tensor import Tensor
from pellucid.ports import Backend

_WARMUP: Final = 5  # precedent: first runs plan memory
_TIMES_MIN: Final = 20  # limit: fewer say nothing about a tail


def main(backend_for: Callable[[str], Backend]) -> int:
    """Take one request, run its engine, answer; gives the exit status."""
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
