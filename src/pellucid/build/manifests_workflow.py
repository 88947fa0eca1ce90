"""A GitHub Actions workflow that builds, gates, signs and publishes a package; pure text from values.

Three jobs, each with the least it needs: the build may read the sources and has no network inside
its container; the signing job has the run's identity and none of the sources; only the publishing
one may write. No job knows a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from pellucid.build.environment import COMMIT, IMAGE
from pellucid.build.manifests import ENVIRONMENT, LOG, MARK, MODELS, USER, Order, verify_plain
from pellucid.errors import UsageError

# Action -> the commit of its release and that release's name. Looked up in public workflows of several
# owners that agree; --pin replaces one.
PINS: Final[dict[str, tuple[str, str]]] = {
    "actions/checkout": ("08c6903cd8c0fde910a37f88322edcfb5dd907a8", "v5.0.0"),
    "actions/upload-artifact": ("330a01c490aca151604b8cf639adc76d48f6c5d4", "v5.0.0"),
    "actions/download-artifact": ("018cc2cf5baa6db3ef3c5f8a56943fffe632ef53", "v6.0.0"),
    "actions/attest-build-provenance": ("977bb373ede98d70efdf65b84cb5f73e068dcc2a", "v3.0.0"),
}
RUNNER: Final = "ubuntu-24.04"
_RUN: Final = (  # what the container may tell about its run; never a token
    "GITHUB_ACTIONS", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_WORKFLOW",
    "GITHUB_WORKFLOW_REF", "GITHUB_JOB", "GITHUB_ACTOR", "GITHUB_EVENT_NAME", "GITHUB_REF", "GITHUB_SHA",
)  # fmt: skip
_MEASURED: Final = """\
          pellucid qualify "{log}/site/packages/$package.tar.gz" --site {log}/site{data}
          pellucid verify "{log}/site/packages/$package.tar.gz" --site {log}/site
"""
_TEXT: Final = """\
{mark} for {model}; write it again instead of editing it.
# Builds, gates, signs and publishes with the identity of the run: no key is kept anywhere.
name: "build {model}"
on:
  push:
    tags: ["{model}-v*"]
  workflow_dispatch: {{}}
permissions: {{}}
concurrency:
  group: "build-{model}"
  cancel-in-progress: false
defaults:
  run:
    shell: bash
jobs:
  build:
    name: build and gate
    runs-on: {runner}
    timeout-minutes: {minutes}
    permissions:
      contents: read # the recipe and the model
    env:
      IMAGE: "{image}"
      RECIPE: "{path}"
    steps:
      - name: Check out the recipe and the model
        uses: {checkout}
        with:
          persist-credentials: false
      - name: Fetch the image, by digest
        run: docker pull --quiet "$IMAGE"
      - name: Build and gate without network
        run: |
          mkdir --mode 0777 "$RUNNER_TEMP/log"
          chmod 0777 "$RUNNER_TEMP/log"
          pellucid() {{
            docker run --rm --pull never --network none --read-only --user {user}:{user} \\
              --cap-drop ALL --security-opt no-new-privileges --memory {memory}{gpus} \\
              --tmpfs {home} --volume "$GITHUB_WORKSPACE:{models}:ro" --volume "$RUNNER_TEMP/log:{log}" \\
{environment}
              "$IMAGE" "$@"
          }}
          pellucid init {log}/site --node github
          pellucid build "{models}/$RECIPE" --site {log}/site
          package=$(basename "$RUNNER_TEMP"/log/site/packages/{model}-v{version}-*)
          pellucid sign "{log}/site/packages/$package" --site {log}/site
{measured}          mkdir dist
          cp "$RUNNER_TEMP/log/site/packages/$package.tar.gz" dist/
      - name: Keep the package
        uses: {upload}
        with:
          name: package
          path: dist/*.tar.gz
          if-no-files-found: error
      - name: Keep the log of a build that failed
        if: failure()
        uses: {upload}
        with:
          name: failed
          path: ${{{{ runner.temp }}}}/log/site/packages/failed
  sign:
    name: sign with the identity of this run
    needs: build
    runs-on: ubuntu-24.04
    timeout-minutes: 15
    permissions:
      id-token: write # the identity of this run, for Sigstore
      attestations: write # to keep the signature beside the repository
    steps:
      - name: Take the package
        uses: {download}
        with:
          name: package
          path: dist
      - name: Sign its digest
        uses: {attest}
        with:
          subject-path: dist/*.tar.gz
  publish:
    name: publish
    if: github.ref_type == 'tag'
    needs: sign
    runs-on: ubuntu-24.04
    timeout-minutes: 15
    permissions:
      contents: write # the release
    steps:
      - name: Take the package
        uses: {download}
        with:
          name: package
          path: dist
      - name: Publish it as a release
        run: gh release create "$GITHUB_REF_NAME" dist/*.tar.gz --verify-tag --generate-notes
        env:
          GH_TOKEN: ${{{{ github.token }}}}
          GH_REPO: ${{{{ github.repository }}}}
"""


def parse_pins(texts: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Pins in force: the known ones, with ``OWNER/ACTION=SHA`` in their place.

    Raises:
        UsageError: Not of that form, or an action that the workflow does not use.
    """
    pins = dict(PINS)
    for text in texts:
        action, _, commit = text.partition("=")
        if action not in PINS or not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise UsageError(
                f"--pin: expected ACTION=COMMIT with 40 hex digits, got {text!r:.120}",
                hint=f"ACTION is one of {', '.join(PINS)}; a tag or a short commit can be moved",
            )
        pins[action] = (commit, "by --pin")
    return pins


def workflow(order: Order, pins: Mapping[str, tuple[str, str]] = PINS, runner: str | None = None) -> str:
    """The workflow's text.

    Args:
        runner: Label of the build's runner; by default a hosted one, or for a GPU ``self-hosted, gpu``.
    """
    labels = [runner] if runner else ["self-hosted", "gpu"] if order.gpu else [RUNNER]
    for label in labels:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", label):
            raise UsageError(f"--runner: expected a label, got {label!r:.80}")
    uses = {action: f"{action}@{commit} # {said}" for action, (commit, said) in pins.items()}
    return _TEXT.format(
        mark=MARK, model=order.recipe.name, version=order.recipe.version, path=order.path,
        image=order.image, runner=labels[0] if len(labels) == 1 else f"[{', '.join(labels)}]",
        minutes=-(-order.deadline_s // 60), memory=order.memory_bytes, gpus=" --gpus 1" if order.gpu else "",
        user=USER, home=ENVIRONMENT["HOME"], models=MODELS, log=LOG, environment=_environment(),
        measured=_measured(order),
        checkout=uses["actions/checkout"], upload=uses["actions/upload-artifact"],
        download=uses["actions/download-artifact"], attest=uses["actions/attest-build-provenance"],
    )  # fmt: skip


def _measured(order: Order) -> str:
    """Qualification and the policy's word; an engine for a GPU is measured where its GPU is."""
    if order.recipe.target != "cpu":
        return ""
    data = ""
    if order.recipe.validation:
        path = PurePosixPath(order.path).parent / order.recipe.validation["data"]
        data = f' --data "{MODELS}/{verify_plain("validation.data", str(path))}"'
    return _MEASURED.format(log=LOG, data=data)


def _environment() -> str:
    given = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    given += [f'{IMAGE}="$IMAGE"', f'{COMMIT}="$GITHUB_SHA"', *_RUN]
    rows = [given[at : at + 4] for at in range(0, len(given), 4)]
    return "\n".join(" " * 14 + " ".join(f"--env {item}" for item in row) + " \\" for row in rows)
