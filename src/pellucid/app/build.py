"""Building and qualifying, plugged together: which backend, which processes, which ledger."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pellucid import schemes

if TYPE_CHECKING:
    from pellucid.app.site import Site
    from pellucid.build.isolated import ChildIsolated
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
