"""A package whose builder means harm: signed documents of another form end in words, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.app.build import build, qualify
from pellucid.app.rebuild import rebuild
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site
from pellucid.build.isolated import ChildIsolated
from pellucid.build.stages import Stages
from pellucid.core import canonical, strict_yaml
from pellucid.core.archive import write_archive
from pellucid.core.manifest import make_manifest, parse_manifest
from pellucid.core.model_signing import sign_package
from pellucid.errors import PackageError
from pellucid.guardian.open import open_package
from pellucid.testing.builds import write_recipe

pytestmark = pytest.mark.e2e
Files = dict[str, bytes]
Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Path]:
    """A site and one signed package, whose recipe names validation data."""
    site = create_site(tmp_path_factory.mktemp("hostile") / "site", node="test1")
    folder = site.path("recipes") / "toy"
    recipe = write_recipe(folder, "digits_like", validation={"data": "v.npz", "labels": "truth"})
    rows = np.random.default_rng(0).standard_normal((20, 1, 8, 8)).astype("<f4")
    np.savez(folder / "v.npz", image=rows, truth=np.zeros(20, dtype=int))
    return site, sign_folder(site, build(site, recipe).folder).archive


def changed(signed: tuple[Site, Path], place: Path, name: str, change: Change) -> Path:
    """The package with one document changed and an honest new manifest and signature."""
    site, archive = signed
    package = open_package(archive)
    files = {p: d for p, d in package.files.items() if p != "model.sig" and not p.startswith("attestations/")}
    if isinstance(found := change(_read(name, files[name])), bytes):
        files[name] = found
    elif found is None:
        del files[name]
    else:
        files[name] = strict_yaml.dump(found) if name.endswith(".yaml") else canonical.encode(found)
    old = parse_manifest(files.pop("manifest.json"))
    files["manifest.json"] = make_manifest(
        folder=old.folder, name=old.name, version=old.version, previous=old.previous, created=old.created,
        backend=old.backend, target=old.target, files=files,
    )  # fmt: skip
    files["model.sig"] = sign_package(files, package.name, site.signer("builder"))
    path = place / archive.name
    path.write_bytes(write_archive(package.name, files))
    return path


def _read(name: str, raw: bytes) -> Any:
    if name.endswith(".onnx"):
        return raw
    return (
        strict_yaml.load(raw, subject=name)
        if name.endswith(".yaml")
        else canonical.decode(raw, size_max=2**24)
    )


def put(key: str, value: Any) -> Change:
    return lambda document: document | {key: value}


def without(key: str) -> Change:
    return lambda document: {k: v for k, v in document.items() if k != key}


DEEP = b"[" * 100_000 + b"]" * 100_000
RECIPES: list[tuple[Change, str]] = [
    (put("limits", "none"), "limits: expected a mapping"),
    (put("limits", {"timeout_s": "1"}), "limits.timeout_s: expected an integer"),
    (put("limits", {"timeout_s": -5}), "limits.timeout_s: expected an integer"),
    (put("limits", {"memory_bytes": [1]}), "limits.memory_bytes: expected an integer"),
    (put("target", 7), "target: expected cpu"),
    (without("target"), "target: expected a value, got none"),
    (put("shapes", [1]), "shapes: expected a mapping"),
    (put("canonical", 3), "canonical: expected a mapping"),
    (put("buckets", [4, 1]), "buckets: expected ascending sizes"),
    (put("buckets", [4, 4]), "buckets: expected ascending sizes"),
    (put("buckets", [2**30]), "an integer from 1 to 4,096"),
    (put("pinned_bucket", 3), "pinned_bucket: expected one of the buckets"),
    (put("gate", "none"), "gate: expected a mapping"),
    (put("gate", {"flips_max": "many"}), "gate.flips_max: expected a number"),
    (put("golden", None), "golden: expected a mapping"),
    (put("validation", [1]), "validation: expected a mapping"),
]
PROVENANCES: list[tuple[str, Change, str]] = [
    ("provenance.json", lambda _: [], "statement: expected _type"),
    ("provenance.json", put("subject", {"a": 1}), "statement: expected at least one subject"),
    ("provenance.json", put("subject", [{"name": "a", "digest": "b"}]), "statement: expected subjects with"),
]
REBUILT: list[tuple[str, Change, str]] = [
    ("environment.json", put("packages", "numpy"), "packages: expected names and versions"),
    ("environment.json", put("packages", [1]), "packages: expected names and versions"),
    (
        "environment.json",
        put("packages", [{"name": ["numpy"], "version": "1"}]),
        "expected names and versions",
    ),
    ("environment.json", put("packages", [{"name": "numpy"}]), "packages: expected names and versions"),
    ("environment.json", put("packages", None), "packages: expected names and versions"),
    ("environment.json", lambda _: DEEP, "canonical JSON: expected valid JSON"),
    ("facts.json", put("layers", "many"), "expected documents as spec/package.md says"),
    ("facts.json", put("layers", [{"name": 1}]), "expected documents as spec/package.md says"),
    ("facts.json", put("nodes", [1]), "expected documents as spec/package.md says"),
    ("facts.json", put("warnings", 5), "expected documents as spec/package.md says"),
    ("facts.json", lambda _: DEEP, "canonical JSON: expected valid JSON"),
    ("metadata.json", lambda _: {}, "metadata.json: expected exactly"),
    ("metadata.json", put("output_engine_hash", 5), "output_engine_hash: expected str"),
    ("model/names.json", put("nodes", "many"), "expected documents as spec/package.md says"),
    ("model/compiled.onnx", lambda _: None, "expected model/compiled.onnx to rebuild from"),
]
INPUT = {"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}
QUALIFIED: list[tuple[str, Change, str]] = [
    ("facts.json", without("inputs"), "inputs: expected a list of tensors, got None"),
    ("facts.json", put("outputs", []), "outputs: expected a list of tensors"),
    ("facts.json", put("inputs", ["image"]), "inputs: expected name, datatype and shape"),
    ("facts.json", put("inputs", [INPUT | {"shape": [-2]}]), "inputs: expected name, datatype and shape"),
    ("facts.json", put("inputs", [INPUT | {"datatype": ["FP32"]}]), "datatype: expected one of"),
    ("provenance.json", lambda _: None, "expected provenance.json"),
    ("provenance.json", put("predicate", {}), "provenance: expected resolved dependencies"),
    ("provenance.json", put("predicate", {"buildDefinition": {"resolvedDependencies": [{
        "name": "validation", "digest": {"sha256": "../.."},
    }]}}), "digest: expected sha256:"),
    ("recipe.yaml", put("validation", None), "expected the validation data of the provenance, got none"),
]  # fmt: skip


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a child was started")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [*[("recipe.yaml", *one) for one in RECIPES], *PROVENANCES, *REBUILT],
)
def test_nothing_is_rebuilt_of_documents_of_another_form(
    signed: tuple[Site, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change,
    words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(Stages, "run", never)
    path = changed(signed, tmp_path, name, change)
    with pytest.raises(PackageError, match=r"^package '?toy-v1\.0\.0-") as raised:
        rebuild(signed[0], str(path))
    assert words in raised.value.message
    assert raised.value.message.count("package ") == 1 or "spec/package.md" in words


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [*[("recipe.yaml", *one) for one in RECIPES], *PROVENANCES, *QUALIFIED],
)
def test_nothing_is_qualified_of_documents_of_another_form(
    signed: tuple[Site, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change,
    words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(ChildIsolated, "_ask", never)
    path = changed(signed, tmp_path, name, change)
    with pytest.raises(PackageError, match=r"^package '?toy-v1\.0\.0-") as raised:
        qualify(signed[0], path)
    assert words in raised.value.message


@pytest.mark.parametrize(
    "change", [put("memory", {"weights_bytes": "many"}), put("options", [1]), put("memory", [1])]
)
def test_what_only_a_comparison_finds_is_the_packages_fault_as_well(
    signed: tuple[Site, Path], tmp_path: Path, change: Change
) -> None:
    with pytest.raises(PackageError, match=r"expected documents as spec/package\.md says"):
        rebuild(signed[0], str(changed(signed, tmp_path, "facts.json", change)))


def test_what_a_package_says_is_printed_and_pasted_without_harm(
    signed: tuple[Site, Path], tmp_path: Path
) -> None:
    evil = ["a; touch /tmp/x", "--index-url=http://evil", "$(id)", "", "..", "numpy\n", "a/b"]
    packages = [{"name": name, "version": "1"} for name in evil]
    packages += [{"name": "numpy", "version": v} for v in ("1;id", "1 --pre", "")]
    packages += [{"name": "no-such-library-here", "version": "2.0+cu13"}]
    hermetic = {"no_network": "\x1b]0;owned\x07", "fixed_addresses": True}
    path = changed(
        signed, tmp_path, "environment.json", lambda e: e | {"packages": packages, "hermetic": hermetic}
    )
    rebuilt = rebuild(signed[0], str(path)).rebuilt
    assert rebuilt.install == "pip install no-such-library-here==2.0+cu13"
    assert "the recorded build lacked no_network: \\x1b]0;owned\\x07" in rebuilt.missing


def test_a_recipe_of_another_version_is_worked_with(signed: tuple[Site, Path], tmp_path: Path) -> None:
    """One that did not know a key yet, and said another that this version does not know."""

    def other(recipe: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in recipe.items() if k not in ("limits", "nonfinite")} | {"colour": "blue"}

    assert rebuild(signed[0], str(changed(signed, tmp_path, "recipe.yaml", other))).rebuilt.bytes_differ == ""
