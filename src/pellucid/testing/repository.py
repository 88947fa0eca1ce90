"""A repository in memory: loading and unloading without packages, a guardian or a site."""

from __future__ import annotations

from collections.abc import Callable

from pellucid.errors import NotFoundError
from pellucid.serving.model import Model
from pellucid.serving.pool import Pool


class MemoryRepository:
    """Makes models by name (``serving.repository.Repository``); ``pool`` is given once there is one."""

    pool: Pool

    def __init__(self, makers: dict[str, Callable[[], Model]]) -> None:
        self._makers = makers

    async def load(self, name: str) -> None:
        if name not in self._makers:
            raise NotFoundError(f"package: expected one of model {name!r:.80}, got none")
        self.pool.add(self._makers[name]())

    async def unload(self, name: str) -> None:
        self.pool.remove(name)
