"""X9: the sources are gone, only the archive is left; the engine is built again from it and compared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pellucid.app.build import build
from pellucid.app.ledger import open_ledger
from pellucid.app.rebuild import Outcome, rebuild
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site
from pellucid.build.child import measures
from pellucid.build.rebuild import DIFFERENT, SAME_BYTES, SAME_LAYERS, UNEXPLAINED, UNSTEADY
from pellucid.build.stages import Staged, Stages
from pellucid.core import canonical
from pellucid.core.archive import write_archive
from pellucid.core.digest import sha256
from pellucid.core.entry import parse_entry
from pellucid.core.manifest import make_manifest, parse_manifest
from pellucid.core.model_signing import sign_package
from pellucid.errors import BuildError, MissingExtraError, PackageError, UsageError, VerificationError
from pellucid.guardian.open import open_package
from pellucid.testing.builds import write_recipe

pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
pytestmark = pytest.mark.e2e
BACKENDS: dict[str, dict[str, Any]] = {
    "onnxruntime": {"target": "cpu"},
    "tensorrt-rtx": {"target": "sm89", "licence_ack": True},
}
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return create_site(tmp_path_factory.mktemp("rebuild") / "site", node="test1")


@pytest.fixture(scope="module")
def archives(site: Site) -> dict[str, Path]:
    """A signed archive a backend; its recipe, its source and its folder are gone."""
    made = {}
    for backend, more in BACKENDS.items():
        folder = site.path("recipes") / backend
        recipe = write_recipe(folder, "digits_like", name=f"digits-{backend}", backend=backend, **more)
        package = build(site, recipe).folder
        made[backend] = sign_folder(site, package).archive
        shutil.rmtree(folder)
        shutil.rmtree(package)
    return made


def entries(site: Site) -> list[dict[str, Any]]:
    """Data of every ``rebuild`` entry, in order."""
    with contextlib.closing(open_ledger(site)) as ledger:
        found = [parse_entry(raw) for raw in ledger.reader.entries(0, ledger.reader.size())]
    return [entry.data for entry in found if entry.type == "rebuild"]


def changed(site: Site, archive: Path, place: Path, change: Callable[[Files], None]) -> str:
    """The package with files changed and an honest new manifest and signature; gives its path."""
    package = open_package(archive)
    files = {p: d for p, d in package.files.items() if p != "model.sig" and not p.startswith("attestations/")}
    change(files)
    old = parse_manifest(files.pop("manifest.json"))
    files["manifest.json"] = make_manifest(
        folder=old.folder, name=old.name, version=old.version, previous=old.previous, created=old.created,
        backend=old.backend, target=old.target, files=files,
    )  # fmt: skip
    files["model.sig"] = sign_package(files, package.name, site.signer("builder"))
    path = place / archive.name
    path.write_bytes(write_archive(package.name, files))
    return str(path)


def swap_engine(files: Files) -> None:
    (path,) = (path for path in files if path.startswith("engine/"))
    raw = bytearray(files[path])
    raw[-1] ^= 1
    files[path] = bytes(raw)


def swap_engine_everywhere(files: Files) -> None:
    """As a forger would who holds the builder's key: nothing in the package names the old engine."""
    (path,) = (path for path in files if path.startswith("engine/"))
    old = sha256(files[path])
    swap_engine(files)
    new = sha256(files[path])
    for document in ("metadata.json", "provenance.json"):
        text = files[document].decode()
        files[document] = text.replace(old, new).replace(old[7:], new[7:]).encode()


