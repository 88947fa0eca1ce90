"""Call numbers: each reserved before anything can fail, each closed exactly once.

Refusals get an entry each up to a rate. Beyond it they are counted, and the count becomes one
signed entry an interval, so that a flood cannot fill the ledger. A counted refusal gives its
number back to the next call: the number stays open on the board, and no number is ever without
its entry. Numbers parked like that are closed with the count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pellucid.core.record import Call
from pellucid.core.times import format_time
from pellucid.errors import PellucidError, TooManyError, UnavailableError
from pellucid.ports import Recorder
from pellucid.serving.limits import Limits

Later = Callable[[float, Callable[[], None]], object]
_NONE: Final = (0, 0, 0, 0)


class Numbers:
    """Hands out and takes back the numbers of one recorder."""

    def __init__(self, recorder: Recorder, limits: Limits, now_ns: Callable[[], int], later: Later) -> None:
        self._recorder, self._limits, self._now, self._later = recorder, limits, now_ns, later
        self._parked: list[int] = []
        self._tokens, self._filled_ns = float(limits.refusals_burst), now_ns()
        self._counted, self._unnumbered, self._since_ns = 0, 0, 0
        self._waiting = False

    def take(self, accepted_ns: int) -> int:
        """Reserve a number.

        Raises:
            LedgerFullError, TooManyError: Journal or board are at their limit; the call is counted.
        """
        if self._parked:
            return self._parked.pop()
        try:
            return self._recorder.reserve(accepted_ns)
        except (UnavailableError, TooManyError):
            self._count(numbered=False)
            raise

    def close_refused(self, call: Call) -> bool:
        """Close a refused call, or count it; True if it got its own entry.

        A disk that cannot take the entry now is like a rate that is exceeded: the number goes to the
        next call, so that a full disk uses up no numbers.
        """
        self._fill()
        if self._tokens >= 1 and self._is_closed(call):
            self._tokens -= 1
            return True
        self._parked.append(call.n)
        self._count(numbered=True)
        return False

    def _fill(self) -> None:
        now = self._now()
        passed = max(0, now - self._filled_ns)  # the clock may have been set back
        filled = self._tokens + passed * self._limits.refusals_per_s / 1e9
        self._tokens, self._filled_ns = min(filled, float(self._limits.refusals_burst)), now

    def tell_refused(self, action: str, error: PellucidError, personal: Mapping[str, str]) -> None:
        """An entry for a refused request that is no call, or a count of it."""
        data = {"kind": "refused_at_door", "action": action, "error": error.code}
        self._fill()
        if self._tokens >= 1:
            try:
                self._recorder.event("alert", data, personal)
            except UnavailableError:
                pass
            else:
                self._tokens -= 1
                return
        self._count(numbered=False)

    def _is_closed(self, call: Call) -> bool:
        try:
            self._recorder.close_call(call)
        except UnavailableError:
            return False
        return True

    def _count(self, *, numbered: bool) -> None:
        if not self._counted and not self._unnumbered:
            self._since_ns = self._now()
        self._counted += numbered
        self._unnumbered += not numbered
        if not self._waiting:
            self._waiting = True
            self._later(self._limits.count_interval_s, self.settle)

    def settle(self) -> None:
        """Write the count and close parked numbers; also at shutdown."""
        self._waiting = False
        try:
            self._settle(self._now())
        except PellucidError:
            self._waiting = True  # the ledger cannot take it now: the count stays and is written later
            self._later(self._limits.count_interval_s, self.settle)

    def _settle(self, now: int) -> None:
        while self._parked:
            self._recorder.close_call(_parked_call(self._parked[-1], now))
            self._parked.pop()
        if not self._counted and not self._unnumbered:
            return
        data = {
            "reason": "refused_over_rate",
            "refused": self._counted,
            "not_numbered": self._unnumbered,
            "since": format_time(self._since_ns),
            "until": format_time(now),
        }
        self._recorder.event("alert", data)
        self._counted = self._unnumbered = 0


def _parked_call(n: int, now: int) -> Call:
    return Call(n, 0, "refused", "too_many", now, now, _NONE, -1, 0, (), (), (0, 0), b"", {}, None)
