"""Bodies that come in pieces: how many, and how much of them, are held at once.

Each holds a call number and memory for as long as its client likes, up to its deadline. Beyond the
limits the one that has waited longest goes, with an answer that says so: a crowd of slow clients
pushes out each other, and nobody whose requests come whole.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_NOTHING: Final = (0, lambda: None)


class SlowBodies:
    """All bodies that are being read in pieces now. Lives on the event loop's thread.

    Args:
        count_max: Bodies at once.
        bytes_max: Bytes of all of them.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._held: OrderedDict[asyncio.Timeout, tuple[int, Callable[[], object]]] = OrderedDict()
        self.bytes = self.pushed_out = 0

    @contextmanager
    def hold(self, deadline: asyncio.Timeout, give_up: Callable[[], object]) -> Iterator[None]:
        """Count a body that is being read; when another needs the place, its deadline is now.

        Args:
            give_up: Called at once then: whoever reads it hears of its deadline only a turn later, and
                a burst of others may come before.
        """
        self._held[deadline] = 0, give_up
        if len(self._held) > self._count_max:
            self._push_out()
        try:
            yield
        finally:
            self.bytes -= self._held.pop(deadline, _NOTHING)[0]

    def grow(self, deadline: asyncio.Timeout, count: int) -> None:
        """That many bytes of it more are in memory."""
        if deadline in self._held:
            size, give_up = self._held[deadline]
            self._held[deadline] = size + count, give_up
            self.bytes += count
            while self.bytes > self._bytes_max and len(self._held) > 1:
                self._push_out()

    def _push_out(self) -> None:
        oldest, (size, give_up) = self._held.popitem(last=False)
        self.bytes -= size
        self.pushed_out += 1
        give_up()
        oldest.reschedule(asyncio.get_running_loop().time())
