"""How many connections there are, in all and from each address; of one serving process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pellucid.core.access import Network, is_trusted

PACE_BYTES_PER_S: Final = 8_192  # limit: slower than this, a client holds an answer for nothing


@dataclass(slots=True)
class Crowd:
    """Counts connections.

    Attributes:
        total_max, address_max: 0 is no limit.
        write_timeout_s: How long a client may take its answer too slowly.
        proxies: Their addresses stand for many clients: they count in all only.
    """

    total_max: int = 0
    address_max: int = 0
    write_timeout_s: float = 30.0
    proxies: Sequence[Network] = ()
    _total: int = 0
    _of: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Connections that are counted now."""
        return self._total

    def enter(self, address: str) -> bool:
        """Count a connection; False, and it is not counted, where there are too many."""
        count = self._of.get(address, 0)
        if self.total_max and self._total >= self.total_max:
            return False
        if self.address_max and count >= self.address_max and not is_trusted(address, self.proxies):
            return False
        self._total += 1
        self._of[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Forget one that was counted."""
        self._total -= 1
        count = self._of[address] - 1
        if count:
            self._of[address] = count
        else:
            del self._of[address]
