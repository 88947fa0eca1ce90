"""The serving process, furnished: ledger, sequencer, guardian, pool, door; and the order of a stop.

Start: socket bound -> what a dead server left is closed -> epoch opened -> packages admitted and
warm -> door open. Stop: door shut -> calls in flight answered -> epoch closed -> sequencer drains.
A kill between any two leaves open numbers on the board and a journal; the next start closes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before anything can import onnxruntime

from pellucid.app.clock import SystemClock
from pellucid.app.listening import Door, SideDoor
from pellucid.app.pulse import Pulse
from pellucid.app.supervisor import Supervisor
from pellucid.app.traces import open_traces
from pellucid.app.watch import Watch, make_watchdog, snapshot
from pellucid.app.wishes import Wishes
from pellucid.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.app.team import Team
    from pellucid.app.watch import Tell
    from pellucid.ledger.recorder import JournalRecorder, NothingRecorder
    from pellucid.ports import CallTracer
    from pellucid.serving.dataplane import Dataplane
    from pellucid.serving.limits import Limits
    from pellucid.serving.pool import Pool

    SiteRecorder = JournalRecorder | NothingRecorder

DRAIN_S: Final = 30.0  # limit: calls in flight at a stop
HISTORY_S: Final = 600.0  # limit: what a dead server left is integrated before anything is admitted
TELL_S: Final = 5.0
SEQUENCER_DRAIN_S: Final = 120.0  # limit: what the journal holds at a stop


@dataclass(frozen=True, slots=True)
class Ready:
    """What is served once the door is open."""

    host: str
    port: int
    pid: int
    source: str
    models: list[str]
    refused: list[str]
    sequencer: int | None
    workers: list[int]
    beside: dict[str, int]
    metrics: int | None = None
    scheme: str = "http"

    def record(self) -> dict[str, Any]:
        """As one line for machines."""
        return {"ready": True} | {name: getattr(self, name) for name in self.__slots__}


def serve(
    site: Site,
    door: Door,
    *,
    beside: Sequence[SideDoor] = (),
    host: str | None = None,
    port: int | None = None,
    ready: Callable[[Ready], None],
    report: Callable[[str], None],
    tell: Tell | None = None,
) -> None:
    """Serve the site's models until SIGTERM or SIGINT.

    Args:
        door: The server that listens, ``pellucid.servers.http.serve.UvicornDoor``.
        beside: Further doors that open with it.
        host, port: Instead of the configuration's; port 0 takes any free one.
        ready: Called once, when the door is open.
        report: Gets lines for operators.
        tell: Listens where the configuration wants metrics, ``pellucid.servers.metrics.serve``.

    Raises:
        ConfigError: An address beyond loopback, and doors that do not say so.
        NotFoundError: The configuration names no package.
        UnavailableError: The address is taken.
        PellucidError: No package was admitted; the last reason.
    """
    from pellucid.app.doors import verify_open
    from pellucid.app.metrics_door import telling_metrics
    from pellucid.app.repository import wanted_packages

    settings = site.config.serving
    wanted_packages(site)  # before an epoch of nothing stands in the ledger
    verify_open(site.config.doors, host or settings.host)
    if tell is not None and settings.metrics_port is not None:
        verify_open(site.config.doors, settings.metrics_host, "serving.metrics_host")
    listener = door.bind(host or settings.host, settings.port if port is None else port)
    try:
        with _sequencing(site, report) as supervisor, contextlib.ExitStack() as held:
            watch = Watch(site)
            metrics = (
                held.enter_context(telling_metrics(site, watch.text, tell, report))
                if tell is not None
                else None
            )
            house = _House(site, beside, listener, supervisor, watch, metrics, ready, report)
            if settings.workers == 1 and not settings.recycles:
                _alone(house, door)
            else:
                _crew(house)
    finally:
        listener.close()


@dataclass(frozen=True, slots=True)
class _House:
    """What stands around the serving processes."""

    site: Site
    beside: Sequence[SideDoor]
    listener: socket.socket
    supervisor: Supervisor
    watch: Watch
    metrics: int | None
    ready: Callable[[Ready], None]
    report: Callable[[str], None]

    def say(self, source: str, models: list[str], refused: list[str], workers: list[int]) -> None:
        """The door is open."""
        host, port = self.listener.getsockname()[:2]
        sequencer = self.supervisor.pid
        ports = _ports(self.beside)
        self.ready(
            Ready(
                host,
                port,
                os.getpid(),
                source,
                models,
                refused,
                sequencer,
                workers,
                ports,
                self.metrics,
                _scheme(self.site),
            )
        )


@contextlib.contextmanager
def _sequencing(site: Site, report: Callable[[str], None]) -> Iterator[Supervisor]:
    """The sequencer's process, kept running; it finishes what was recorded before this returns."""
    from pellucid.app.ledger import sequencer_command

    def told(what: str, number: int) -> None:
        if what == "ended":
            report(f"sequencer ended with {number}: starting it again")

    site.keep_texts()
    supervisor = Supervisor(sequencer_command(site), told)
    supervisor.start()
    try:
        yield supervisor
    finally:
        if not supervisor.stop(SEQUENCER_DRAIN_S):
            report(f"sequencer: expected to finish within {SEQUENCER_DRAIN_S:.0f} s, got stopped")


