"""A process forked from one that has loaded its libraries and done nothing yet, and asked later.

What it does happens beside whatever its parent does meanwhile, and as in a process that was just begun.
While it waits it brings in the memory that it will need, where its parent needs much.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pellucid.build.frame import read_frame, write_frame
from pellucid.build.room import keep_up
from pellucid.build.twice import fork


class Beside:
    """Waits for one request. ``ask`` it and take its ``answer``, or ``leave`` it.

    Args:
        work: What it does with the request.
    """

    def __init__(self, work: Callable[[Any], dict[str, Any]]) -> None:
        reading, writing = os.pipe()

        def run() -> dict[str, Any]:
            os.close(writing)
            keep_up(os.getppid(), _asked(reading))
            with os.fdopen(reading, "rb") as asked:
                request = read_frame(asked)
            return {} if request is None else work(request)

        self._forked = fork(run)
        os.close(reading)
        self._asked = os.fdopen(writing, "wb")

    def ask(self, request: Any) -> None:
        """Let it begin."""
        with suppress(BrokenPipeError), self._asked:  # it has died: ``answer`` says how
            write_frame(self._asked, request)

    def answer(self) -> dict[str, Any]:
        """What it gives; raises as ``build.twice``."""
        return self._forked.end()

    def leave(self) -> None:
        """End it: nobody will ask it anything."""
        self._asked.close()
        self._forked.end()


def _asked(descriptor: int) -> Callable[[int], bool]:
    """Whether, within so many milliseconds, there is something to read or nobody left to write it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return lambda wait_ms: bool(poll.poll(wait_ms))
