"""The pool: which versions are served, which one answers when none is named, and what is missing."""

from __future__ import annotations

import asyncio
from typing import Any

from pellucid.errors import NotFoundError
from pellucid.ports import Clock, Recorder
from pellucid.serving.batcher import BatchCount, Batcher
from pellucid.serving.limits import Limits
from pellucid.serving.model import Model
from pellucid.serving.rows import deferred_facts
from pellucid.serving.warmup import warm_up


class Pool:
    """Admitted models by name and version. A model is in the pool only when it is warm."""

    def __init__(self, recorder: Recorder, *, clock: Clock, limits: Limits) -> None:
        self._recorder, self._clock, self._limits = recorder, clock, limits
        self._served: dict[str, dict[str, Batcher]] = {}
        self._batches = BatchCount()
        self.missing: list[str] = []  # what the configuration wants and the guardian refused

    def add(self, model: Model) -> dict[int, int]:
        """Warm a model up and serve it; the last version added answers when none is named.

        Returns:
            Median nanoseconds of one execution by bucket.
        """
        times = warm_up(model, self._clock.monotonic_ns)
        inline = frozenset(b for b, took in times.items() if took <= self._limits.inline_max_ns)
        batcher = Batcher(
            model,
            self._recorder.add_context(dict(model.facts) | deferred_facts(model)),
            self._recorder,
            clock=self._clock,
            limits=self._limits,
            count=self._batches,
            inline=inline,
        )
        versions = self._served.setdefault(model.name, {})
        versions.pop(model.version, None)
        versions[model.version] = batcher
        return times

    def find(self, name: str, version: str | None) -> Batcher:
        """The served version.

        Raises:
            NotFoundError: Unknown model or version.
        """
        versions = self._served.get(name)
        if versions is None:
            raise NotFoundError(f"model {name!r:.80}: expected {self._known()}, got an unknown name")
        if version is None:
            return next(reversed(versions.values()))
        if version not in versions:
            raise NotFoundError(
                f"model {name!r:.80}: expected version {' or '.join(versions)}, got {version!r:.80}"
            )
        return versions[version]

    def _known(self) -> str:
        return "one of " + ", ".join(sorted(self._served)[:20]) if self._served else "a loaded model"

    def metadata(self, name: str, version: str | None) -> dict[str, Any]:
        """The protocol's metadata of a model."""
        batcher = self.find(name, version)
        versions = list(self._served[name]) if version is None else [version]
        return batcher.model.metadata(versions)

    @property
    def is_ready(self) -> bool:
        return bool(self._served) and not self.missing

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        for batcher in self.batchers():
            batcher.attach(loop)

    def batchers(self) -> list[Batcher]:
        return [batcher for versions in self._served.values() for batcher in versions.values()]

    def close(self) -> None:
        for batcher in self.batchers():
            batcher.close()