def _scheme(site: Site) -> str:
    return "https" if site.config.doors.certificate else "http"


def _ports(beside: Sequence[SideDoor]) -> dict[str, int]:
    return {side.name: side.port for side in beside}


def _alone(house: _House, door: Door) -> None:
    def started(plane: Dataplane, recorder: SiteRecorder) -> None:
        house.watch.starts = 1
        house.watch.ask(lambda: snapshot(plane, recorder))
        wishes = Wishes(house.site, plane, recorder, house.report)

        def look() -> list[dict[str, Any]]:
            wishes.look()
            return []

        Pulse(lambda _: None, look).beat()
        house.say(recorder.source, _names(plane.pool), list(plane.pool.missing), [os.getpid()])

    _serve(house.site, door, house.beside, house.listener, started, house.report)


def _crew(house: _House) -> None:
    from pellucid.app.crew import Crew, worker_command

    def started(workers: list[dict[str, Any]]) -> None:
        first = workers[0]
        house.say(first["source"], first["models"], first["refused"], [each["pid"] for each in workers])

    site = house.site
    with contextlib.ExitStack() as held:
        listeners = [house.listener, *(held.enter_context(side.hold()) for side in house.beside)]
        more = [word for side in house.beside for word in side.words]
        command, count = worker_command(str(site.root), more), site.config.serving.workers
        Crew(command, count, listeners, started, house.report, house.watch).run()


def serve_worker(
    site: Site,
    door: Door,
    descriptor: int,
    control: int,
    *,
    beside: Sequence[SideDoor] = (),
    report: Callable[[str], None],
) -> None:
    """One of several serving processes; connections come over its channel, which ends with the parent.

    Raises:
        PellucidError: No package was admitted; the last reason.
    """
    from pellucid.app.crew import open_channel
    from pellucid.app.team import Team

    with open_channel(descriptor) as channel, open_channel(control) as stream:
        team = Team(stream)

        def started(plane: Dataplane, recorder: SiteRecorder) -> None:
            told = {
                "pid": os.getpid(),
                "source": recorder.source,
                "models": _names(plane.pool),
                "refused": list(plane.pool.missing),
            }
            channel.send(json.dumps(told).encode())
            watchdog = make_watchdog(site, plane, recorder)
            wishes = Wishes(site, plane, recorder, report)

            def tell() -> Iterator[dict[str, Any]]:
                wishes.look()
                yield snapshot(plane, recorder)
                if reason := watchdog.look():
                    yield {"recycle": reason}

            Pulse(channel.send, tell).beat()

        _serve(site, door, beside, channel, started, report, team=team)


def _names(pool: Pool) -> list[str]:
    return [f"{b.model.name}:{b.model.version}" for b in pool.batchers()]


