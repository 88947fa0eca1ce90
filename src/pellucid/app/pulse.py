"""A worker's pulse: once a second it tells its parent what it counted, on the event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

INTERVAL_S: Final = 1.0


class Pulse:
    """Sends each message that ``read`` gives, every ``INTERVAL_S``; what the channel does not take is
    left out."""

    def __init__(self, send: Callable[[bytes], object], read: Callable[[], Iterable[dict[str, Any]]]) -> None:
        self._send, self._read = send, read

    def beat(self) -> None:
        """Tell once, on the running loop, and again after the interval."""
        asyncio.get_running_loop().call_later(INTERVAL_S, self.beat)
        for message in self._read():
            with contextlib.suppress(OSError):  # full, too large, or the parent has gone: another notices
                self._send(json.dumps(message).encode())
