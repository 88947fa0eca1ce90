"""Which qualification speaks for this environment, and what still differs.

Same bits need the same instruction sets, library version and threads (on a GPU the same chip), so
these are compared and nothing else. Source: spec/policy.md, section 'environment'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pellucid.core.attestation import LABELS, Qualification
from pellucid.core.environment import backend_version
from pellucid.core.trust import TrustedPackage

_COMPARED: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "backend": lambda env: env.get("backend"),
    "backend_version": backend_version,
    "device.kind": lambda env: _device(env).get("kind"),
    "device.architecture": lambda env: _device(env).get("architecture"),
    "device.isa": lambda env: _isa(_device(env).get("isa")),
    # on a CPU the instruction sets decide about bits; on a GPU the chip itself
    "device.name": lambda env: _device(env).get("name") if _device(env).get("kind") != "cpu" else None,
}


def _device(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    device = environment.get("device")
    return device if isinstance(device, Mapping) else {}


def _isa(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, list) else value


def differences(measured: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What differs, of the things that bits depend on, between two environments."""
    found = []
    for name, read in _COMPARED.items():
        there, now = read(measured), read(here)
        if there != now:
            found.append(f"{name} {_short(there, now)} there, {_short(now, there)} here")
    return found


def _short(value: Any, other: Any) -> str:
    if isinstance(value, list) and isinstance(other, list):
        return "with " + (" ".join(v for v in value if v not in other) or "nothing more")
    return repr(value)[:80]


def matching_qualification(
    package: TrustedPackage, environment: Mapping[str, Any] | None
) -> tuple[Qualification | None, list[str]]:
    """The qualification that fits this environment best, and what still differs.

    A qualification that did not pass is chosen only when no other fits as well; of those that passed,
    the one with the worst label, so that a file's name decides nothing. Without an environment every
    one fits.
    """
    threads = package.recipe.get("threads")
    best: tuple[Qualification | None, list[str]] = (None, [])
    for candidate in package.qualifications:
        measured = candidate.predicate["environment"]
        found = differences(measured, environment) if environment is not None else []
        if "threads" in measured and measured["threads"] != threads:
            found.append(f"threads {measured['threads']!r:.20} there, {threads!r:.20} here")
        if best[0] is None or _rank(candidate, found) < _rank(best[0], best[1]):
            best = candidate, found
    return best


def _rank(candidate: Qualification, found: list[str]) -> tuple[int, bool, int]:
    return len(found), not candidate.passed, -LABELS.index(candidate.label)
