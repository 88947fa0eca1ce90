"""Three questions that every pod answers: who are you, what do you run, who allowed it.

What cannot be known is null, and the member ``<name>_reason`` beside it says why. Source: requirement G4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pellucid.core.access import ROLES, Caller
from pellucid.serving.model import Model

_SAID: Final = ("package", "engine", "precision", "device", "policy", "environment")


def whoami(about: Mapping[str, Any], models: Sequence[Model], caller: Caller | None) -> dict[str, Any]:
    """The answer, as JSON.

    Args:
        about: ``who``, ``what`` and ``allowed`` of the process (``app.whoami.about``).
    """
    return {
        "who": dict(about.get("who", {})),
        "what": {**about.get("what", {}), "models": [_runs(model) for model in models]},
        "allowed": {**about.get("allowed", {}), "models": [_allowed(model) for model in models]},
        "caller": _caller(caller),
    }


def _runs(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        **{name: model.facts.get(name) for name in _SAID},
        "label_variance": model.label_variance,
        "optimisations": {"buckets": list(model.buckets), **model.about.get("optimisations", {})},
    }


def _allowed(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "policy": model.facts.get("policy"),
        "signer": model.about.get("signer"),
        "approvals": list(model.about.get("approvals", ())),
    }


def _caller(caller: Caller | None) -> dict[str, Any] | None:
    if caller is None:
        return None
    roles = [role for role in ROLES if role in caller.roles]
    return {"identity": caller.identity, "roles": roles, "how": caller.how}
