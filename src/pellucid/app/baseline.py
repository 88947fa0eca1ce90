"""Baselines of a site: found in its ledger when a model is served, frozen on request, shown.

A baseline is a ``stage`` entry; the newest one of an engine, bucket and device is in force. A serving
process that finds none makes one of its first executions. One that is frozen by hand is told of in the
site's ``run`` folder, which serving processes look at once a second; what it says stands in the ledger.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.ledger import open_ledger, record_event, settle, wait_integrated
from pellucid.app.sign import replace_file
from pellucid.core.baseline import COUNT_MIN, Baseline, make_baseline, read_baseline
from pellucid.core.entry import Entry, parse_entry
from pellucid.errors import FormatError, NotFoundError, PellucidError
from pellucid.ports import Query
from pellucid.serving.baseline import baseline_data

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.ledger.reader import LedgerReader
    from pellucid.serving.batcher import Batcher
    from pellucid.serving.pool import Pool

CALLS_MAX: Final = 20_000  # limit: newest calls that a baseline is made of
ENTRIES_MAX: Final = 1_000  # limit: newest stage entries of a model that are looked at
SKIP: Final = 200  # executions of each bucket after a load that still warm up


@dataclass(frozen=True, slots=True)
class Found:
    """A baseline, whose it is, and since when it is frozen."""

    baseline: Baseline
    model: str
    version: str
    engine: str
    device: str
    bucket: int
    time: str
    how: str

    def record(self) -> dict[str, Any]:
        """As one object for machines."""
        said = {name: getattr(self, name) for name in self.__slots__ if name != "baseline"}
        return said | self.baseline.record() | {"entry": self.baseline.key}


def baselines(site: Site, model: str) -> list[Found]:
    """Every baseline of a model, newest first."""
    with closing(open_ledger(site)) as ledger:
        rows = ledger.reader.find(Query(type="stage", model=model, limit=ENTRIES_MAX))
        entries = [parse_entry(ledger.reader.entry(row.index)) for row in rows]
    return [_found(entry) for entry in entries if entry.data.get("stage") == "baseline"]


def _found(entry: Entry) -> Found:
    data = entry.data
    model, version, engine, device = (
        str(data.get(n) or "") for n in ("model", "version", "engine", "device")
    )
    baseline = read_baseline(data, entry.id)
    bucket = data.get("bucket")
    if type(bucket) is not int:
        raise FormatError(f"baseline {entry.id}: expected a bucket, got {bucket!r:.40}")
    return Found(baseline, model, version, engine, device, bucket, entry.time, str(data.get("how")))


def baselines_for(site: Site, facts: Mapping[str, Any]) -> dict[int, Baseline]:
    """Baselines by bucket that hold for an engine on its device: the newest of each."""
    wanted = (str(facts.get("engine") or ""), str(facts.get("device") or ""))
    found: dict[int, Baseline] = {}
    for each in baselines(site, str(facts.get("model") or "")):
        if (each.engine, each.device) == wanted:
            found.setdefault(each.bucket, each.baseline)
    return found


def freeze(site: Site, model: str, *, skip: int = SKIP) -> list[Found]:
    """Freeze baselines of what a model's newest engine did since its newest load, one a bucket.

    Servers that run go by them within a second.

    Raises:
        NotFoundError: No bucket has enough executions behind those that warm up.
    """
    settle(site)
    with closing(open_ledger(site)) as ledger:
        calls = _calls(ledger.reader, model)
    made: list[tuple[int, dict[str, Any]]] = []
    for bucket, times in sorted(_times(calls, skip).items()):
        if len(times) >= COUNT_MIN:
            made.append(
                (
                    bucket,
                    baseline_data(calls[0].data, bucket, make_baseline(times), how="command", skipped=skip),
                )
            )
    if not made:
        raise NotFoundError(
            f"baseline of {model!r:.80}: expected at least {COUNT_MIN} executions in one bucket behind the "
            f"{skip} that warm up, got fewer",
            hint="send calls first, or give a smaller --skip",
        )
    keys = {record_event(site, "stage", data) for _, data in made}
    for key in keys:
        wait_integrated(site, key)
    tell_frozen(site)
    return [each for each in baselines(site, model) if each.baseline.key in keys]


def _told(site: Site) -> Path:
    return site.root / "run" / "baselines"


def tell_frozen(site: Site) -> None:
    """Have servers that run look for baselines in the ledger."""
    path = _told(site)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    replace_file(path, b"")


class Frozen:
    """Takes up baselines that were frozen by hand, in one serving process, on its event loop's thread."""

    def __init__(self, site: Site, pool: Pool, report: Callable[[str], None]) -> None:
        self._site, self._pool, self._report = site, pool, report
        self._seen: tuple[int, int] | None = None  # the first look is for what came during the start
        self._tasks: set[asyncio.Task[None]] = set()

    def _mark(self) -> tuple[int, int] | None:
        try:
            found = os.stat(_told(self._site))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def look(self) -> None:
        """Begin to take up what was frozen since the last look."""
        mark = self._mark()
        if mark == self._seen:
            return
        self._seen = mark
        for batcher in self._pool.batchers():
            task = asyncio.get_running_loop().create_task(self._take(batcher))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, batcher: Batcher) -> None:
        try:
            found = await asyncio.to_thread(baselines_for, self._site, batcher.model.facts)
        except PellucidError as error:
            self._report(f"{batcher.model.name}: expected to read its baselines, got {error.message}")
            return
        batcher.baselines.adopt(found)


def _calls(reader: LedgerReader, model: str) -> list[Entry]:
    """Executed calls of the engine that answered last, oldest first, since it was loaded."""
    loads = reader.find(Query(type="load", model=model, limit=1))
    since = loads[0].time_ns if loads else 0
    rows = reader.find(Query(type="call", model=model, outcome="answered", since_ns=since, limit=CALLS_MAX))
    entries = [parse_entry(reader.entry(row.index)) for row in reversed(rows)]
    # a load is recorded a moment before it answers, and two versions may hold the same engine
    newest = _engine_of(entries[-1]) if entries else None
    return [entry for entry in entries if _engine_of(entry) == newest]


def _engine_of(call: Entry) -> tuple[str, str]:
    return str(call.data.get("version")), str(call.data.get("engine"))


def _times(calls: Sequence[Entry], skip: int) -> dict[int, list[int]]:
    """Compute times by bucket; a batch counts once, each serving process warms up by itself."""
    seen: set[str] = set()
    warm: dict[tuple[str, int], int] = {}
    found: dict[int, list[int]] = {}
    for entry in calls:
        data, execution = entry.data, entry.data.get("batch") or entry.id
        if execution in seen:
            continue
        seen.add(execution)
        place = (entry.id.rpartition("/")[0], data["bucket"])
        warm[place] = warm.get(place, 0) + 1
        if warm[place] > skip:
            found.setdefault(data["bucket"], []).append(data["stages"]["infer_ns"])
    return found
