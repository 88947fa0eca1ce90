"""The models of a site: admitted as configured at start, loaded and unloaded while calls go on.

A load is an admission like at start: the package is found, verified, judged, its golden inputs run, and
the verdict is an entry. It happens beside the event loop; only entries and the change itself come onto
its thread.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.baseline import baselines_for
from pellucid.app.load import guardian, opener, site_policy
from pellucid.app.whoami import about_package
from pellucid.core.finding import Finding
from pellucid.errors import NotFoundError, PellucidError, VerificationError
from pellucid.serving.model import Model

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.core.package import PackageFiles
    from pellucid.core.policy import Policy
    from pellucid.guardian.admit import Admitted
    from pellucid.ports import EventRecorder
    from pellucid.serving.pool import Pool

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")  # of a model: the newest of its packages
PLATFORMS: Final = {
    "onnxruntime": "onnx_onnxv1", "reference": "onnx_onnxv1", "tensorrt": "tensorrt_plan",
    "tensorrt-rtx": "tensorrt_plan",
}  # fmt: skip


def wanted_packages(site: Site) -> list[str]:
    """Packages that the configuration names.

    Raises:
        NotFoundError: None.
    """
    if not site.config.serving.models:
        raise NotFoundError(
            "serving.models: expected at least one package, got none",
            hint="name packages in pellucid.toml, section [serving]",
        )
    return site.config.serving.models


class SiteRepository:
    """Loads and unloads a site's models (``serving.repository.Repository``).

    Args:
        report: Gets lines for operators.
    """

    def __init__(
        self, site: Site, recorder: EventRecorder, pool: Pool, report: Callable[[str], None]
    ) -> None:
        self._site, self._pool, self._report = site, pool, report
        self._recorder = _OnLoop(recorder)
        self._folder, self._policy = opener(site), site_policy(site)
        self._gate = guardian(site, self._recorder)
        # by model and version: the reference that the configuration has for it
        self._names: dict[str, dict[str, str]] = {}
        self._one = asyncio.Lock()  # one change at a time
        self._last: dict[str, tuple[int, str]] = {}  # when a model's last load ended, and of which archive

    def admit_configured(self) -> None:
        """Admit every package of the configuration, before the loop runs.

        Raises:
            NotFoundError: The configuration names none.
            PellucidError: Every one was refused; the last reason.
        """
        wanted = wanted_packages(self._site)
        last: PellucidError | None = None
        for reference in wanted:
            try:
                admitted = self._gate.admit(self._find(reference))
                name, version = admitted.package.name, admitted.package.version
                self._names.setdefault(name, {})[version] = reference
                self._pool.add(make_model(self._site, self._policy, admitted))
            except PellucidError as error:
                last = error
                self._pool.missing[reference] = f"{error.code}: {error.message}"[:512]
                self._report(f"{reference}: not served: {error.message}")
        if last is not None and len(self._pool.missing) == len(wanted):
            raise last

    def follow(self, changes: Mapping[str, str]) -> None:
        """Do what clients changed before this process began, before the loop runs.

        Args:
            changes: Model to ``load`` or ``unload``.
        """
        for name, verb in changes.items():
            try:
                if verb == "unload":
                    self._remove(name)
                elif not self._names.get(name):
                    self._pool.add(self._admit(self._folder.newest(name)))
            except PellucidError as error:
                self._report(f"{verb} of {name}: not done again: {error.message}")

    def _find(self, reference: str) -> PackageFiles:
        path = self._site.path(reference)
        try:
            if not path.exists() and _NAME.fullmatch(reference):
                return self._folder.newest(reference)
            return self._folder.open(str(path) if path.exists() else reference)
        except VerificationError as error:
            self._refuse(reference, error)
            raise

    def _refuse(self, reference: str, error: VerificationError) -> None:
        """What cannot even be opened never reaches the guardian; it is a refused load all the same."""
        finding = Finding("open", False, "a whole package", f"{error.code}: {error.message}")
        data = {
            "folder": Path(reference).name.encode("utf-8", "replace").decode()[:200], "archive": None,
            "policy": self._policy.digest, "verdict": "refused", "findings": [finding.record()],
        }  # fmt: skip
        self._recorder.event("load.refused", data)

    async def load(self, name: str, asked_ns: int = 0) -> None:
        """Admit the configured package of that name, or the newest of the site's folder.

        Args:
            asked_ns: When it was asked for, where that was in another process; monotonic.
        """
        # a client that leaves meanwhile does not leave it half done
        asked_ns = asked_ns or time.monotonic_ns()
        await asyncio.shield(asyncio.ensure_future(self._load(name, asked_ns)))

    async def _load(self, name: str, asked_ns: int) -> None:
        self._recorder.attach()
        async with self._one:
            reference, files = await asyncio.to_thread(self._candidate, name)
            if self._is_done(name, files, asked_ns):
                return
            model = await asyncio.to_thread(self._admit, files)
            try:
                times = await asyncio.to_thread(self._pool.warm_up, model)
                gone = self._replaced(model, reference)
                for other in gone:
                    self._record_unload(other, "replaced")
                replaced = self._pool.replace(model, times, [other.version for other in gone])
            except PellucidError:
                await asyncio.to_thread(model.session.close)
                self._gate.let_go()
                raise
            for _ in replaced:
                self._gate.let_go()
            self._last[name] = time.monotonic_ns(), files.digest
        if reference is not None:
            self._pool.missing.pop(reference, None)
        self._report(f"{model.name}:{model.version}: loaded on request")

    def _candidate(self, name: str) -> tuple[str | None, PackageFiles]:
        references = self._names.get(name)
        if not references:
            return None, self._folder.newest(name)
        reference = next(reversed(references.values()))
        return reference, self._find(reference)

    def _is_done(self, name: str, files: PackageFiles, asked_ns: int) -> bool:
        """True if these very bytes were loaded by somebody else since this load was asked for."""
        ended, digest = self._last.get(name, (0, ""))
        return bool(digest) and digest == files.digest and ended >= asked_ns

    def _admit(self, files: PackageFiles) -> Model:
        return make_model(self._site, self._policy, self._gate.admit(files))

    def _replaced(self, model: Model, reference: str | None) -> list[Model]:
        """Other versions that go when this one comes: all that no other reference asks for."""
        try:
            served = self._pool.models(model.name)
        except NotFoundError:
            return []
        references = self._names.get(model.name, {})
        return [
            m
            for m in served
            if m.version != model.version and references.get(m.version, reference) == reference
        ]

    async def unload(self, name: str) -> None:
        """Serve it no more; an entry for each version that was served. Calls in flight are waited for."""
        await asyncio.shield(asyncio.ensure_future(self._unload(name)))

    async def _unload(self, name: str) -> None:
        async with self._one:
            models = self._remove(name)
        await self._pool.until_closed(models)

    def _remove(self, name: str) -> list[Model]:
        for model in self._pool.models(name):
            self._record_unload(model, "request")  # what cannot be recorded does not happen
        self._last.pop(name, None)
        models = self._pool.remove(name)
        for model in models:
            self._gate.let_go()
            self._report(f"{model.name}:{model.version}: unloaded on request")
        return models

    def _record_unload(self, model: Model, reason: str) -> None:
        facts = {key: model.facts.get(key) for key in ("model", "version", "package", "engine")}
        self._recorder.event("unload", facts | {"reason": reason})


class _OnLoop:
    """Appends events on the loop's thread, where the recorder wants them, whoever asks."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def attach(self) -> None:
        """From now on events may come from other threads than this loop's."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        loop = self._loop
        if loop is None or threading.get_ident() == self._thread:
            return self._recorder.event(kind, data, personal)
        done: Future[str] = Future()

        def append() -> None:
            try:
                done.set_result(self._recorder.event(kind, data, personal))
            except PellucidError as error:
                done.set_exception(error)

        loop.call_soon_threadsafe(append)
        return done.result()


def make_model(site: Site, policy: Policy, admitted: Admitted) -> Model:
    """What the data plane serves of an admitted package."""
    package, recipe = admitted.package, admitted.package.recipe
    pinned = recipe.get("pinned_bucket")
    # the strictest of recipe, configuration and policy wins
    words = (recipe.get("nonfinite", "refuse"), site.config.serving.nonfinite, policy.nonfinite)
    return Model(
        package.name,
        package.version,
        admitted.session,
        admitted.facts | {"config": site.config_digest},
        _decision(package.meaning),
        (pinned,) if pinned else tuple(recipe.get("buckets") or (1,)),
        platform=PLATFORMS.get(package.manifest.backend, package.manifest.backend),
        properties={
            "package": package.digest,
            "engine": package.engine_digest,
            "label_variance": admitted.label_variance,
        },
        label_variance=admitted.label_variance,
        allow_nonfinite=set(words) == {"allow"},
        baselines=baselines_for(site, admitted.facts),
        about=about_package(package),
        batch_delay_us=recipe.get("batch_delay_us"),
    )


def _decision(meaning: Mapping[str, Any]) -> Mapping[str, Any]:
    decision = meaning.get("decision")
    return decision if isinstance(decision, dict) else {}
