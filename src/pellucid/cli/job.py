"""``pellucid job``: the same build as a Kubernetes Job and as a GitHub Actions workflow."""

from __future__ import annotations

from pathlib import Path

import click

from pellucid.cli.output import emit, json_option, pairs

_IMAGE = "NAME@sha256:..."


@click.command("job")
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--image", metavar=_IMAGE, help="Image that the build runs in; a tag alone is refused.")
@click.option("--base", metavar=_IMAGE, help="Base image: writes the Dockerfile of that image too.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("deploy"),
    show_default=True,
    help="Folder to write into.",
)
@click.option(
    "--gpu/--no-gpu", default=None, help="Ask for a GPU (default: only where the builder needs one)."
)
@click.option("--commit", metavar="SHA", help="Commit of the sources, which a container cannot see.")
@click.option("--path", help="The recipe's path in the repository and in the models volume.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace (default: pellucid-build).")
@click.option("--models-claim", metavar="NAME", help="Claim of the models volume (default: pellucid-models).")
@click.option("--log-claim", metavar="NAME", help="Claim of the log volume (default: pellucid-log).")
@click.option("--runner", metavar="LABEL", help="GitHub runner of the build.")
@click.option("--pin", "pins", metavar="ACTION=SHA", multiple=True, help="Another commit of a GitHub action.")
@json_option
def command(
    recipe: Path, image: str | None, base: str | None, out: Path, gpu: bool | None, commit: str | None,
    path: str | None, runner: str | None, pins: tuple[str, ...], as_json: bool, **places: str | None,
) -> None:  # fmt: skip
    """Write the manifests that build RECIPE as a one-off job without network.

    With --image: job.yaml (a Kubernetes Job and the NetworkPolicy that denies it everything) and
    workflow.yml (GitHub Actions: build, gate, sign and publish by the identity of the run). With
    --base: the Dockerfile of such an image. Nothing is started.
    """
    from pellucid.app.job import Wanted, write_manifests

    given = tuple((name, value) for name, value in places.items() if value is not None)
    written = write_manifests(recipe, Wanted(image, base, gpu, commit, path, runner, pins, given), out)
    value = {"recipe": str(recipe), "image": image, "base": base, "files": [str(file) for file in written]}
    rows = [("wrote", str(file)) for file in written]
    if image:
        rows.append(
            ("next", f"kubectl apply -f {out / 'job.yaml'}; workflow.yml goes into .github/workflows/")
        )
    else:
        rows.append(("next", f"build and push the image, then: pellucid job {recipe} --image {_IMAGE}"))
    emit(value, lambda console: console.print(pairs(f"Manifests for {recipe}", rows)), as_json=as_json)