def _await_history(site: Site, key: str, report: Callable[[str], None]) -> None:
    """Wait until the ledger holds our epoch, and so everything before it: the guardian judges by it.

    Raises:
        UnavailableError: The sequencer does not work.
    """
    from pellucid.app.ledger import open_ledger

    clock = SystemClock()
    began = told = clock.monotonic_ns()
    while clock.monotonic_ns() - began < HISTORY_S * 1e9:
        with contextlib.closing(open_ledger(site)) as ledger, contextlib.suppress(NotFoundError):
            ledger.reader.locate(key)
            return
        if clock.monotonic_ns() - told > TELL_S * 1e9:
            told = clock.monotonic_ns()
            report("waiting for the ledger to take in what was recorded before")
        clock.wait(0.02)
    raise UnavailableError(
        f"ledger: expected entry {key} within {HISTORY_S:.0f} s, got none: the sequencer does not run",
        hint="see the messages above; try: pellucid ledger sequence",
    )


def _serve(
    site: Site,
    door: Door,
    beside: Sequence[SideDoor],
    incoming: socket.socket,
    started: Callable[[Dataplane, SiteRecorder], None],
    report: Callable[[str], None],
    *,
    team: Team | None = None,
) -> None:
    """One serving process from its epoch's begin to its end."""
    from pellucid.app.ledger import start_recorder

    recorder = start_recorder(site)
    try:
        _await_history(site, f"{recorder.source}/e1", report)
        traces = open_traces(recorder.source)
        plane = make_plane(site, recorder, report, team, tracer=traces)

        def attach(loop: asyncio.AbstractEventLoop) -> None:
            plane.attach(loop)
            if team is not None:
                team.attach(loop)

        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked at again
        gc.set_threshold(50_000, 20, 50)  # calls leave no cycles: look rarely
        try:
            door.run(
                plane, incoming, attach=attach, drain=lambda: plane.drain(DRAIN_S), handed=team is not None,
                started=lambda: started(plane, recorder), beside=beside,
            )  # fmt: skip
        finally:
            plane.pool.close()
            if traces is not None:
                traces.close()
    finally:
        recorder.close()


def make_plane(
    site: Site,
    recorder: SiteRecorder,
    report: Callable[[str], None],
    team: Team | None = None,
    *,
    tracer: CallTracer | None = None,
) -> Dataplane:
    """Data plane over every package that the guardian admits.

    Raises:
        NotFoundError: The configuration names no package.
        PellucidError: Every package was refused; the last reason.
    """
    from pellucid.app.doors import make_doors
    from pellucid.app.probe import LoadProbe
    from pellucid.app.repository import SiteRepository
    from pellucid.app.whoami import about
    from pellucid.serving.dataplane import Dataplane
    from pellucid.serving.pool import Pool
    from pellucid.serving.shared_memory import Regions

    limits, clock, settings = _limits(site), SystemClock(), site.config.serving
    pool = Pool(recorder, clock=clock, limits=limits, probe=LoadProbe())
    pool.tracer = tracer
    repository = SiteRepository(site, recorder, pool, report)
    repository.admit_configured()
    if team is not None:
        team.furnish(repository, pool)
        repository.follow(team.changes)
    plane = Dataplane(
        pool,
        recorder,
        clock=clock,
        limits=limits,
        repository=(team or repository) if settings.model_control == "explicit" else None,
        peers=team,
        regions=Regions(inputs_max_bytes=limits.body_max_bytes) if settings.shared_memory else None,
        doors=make_doors(site, clock, report),
    )
    plane.manage.about = partial(about, site)
    if team is not None:
        team.share(plane.manage)
    if site.config.doors.unsafe_open:
        recorder.event("config", {"change": "unsafe_open"})
        report("doors.unsafe_open: whoever reaches this address is served as it is configured")
    return plane


def _limits(site: Site) -> Limits:
    from pellucid.serving.limits import BaselineLimits, Limits

    serving, ledger = site.config.serving, site.config.ledger
    return Limits(
        body_max_bytes=serving.body_max_bytes,
        queue_max=serving.queue_max,
        batch_delay_us=serving.batch_delay_us,
        keep_outputs_max_bytes=ledger.keep_outputs_max_bytes,
        slow_bodies_max=max(1, ledger.in_flight_max // 2),  # who sends whole requests has the other half
        refusals_per_s=float(ledger.refusals_per_s),
        refusals_burst=10 * ledger.refusals_per_s,
        baseline=BaselineLimits(serving.baseline_skip, serving.baseline_executions),
    )


def print_report(line: str) -> None:
    """Operators read stderr; stdout belongs to the structured log."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
