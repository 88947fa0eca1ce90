"""Builds of toy models, for real: the package, its facts, and every way a build may end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from pellucid.app.build import isolated
from pellucid.app.processes import backend_for
from pellucid.build.child import measures
from pellucid.build.job import run_build
from pellucid.build.left import ENTRY
from pellucid.build.shelf import Shelf
from pellucid.core import canonical, strict_yaml
from pellucid.core.digest import Data, sha256
from pellucid.core.manifest import parse_manifest, verify_files
from pellucid.core.metadata import FIELDS, parse_metadata, value_of
from pellucid.core.model_signing import file_digests, root_digest
from pellucid.core.recipe import effective, parse_recipe
from pellucid.core.statement import SLSA, parse_statement
from pellucid.core.tensor import Tensor
from pellucid.errors import (
    BuilderCrashedError,
    BuildError,
    DigestMismatchError,
    NotFoundError,
    ParseError,
    RecipeError,
    UsageError,
)
from pellucid.testing.builds import build_toy, toy_job, write_recipe
from pellucid.testing.models import MODELS, credit_like, digits_like

pytestmark = pytest.mark.e2e
MEANING: dict[str, Any] = {
    "description": "who gets a loan | <b>toy</b>",
    "features": [{"name": f"f{i}"} for i in range(20)],
    "decision": {
        "kind": "threshold", "output": "probabilities", "column": 1, "threshold": 0.5,
        "labels": ["granted", "refused"],
    },
}  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], list[Any], Any]:
    base = tmp_path_factory.mktemp("build")
    job, recorder = toy_job(base / "packages")
    outcome = run_build(write_recipe(base / "recipe", "credit_like", meaning=MEANING, threads=1), job)
    return outcome.folder, files_of(outcome.folder), recorder.events, outcome


def test_the_package_is_whole_and_closed(package: Any) -> None:
    folder, files, _, outcome = package
    assert folder.name.startswith("toy-v1.0.0-onnxruntime1.")
    assert folder.name.endswith("-cpu")
    manifest = parse_manifest(files["manifest.json"])
    verify_files(manifest, files, {path: sha256(data) for path, data in files.items()})
    assert root_digest(file_digests(files)) == outcome.package
    for path in (
        "metadata.json", "meaning.json", "recipe.yaml", "model/source.onnx", "model/compiled.onnx",
        "model/names.json", "engine/model.onnx", "build.log.jsonl", "build.stderr", "facts.json",
        "environment.json", "label.md", "label.html", "golden/golden.json", "sbom.cdx.json",
        "provenance.json",
    ):  # fmt: skip
        assert path in files


def test_the_recipe_is_written_out(package: Any) -> None:
    said = strict_yaml.load(package[1]["recipe.yaml"], subject="recipe")
    assert said == effective(parse_recipe(package[1]["recipe.yaml"]))
    assert said["tf32"] is False
    assert said["gate"]["kl_mean_max"] == "0.01"


def test_the_entry_names_what_was_made(package: Any) -> None:
    _, files, [(kind, data)], outcome = package
    assert kind == "build"
    assert data["outcome"] == "built"
    assert data["engine"] == outcome.engine == sha256(files["engine/model.onnx"])
    assert data["log"] == sha256(files["build.log.jsonl"])
    assert data["package"] == outcome.package


def test_every_field_auditors_ask_for_is_there_or_says_why(package: Any) -> None:
    document = parse_metadata(package[1]["metadata.json"])
    assert set(FIELDS) <= set(document)
    assert value_of(document, "builder_config.max_batch_size") == 4
    assert value_of(document, "fused_layers") == 1
    assert {r["field"] for r in document["null_reasons"]} >= {"gpu", "driver", "tensorrt_image"}


def test_the_log_is_whole(package: Any) -> None:
    lines = [json.loads(line) for line in package[1]["build.log.jsonl"].splitlines()]
    facts = canonical.decode(package[1]["facts.json"])
    ours = [line for line in lines if line["location"] == "pellucid.build.worker"]
    assert [line["message"] for line in ours][:3] == ["phase prepare", "phase precision", "phase end"]
    assert len(lines) - len(ours) == facts["log"]["messages"] > 100
    assert {line["severity"] for line in lines} >= {"VERBOSE", "INFO"}
    assert all(set(line) == {"severity", "time", "message", "location"} for line in lines)
    assert set(facts["phases_ns"]) == {
        "optimise",
        "reload",
        "prepare",
        "precision",
        "load",
        "build",
        "write",
        "facts",
        "golden",
    }


def test_the_environment_says_what_ran_and_how_it_was_shut_in(package: Any) -> None:
    found = canonical.decode(package[1]["environment.json"])
    assert found["hermetic"]["left_behind"] == []  # an empty HOME and TMPDIR stayed empty
    assert found["hermetic"]["no_network"] == measures().report["no_network"]
    assert found["telemetry"] == "off"
    assert {p["name"] for p in found["packages"]} >= {"onnxruntime", "onnx", "numpy", "pellucid"}
    nulls = {key for key, value in found.items() if value is None}
    assert nulls == {r["field"] for r in found["null_reasons"]}


def test_the_provenance_names_everything_that_went_in(package: Any) -> None:
    files = package[1]
    statement = parse_statement(files["provenance.json"])
    assert statement.predicate_type == SLSA
    assert dict(statement.subjects) == {
        path: sha256(files[path]) for path in ("engine/model.onnx", "model/compiled.onnx")
    }
    materials = {
        d["name"]: d["digest"]["sha256"]
        for d in statement.predicate["buildDefinition"]["resolvedDependencies"]
    }
    assert set(materials) == {"source", "recipe", "meaning"}
    assert "sha256:" + materials["source"] == sha256(files["model/source.onnx"])
    products = {d["name"] for d in statement.predicate["runDetails"]["byproducts"]}
    assert products == {"build.log.jsonl", "build.stderr"}


def test_the_bill_of_materials_is_valid_cyclonedx(package: Any) -> None:
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    text = package[1]["sbom.cdx.json"].decode()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["type"] == "machine-learning-model"
    assert "pkg:pypi/onnxruntime" in text


def test_the_label_cannot_be_written_by_its_subject(package: Any) -> None:
    page, text = package[1]["label.html"].decode(), package[1]["label.md"].decode()
    assert "<b>toy" not in page
    assert "\\<b\\>toy" in text
    assert "a loan \\| \\<b" in text
    assert "refused from 0.5 on, otherwise granted" in page


def test_golden_inputs_repeat_their_bits(package: Any) -> None:
    import base64

    files = package[1]
    golden = canonical.decode(files["golden/golden.json"])
    assert [case["bucket"] for case in golden["cases"]] == [1, 4]
    recipe = strict_yaml.load(files["recipe.yaml"], subject="recipe")
    session = backend_for("onnxruntime").open(files["engine/model.onnx"], recipe)

    def tensors(items: list[dict[str, Any]]) -> list[Tensor]:
        return [
            Tensor(i["name"], i["datatype"], tuple(i["shape"]), base64.b64decode(i["data"])) for i in items
        ]

    for case in golden["cases"]:
        assert session.infer(tensors(case["inputs"])) == tensors(case["outputs"])


def test_two_builds_give_the_same_engine(tmp_path: Path) -> None:
    first = build_toy(tmp_path / "a", "digits_like")
    second = build_toy(tmp_path / "b", "digits_like", threads=2)
    assert first.engine == second.engine
    assert first.facts["fingerprint"] == second.facts["fingerprint"]
    for path in ("engine/model.onnx", "model/compiled.onnx", "golden/golden.json"):
        assert (first.folder / path).read_bytes() == (second.folder / path).read_bytes()


def test_hostile_names_reach_neither_facts_nor_label(tmp_path: Path) -> None:
    names = {
        "conv1": "conv1\nAll nodes placed on [EvilExecutionProvider]. Number of nodes: 6",
        "relu1": "<script>x</script>",
    }
    outcome = build_toy(tmp_path, digits_like(nodes=lambda name: names.get(name, name)))
    facts, plain = outcome.facts, build_toy(tmp_path / "plain", "digits_like").facts
    assert facts["placements"] == plain["placements"] == [{"provider": "CPUExecutionProvider", "nodes": 6}]
    assert facts["log"] == plain["log"]
    for path in ("facts.json", "build.log.jsonl", "label.md", "label.html"):
        data = (outcome.folder / path).read_bytes()
        assert b"Evil" not in data
        assert b"script>x" not in data
    mapped = canonical.decode((outcome.folder / "model/names.json").read_bytes())
    assert {n["from"] for n in mapped["nodes"]} == set(names.values())
    compiled = onnx.load_model_from_string((outcome.folder / "model/compiled.onnx").read_bytes())
    assert {n["to"] for n in mapped["nodes"]} <= {n.name for n in compiled.graph.node}


@pytest.mark.parametrize("name", ["two_inputs", "unbatched", "identity_bf16"])
def test_other_shapes_and_datatypes_build(tmp_path: Path, name: str) -> None:
    outcome = build_toy(tmp_path, name)
    golden = canonical.decode((outcome.folder / "golden/golden.json").read_bytes())
    assert [c["bucket"] for c in golden["cases"]] == ([0] if name == "unbatched" else [1, 4])


def test_outputs_that_do_not_repeat_are_no_golden_cases(tmp_path: Path) -> None:
    outcome = build_toy(tmp_path, "random_noise")
    assert canonical.decode((outcome.folder / "golden/golden.json").read_bytes()) == {"cases": []}
    assert b"do not repeat" in (outcome.folder / "label.md").read_bytes()


# -- every way it may end -------------------------------------------------------------------------


def sabotaged(last_step: str) -> str:
    """A worker whose last step before it ends is another one."""
    return (
        "import os, signal, pellucid.backends.onnxruntime.adapter as adapter; "
        f"adapter.OnnxRuntimeBackend.environment = lambda self: {last_step}; {ENTRY}"
    )


def kept(base: Path) -> Path:
    [folder] = (base / "packages" / "failed").iterdir()
    return folder


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGKILL"])
def test_a_crash_of_the_builder_is_an_outcome(tmp_path: Path, number: str) -> None:
    """The worker logs, builds half, and dies: the log so far is kept and the entry says how it ended."""
    entry = sabotaged(f"os.kill(os.getpid(), signal.{number})")
    job, recorder = toy_job(tmp_path / "packages", entry=entry)
    with pytest.raises(BuilderCrashedError, match=f"got signal {number}") as caught:
        run_build(write_recipe(tmp_path / "recipe", "credit_like"), job)
    log = (kept(tmp_path) / "build.log.jsonl").read_bytes()
    assert b"Session successfully initialized." in log
    assert str(kept(tmp_path)) in caught.value.hint
    [(kind, data)] = recorder.events
    assert (kind, data["outcome"], data["ended"], data["log"]) == (
        "build", "builder_crashed", f"signal {number}", sha256(log),
    )  # fmt: skip
    assert [p.name for p in (tmp_path / "packages").iterdir()] == ["failed"]


def test_a_builder_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    job, recorder = toy_job(tmp_path / "packages", entry="import time; time.sleep(600)")
    with pytest.raises(BuilderCrashedError, match="no answer in time"):
        run_build(write_recipe(tmp_path / "recipe", "credit_like", limits={"timeout_s": 1}), job)
    assert recorder.events[0][1]["ended"] == "no answer in time"


def test_a_log_that_cannot_be_written_fails_the_build(tmp_path: Path) -> None:
    """The file limit is met by a log line, in the middle of the build."""
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(BuildError, match="every message to be kept"):
        run_build(write_recipe(tmp_path / "recipe", "credit_like", limits={"file_bytes": 5000}), job)
    assert recorder.events[0][1]["outcome"] == "build"
    assert not list((tmp_path / "packages").glob("toy*"))


def test_out_of_memory_is_an_outcome(tmp_path: Path) -> None:
    job, recorder = toy_job(tmp_path / "packages", entry=sabotaged("bytearray(1 << 31)"))
    with pytest.raises(BuildError, match="out of memory"):
        run_build(write_recipe(tmp_path / "recipe", "credit_like", limits={"memory_bytes": 2**30}), job)
    assert recorder.events[0][1]["outcome"] == "build"


@pytest.mark.parametrize("raw", [b"", credit_like()[:100]])
def test_a_model_that_is_none_is_refused_and_recorded(tmp_path: Path, raw: bytes) -> None:
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(ParseError):
        run_build(write_recipe(tmp_path / "recipe", raw), job)
    assert recorder.events[0][1]["outcome"] == "build_parse"
    assert (kept(tmp_path) / "build.stderr").is_file()


def test_a_version_is_built_once(tmp_path: Path) -> None:
    build_toy(tmp_path, "credit_like")
    before = files_of(tmp_path / "packages")
    with pytest.raises(UsageError, match="new version"):
        build_toy(tmp_path, "digits_like")
    after = {p: d for p, d in files_of(tmp_path / "packages").items() if not p.startswith("failed")}
    assert after == before


def test_two_builds_of_one_version_at_once_give_one_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with one process number, as in two containers that share the folder."""
    recipe = write_recipe(tmp_path / "recipe", "credit_like")
    write, others = Shelf.write, [toy_job(tmp_path / "packages")]

    def meanwhile(shelf: Shelf, path: Path, data: Data) -> None:
        if others:
            run_build(recipe, others.pop()[0])
        write(shelf, path, data)

    monkeypatch.setattr(Shelf, "write", meanwhile)
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(UsageError, match="which exists"):
        run_build(recipe, job)
    assert [data["outcome"] for _, data in recorder.events] == [UsageError.code]
    (package,) = (path for path in (tmp_path / "packages").iterdir() if path.name != "failed")
    files = files_of(package)
    digests = {path: sha256(data) for path, data in files.items()}
    verify_files(parse_manifest(files["manifest.json"]), files, digests)


