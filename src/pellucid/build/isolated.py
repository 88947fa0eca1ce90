"""Engines in processes of their own, thrown away after: for qualification and replay; the caller's side.

The child gets the engine's bytes over a pipe, never a path, and a person's inputs touch no disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pellucid.build.child import run_child
from pellucid.build.frame import pack_tensors, unpack_tensors, verify_map
from pellucid.build.guarded import unguarded
from pellucid.core.tensor import Tensor
from pellucid.errors import BuildCancelledError, BuilderCrashedError
from pellucid.ports import IsolatedRun

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
            ended = run_child(
                self.entry, request, Path(scratch), timeout_s=self.timeout_s, on_frame=verify_map
            )
        if ended.cancelled:
            raise BuildCancelledError("engine process: expected an answer, got a request to stop")
        if not ended.is_clean or len(ended.frames) != 1:
            raise BuilderCrashedError(
                f"engine process: expected an answer, got {ended.reason}",
                hint=ended.stderr.decode("utf-8", "replace").strip()[-300:],
            )
        return unguarded(ended.frames[0])
