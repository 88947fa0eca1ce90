"""Entry points of the processes that a build, a qualification or a replay starts.

What a child imports it imports in each build again: here stands only what every child needs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from pellucid import schemes

if TYPE_CHECKING:
    from pellucid.ports import Backend

_COLLECTED_EVERY: Final = 50_000  # measured: what libraries make as they load stays; a twentieth of the start


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
    gc.set_threshold(_COLLECTED_EVERY)
    from pellucid.build.worker import main

    _exit(main(backend_for))


def isolated_main() -> None:
    """Entry point of a process that runs one engine for one request."""
    gc.set_threshold(_COLLECTED_EVERY)
    from pellucid.build.isolated_engine import main

    _exit(main(backend_for))


def _exit(code: int) -> NoReturn:
    """End without taking apart what the end of the process frees anyway; what is printed is not lost."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk: the exit status says it
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)
