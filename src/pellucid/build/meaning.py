"""``meaning.json``: what goes in and what comes out, checked before it is bound to an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pellucid.core import canonical
from pellucid.core.digest import parse_digest, sha256
from pellucid.errors import DigestMismatchError, FormatError, RecipeError

KEYS = frozenset({"description", "features", "decision", "preprocessing"})


def read_meaning(raw: bytes, folder: Path) -> dict[str, Any]:
    """Meaning of a JSON file's bytes, in the canonical profile (decimals become text).

    Args:
        folder: Where the preprocessing code lies, if it is beside the recipe.

    Raises:
        RecipeError: Not JSON, an unknown key, or a decision that is none.
        DigestMismatchError: The preprocessing code is there and is another.
    """
    try:
        value = json.loads(raw, object_pairs_hook=_once, parse_float=str, parse_constant=_no_constant)
        canonical.encode(value)
    except (ValueError, RecursionError, FormatError) as error:
        raise RecipeError(f"meaning: expected JSON, got {error!s:.200}") from error
    if not isinstance(value, dict) or set(value) - KEYS:
        raise RecipeError(f"meaning: expected keys {', '.join(sorted(KEYS))}, got others")
    _verify_features(value.get("features", []))
    _verify_decision(value.get("decision") or {})
    _verify_preprocessing(value.get("preprocessing") or {}, folder)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _verify_features(features: Any) -> None:
    names = (
        [f.get("name") if isinstance(f, dict) else None for f in features]
        if isinstance(features, list)
        else [None]
    )
    if any(not isinstance(name, str) or not name for name in names) or len(set(names)) != len(names):
        raise RecipeError(
            "meaning: features: expected a list of {name, unit}, each name once, got something else"
        )


def _verify_decision(decision: Any) -> None:
    if not decision:
        return
    labels = decision.get("labels") if isinstance(decision, dict) else None
    if (
        not isinstance(labels, list)
        or len(labels) < 2
        or not all(isinstance(label, str) and label for label in labels)
        or not isinstance(decision.get("output"), str)
    ):
        raise RecipeError("meaning: decision: expected an output and two or more labels, got something else")
    kind = decision.get("kind")
    if kind == "argmax":
        return
    if kind != "threshold":
        raise RecipeError(f"meaning: decision.kind: expected argmax or threshold, got {kind!r:.40}")
    try:
        in_range = float(decision["threshold"]) == float(decision["threshold"])
    except (KeyError, TypeError, ValueError):
        in_range = False
    if not in_range or type(decision.get("column")) is not int or len(labels) != 2:
        raise RecipeError("meaning: decision: expected threshold, column and two labels, got something else")


def _verify_preprocessing(preprocessing: Any, folder: Path) -> None:
    if not preprocessing:
        return
    try:
        name, digest = preprocessing["file"], preprocessing["digest"]
        parse_digest(digest)
    except (KeyError, TypeError, FormatError):
        raise RecipeError("meaning: preprocessing: expected file and digest, got something else") from None
    path = folder / Path(str(name)).name
    if path.is_file() and sha256(path.read_bytes()) != digest:
        raise DigestMismatchError(
            f"preprocessing {name!r:.80}: expected {digest[:19]}..., got another file",
            hint="the code changed after meaning.json was written: write it again and retrain if it matters",
        )
