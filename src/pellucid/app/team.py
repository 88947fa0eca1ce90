"""A worker's side of control: it asks the parent for what all workers have to do, and does what it is told.

What the repository of one process does stays in ``app.repository``; this one only sees to it that the
others hear of it, and gathers what each has counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pellucid.app.frames import HEAD, Message, decode, encode, error_of, error_record, length_of, receive
from pellucid.errors import NotFoundError, PellucidError, UnavailableError
from pellucid.serving.shared_memory import MEMBERS

if TYPE_CHECKING:
    from pellucid.app.repository import SiteRepository
    from pellucid.serving.management import Management
    from pellucid.serving.pool import Pool


class Team:
    """One worker among others (``serving.repository.Repository``, ``serving.statistics.Peers`` and
    ``serving.shared_memory.Sharing``).

    Args:
        control: The worker's end of its control stream; the first message on it is read at once.

    Attributes:
        changes: What clients changed before this worker began: model to ``load`` or ``unload``.
        regions: Shared memory that they had registered then: name to members.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        told = receive(control)
        self.changes: dict[str, str] = told["changes"]
        self.regions: dict[str, Message] = told["regions"]
        self._manage: Management | None = None
        self._repository: SiteRepository | None = None
        self._pool: Pool | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[list[Any]]] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def furnish(self, repository: SiteRepository, pool: Pool) -> None:
        """Who does what the parent tells this worker to do."""
        self._repository, self._pool = repository, pool

    def share(self, manage: Management) -> None:
        """Whose shared memory all workers share; before the loop runs.

        What cannot be registered again, because its client took the object away, is left out.
        """
        self._manage = manage
        for name, members in self.regions.items():
            with contextlib.suppress(PellucidError):
                manage.register_region(name, members, is_first=False)
        manage.sharing = self

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the parent; on the loop's thread."""
        self._keep(loop.create_task(self._listen()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- asking -----------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Have every worker load; raises as ``Repository.load``."""
        await self._ask("load", name, {"asked_ns": time.monotonic_ns()})

    async def unload(self, name: str) -> None:
        """Have every worker unload; raises as ``Repository.unload``."""
        await self._ask("unload", name, {})

    async def register_region(self, name: str, members: Mapping[str, Any]) -> None:
        """Have every worker register; raises as ``Sharing.register_region``."""
        told = {"members": {key: members[key] for key in MEMBERS if key in members}}
        try:
            await self._ask("register", name, told)
        except UnavailableError:  # some may have it
            with contextlib.suppress(PellucidError):
                await self.unregister_region(name)
            raise

    async def unregister_region(self, name: str) -> None:
        """Have every worker unregister."""
        await self._ask("unregister", name, {})

    async def statistics(self, name: str | None, version: str | None) -> list[list[dict[str, Any]]]:
        """What each of the other workers has counted.

        Raises:
            UnavailableError: One of them did not answer.
        """
        return await self._ask("statistics", name, {"version": version})

    async def _ask(self, verb: str, name: str | None, more: Message) -> list[Any]:
        if self._writer is None:
            raise _alone()
        number = next(self._numbers)
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._writer.write(encode({"ask": number, "verb": verb, "name": name, "more": more}))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    # -- being told -------------------------------------------------------------------------------

    async def _listen(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._control)
        try:
            while True:
                length = length_of(await reader.readexactly(HEAD))
                self._hear(decode(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(_alone())

    def _hear(self, message: Message) -> None:
        if "do" in message:
            self._keep(asyncio.get_running_loop().create_task(self._do(message)))
            return
        answer = self._asked.get(message["told"])
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(error_of(message["error"]))
        else:
            answer.set_result(message["values"])

    async def _do(self, message: Message) -> None:
        told: Message
        try:
            more = message["more"] | {"is_first": message["is_first"]}
            told = {"value": await self._done(message["verb"], message["name"], more)}
        except PellucidError as error:
            told = {"error": error_record(error)}
        if self._writer is not None:
            self._writer.write(encode({"did": message["do"]} | told))

    async def _done(self, verb: str, name: str, more: Message) -> Any:
        assert self._repository is not None, "furnish comes first"
        assert self._pool is not None, "furnish comes first"
        if verb == "load":
            await self._repository.load(name, more["asked_ns"])
        elif verb == "unload":
            await self._repository.unload(name)
        elif verb in ("register", "unregister"):
            self._change_region(verb, name, more)
        else:
            try:
                return self._pool.statistics(name, more["version"])
            except NotFoundError:
                return []  # between two changes
        return True

    def _change_region(self, verb: str, name: str, more: Message) -> None:
        assert self._manage is not None, "share comes first"
        if verb == "register":
            self._manage.register_region(name, more["members"], is_first=more["is_first"])
        else:
            self._manage.unregister_region(name, is_first=more["is_first"])


def _alone() -> UnavailableError:
    return UnavailableError(
        "server: expected to hear of the other workers, got a shutdown", hint="retry after 1 s"
    )
