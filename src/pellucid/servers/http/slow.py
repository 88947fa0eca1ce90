"""Bodies that come in pieces: how many, and how much of them, are held at once.

Each holds a call number and memory for as long as its client likes, up to its deadline. Beyond the
limits the one that has waited longest goes, with an answer that says so: a crowd of slow clients
pushes out each other, and nobody whose requests come whole.
"""

from __future__ import annotations

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
        self._held: OrderedDict[object, tuple[int, Callable[[], object]]] = OrderedDict()
        self.bytes = self.pushed_out = 0

    def enter(self, body: object, give_up: Callable[[], object]) -> None:
        """Count a body that is being read.

        Args:
            give_up: Called when another needs its place; it is not counted any more then.
        """
        self._held[body] = 0, give_up
        if len(self._held) > self._count_max:
            self._push_out()

    def leave(self, body: object) -> None:
        """It is whole, or nobody waits for it."""
        self.bytes -= self._held.pop(body, _NOTHING)[0]

    @contextmanager
    def hold(self, body: object, give_up: Callable[[], object]) -> Iterator[None]:
        """``enter``, and ``leave`` at the end."""
        self.enter(body, give_up)
        try:
            yield
        finally:
            self.leave(body)

    def grow(self, body: object, count: int) -> None:
        """That many bytes of it more are in memory."""
        if body in self._held:
            size, give_up = self._held[body]
            self._held[body] = size + count, give_up
            self.bytes += count
            while self.bytes > self._bytes_max and len(self._held) > 1:
                self._push_out()

    def end(self) -> None:
        """Wait for none of them any more."""
        while self._held:
            self._push_out()

    def _push_out(self) -> None:
        _, (size, give_up) = self._held.popitem(last=False)
        self.bytes -= size
        self.pushed_out += 1
        give_up()
