"""A clock that tests move: nothing sleeps, and time goes where it is told."""

from __future__ import annotations


class FakeClock:
    """``ports.Clock`` in the hand of a test. ``wait`` moves on at once.

    Attributes:
        time_ns: Wall clock; may be set back.
        waited_s: What was waited for, in order.
    """

    def __init__(self, now_ns: int = 1_800_000_000_000_000_000) -> None:
        self.time_ns, self._monotonic_ns = now_ns, 0
        self.waited_s: list[float] = []

    def now_ns(self) -> int:
        return self.time_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wait(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.move(seconds)

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.time_ns += int(seconds * 1e9)
        self._monotonic_ns += int(seconds * 1e9)
