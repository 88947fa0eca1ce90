"""How much each caller may ask: two buckets each, requests and bytes, that fill again with time.

Bytes may be owed: a request is let in while its caller owes nothing, whatever its size (bodies have a
limit of their own), and the next one waits until the debt is paid.
"""

from __future__ import annotations

import math
from typing import Final

from pellucid.errors import RateError

CALLERS_MAX: Final = 65_536  # limit: callers remembered; beyond, who was longest away is forgotten
BURST_S: Final = 2.0  # what a caller who was away may ask at once, in seconds of their rate
RETRY_MAX_S: Final = 3_600


class _Account:
    """What one caller has left."""

    __slots__ = ("nbytes", "ns", "requests")

    def __init__(self, requests: float, nbytes: float, ns: int) -> None:
        self.requests, self.nbytes, self.ns = requests, nbytes, ns


class Rates:
    """Accounts of callers; on one thread.

    Args:
        requests_per_s, bytes_per_s: Of each caller; 0 is no limit.
    """

    def __init__(self, requests_per_s: float, bytes_per_s: float) -> None:
        self._requests, self._bytes = requests_per_s, bytes_per_s
        self._burst = (max(1.0, requests_per_s * BURST_S), max(1.0, bytes_per_s * BURST_S))
        self._accounts: dict[str, _Account] = {}

    def take(self, caller: str, size: int, now_ns: int) -> None:
        """Let one request in and write it down.

        Raises:
            RateError: Too fast; nothing is written down.
        """
        account = self._account(caller, now_ns)
        if self._requests and account.requests < 1:
            raise _too_fast("requests", self._requests, (1 - account.requests) / self._requests)
        if self._bytes and account.nbytes <= 0:
            raise _too_fast("bytes", self._bytes, (1 - account.nbytes) / self._bytes)
        account.requests -= 1
        account.nbytes -= size

    def charge(self, caller: str, size: int, now_ns: int) -> None:
        """Write down bytes that nobody announced."""
        self._account(caller, now_ns).nbytes -= size

    def _account(self, caller: str, now_ns: int) -> _Account:
        account = self._accounts.pop(caller, None)
        if account is None:
            account = _Account(*self._burst, now_ns)
            if len(self._accounts) >= CALLERS_MAX:
                del self._accounts[next(iter(self._accounts))]
        else:
            passed_s = max(0, now_ns - account.ns) / 1e9
            account.requests = min(account.requests + passed_s * self._requests, self._burst[0])
            account.nbytes = min(account.nbytes + passed_s * self._bytes, self._burst[1])
            account.ns = now_ns
        self._accounts[caller] = account  # the newest stands last
        return account


def _too_fast(what: str, rate: float, wait_s: float) -> RateError:
    retry_s = min(max(1, math.ceil(wait_s)), RETRY_MAX_S)
    return RateError(
        f"rate: expected at most {rate:,.10g} {what} a second, got more", retry_s=retry_s,
        hint=f"retry after {retry_s:,} s",
    )  # fmt: skip
