"""Building and qualifying, plugged together: which backend, which processes, which ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid import schemes
from pellucid.app.clock import SystemClock

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.build.isolated import ChildIsolated
    from pellucid.build.job import BuildOutcome
    from pellucid.ports import Backend


def backend_for(name: str) -> Backend:
    """Backend of that name.

    Raises:
        UnknownSchemeError: No such backend.
        MissingExtraError: Its library is not installed.
    """
    backend: Backend = schemes.load("backend", name)()
    return backend


def worker_main() -> None:
    """Entry point of the build worker's process."""
    from pellucid.build.worker import main

    sys.exit(main(backend_for))


def isolated_main() -> None:
    """Entry point of a process that runs one engine for one request."""
    from pellucid.build.isolated import main

    sys.exit(main(backend_for))


def isolated(_site: Site | None = None) -> ChildIsolated:
    """Runs engines in fresh processes; no site has a say in how."""
    from pellucid.build.isolated import ChildIsolated

    return ChildIsolated()


def build(
    site: Site, recipe_path: Path, progress: Callable[[str], None] = lambda phase: None
) -> BuildOutcome:
    """Build a recipe into the site's packages folder (unsigned) and record how it went.

    Raises:
        As ``pellucid.build.job.run_build``.
    """
    from pellucid.build.job import Job, run_build

    job = Job(site.packages_folder, isolated(), _Recorder(site), SystemClock(), progress)
    return run_build(recipe_path, job)


class _Recorder:
    """``ports.EventRecorder`` of a site, opened only when there is something to record."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def event(self, kind: str, data: dict[str, Any], personal: Mapping[str, str] | None = None) -> str:
        from pellucid.app.ledger import record_event

        return record_event(self._site, kind, data, personal)