def document(files: Files, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    value = canonical.decode(files[name], size_max=2**24)
    change(value)
    files[name] = canonical.encode(value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_from_the_archive_alone_the_same_bytes(
    site: Site, archives: dict[str, Path], backend: str, tmp_path: Path
) -> None:
    if backend == "tensorrt-rtx" and measures().report["fixed_addresses"] is not True:
        pytest.skip(f"NOT RUN fixed-addresses: {measures().report['fixed_addresses']}")
    keep = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", "rebuild", f"digits-{backend}:1.0.0", "--site", str(site.root),
         "--keep", str(keep), "--json"],
        capture_output=True, text=True, timeout=300, env=os.environ | {"SECRET_LONG_VARIABLE": "x" * 5000},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    value = json.loads(done.stdout)
    assert (value["outcome"], value["why"], value["bytes"]) == (SAME_BYTES, [], None)
    assert value["rebuilt"] == value["engine"]
    assert value["fingerprint"] == value["recorded_fingerprint"]
    assert not [d for d in value["differences"] if d["section"] not in ("memory", "warnings")]
    (engine,) = (path for path in keep.iterdir() if path.name.startswith("model."))
    assert sha256(engine.read_bytes()) == value["engine"]
    assert (keep / "build.log.jsonl").stat().st_size > 0
    entry = next(e for e in entries(site) if e["backend"] == backend and e["outcome"] == SAME_BYTES)
    assert entry["rebuilt"] == entry["engine"] == value["engine"]


def test_a_tampered_package_is_refused_before_anything_runs(
    site: Site, archives: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a child was started")

    monkeypatch.setattr("pellucid.build.stages.start_child", never)
    package = open_package(archives["onnxruntime"])
    files = dict(package.files)
    raw = bytearray(files["model/compiled.onnx"])
    raw[len(raw) // 2] ^= 1
    files["model/compiled.onnx"] = bytes(raw)
    broken = tmp_path / archives["onnxruntime"].name
    broken.write_bytes(write_archive(package.name, files))
    before = len(entries(site))
    with pytest.raises(VerificationError):
        rebuild(site, str(broken))
    assert len(entries(site)) == before
    with pytest.raises(AssertionError, match="a child was started"):
        rebuild(site, str(archives["onnxruntime"]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_swapped_engine_is_different_also_when_it_is_signed_again(
    site: Site, archives: dict[str, Path], backend: str, tmp_path: Path
) -> None:
    found = rebuild(site, changed(site, archives[backend], tmp_path, swap_engine)).rebuilt
    assert found.outcome == DIFFERENT
    assert [words.split(" names ")[0] for words in found.why] == ["metadata.json", "provenance.json"]
    everywhere = changed(site, archives[backend], tmp_path, swap_engine_everywhere)
    outcome = rebuild(site, everywhere)
    if all(measures().report[name] is True for name in ("fixed_addresses", "no_network")):
        assert (outcome.rebuilt.outcome, outcome.rebuilt.why) == (DIFFERENT, [UNEXPLAINED])
    size = len(outcome.rebuilt.engine)
    assert outcome.rebuilt.bytes_differ == (
        f"{size:,} bytes recorded, {size:,} rebuilt, first difference at offset {size - 1:,}"
    )


def test_other_bytes_are_granted_only_with_an_explanation(
    site: Site, archives: dict[str, Path], tmp_path: Path
) -> None:
    def less_hermetic(files: Files) -> None:
        swap_engine_everywhere(files)
        document(files, "environment.json", lambda e: e["hermetic"].update(fixed_addresses="not allowed"))

    found = rebuild(site, changed(site, archives["tensorrt-rtx"], tmp_path, less_hermetic)).rebuilt
    assert found.outcome == SAME_LAYERS
    assert "the recorded build lacked fixed_addresses: not allowed" in found.why


def test_another_graph_in_the_facts_is_different_and_says_which_layer(
    site: Site, archives: dict[str, Path], tmp_path: Path
) -> None:
    def other_layers(files: Files) -> None:
        swap_engine_everywhere(files)
        document(files, "facts.json", forge)

    def forge(facts: dict[str, Any]) -> None:
        facts["fingerprint"] = "sha256:" + "0" * 64
        for layer in facts["layers"]:
            if "conv2" in layer["nodes"]:
                layer["tactic"] = "winograd"

    found = rebuild(site, changed(site, archives["tensorrt-rtx"], tmp_path, other_layers)).rebuilt
    assert found.outcome == DIFFERENT
    assert found.why[0].startswith(
        "layer conv2 + relu2 runs winograd in A and correlation chosen at run time"
    )


def test_other_libraries_are_listed_with_the_line_that_installs_the_recorded_ones(
    site: Site, archives: dict[str, Path], tmp_path: Path
) -> None:
    def older(files: Files) -> None:
        swap_engine_everywhere(files)
        document(files, "environment.json", lambda e: [
            p.update(version="1.0.0") for p in e["packages"] if p["name"] == "onnxruntime"
        ])  # fmt: skip

    path = changed(site, archives["onnxruntime"], tmp_path, older)
    outcome = rebuild(site, path)
    assert outcome.rebuilt.outcome == SAME_LAYERS
    assert outcome.rebuilt.install == "pip install onnxruntime==1.0.0"
    assert any(
        words.startswith("environment: onnxruntime is 1.0.0 in A and") for words in outcome.rebuilt.why
    )
    missing = MissingExtraError("onnxruntime is not installed", hint="pip install 'pellucid[standard]'")
    assert _failing(site, path, missing).hint == "pip install onnxruntime==1.0.0"


def _failing(site: Site, path: str, error: Exception) -> Any:
    """What a rebuild raises when the child raises ``error``; the outcome is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pellucid.build.stages.Stages.run", lambda *_: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)) as raised:
            rebuild(site, path)
    assert entries(site)[-1]["outcome"] == getattr(error, "code", "")
    return raised.value


def test_a_builder_that_refuses_is_recorded_and_a_missing_graph_said(
    site: Site, archives: dict[str, Path], tmp_path: Path
) -> None:
    def broken(files: Files) -> None:
        files["model/compiled.onnx"] = b"no onnx"

    with pytest.raises(BuildError):
        rebuild(site, changed(site, archives["tensorrt-rtx"], tmp_path, broken))
    assert entries(site)[-1]["outcome"].startswith("build")
    without = changed(site, archives["onnxruntime"], tmp_path, lambda f: f.pop("model/compiled.onnx"))
    with pytest.raises(PackageError, match=r"expected model/compiled\.onnx to rebuild from"):
        rebuild(site, without)


def test_people_read_the_outcome_and_a_folder_is_never_overwritten(
    site: Site, archives: dict[str, Path], tmp_path: Path
) -> None:
    path = changed(site, archives["onnxruntime"], tmp_path, swap_engine)
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", "rebuild", path, "--site", str(site.root)],
        capture_output=True, text=True, timeout=300, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 3
    for words in (": different", "metadata.json names engine", "first difference at offset", "ledger entry"):
        assert words in done.stdout
    with pytest.raises(UsageError, match="expected a new folder"):
        rebuild(site, path, keep=tmp_path)


def test_an_outcome_holds_the_package_it_speaks_of(site: Site, archives: dict[str, Path]) -> None:
    outcome: Outcome = rebuild(site, str(archives["onnxruntime"]))
    assert outcome.package.engine_digest == outcome.rebuilt.digest
    assert outcome.rebuilt.missing == [] or measures().report["fixed_addresses"] is not True


class Unsteady:
    """Stages whose engines end in another byte each time; ``steady`` from some run on."""

    def __init__(self, endings: bytes) -> None:
        self._endings = iter(endings)
        self.runs = 0

    def __call__(self, stages: Stages, stage: str, request: Any) -> Staged:
        self.runs += 1
        staged = REAL_RUN(stages, stage, request)
        ending = next(self._endings)
        engine = bytes(staged.files["engine"])
        return replace(staged, files={"engine": engine if ending == 0xFF else engine + bytes([ending])})


REAL_RUN = Stages.run


@pytest.mark.parametrize(
    ("endings", "outcome", "why", "runs"),
    [
        (b"\1\2", SAME_LAYERS, [UNSTEADY], 2),
        (b"\1\xff", SAME_BYTES, [UNSTEADY], 2),
        (b"\1\1\2", SAME_LAYERS, [UNSTEADY], 3),
        (b"\1\1\1", DIFFERENT, [UNEXPLAINED], 3),
        (b"\xff", SAME_BYTES, [], 1),
    ],
)
def test_a_builder_that_is_not_steady_is_tried_again(
    site: Site, archives: dict[str, Path], monkeypatch: pytest.MonkeyPatch, endings: bytes, outcome: str,
    why: list[str], runs: int,
) -> None:  # fmt: skip
    if not all(measures().report[name] is True for name in ("fixed_addresses", "no_network")):
        pytest.skip("NOT RUN hermetic: this machine lacks a measure, which explains other bytes by itself")
    unsteady = Unsteady(endings)
    monkeypatch.setattr(Stages, "run", lambda *arguments: unsteady(*arguments))
    found = rebuild(site, str(archives["onnxruntime"])).rebuilt
    assert (found.outcome, found.why, unsteady.runs) == (outcome, why, runs)
