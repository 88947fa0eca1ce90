"""Preflight, plugged together: which recipe, which backends are installed, which process looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid import schemes
from pellucid.app.site import read_file
from pellucid.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from pellucid.build.preflight_child import Foreseen

TARGETS: Final = {"onnxruntime": "cpu", "tensorrt-rtx": "sm89"}  # where no recipe names one


def preflight(
    model: Path, recipe: Path | None = None, backend: str | None = None, target: str | None = None
) -> list[Foreseen]:
    """Everything that would stand in the way of a build, for one recipe or for each backend at hand.

    Args:
        model: ONNX file; a recipe's own ``model`` is not looked at.
        backend, target: Of a default recipe; without any, each installed backend that needs no GPU.

    Raises:
        RecipeError, NotFoundError: The recipe does not hold, or a file is not there or no plain one.
        LimitError: The model is larger than one ONNX file can be.
        UsageError: A recipe and a backend at once, or a target without a backend.
        MissingExtraError: The backend asked for is not installed.
        BuildCancelledError: Somebody asked for the end.
        DiskFullError: The temporary folder has no room.
    """
    from pellucid.build.files import read_model
    from pellucid.build.preflight_child import foresee
    from pellucid.core.recipe import effective, parse_recipe

    if recipe is not None and (backend or target):
        raise UsageError("preflight: expected --recipe or --backend, got both")
    if target is not None and backend is None:
        raise UsageError("preflight: expected --backend with --target, got none")
    raw, folder = read_model(model, "model"), model.absolute().parent
    if recipe is not None:
        said = effective(parse_recipe(read_file(recipe, "recipe")))
        return [foresee(said, raw, folder, fit_buckets=False)]
    names = [backend] if backend else _installed()
    recipes = [effective(parse_recipe(_default(name, target))) for name in names]
    return [foresee(said, raw, folder, fit_buckets=True) for said in recipes]


def _installed() -> list[str]:
    found = []
    for name in TARGETS:
        try:
            schemes.load("backend", name)
        except MissingExtraError:
            continue
        found.append(name)
    if not found:
        raise MissingExtraError(
            "preflight: expected a backend to ask, got none installed",
            hint="pip install 'pellucid[standard]'",
        )
    return found


def _default(backend: str, target: str | None) -> bytes:
    import json

    schemes.load("backend", backend)
    said: dict[str, Any] = {
        "name": "preflight", "version": "0", "backend": backend, "model": "model.onnx",
        "target": target or TARGETS.get(backend, "cpu"),
    }  # fmt: skip
    if backend.startswith("tensorrt"):
        said["licence_ack"] = True  # nothing is built with it
    return json.dumps(said).encode()
