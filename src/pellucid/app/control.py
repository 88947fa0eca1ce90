"""The parent's side of control: what one worker is asked to change, all workers do, one change of models
and one of shared memory at a time.

A client's request reaches one worker. That one asks the parent, who has it done there first: a package
that is refused is refused once, and nobody else has heard of it. Then the others follow, at once. A
worker that begins later is told what was changed since the start, and none begins during a change.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pellucid.app.frames import Message, encode, error_record, take
from pellucid.errors import FormatError, UnavailableError

CHANGE_S: Final = 600.0  # limit: admission and warm-up of a large engine
GATHER_S: Final = 5.0  # limit: counters of the other workers
_LOADS: Final = ("load", "unload")  # two who ask for the same at once get it once
_PIECE: Final = 65_536


@dataclass(slots=True, eq=False)
class Link:
    """The parent's end of one worker's control stream; never waits for the worker."""

    number: int
    channel: socket.socket
    selector: selectors.BaseSelector
    heard: Callable[[Link, Message], None]
    _in: bytearray = field(default_factory=bytearray)
    _out: bytearray = field(default_factory=bytearray)
    _gone: bool = False

    def open(self) -> None:
        self.channel.setblocking(False)
        self.selector.register(self.channel, selectors.EVENT_READ, self)

    def send(self, message: Message) -> None:
        self._out += encode(message)
        self._flush()

    def _flush(self) -> None:
        if self._gone:
            return
        with contextlib.suppress(BlockingIOError, InterruptedError, OSError):
            while self._out:
                del self._out[: self.channel.send(self._out[:_PIECE])]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self.selector.modify(self.channel, wanted, self)

    def wake(self, mask: int) -> None:
        """The stream can be read or written."""
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ:
            self._read()

    def _read(self) -> None:
        try:
            piece = self.channel.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop()  # its other channel says that the worker is gone
            return
        self._in += piece
        for message in take(self._in):
            self.heard(self, message)

    def _drop(self) -> None:
        if not self._gone:
            self._gone = True
            self.selector.unregister(self.channel)

    def close(self) -> None:
        self._drop()
        self.channel.close()


@dataclass(slots=True)
class _Gathering:
    """One request that several workers answer.

    Attributes:
        askers: Who waits for the outcome, with their own numbers for it.
        waiting: Who has not answered yet.
        first: True while only the worker that was asked first has been told.
    """

    verb: str
    name: str | None
    more: Message
    askers: list[tuple[Link, int]]
    until: float = 0.0
    first: bool = True
    waiting: set[Link] = field(default_factory=set)
    done: set[Link] = field(default_factory=set)
    values: list[Any] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)


class Control:
    """Hears what workers ask, and has it done.

    Attributes:
        changes: What was changed since the start: model to ``load`` or ``unload``, in order.
        regions: Shared memory that is registered: name to members.
    """

    def __init__(self) -> None:
        self.changes: dict[str, str] = {}
        self.regions: dict[str, Message] = {}
        self._links: set[Link] = set()
        self._waiting: deque[_Gathering] = deque()
        self._running: dict[int, _Gathering] = {}
        self._changing: dict[
            bool, int
        ] = {}  # numbers of the changes that are carried out: of models, and not
        self._numbers = 0

    def join(self, link: Link) -> None:
        """Take a new worker in: it is told first what was changed."""
        link.open()
        link.send({"changes": self.changes, "regions": self.regions})
        self._links.add(link)

    def leave(self, link: Link) -> None:
        """A worker is gone: nobody waits for it any more."""
        self._links.discard(link)
        link.close()
        gone = error_record(UnavailableError("worker: expected an answer, got its end", hint="ask again"))
        for number, gathering in list(self._running.items()):
            gathering.askers = [asker for asker in gathering.askers if asker[0] is not link]
            if link in gathering.waiting:
                self._answered(number, link, {"error": gone} if gathering.first else {})
        for waiting in self._waiting:
            waiting.askers = [asker for asker in waiting.askers if asker[0] is not link]

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()

    @property
    def is_changing(self) -> bool:
        """True while a change is carried out: nobody begins meanwhile."""
        return bool(self._changing)

    def hear(self, link: Link, message: Message) -> None:
        """What a worker says: it asks for something, or tells how it went."""
        if "ask" in message:
            self._asked(link, message)
        elif "did" in message:
            self._answered(message["did"], link, message)
        else:
            raise FormatError(f"worker {link.number}: expected ask or did, got {sorted(message)}")

    def _asked(self, link: Link, message: Message) -> None:
        verb, name, asker = message["verb"], message["name"], (link, message["ask"])
        if verb == "statistics":
            gathering = _Gathering(verb, name, message["more"], [asker], first=False)
            self._tell(gathering, self._links - {link}, GATHER_S)
            return
        for waiting in self._waiting:
            if verb in _LOADS and (waiting.verb, waiting.name) == (verb, name):
                waiting.askers.append(asker)  # not begun: it will do for both
                waiting.more = message["more"]
                return
        self._waiting.append(_Gathering(verb, name, message["more"], [asker]))

    def _tell(self, gathering: _Gathering, links: Iterable[Link], limit_s: float) -> int:
        self._numbers += 1
        number = self._numbers
        gathering.waiting, gathering.until = set(links), time.monotonic() + limit_s
        self._running[number] = gathering
        told = {"do": number, "verb": gathering.verb, "name": gathering.name, "more": gathering.more}
        told["is_first"] = gathering.first
        for link in list(gathering.waiting):
            link.send(told)
        if not gathering.waiting:
            self._conclude(number, gathering)
        return number

    def proceed(self, *, is_starting: bool) -> float:
        """Begin the next change where nothing stands against it; seconds until somebody is too late."""
        now = time.monotonic()
        for number, gathering in list(self._running.items()):
            if gathering.until <= now:
                late = UnavailableError(
                    f"{gathering.verb}: expected every worker's answer, got none of {len(gathering.waiting)}"
                )
                gathering.failed.append(error_record(late))
                gathering.waiting.clear()
                gathering.first = False  # nobody else follows
                self._conclude(number, gathering)
        for following in [] if is_starting else list(self._waiting):
            of_models = following.verb in _LOADS
            if of_models in self._changing:
                continue  # a region need not wait for an engine
            self._waiting.remove(following)
            if following.askers:
                self._changing[of_models] = self._numbers + 1
                self._tell(following, [following.askers[0][0]], CHANGE_S)
        return min([max(0.0, g.until - now) for g in self._running.values()], default=1.0)

    def _answered(self, number: int, link: Link, message: Message) -> None:
        gathering = self._running.get(number)
        if gathering is None or link not in gathering.waiting:
            return  # too late
        gathering.waiting.discard(link)
        gathering.done.add(link)
        if "error" in message:
            gathering.failed.append(message["error"])
        elif "value" in message:
            gathering.values.append(message["value"])
        if not gathering.waiting:
            self._conclude(number, gathering)

    def _conclude(self, number: int, gathering: _Gathering) -> None:
        del self._running[number]
        if gathering.first and not gathering.failed:
            gathering.first = False
            self._remember(gathering.verb, gathering.name or "", gathering.more)
            self._changing[gathering.verb in _LOADS] = self._numbers + 1
            self._tell(gathering, self._links - gathering.done, CHANGE_S)
            return
        if self._changing.get(gathering.verb in _LOADS) == number:
            del self._changing[gathering.verb in _LOADS]
        told: Message = {"values": gathering.values}
        if gathering.failed:
            told = {"error": self._failure(gathering)}
        for link, asked_as in gathering.askers:
            link.send({"told": asked_as} | told)

    def _remember(self, verb: str, name: str, more: Message) -> None:
        """For who begins later."""
        if verb in _LOADS:
            self.changes.pop(name, None)  # the last change comes last
            self.changes[name] = verb
        elif verb == "register":
            self.regions[name] = more["members"]
        elif name:
            self.regions.pop(name, None)
        else:
            self.regions.clear()

    def _failure(self, gathering: _Gathering) -> Message:
        first = gathering.failed[0]
        done = len(gathering.values)
        if not done or gathering.verb == "statistics":
            return first
        every = done + len(gathering.failed)
        error = UnavailableError(
            f"{gathering.verb} of {gathering.name!r:.80}: expected all {every} workers to follow, "
            f"got {done}: {first['message']}",
            hint="ask again: those that have it do it once more",
        )
        return error_record(error)
