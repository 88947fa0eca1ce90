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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before anything can import onnxruntime

from pellucid.app.clock import SystemClock
from pellucid.app.supervisor import Supervisor
from pellucid.errors import NotFoundError, UnavailableError

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.app.team import Team
    from pellucid.ledger.recorder import JournalRecorder, NothingRecorder
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

    def record(self) -> dict[str, Any]:
        """As one line for machines."""
        return {"ready": True} | {name: getattr(self, name) for name in self.__slots__}


class Door(Protocol):
    """How requests come in: a server above this layer, handed down by whoever starts it."""

    def bind(self, host: str, port: int) -> socket.socket:
        """Bound socket, not yet listening."""
        ...

    def run(
        self,
        plane: Dataplane,
        listener: socket.socket,
        *,
        attach: Callable[[asyncio.AbstractEventLoop], None],
        started: Callable[[], None],
        drain: Callable[[], Awaitable[object]],
        handed: bool = False,
        beside: Sequence[SideDoor] = (),
    ) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            handed: Connections come over ``listener``, a channel from the parent, which owns the port.
            beside: Open before ``started`` is called, and close with it.
        """
        ...


class SideDoor(Protocol):
    """A further way in, on the event loop of the door.

    Attributes:
        name: What it speaks.
        port: Where it listens, once open or held.
    """

    name: str
    port: int

    def hold(self) -> contextlib.AbstractContextManager[list[str]]:
        """Keep the port for workers that share it; gives what to add to their command lines.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        ...

    async def open(self, plane: Dataplane) -> None:
        """Listen and answer. Raises ``UnavailableError`` when the address is taken or not ours."""
        ...

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let what is in flight finish for a while, and be gone."""
        ...


def serve(
    site: Site,
    door: Door,
    *,
    beside: Sequence[SideDoor] = (),
    host: str | None = None,
    port: int | None = None,
    ready: Callable[[Ready], None],
    report: Callable[[str], None],
) -> None:
    """Serve the site's models until SIGTERM or SIGINT.

    Args:
        door: The server that listens, ``pellucid.servers.http.serve.UvicornDoor``.
        beside: Further doors that open with it.
        host, port: Instead of the configuration's; port 0 takes any free one.
        ready: Called once, when the door is open.
        report: Gets lines for operators.

    Raises:
        NotFoundError: The configuration names no package.
        UnavailableError: The address is taken.
        PellucidError: No package was admitted; the last reason.
    """
    from pellucid.app.repository import wanted_packages

    settings = site.config.serving
    wanted_packages(site)  # before an epoch of nothing stands in the ledger
    listener = door.bind(host or settings.host, settings.port if port is None else port)
    try:
        with _sequencing(site, report) as supervisor:
            if settings.workers == 1:
                _alone(site, door, beside, listener, supervisor, ready, report)
            else:
                _crew(site, beside, listener, supervisor, ready, report)
    finally:
        listener.close()


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


def _alone(
    site: Site,
    door: Door,
    beside: Sequence[SideDoor],
    listener: socket.socket,
    supervisor: Supervisor,
    ready: Callable[[Ready], None],
    report: Callable[[str], None],
) -> None:
    def started(pool: Pool, source: str) -> None:
        host, port = listener.getsockname()[:2]
        pid = os.getpid()
        models, refused = _names(pool), list(pool.missing)
        ready(Ready(host, port, pid, source, models, refused, supervisor.pid, [pid], _ports(beside)))

    _serve(site, door, beside, listener, started, report)


def _ports(beside: Sequence[SideDoor]) -> dict[str, int]:
    return {side.name: side.port for side in beside}


def _crew(
    site: Site,
    beside: Sequence[SideDoor],
    listener: socket.socket,
    supervisor: Supervisor,
    ready: Callable[[Ready], None],
    report: Callable[[str], None],
) -> None:
    from pellucid.app.crew import Crew, worker_command

    host, port = listener.getsockname()[:2]

    def started(workers: list[dict[str, Any]]) -> None:
        first, pids = workers[0], [worker["pid"] for worker in workers]
        models, refused = first["models"], first["refused"]
        source, ports = first["source"], _ports(beside)
        ready(Ready(host, port, os.getpid(), source, models, refused, supervisor.pid, pids, ports))

    with contextlib.ExitStack() as held:
        more = [word for side in beside for word in held.enter_context(side.hold())]
        command = worker_command(str(site.root), more)
        Crew(command, site.config.serving.workers, listener, started, report).run()


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

        def started(pool: Pool, source: str) -> None:
            told = {
                "pid": os.getpid(),
                "source": source,
                "models": _names(pool),
                "refused": list(pool.missing),
            }
            channel.send(json.dumps(told).encode())

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
    started: Callable[[Pool, str], None],
    report: Callable[[str], None],
    *,
    team: Team | None = None,
) -> None:
    """One serving process from its epoch's begin to its end."""
    from pellucid.app.ledger import start_recorder

    recorder = start_recorder(site)
    try:
        _await_history(site, f"{recorder.source}/e1", report)
        plane = make_plane(site, recorder, report, team)

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
                started=lambda: started(plane.pool, recorder.source), beside=beside,
            )  # fmt: skip
        finally:
            plane.pool.close()
    finally:
        recorder.close()


def make_plane(
    site: Site, recorder: SiteRecorder, report: Callable[[str], None], team: Team | None = None
) -> Dataplane:
    """Data plane over every package that the guardian admits.

    Raises:
        NotFoundError: The configuration names no package.
        PellucidError: Every package was refused; the last reason.
    """
    from pellucid.app.repository import SiteRepository
    from pellucid.serving.dataplane import Dataplane
    from pellucid.serving.pool import Pool
    from pellucid.serving.shared_memory import Regions

    limits, clock, settings = _limits(site), SystemClock(), site.config.serving
    pool = Pool(recorder, clock=clock, limits=limits)
    repository = SiteRepository(site, recorder, pool, report)
    repository.admit_configured()
    if team is not None:
        team.furnish(repository, pool)
        repository.follow(team.changes)
    return Dataplane(
        pool,
        recorder,
        clock=clock,
        limits=limits,
        repository=(team or repository) if settings.model_control == "explicit" else None,
        peers=team,
        regions=Regions(inputs_max_bytes=limits.body_max_bytes) if settings.shared_memory else None,
    )


def _limits(site: Site) -> Limits:
    from pellucid.serving.limits import Limits

    serving, ledger = site.config.serving, site.config.ledger
    return Limits(
        body_max_bytes=serving.body_max_bytes,
        queue_max=serving.queue_max,
        batch_delay_us=serving.batch_delay_us,
        keep_outputs_max_bytes=ledger.keep_outputs_max_bytes,
        slow_bodies_max=max(1, ledger.in_flight_max // 2),  # who sends whole requests has the other half
        refusals_per_s=float(ledger.refusals_per_s),
        refusals_burst=10 * ledger.refusals_per_s,
    )


def print_report(line: str) -> None:
    """Operators read stderr; stdout belongs to the structured log."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
