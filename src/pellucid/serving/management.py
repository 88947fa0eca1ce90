"""What the server says of itself and what clients may ask it to do, besides inference.

Doors translate: HTTP gives members of a JSON object, gRPC those of a message; both get the same answers
and the same errors. Source: conformance list, sections 2 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pellucid import __version__
from pellucid.core.access import Caller
from pellucid.errors import FormatError, NotFoundError, PellucidError, UnavailableError
from pellucid.ports import EventRecorder
from pellucid.serving.configuration import model_configuration
from pellucid.serving.limits import MESSAGE_MAX, Limits
from pellucid.serving.members import flag_of, parameters_of
from pellucid.serving.pool import Pool
from pellucid.serving.repository import FixedRepository, Repository, check_load, check_unload
from pellucid.serving.settings import ask_log, ask_trace
from pellucid.serving.shared_memory import NoRegions, Region, Regions, Sharing
from pellucid.serving.statistics import Peers, add_up
from pellucid.serving.whoami import whoami

# exactly what is served and tested; what configuration switches off is left out
EXTENSIONS: Final = (
    "classification",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)
CONTROL: Final = ("model_repository", "model_repository(unload_dependents)")
SHARED_MEMORY: Final = "system_shared_memory"
Members = Mapping[str, Any]


class Management:
    """Health, metadata, statistics, configuration, repository, settings."""

    def __init__(
        self,
        pool: Pool,
        recorder: EventRecorder,
        *,
        limits: Limits,
        repository: Repository | None = None,
        regions: Regions | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.pool, self._recorder, self._limits, self._peers = pool, recorder, limits, peers
        self._optional = (*(CONTROL if repository else ()), *((SHARED_MEMORY,) if regions else ()))
        self.repository: Repository = repository or FixedRepository()
        self.about: Callable[[], Mapping[str, Any]] = dict  # what this process is, from whoever furnished it
        self.regions: Regions = NoRegions() if regions is None else regions
        self.sharing: Sharing | None = None  # where there are several serving processes

    # -- of the server ----------------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "pellucid", "version": __version__, "extensions": self.extensions()}

    def whoami(self, caller: Caller | None) -> dict[str, Any]:
        """Who this process is, what it runs, who allowed it, and whom it takes the caller for."""
        return whoami(self.about(), [batcher.model for batcher in self.pool.batchers()], caller)

    def extensions(self) -> list[str]:
        """Names of the extensions that are on."""
        return [*EXTENSIONS, *self._optional]

    def verify_ready(self, *, draining: bool) -> None:
        """Pass only when every model is served that should be.

        Raises:
            UnavailableError: Names what is missing.
        """
        if self.pool.is_ready and not draining:
            return
        missing = ", ".join(list(self.pool.missing)[:20])
        got = "a shutdown" if draining else f"missing {missing or 'all models'}"
        raise UnavailableError(f"server: expected every configured model to be ready, got {got}")

    # -- of a model -------------------------------------------------------------------------------

    def is_model_ready(self, name: str, version: str | None) -> bool:
        """True if the model answers; for doors whose protocol knows no error here."""
        try:
            self.pool.find(name, version)
        except PellucidError:
            return False
        return True

    def configuration(self, name: str, version: str | None) -> dict[str, Any]:
        """``ModelConfig``; raises ``NotFoundError`` for what is not served."""
        return model_configuration(self.pool.find(name, version).model, self._limits)

    async def statistics(self, name: str | None, version: str | None) -> dict[str, Any]:
        """Counters of what is served, of all serving processes; all models when none is named."""
        own = self.pool.statistics(name, version)
        if self._peers is not None:
            own = add_up([own, *await self._peers.statistics(name, version)])
        return {"model_stats": own}

    # -- repository -------------------------------------------------------------------------------

    def index(self, request: Members) -> list[dict[str, str]]:
        """Repository index; ``{"ready": true}`` leaves out what is not served."""
        return self.pool.index(ready=flag_of(dict(request), "ready", "repository index"))

    async def load(self, name: str, request: Members) -> None:
        """Load, or load again; raises as ``Repository.load``."""
        check_load(parameters_of(dict(request), "load"))
        await self.repository.load(name)

    async def unload(self, name: str, request: Members) -> None:
        """Unload; raises as ``Repository.unload``."""
        check_unload(parameters_of(dict(request), "unload"))
        await self.repository.unload(name)

    # -- shared memory ----------------------------------------------------------------------------

    async def shm_register(self, name: str, members: Members) -> None:
        """Register a region of this host, in all serving processes; an entry says so.

        Raises as ``Regions.register``.
        """
        if self.sharing is None:
            self.register_region(name, members, is_first=True)
        else:
            await self.sharing.register_region(name, members)

    async def shm_unregister(self, name: str) -> None:
        """Forget a region, or all when none is named, in all serving processes."""
        if self.sharing is None:
            self.unregister_region(name, is_first=True)
        else:
            await self.sharing.unregister_region(name)

    def register_region(self, name: str, members: Members, *, is_first: bool) -> None:
        """In this process; the first one's entry speaks for all. Raises as ``Regions.register``."""
        region = self.regions.register(name, members)
        try:
            if is_first:
                self._shm_event("registered", region)
        except PellucidError:
            self.regions.unregister(name)  # what cannot be recorded does not happen
            raise

    def unregister_region(self, name: str, *, is_first: bool) -> None:
        """In this process; ``""``: every region."""
        for region in self.regions.unregister(name or None):
            if is_first:
                self._shm_event("unregistered", region)

    def shm_status(self, name: str) -> list[dict[str, Any]]:
        """Registered regions, or the named one; raises ``NotFoundError`` when it is not."""
        return self.regions.status(name or None)

    def _shm_event(self, action: str, region: Region) -> None:
        # names are the client's words, so the entry only commits to them
        data = {"change": f"shared_memory_{action}", "offset": region.offset, "byte_size": region.byte_size}
        self._recorder.event("config", data, {"message": f"{region.name}: {region.key}"[:MESSAGE_MAX]})

    # -- CUDA: not here ---------------------------------------------------------------------------

    def cuda_status(self, name: str) -> list[dict[str, Any]]:
        """Registered CUDA regions: none, ever; raises ``NotFoundError`` for a named one."""
        if name:
            raise NotFoundError(
                f"cuda shared memory region {name!r:.80}: expected a registered one, got none"
            )
        return []

    def cuda_register(self, region: str) -> None:
        """Refuse.

        Raises:
            FormatError: Always.
        """
        raise FormatError(
            f"cuda shared memory region {region!r:.80}: expected system shared memory, got memory of a GPU",
            hint="GPU memory is not shared with clients here; see the extensions of GET /v2",
        )

    # -- settings ---------------------------------------------------------------------------------

    def log_settings(self, changes: Members) -> dict[str, Any]:
        return ask_log(changes)

    def trace_settings(self, model: str | None, changes: Members) -> dict[str, Any]:
        """Of the server, or of a model that is served."""
        if model is not None:
            self.pool.find(model, None)
        return ask_trace(changes)
