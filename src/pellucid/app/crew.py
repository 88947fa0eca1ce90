"""Several serving processes behind one port a door and one ledger.

The parent owns the ports, the sequencer and nothing else: it takes each connection and hands it to the
next worker in turn. A worker is a serving process like a lone one, with an epoch, a board and a
journal of its own, so that nothing in the ledger depends on how many there are or on one of them
being started again. When a worker dies, its connections end with it and the sequencer closes its
open calls; the others go on, and another begins.

A worker that asks to be replaced (its memory grows) goes on until another is ready in its place;
then it gets no new connections, tells each client with its next answer to come back on another, and
ends when the last has gone. No call is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pellucid.app.control import Control, Link
from pellucid.errors import UnavailableError

WORKERS_MAX: Final = 64
RETIRE: Final = b"r"  # to a worker: no more connections come, end when the last has gone
MESSAGE_MAX: Final = 196_608  # limit: below what the kernel lets one message be
READY_S: Final = 900.0  # limit: a worker waits for the ledger to take in what was recorded before
STOP_S: Final = 90.0
_PAUSE_S: Final = (0.1, 5.0)  # first and longest pause before a worker is started again
_ACCEPTS: Final = 64  # limit: connections taken at once before anything else is looked at
_HEALTHY_S: Final = 10.0


@dataclass(slots=True)
class _Worker:
    """One serving process as the parent sees it."""

    number: int  # its place in the crew
    process: subprocess.Popen[bytes]
    channel: socket.socket
    control: Link
    started: float
    ready: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid


class Gathers(Protocol):
    """Who hears of the workers: what each counted, and when one begins or ends. Keys are process ids."""

    starts: int
    recycles: int

    def take(self, worker: int, told: dict[str, Any], *, label: str) -> None: ...
    def retire(self, worker: int) -> None: ...
    def lose(self, worker: int) -> None: ...


@dataclass(slots=True)
class Crew:
    """Keeps ``count`` workers running behind listening sockets until SIGTERM or SIGINT.

    Attributes:
        command: Command line of a worker; the numbers of its channel's and its control stream's
            descriptors are appended.
        listeners: One a door, bound; a connection goes to a worker with its door's number.
        started: Called once, with what each worker said when all were ready.
        report: Gets lines for operators.
        watch: Hears what workers counted.
    """

    command: list[str]
    count: int
    listeners: Sequence[socket.socket]
    started: Callable[[list[dict[str, Any]]], None]
    report: Callable[[str], None]
    watch: Gathers
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _coming: dict[int, _Worker] = field(default_factory=dict)  # to take a place when they are ready
    _retiring: dict[int, _Worker] = field(default_factory=dict)  # by process id
    _due: dict[int, float] = field(default_factory=dict)
    _pause: dict[int, float] = field(default_factory=dict)
    _asked: list[tuple[_Worker, str]] = field(default_factory=list)  # to be replaced, and why
    _control: Control = field(default_factory=Control)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _open: bool = False
    _turn: int = 0

    def run(self) -> None:
        """Serve until told to stop.

        Raises:
            UnavailableError: A worker ended before all were ready the first time.
        """
        with _signals() as wakes:
            self._selector.register(wakes, selectors.EVENT_READ, "stop")
            try:
                for number in range(self.count):
                    self._workers[number] = self._spawn(number)
                self._loop()
            finally:
                self._stop()

    # -- workers ----------------------------------------------------------------------------------

    def _spawn(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        heard, said = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, said:
            ends = theirs.fileno(), said.fileno()
            process = subprocess.Popen(
                [*self.command, str(ends[0]), "--worker-control", str(ends[1])],
                stdin=subprocess.DEVNULL,
                pass_fds=ends,
            )
        link = Link(number, heard, self._selector, self._control.hear)
        worker = _Worker(number, process, ours, link, time.monotonic())
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self._control.join(link)
        self.watch.starts += 1
        return worker

    def _loop(self) -> None:
        until = time.monotonic() + READY_S
        while True:
            wait = min([max(0.0, due - time.monotonic()) for due in self._due.values()], default=1.0)
            is_starting = any(worker.ready is None for worker in self._workers.values())
            wait = min(wait, self._control.proceed(is_starting=is_starting))
            for key, mask in self._selector.select(wait):
                if key.data == "stop":
                    return
                if isinstance(key.data, int):
                    self._take(key.data)
                elif isinstance(key.data, Link):
                    key.data.wake(mask)
                else:
                    self._hear(key.data)
            self._spawn_due()
            if not self._open and time.monotonic() > until:
                raise UnavailableError(f"serving.workers: expected all {self.count} ready, got fewer")

    def _spawn_due(self) -> None:
        """Start who is to be started again; during a change nobody would know of it."""
        if self._control.is_changing:
            return
        for number in [n for n, due in self._due.items() if due <= time.monotonic()]:
            del self._due[number]
            if number not in self._coming:
                self._workers[number] = self._spawn(number)
        for worker, reason in self._asked:
            self._replace(worker, reason)
        self._asked.clear()

    def _hear(self, worker: _Worker) -> None:
        try:
            message = worker.channel.recv(MESSAGE_MAX)
        except OSError:
            message = b""
        if not message:
            self._lost(worker)
            return
        told = json.loads(message)
        if "totals" in told:
            self.watch.take(worker.pid, told, label=str(worker.number))
        elif "recycle" in told:
            self._asked.append((worker, told["recycle"]))
        else:
            self._begin(worker, told)

    def _begin(self, worker: _Worker, told: dict[str, Any]) -> None:
        worker.ready, self._pause[worker.number] = told, _PAUSE_S[0]
        if self._coming.get(worker.number) is worker:
            self._swap(worker)
        ready = [w.ready for w in self._workers.values() if w.ready is not None]
        if not self._open and len(ready) == self.count:
            self._open = True
            for door, listener in enumerate(self.listeners):
                listener.setblocking(False)
                _listen(listener)
                self._selector.register(listener, selectors.EVENT_READ, door)
            self.started(ready)

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Start another in the place of a worker that goes on until that one is ready."""
        if self._workers.get(worker.number) is worker and worker.number not in self._coming:
            self.report(f"worker {worker.number}: {reason}: starting another in its place")
            self._coming[worker.number] = self._spawn(worker.number)

    def _swap(self, worker: _Worker) -> None:
        del self._coming[worker.number]
        old = self._workers.get(worker.number)
        self._workers[worker.number] = worker
        if old is not None:  # it may have died meanwhile
            self._retiring[old.pid] = old
            self.watch.recycles += 1
            self.watch.retire(old.pid)
            with contextlib.suppress(OSError):
                old.channel.send(RETIRE)

    def _lost(self, worker: _Worker) -> None:
        self._selector.unregister(worker.channel)
        worker.channel.close()
        self._control.leave(worker.control)
        code = worker.process.wait()
        self.watch.lose(worker.pid)
        if self._retiring.pop(worker.pid, None) is not None:
            return
        if self._coming.get(worker.number) is worker:
            del self._coming[worker.number]
            self.report(f"worker {worker.number}: the one to replace it ended with {code}")
            if worker.number in self._workers:
                return  # the old one goes on, and asks again
        else:
            del self._workers[worker.number]
        if not self._open:
            raise UnavailableError(
                f"worker {worker.number}: expected to serve, got an end with {code}", hint="see above"
            )
        lived = time.monotonic() - worker.started
        pause = _PAUSE_S[0] if lived > _HEALTHY_S else self._pause.get(worker.number, _PAUSE_S[0])
        self._pause[worker.number] = min(pause * 2, _PAUSE_S[1])
        if worker.number not in self._coming:
            self._due[worker.number] = time.monotonic() + pause
        self.report(f"worker {worker.number} ended with {code}: starting another")

    # -- connections ------------------------------------------------------------------------------

    def _take(self, door: int) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, _ = self.listeners[door].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the others wait in the backlog
                self.report(f"door: expected to take a connection, got {error.strerror}")
                return
            with connection:
                self._give(connection, b"%d" % door)

    def _give(self, connection: socket.socket, door: bytes) -> None:
        self._turn += 1
        ready = [worker for worker in self._workers.values() if worker.ready is not None]
        for offset in range(len(ready)):
            worker = ready[(self._turn + offset) % len(ready)]
            try:
                socket.send_fds(worker.channel, [door], [connection.fileno()], socket.MSG_DONTWAIT)
            except OSError:
                continue  # full or gone: the next one takes it
            return

    # -- the end ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        for listener in self.listeners:
            listener.close()  # nobody new; who is in is answered
        self._control.close()  # who waits for a change is told
        workers = [*self._workers.values(), *self._coming.values(), *self._retiring.values()]
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_S
        for worker in workers:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.report(f"worker {worker.number}: expected to end within {STOP_S:.0f} s, got stopped")
                worker.process.kill()
                worker.process.wait()
            worker.channel.close()
        self._selector.close()


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that becomes readable on SIGTERM or SIGINT."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    previous = {}
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(writing.fileno())
        previous = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reading
    finally:
        if previous:
            signal.set_wakeup_fd(-1)
            for number, handler in previous.items():
                signal.signal(number, handler)
        reading.close()
        writing.close()


def _listen(listener: socket.socket) -> None:
    try:
        listener.listen(2_048)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise UnavailableError(
            f"server: expected to listen on {host}:{port}, got {error.strerror or error}",
            hint="another server began at the same time: choose another port",
        ) from error


def worker_command(root: str, more: list[str]) -> list[str]:
    """Command line of a worker, without its channel; ``more``: for doors beside the one of the port."""
    return [sys.executable, "-m", "pellucid", "serve", "--site", root, *more, "--worker-channel"]


def open_channel(descriptor: int) -> socket.socket:
    """A worker's end of its channel; no child of it inherits it."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)
