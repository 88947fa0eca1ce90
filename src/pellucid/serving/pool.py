"""The pool: which versions are served, which one answers when none is named, and what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from pellucid.errors import NotFoundError, UnavailableError
from pellucid.ports import CallTracer, Clock, LoadProbe, Recorder
from pellucid.serving.baseline import Load
from pellucid.serving.batcher import BatchCount, Batcher
from pellucid.serving.limits import Limits
from pellucid.serving.meter import added
from pellucid.serving.model import Model
from pellucid.serving.rows import deferred_facts
from pellucid.serving.statistics import statistics_of
from pellucid.serving.warmup import warm_up

UNLOADED: Final = "unloaded"
Changed = Callable[[], None]


class Pool:
    """Admitted models by name and version. A model is in the pool only when it is warm.

    Attributes:
        missing: What the configuration wants and the guardian refused: reference to reason.
        on_change: Called after a model came or went.
    """

    def __init__(self, recorder: Recorder, *, clock: Clock, limits: Limits, probe: LoadProbe) -> None:
        self._recorder, self._clock, self._limits = recorder, clock, limits
        self._served: dict[str, dict[str, Batcher]] = {}
        self._unloaded: dict[str, set[str]] = {}
        self._retiring: set[Batcher] = set()
        self._ended: dict[str, dict[str, Any]] = {}  # totals of engines that went
        self._waiters: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batches, self.load = BatchCount(), Load(probe, clock.monotonic_ns)
        self.tracer: CallTracer | None = None  # set before models are added
        self.missing: dict[str, str] = {}
        self.on_change: list[Changed] = []

    def warm_up(self, model: Model) -> dict[int, int]:
        """Median nanoseconds of one execution by bucket; from any thread, before ``add``."""
        return warm_up(model, self._clock.monotonic_ns)

    def add(self, model: Model, times: dict[int, int] | None = None) -> dict[int, int]:
        """Warm a model up and serve it; the last version added answers when none is named.

        What was served as the same version finishes the calls it has and closes.

        Args:
            times: What ``warm_up`` gave, when that is done already.

        Returns:
            Median nanoseconds of one execution by bucket.
        """
        times = self.warm_up(model) if times is None else times
        context = self._recorder.add_context(dict(model.facts) | deferred_facts(model))
        batcher = Batcher(
            model,
            context,
            self._recorder,
            clock=self._clock,
            limits=self._limits,
            count=self._batches,
            times=times,
            load=self.load,
        )
        batcher.tracer = self.tracer
        if self._loop is not None:
            batcher.attach(self._loop)
        versions = self._served.setdefault(model.name, {})
        previous = versions.pop(model.version, None)
        versions[model.version] = batcher
        self._unloaded.get(model.name, set()).discard(model.version)
        if previous is not None:
            self._retire(previous)
        self._tell()
        return times

    def models(self, name: str) -> list[Model]:
        """What is served under a name, by version, the one that answers by default last.

        Raises:
            NotFoundError: Nothing of that name is or was served.
        """
        if name not in self._served and name not in self._unloaded:
            raise self._unknown(name)
        return [batcher.model for batcher in self._served.get(name, {}).values()]

    def remove(self, name: str) -> list[Model]:
        """Serve no version of a model any more; calls that its batchers have are answered first.

        Returns:
            What was served until now; none when it was unloaded before.

        Raises:
            NotFoundError: Nothing of that name is or was served.
        """
        if name not in self._served and name not in self._unloaded:
            raise self._unknown(name)
        batchers = list(self._served.pop(name, {}).values())
        self._unloaded.setdefault(name, set()).update(batcher.model.version for batcher in batchers)
        for batcher in batchers:
            self._retire(batcher)
        self._tell()
        return [batcher.model for batcher in batchers]

    def replace(self, model: Model, times: dict[int, int], gone: Collection[str]) -> list[Model]:
        """Serve a warm model in the place of others of its name, in one turn of the loop.

        No call can come between: who asks finds what was served, or what is served now.

        Args:
            gone: Versions that it replaces; its own always is.

        Returns:
            What was served until now, and answers the calls that it has before it closes.
        """
        versions = self._served.get(model.name, {})
        replaced = [versions[v].model for v in versions if v in gone or v == model.version]
        self.add(model, times)
        for version in gone:
            if version != model.version and (batcher := versions.pop(version, None)) is not None:
                self._unloaded.setdefault(model.name, set()).add(version)
                self._retire(batcher)
        if len(replaced) > 1 or (replaced and replaced[0].version != model.version):
            self._tell()
        return replaced

    def _retire(self, batcher: Batcher) -> None:
        self._retiring.add(batcher)
        batcher.retire(self._retired)

    def _retired(self, batcher: Batcher) -> None:
        self._retiring.discard(batcher)
        _count(self._ended, batcher)
        self._recorder.drop_context(batcher.context)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def until_closed(self, models: Collection[Model]) -> None:
        """Return when each has answered its last call and its engine is closed."""
        while any(batcher.model is model for batcher in self._retiring for model in models):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _tell(self) -> None:
        for listener in self.on_change:
            listener()

    def has(self, name: str, version: str) -> bool:
        """True if that version is served."""
        return version in self._served.get(name, {})

    def find(self, name: str, version: str | None) -> Batcher:
        """The served version.

        Raises:
            NotFoundError: Unknown model or version, or unloaded.
        """
        versions = self._served.get(name)
        if versions is None:
            raise self._unknown(name)
        if version is None:
            return next(reversed(versions.values()))
        if version not in versions:
            raise NotFoundError(
                f"model {name!r:.80}: expected version {' or '.join(versions)}, got {version!r:.80}"
            )
        return versions[version]

    def find_ready(self, name: str, version: str | None) -> Batcher:
        """The served version, for those who ask whether it is there.

        Raises:
            NotFoundError: Unknown model or version.
            UnavailableError: Known, and unloaded now.
        """
        gone = self._unloaded.get(name, set())
        served = self._served.get(name, {})
        if (version in gone) if version else (gone and not served):
            raise UnavailableError(f"model {name!r:.80}: expected a loaded model, got one that was unloaded")
        return self.find(name, version)

    def _unknown(self, name: str) -> NotFoundError:
        got = "an unknown name"
        if name in self._unloaded:
            got = "a model that was unloaded: it has no available versions"
        known = "one of " + ", ".join(sorted(self._served)[:20]) if self._served else "a loaded model"
        return NotFoundError(f"model {name!r:.80}: expected {known}, got {got}")

    def metadata(self, name: str, version: str | None) -> dict[str, Any]:
        """The protocol's metadata of a model."""
        batcher = self.find(name, version)
        versions = list(self._served[name]) if version is None else [version]
        return batcher.model.metadata(versions)

    def statistics(self, name: str | None, version: str | None) -> list[dict[str, Any]]:
        """Counters of one version, of all versions of a model, or of all models.

        Raises:
            NotFoundError: Unknown model or version.
        """
        if name is None:
            wanted = self.batchers()
        elif version is None:
            self.find(name, None)
            wanted = list(self._served[name].values())
        else:
            wanted = [self.find(name, version)]
        return [statistics_of(each.meter, each.model.name, each.model.version) for each in wanted]

    def index(self, *, ready: bool) -> list[dict[str, str]]:
        """What is served, was unloaded, or was refused; only what is served with ``ready``."""
        found = [
            {"name": b.model.name, "version": b.model.version, "state": "READY", "reason": ""}
            for b in self.batchers()
        ]
        if ready:
            return found
        found += [
            {"name": name, "version": version, "state": "UNAVAILABLE", "reason": UNLOADED}
            for name, versions in sorted(self._unloaded.items())
            for version in sorted(versions)
        ]
        found += [
            {"name": reference, "state": "UNAVAILABLE", "reason": reason}
            for reference, reason in self.missing.items()
        ]
        return found

    @property
    def is_ready(self) -> bool:
        return bool(self._served or self._unloaded) and not self.missing

    @property
    def waiting(self) -> int:
        """Calls that some batcher has, those of models on their way out included."""
        return sum(batcher.waiting for batcher in (*self.batchers(), *self._retiring))

    @property
    def closing(self) -> int:
        """Models on their way out whose engine is not closed yet."""
        return len(self._retiring)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for batcher in self.batchers():
            batcher.attach(loop)

    def batchers(self) -> list[Batcher]:
        return [batcher for versions in self._served.values() for batcher in versions.values()]

    def totals(self) -> dict[str, dict[str, Any]]:
        """What each model version did so far, engines that went included: no counter goes back."""
        found = {name: dict(versions) for name, versions in self._ended.items()}
        for batcher in (*self.batchers(), *self._retiring):
            _count(found, batcher)
        return found

    def close(self) -> None:
        for batcher in (*self.batchers(), *self._retiring):
            batcher.close()


def _count(found: dict[str, dict[str, Any]], batcher: Batcher) -> None:
    versions, version = found.setdefault(batcher.model.name, {}), batcher.model.version
    told = batcher.meter.totals() | {"buckets": batcher.baselines.totals()}
    versions[version] = added(versions[version], told) if version in versions else told
