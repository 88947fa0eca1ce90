"""What commands ask of serving processes that run, through the site's ``run`` folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pellucid.app.baseline import Frozen
from pellucid.app.verbose import Verbose

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.ports import EventRecorder
    from pellucid.serving.dataplane import Dataplane


class Wishes:
    """Looks for wishes in one serving process, on its event loop's thread."""

    def __init__(
        self, site: Site, plane: Dataplane, recorder: EventRecorder, report: Callable[[str], None]
    ) -> None:
        self._all = Verbose(site, plane, recorder, report), Frozen(site, plane.pool, report)

    def look(self) -> None:
        """Begin what was wished since the last look; end what is over. Called once a second."""
        for each in self._all:
            each.look()
