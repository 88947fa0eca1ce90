"""Write the example manifests of this folder again: what `pellucid job` writes for examples/digits.

The digests are placeholders of zeros: no registry serves such an image.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pellucid.app.job import Wanted, write_manifests

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "examples" / "digits" / "recipe.yaml"
NOWHERE = "sha256:" + "0" * 64
WANTED = Wanted(
    image=f"registry.example/pellucid@{NOWHERE}",
    base=f"python:3.12-slim@{NOWHERE}",
    path="examples/digits/recipe.yaml",
)


def main(out: Path = HERE / "digits") -> None:
    """Write them, by default beside this file."""
    write_manifests(RECIPE, WANTED, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
