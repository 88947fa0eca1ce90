"""The repository: which models there are, and loading and unloading them while calls go on.

``Repository`` is what the data plane asks for; who furnishes the house gives one. The pool can say
what is served without any, so the index always answers. Source: conformance list, OIP-120 to OIP-122.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from pellucid.errors import FormatError, PolicyDeniedError
from pellucid.serving.members import kind_of

UNSIGNED: Final = "config", "file:"  # they bring in what nobody signed


class Repository(Protocol):
    """Loads and unloads models of one serving process. Called on the event loop's thread."""

    async def load(self, name: str) -> None:
        """Admit the model's package again and serve it; returns when it is warm.

        What was served under the same version until then answers the calls that it already has, and
        then closes.

        Raises:
            NotFoundError: No package of that name.
            VerificationError, PolicyDeniedError: Not admitted; recorded, and what was served stays.
        """
        ...

    async def unload(self, name: str) -> None:
        """Serve no version of it any more; calls in flight finish.

        Raises:
            NotFoundError: Nothing of that name is or was served.
        """
        ...


class FixedRepository:
    """A repository that no client may change (``serving.model_control = "none"``)."""

    async def load(self, name: str) -> None:
        raise self._denied("load", name)

    async def unload(self, name: str) -> None:
        raise self._denied("unload", name)

    def _denied(self, verb: str, name: str) -> PolicyDeniedError:
        return PolicyDeniedError(
            f"{verb} of {name!r:.80}: expected serving.model_control = 'explicit', got 'none'",
            hint="packages are named in pellucid.toml, section [serving]",
        )


def check_load(parameters: Mapping[str, Any]) -> None:
    """Refuse what a load may not bring.

    Raises:
        PolicyDeniedError: ``config`` or a file.
        FormatError: A parameter that nobody knows.
    """
    for name in parameters:
        if name.startswith(UNSIGNED):
            raise PolicyDeniedError(
                f"load parameter {name!r:.60}: expected none, got one",
                hint="a model is a signed package: its configuration and files cannot come with the call",
            )
        raise FormatError(f"load parameter: expected none, got {name!r:.60}")


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of an unload that nobody knows; no model here has dependents."""
    for name, value in parameters.items():
        if name != "unload_dependents":
            raise FormatError(f"unload parameter: expected unload_dependents, got {name!r:.60}")
        if type(value) is not bool:
            raise FormatError(f"unload parameter {name}: expected true or false, got {kind_of(value)}")
