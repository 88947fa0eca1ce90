"""The system's clock, as the port wants it; tests bring their own."""

from __future__ import annotations

import time


class SystemClock:
    """``ports.Clock`` of this machine."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
