"""The library works in memory of its own: its engines must not depend on what a process did before.

It orders some things by their address, so that an engine's bytes follow from where its objects happen to
lie. Measured: seven processes that had allocated otherwise before the builder began gave five engines of one
INT8 model, with the same layers wherever those were compared, and eight gave one engine this way. Whether
Python found compiled modules was enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_STACK: Final = 2**26  # limit: a main thread's grows to 8 MiB, and deep graphs are walked by recursion


def apart(work: Callable[P, T]) -> Callable[P, T]:
    """Run each call in a thread of its own, which the C library gives memory that nothing used before."""

    @wraps(work)
    def started(*arguments: P.args, **named: P.kwargs) -> T:
        gave: list[T] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                gave.append(work(*arguments, **named))
            except BaseException as error:  # every one is raised where it was called
                raised.append(error)

        before = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=run, name="builder")
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
        if raised:
            raise raised.pop()
        return gave.pop()

    return started
