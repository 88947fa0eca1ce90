"""The system's clock, as the port wants it; tests bring their own."""

from __future__ import annotations

import time


class SystemClock:
    """``ports.Clock`` of this machine."""

    now_ns = staticmethod(time.time_ns)  # asked several times a call
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
