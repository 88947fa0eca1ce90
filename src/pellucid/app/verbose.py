"""VERBOSE for a while: a served model's layers, timed one by one; asked for with a command.

The wish is an entry first, then a file in the site's ``run`` folder that serving processes look at
once a second; whoever may write there may ask. It ends by itself: at its time, or after enough
executions. Layers are named with operator, runs and time; never a value. These executions are judged
by no baseline. The engine that is profiled is opened anew from its package, verified again, and has
the digest of the one that serves.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.clock import SystemClock
from pellucid.app.load import opener
from pellucid.app.sign import replace_file
from pellucid.core.times import format_time
from pellucid.core.trust import verify_package
from pellucid.errors import PellucidError, UnavailableError, UsageError

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.ports import EventRecorder, ProfiledSession
    from pellucid.serving.batcher import Batcher
    from pellucid.serving.dataplane import Dataplane

SECONDS_MAX: Final = 3_600  # limit: VERBOSE is for a moment
EXECUTIONS_MAX: Final = 2_000  # limit: the profiler keeps an event a layer and run in memory
LAYERS_MAX: Final = 200  # limit: slowest layers of a line
REASON_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Wish:
    """VERBOSE of a model until a moment; ``entry`` says who wanted it, and why."""

    model: str
    until_ns: int
    entry: str


def _path(site: Site) -> Path:
    return site.root / "run" / "verbose.json"


def ask_verbose(site: Site, model: str, seconds: int, reason: str) -> Wish:
    """Ask the serving processes of a site for the layer times of a model.

    Raises:
        UsageError: Longer than an hour, or no reason.
    """
    from pellucid.app.ledger import record_event

    if not 1 <= seconds <= SECONDS_MAX:
        raise UsageError(f"verbose: expected 1 to {SECONDS_MAX:,} seconds, got {seconds:,}")
    if not 0 < len(reason.strip()) <= REASON_MAX:
        raise UsageError("verbose: expected a reason of 1 to 1,000 characters, got another")
    until = SystemClock().now_ns() + seconds * 10**9
    data = {
        "what": "verbose",
        "model": model,
        "seconds": seconds,
        "until": format_time(until),
        "reason": reason,
    }
    wish = Wish(model, until, record_event(site, "config", data))
    path = _path(site)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    replace_file(path, json.dumps({"model": model, "until_ns": until, "entry": wish.entry}).encode())
    return wish


class Verbose:
    """Carries wishes out in one serving process, on its event loop's thread.

    Args:
        report: Gets one JSON line a model, when its time is over.
    """

    def __init__(
        self, site: Site, plane: Dataplane, recorder: EventRecorder, report: Callable[[str], None]
    ) -> None:
        self._site, self._plane, self._recorder, self._report = site, plane, recorder, report
        self._seen: tuple[int, int] | None = None
        self._wish: Wish | None = None
        self._running: list[Batcher] = []
        self._opening: set[asyncio.Task[None]] = set()

    def look(self) -> None:
        """Begin what was wished since the last look; end what is over."""
        wish = self._read()
        if wish is not None and wish.until_ns > SystemClock().now_ns() and not self._running:
            self._wish = wish
            for batcher in self._plane.pool.batchers():
                if batcher.model.name == wish.model:
                    task = asyncio.get_running_loop().create_task(self._begin(batcher, wish))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
        over = self._wish is not None and SystemClock().now_ns() >= self._wish.until_ns
        for batcher in [b for b in self._running if over or b.profiled >= EXECUTIONS_MAX]:
            self._end(batcher)

    def _read(self) -> Wish | None:
        """The wish, if it is a new one."""
        path = _path(self._site)
        try:
            found = os.stat(path)
            if self._seen == (found.st_mtime_ns, found.st_ino):
                return None
            self._seen = (found.st_mtime_ns, found.st_ino)
            told = json.loads(path.read_bytes())
            return Wish(str(told["model"]), int(told["until_ns"]), str(told["entry"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def _begin(self, batcher: Batcher, wish: Wish) -> None:
        try:
            session = await asyncio.to_thread(_open, self._site, batcher)
        except PellucidError as error:
            self._tell(batcher, {"refused": error.message})
            return
        if self._wish != wish:  # another came meanwhile
            session.close()
            return
        batcher.start_verbose(session)
        self._running.append(batcher)

    def _end(self, batcher: Batcher) -> None:
        ended = batcher.end_verbose()
        if ended is None:
            return  # an execution runs: at the next look
        self._running.remove(batcher)
        try:
            layers = ended.layers()
        finally:
            ended.close()
        self._tell(batcher, {
            "executions": batcher.profiled, "layers_left_out": max(0, len(layers) - LAYERS_MAX),
            "layers": [
                {"name": layer.name, "op": layer.op, "runs": layer.runs, "ns": layer.ns}
                for layer in layers[:LAYERS_MAX]
            ],
        })  # fmt: skip

    def _tell(self, batcher: Batcher, told: dict[str, Any]) -> None:
        entry = self._wish.entry if self._wish else ""
        head = {"event": "verbose", "model": batcher.model.name, "version": batcher.model.version}
        self._report(json.dumps(head | {"asked": entry} | told, ensure_ascii=True))
        data = {"what": "verbose_ended", "asked": entry, "model": batcher.model.name}
        data |= {"version": batcher.model.version, "executions": told.get("executions", 0)}
        try:
            self._recorder.event("config", data | {"refused": told.get("refused")})
        except PellucidError as error:
            self._report(f"verbose: its end is no entry: {error.message}")


def _open(site: Site, batcher: Batcher) -> ProfiledSession:
    """The engine that serves, opened again with its layers measured; on a thread of its own."""
    from pellucid.app.processes import backend_for

    facts = batcher.model.facts
    package = verify_package(opener(site).open(str(facts.get("package"))), site.trust())
    if package.engine_digest != facts.get("engine"):
        raise UnavailableError(f"verbose: expected engine {facts.get('engine')}, got {package.engine_digest}")
    backend: Any = backend_for(package.manifest.backend)
    if not hasattr(backend, "open_profiled"):
        raise UnavailableError(
            f"verbose: backend {package.manifest.backend} measures no layers while it serves"
        )
    session: ProfiledSession = backend.open_profiled(package.engine, package.recipe)
    return session
