"""A request to end a build: by Ctrl-C or SIGTERM, passed on to the child that works on it.

The child is asked first, so that its log ends in words; what does not listen within the grace is
killed, and so is everything at the second request. No child outlives a request.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any, Final

from pellucid.errors import BuildCancelledError

GRACE_S: Final = 10.0  # limit: a builder hears the request at its next step only
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """One build's request to end; as a context it hears the signals, in the main thread only.

    Attributes:
        requested: True from the first request on.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.requested = False
        self._grace_s = grace_s
        self._told: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._timer: threading.Timer | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._token: Token[Stop | None] | None = None

    def __enter__(self) -> Stop:
        self._token = _current.set(self)
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._token is not None:
            _current.reset(self._token)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.request()

    def request(self) -> None:
        """Ask for the end; the second time, do not wait for it."""
        is_first, self.requested = not self.requested, True
        if not self._told:
            return
        if is_first:
            self._tell()
        else:
            self._kill()

    def _tell(self) -> None:
        for ask, _ in list(self._told):
            ask()
        self._timer = threading.Timer(self._grace_s, self._kill)
        self._timer.daemon = True
        self._timer.start()

    def _kill(self) -> None:
        for _, kill in list(self._told):
            kill()

    @contextmanager
    def told(self, ask: Callable[[], None], kill: Callable[[], None]) -> Iterator[None]:
        """While inside, a request calls ``ask`` and after the grace ``kill``; one made before, at once.

        Several may be inside at a time, each from a thread of its own.
        """
        mine = (ask, kill)
        self._told.append(mine)
        try:
            if self.requested:
                kill()
            yield
        finally:
            self._told.remove(mine)
            if self._timer is not None and not self._told:
                self._timer.cancel()
                self._timer = None

    def verify(self) -> None:
        """Go on only if nobody asked for the end.

        Raises:
            BuildCancelledError: Somebody did.
        """
        if self.requested:
            raise BuildCancelledError("build: expected to go on to its end, got a request to stop")


class Heard:
    """The child's side: SIGTERM is a request that the builder hears at its next step.

    Attributes:
        to_stop: True from the request on.
    """

    def __init__(self) -> None:
        self.to_stop = False
        signal.signal(signal.SIGTERM, self._heard)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.to_stop = True

    def verify(self) -> None:
        """Go on only if nobody asked for the end; raises as ``Stop.verify``."""
        if self.to_stop:
            raise BuildCancelledError("build: expected to go on to its end, got a request to stop")


_current: ContextVar[Stop | None] = ContextVar("stop", default=None)


def current() -> Stop:
    """The request that the caller's build listens to, or one that nobody makes."""
    return _current.get() or Stop()
