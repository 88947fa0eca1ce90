"""Python's collector stands still while the library works.

The library logs from inside its own lock, and whatever runs in the log's callback may set the collector
off. If that then destroys an object of the library (a builder of an earlier build that failed, which its
exception's traceback kept), it waits for the lock that its own thread holds, for ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Nothing is collected meanwhile; as a decorator, for the length of each call."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
