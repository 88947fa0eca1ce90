"""The door before the metrics: the same rules, tokens and rates as before the calls.

It stands in the process that owns the ports, which has no journal of its own: a refusal is an entry
as a command's is, one a second at most; those in between are counted, and the count is an entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from pellucid.app.clock import SystemClock
from pellucid.app.doors import make_doors
from pellucid.core.times import format_time
from pellucid.errors import PellucidError, UnavailableError
from pellucid.ledger.recorder import DoorRecorder

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.app.watch import Tell
    from pellucid.serving.doors import Knock

ENTRIES_S: Final = 1.0  # least time between two entries of refusals


@contextmanager
def telling_metrics(
    site: Site, text: Callable[[], str], tell: Tell | None, report: Callable[[str], None]
) -> Iterator[int | None]:
    """Metrics for those who may read them; the port, or ``None`` where the configuration wants none."""
    from pellucid.app.tls import open_tls

    settings = site.config.serving
    if tell is None or settings.metrics_port is None:
        yield None
        return
    tls = open_tls(site, report)
    with closing(MetricsDoor(site, report)) as admits:
        context = tls.context() if tls else None
        with closing(tell(settings.metrics_host, settings.metrics_port, text, admits, context)) as told:
            yield told.port


class MetricsDoor:
    """Lets in who may read metrics; everybody where the site asks nobody who they are.

    Args:
        report: Gets lines for operators.

    Raises:
        PellucidError: What the configuration names cannot be read.
    """

    def __init__(self, site: Site, report: Callable[[str], None]) -> None:
        self._site, self._clock, self._report = site, SystemClock(), report
        self._doors = make_doors(site, self._clock, report)
        self._lock = threading.Lock()
        self._told_ns, self._skipped, self._since_ns = 0, 0, 0
        self.forwarded_header = self._doors.forwarded_header if self._doors else ""

    def __call__(self, knock: Knock) -> None:
        """Pass only who may.

        Raises:
            AuthError, RateError: They may not, or not now.
        """
        if self._doors is not None:
            with self._lock:  # doors are one thread's at a time
                self._doors.ask("metrics", knock, self._refused)

    def _refused(self, action: str, error: PellucidError, personal: Mapping[str, str]) -> None:
        now = self._clock.now_ns()
        if self._told_ns and 0 <= now - self._told_ns < ENTRIES_S * 1e9:
            self._since_ns = self._since_ns if self._skipped else now
            self._skipped += 1
            return
        self._told_ns = now
        data = {"kind": "refused_at_door", "action": action, "error": error.code}
        self._record([*self._count(now), (data, personal)])

    def _count(self, now: int) -> list[tuple[dict[str, Any], Mapping[str, str]]]:
        if not self._skipped:
            return []
        data = {
            "reason": "refused_over_rate", "refused": 0, "not_numbered": self._skipped,
            "since": format_time(self._since_ns), "until": format_time(now),
        }  # fmt: skip
        self._skipped = 0
        return [(data, {})]

    def _record(self, alerts: list[tuple[dict[str, Any], Mapping[str, str]]]) -> None:
        if not alerts:
            return
        folder, node = self._site.ledger_folder, self._site.config.site.node
        try:
            with DoorRecorder(folder, node, clock=self._clock) as recorder:
                for data, personal in alerts:
                    recorder.event("alert", data, personal)
        except (UnavailableError, OSError) as error:  # a full disk: who was refused stays refused
            self._report(f"metrics: expected to record a refusal, got {error}")

    def close(self) -> None:
        """Record what was only counted."""
        with self._lock:
            self._record(self._count(self._clock.now_ns()))
