"""Writes the manifests of a build as a job; nothing is started and nothing is asked of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pellucid.app.sign import replace_file
from pellucid.app.site import read_file
from pellucid.core.image import parse_image
from pellucid.errors import UsageError

JOB: Final = "job.yaml"
WORKFLOW: Final = "workflow.yml"
DOCKERFILE: Final = "Dockerfile"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of ``pellucid job`` as given.

    Attributes:
        image: What the job runs, or ``None`` to write the Dockerfile only.
        base: What the Dockerfile starts from, or ``None`` to write none.
        gpu: ``None`` asks for a GPU where the builder needs one.
        path: Of the recipe in the repository and below the models volume; by default as given.
        places: Namespace and claims that differ from the defaults.
    """

    image: str | None
    base: str | None
    gpu: bool | None = None
    commit: str | None = None
    path: str | None = None
    runner: str | None = None
    pins: Sequence[str] = ()
    places: tuple[tuple[str, str], ...] = ()


def write_manifests(recipe_path: Path, wanted: Wanted, out: Path) -> list[Path]:
    """Write ``job.yaml`` and ``workflow.yml`` for an image, ``Dockerfile`` for a base; gives their paths.

    Raises:
        UsageError: Neither image nor base, one without digest, or a file there that was written by hand.
        RecipeError, NotFoundError: The recipe does not hold.
    """
    texts = manifests(recipe_path, wanted)
    _verify_ours(out, texts)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        replace_file(out / name, text.encode())
    return [out / name for name in texts]


def manifests(recipe_path: Path, wanted: Wanted) -> dict[str, str]:
    """Texts by file name."""
    from pellucid.build.manifests import Order, job_yaml, needs_gpu
    from pellucid.build.manifests_image import dockerfile
    from pellucid.build.manifests_workflow import parse_pins, workflow
    from pellucid.core.digest import sha256
    from pellucid.core.recipe import parse_recipe

    if wanted.image is None and wanted.base is None:
        raise UsageError(
            "job: expected --image NAME@sha256:..., got none",
            hint="no image yet: --base NAME@sha256:... writes its Dockerfile",
        )
    raw = read_file(recipe_path, "recipe")
    recipe = parse_recipe(raw)
    texts = {}
    if wanted.image is not None:
        order = Order(
            recipe, sha256(raw), wanted.path or _path_of(recipe_path),
            parse_image(wanted.image, subject="--image"),
            needs_gpu(recipe) if wanted.gpu is None else wanted.gpu, wanted.commit, **dict(wanted.places),
        )  # fmt: skip
        texts[JOB] = job_yaml(order)
        texts[WORKFLOW] = workflow(order, parse_pins(wanted.pins), wanted.runner)
    if wanted.base is not None:
        texts[DOCKERFILE] = dockerfile(recipe.backend, parse_image(wanted.base, subject="--base"))
    return texts


def _path_of(recipe_path: Path) -> str:
    """As given when that is a path below here, else the recipe's folder and name."""
    if recipe_path.is_absolute() or ".." in recipe_path.parts:
        return "/".join(recipe_path.resolve().parts[-2:])
    return recipe_path.as_posix()


def _verify_ours(out: Path, texts: dict[str, Any]) -> None:
    from pellucid.build.manifests import MARK

    for name in texts:
        place = out / name
        if place.exists() and not place.read_bytes().startswith(MARK.encode()):
            raise UsageError(
                f"{place}: expected a file of an earlier `pellucid job`, got another",
                hint="name another folder with --out",
            )
