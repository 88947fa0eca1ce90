"""A whole small site on disk: keys, a built, signed and qualified package, ready to be served."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pellucid.app.build import build, qualify
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site, open_site
from pellucid.core import strict_yaml
from pellucid.testing.models import credit_like

LABELS: Final = ("granted", "refused")
MEANING: Final[dict[str, Any]] = {
    "decision": {
        "kind": "threshold", "output": "probabilities", "column": 1, "threshold": "0.5",
        "labels": list(LABELS),
    },
    "description": "a toy that says who gets a loan",
    "features": [{"name": f"feature {number}"} for number in range(20)],
}  # fmt: skip


def make_site(
    root: Path,
    *,
    model: Callable[[], bytes] = credit_like,
    name: str = "credit",
    meaning: Mapping[str, Any] = MEANING,
    recipe: Mapping[str, Any] | None = None,
    samples: Mapping[str, Any] | None = None,
    serving: Mapping[str, Any] | None = None,
    ledger: Mapping[str, Any] | None = None,
) -> Site:
    """A site with one qualified package, configured to serve it on any free port.

    Args:
        samples: Validation rows by input name; normal features for the credit toy by default.
    """
    site = create_site(root, node="test1")
    archive = add_package(site, model=model, name=name, meaning=meaning, recipe=recipe, samples=samples)
    settings = {"port": 0, "grpc_port": 0, "models": [f"packages/{archive.name}"]} | dict(serving or {})
    return configure(site, serving=settings, ledger=ledger or {})


def add_package(
    site: Site,
    *,
    model: Callable[[], bytes] = credit_like,
    name: str = "credit",
    version: str = "1.0.0",
    meaning: Mapping[str, Any] = MEANING,
    recipe: Mapping[str, Any] | None = None,
    samples: Mapping[str, Any] | None = None,
) -> Path:
    """One more qualified package in the site's folder; gives its archive."""
    folder = site.root / "recipes" / f"{name}-{version}"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model())
    rows = np.random.default_rng(3).standard_normal((100, 20)).astype(np.float32)
    np.savez(folder / "validation.npz", **(samples or {"features": rows}))
    wanted: dict[str, Any] = {
        "name": name, "version": version, "backend": "onnxruntime", "target": "cpu",
        "model": "model.onnx", "buckets": [1, 4, 8], "golden": {"count": 1, "seed": 7},
        "validation": {"data": "validation.npz"},
    }  # fmt: skip
    if meaning:
        (folder / "meaning.json").write_text(json.dumps(meaning))
        wanted["meaning"] = "meaning.json"
    (folder / "recipe.yaml").write_bytes(strict_yaml.dump(wanted | dict(recipe or {})))
    outcome = build(site, folder / "recipe.yaml")
    archive = sign_folder(site, outcome.folder).archive
    qualify(site, archive)
    return archive


def configure(site: Site, **sections: Mapping[str, Any]) -> Site:
    """The site opened again after settings were changed in its file, as a person would."""
    file = site.root / "pellucid.toml"
    text = file.read_text()
    for section, values in sections.items():
        text += "" if f"[{section}]\n" in text else f"\n[{section}]\n"
        for key, value in values.items():
            line = f"{key} = {json.dumps(value)}"
            head, mark, rest = text.partition(f"[{section}]\n")
            body, following, tail = rest.partition("\n[")
            body, found = re.subn(rf"(?m)^{key} = .*$", line, body)
            text = head + mark + (body if found else f"{line}\n{body}") + following + tail
    file.write_text(text)
    return open_site(site.root)
