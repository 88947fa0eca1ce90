"""Faults on purpose: a write that is lost, or kept but reported lost.

Wrap everything a process writes to in proxies that share one ``Faults``; run once without a fault
to count the writes, then once for each write and each kind of fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pellucid.errors import UnavailableError


class FaultError(UnavailableError):
    """The fault that a test asked for."""

    code = "fault"


class Faults:
    """Counts writes and fails one of them.

    Attributes:
        at: Number of the write to fail, from 1; 0 fails none.
        kept: True: the write happens, and is reported lost; False: it does not happen.
        count: Writes so far.
        log: What each was.
    """

    def __init__(self, at: int = 0, *, kept: bool = False) -> None:
        self.at, self.kept, self.count = at, kept, 0
        self.log: list[str] = []

    def write(self, name: str, action: Callable[[], Any]) -> Any:
        """Do a write, or fail it."""
        self.count += 1
        self.log.append(name)
        if self.count != self.at:
            return action()
        if self.kept:
            action()
        raise FaultError(f"{name}: expected it written, got a fault (kept: {self.kept})")

    def wrap(self, target: Any, methods: Collection[str], name: str = "") -> Any:
        """Proxy of ``target`` whose named methods are writes; everything else passes through."""
        return _Proxy(self, target, frozenset(methods), name or type(target).__name__)


class _Proxy:
    def __init__(self, faults: Faults, target: Any, methods: frozenset[str], name: str) -> None:
        self.__dict__.update(_faults=faults, _target=target, _methods=methods, _name=name)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._target, attribute)
        if attribute not in self._methods or not callable(found):
            return found
        name = f"{self._name}.{attribute}"
        return lambda *args, **kwargs: self._faults.write(name, lambda: found(*args, **kwargs))

    def __setattr__(self, attribute: str, value: Any) -> None:
        name = f"{self._name}.{attribute}"
        if attribute in self._methods:
            self._faults.write(name, lambda: setattr(self._target, attribute, value))
        else:
            setattr(self._target, attribute, value)