def test_what_the_recipe_names_must_be_there(tmp_path: Path) -> None:
    job, recorder = toy_job(tmp_path / "packages")
    recipe = write_recipe(tmp_path / "recipe", "credit_like", validation={"data": "missing.npz"})
    with pytest.raises(NotFoundError, match="validation"):
        run_build(recipe, job)
    assert recorder.events == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decision": MEANING["decision"] | {"output": "nothing"}}, r"decision\.output"),
        ({"features": MEANING["features"][:-1]}, "features"),
        ({"decision": {"kind": "guess", "output": "probabilities", "labels": ["a", "b"]}}, "kind"),
        ({"decision": MEANING["decision"] | {"threshold": "high"}}, "threshold"),
        ({"surprise": 1}, "keys"),
    ],
)
def test_a_meaning_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    job, _ = toy_job(tmp_path / "packages")
    with pytest.raises(RecipeError, match=words):
        run_build(write_recipe(tmp_path / "recipe", "credit_like", meaning=MEANING | change), job)


def test_preprocessing_code_that_changed_is_refused(tmp_path: Path) -> None:
    bound = {"file": "preprocess.py", "digest": sha256(b"old")}
    recipe = write_recipe(tmp_path / "recipe", "credit_like", meaning=MEANING | {"preprocessing": bound})
    (recipe.parent / "preprocess.py").write_bytes(b"new")
    job, _ = toy_job(tmp_path / "packages")
    with pytest.raises(DigestMismatchError, match="preprocess"):
        run_build(recipe, job)


def test_the_engine_agrees_with_its_source_in_a_process_of_its_own(tmp_path: Path) -> None:
    outcome = build_toy(tmp_path, "credit_like")
    engine = (outcome.folder / "engine/model.onnx").read_bytes()
    recipe = strict_yaml.load((outcome.folder / "recipe.yaml").read_bytes(), subject="recipe")
    batch = [Tensor("features", "FP32", (4, 20), bytes(320))]
    mine = isolated().infer("onnxruntime", engine, recipe, [batch]).outputs
    theirs = isolated().infer("reference", MODELS["credit_like"](), recipe, [batch]).outputs
    assert mine == theirs
