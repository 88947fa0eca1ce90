"""A build's files put together: everything an auditor will ask for, and the closed list of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pellucid.build import label
from pellucid.build.drawing import draw
from pellucid.build.drawing_graph import from_json
from pellucid.build.sbom import make_sbom
from pellucid.core import canonical
from pellucid.core.digest import Data, sha256
from pellucid.core.environment import backend_version
from pellucid.core.manifest import folder_name, make_manifest
from pellucid.core.metadata import make_metadata
from pellucid.core.provenance import BuildFacts, Material, make_provenance
from pellucid.core.recipe import encode_recipe

ENGINE_FOLDER: Final = "engine/"


class Made(msgspec.Struct, frozen=True):
    """Everything a build brought together.

    Attributes:
        recipe: Effective recipe.
        inputs: Files of the recipe's folder that went in, by role: ``source``, ``recipe``,
            ``meaning``, ``validation``, ...; the package holds their digests.
        prepared, result: What the stages ``prepare`` and ``compile`` reported.
        source: The model as given, whole: weights that lay outside its file are inside.
        documents: Path in the package -> value of the canonical profile.
        started, finished: RFC 3339 times.
        digest: Gives the digest of bytes, where it may be known already.
    """

    recipe: dict[str, Any]
    meaning: dict[str, Any]
    inputs: Mapping[str, Data]
    prepared: Mapping[str, Any]
    result: Mapping[str, Any]
    source: Data
    engine: Data
    compiled: Data
    log: bytes
    stderr: bytes
    environment: dict[str, Any]
    documents: Mapping[str, Any]
    golden: dict[str, Any]
    phases_ns: Mapping[str, int]
    notes: list[str]
    started: str
    finished: str
    digest: Callable[[Data], str] = sha256


def assemble(made: Made) -> tuple[str, dict[str, Data]]:
    """Folder name and files of the package, unsigned."""
    digests = {
        "source": made.digest(made.inputs["source"]),
        "engine": made.digest(made.engine),
        "compiled": made.digest(made.compiled),
        "log": made.digest(made.log),
        "stderr": made.digest(made.stderr),
    }
    facts = made.result["facts"] | {
        "notes": made.notes,
        "source_nodes": made.prepared["given"],
        "phases_ns": made.result["facts"]["phases_ns"] | made.phases_ns,
        "options": made.result["options"],
        "inputs": _specs(made.result["inputs"]),
        "outputs": _specs(made.result["outputs"]),
    }
    if "accuracy.json" in made.documents:
        facts["accuracy_measured_on"] = made.documents["accuracy.json"]["measured_on"]
    engine_path = ENGINE_FOLDER + made.result["engine_name"]
    files: dict[str, Data] = {
        "metadata.json": _metadata(made, facts, digests),
        "recipe.yaml": encode_recipe(made.recipe),
        "model/source.onnx": made.source,
        "model/compiled.onnx": made.compiled,
        "model/names.json": canonical.encode(made.prepared["names"]),
        "model/steps.json": canonical.encode({"steps": made.prepared["steps"]}),
        engine_path: made.engine,
        "build.log.jsonl": made.log,
        "build.stderr": made.stderr,
        "facts.json": canonical.encode(facts),
        "environment.json": canonical.encode(made.environment),
        "golden/golden.json": canonical.encode(made.golden),
        "sbom.cdx.json": make_sbom(made.recipe, digests, made.environment["packages"], made.finished),
        "provenance.json": _provenance(made, engine_path, digests),
    }
    files |= {path: canonical.encode(value) for path, value in made.documents.items()}
    if made.meaning:
        files["meaning.json"] = canonical.encode(made.meaning)
    title = f"{made.recipe['name']} {made.recipe['version']}"
    drawing = "" if facts.get("layers_reason") else draw(
        from_json(made.prepared["graph"]), facts["layers"], eliminated=facts["eliminated"],
        tf32=made.recipe["tf32"], title=title,
    )  # fmt: skip
    if drawing:
        files["drawing.svg"] = drawing.encode()
    parts = label.sections(
        made.recipe, facts, made.environment, digests, made.meaning, drawing=drawing,
        documents={**made.documents, "model/steps.json": {"steps": made.prepared["steps"]}},
    )  # fmt: skip
    files["label.md"], files["label.html"] = label.markdown(title, parts), label.page(title, parts)
    folder = folder_of(made.recipe, backend_version(made.environment))
    files["manifest.json"] = make_manifest(
        folder=folder, name=made.recipe["name"], version=made.recipe["version"],
        previous=made.recipe["previous"], created=made.finished, backend=made.recipe["backend"],
        target=made.recipe["target"], files=files, digest=made.digest,
    )  # fmt: skip
    return folder, files


def folder_of(recipe: Mapping[str, Any], library_version: str) -> str:
    """``credit-v1.2.3-onnxruntime1.32-cpu``: the library's major and minor version only."""
    match = re.match(r"\d+\.\d+", library_version)
    tag = f"{recipe['backend']}{match[0] if match else ''}"
    return folder_name(recipe["name"], recipe["version"], tag, recipe["target"])


def _specs(specs: list[Any]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in specs]


def _metadata(made: Made, facts: Mapping[str, Any], digests: Mapping[str, str]) -> bytes:
    recipe = made.recipe
    values = {
        "build_timestamp": made.finished,
        "input_onnx_hash": digests["source"],
        "builder_config.fp16_mode": recipe["precision"] == "fp16",
        "builder_config.int8_mode": recipe["precision"] == "int8",
        "builder_config.max_batch_size": max(recipe["buckets"], default=1),
        "builder_config.dynamic_shapes": bool(recipe["buckets"]),
        "output_engine_hash": digests["engine"],
    }
    accuracy = made.documents.get("accuracy.json", {})
    unmeasured = "not measured at build: attestations/, qualification"
    calibrated = made.documents.get("calibration/manifest.json", {})
    reasons: dict[str, str] = {}
    missing = {item["field"]: item["reason"] for item in made.environment["null_reasons"]}
    is_tensorrt = recipe["backend"].startswith("tensorrt")
    image = made.environment["image"] if is_tensorrt else None
    not_trt = f"built with {recipe['backend']}, not TensorRT"
    unsaid = "the builder's log does not say"
    peak = "device_peak_bytes" if is_tensorrt else "peak_rss_bytes"
    for field, value, reason in (
        ("calibration_dataset_hash", calibrated.get("data"), f"{recipe['precision']} needs no calibration"),
        ("peak_memory_usage", facts["memory"].get(peak), unsaid),
        ("tensorrt_image", image, missing.get("image", not_trt) if is_tensorrt else not_trt),
        ("builder_config.max_workspace_size", recipe["workspace_bytes"],
         f"{recipe['backend']} has no builder workspace"),
        ("fused_layers", facts["fused_layers"], unsaid),
        ("quantized_ops_count", facts["quantized_ops_count"], unsaid),
        ("gpu", made.environment["gpu"], missing.get("gpu", "")),
        ("driver", made.environment["driver"], missing.get("driver", "")),
        ("commit", made.environment["commit"], missing.get("commit", "")),
        ("accuracy_metrics.top1_acc", accuracy.get("top1"),
         "the validation set names no labels" if accuracy else unmeasured),
        ("accuracy_metrics.psnr_db", accuracy.get("psnr_db"), unmeasured),
    ):  # fmt: skip
        if value is None:
            reasons[field] = reason
        else:
            values[field] = value
    return make_metadata(values, reasons)


def _provenance(made: Made, engine_path: str, digests: Mapping[str, str]) -> bytes:
    libraries = {p["name"].replace("-", "_"): p["version"] for p in made.environment["packages"]}
    return make_provenance(
        BuildFacts(
            subjects=[
                Material(engine_path, digests["engine"]),
                Material("model/compiled.onnx", digests["compiled"]),
            ],
            recipe=made.recipe,
            environment=made.environment,
            dependencies=[
                *[Material(role, made.digest(data)) for role, data in sorted(made.inputs.items())],
                *[
                    Material(f"source/{name}", digest)
                    for name, digest in sorted(made.prepared["external"].items())
                ],
            ],
            byproducts=[
                Material("build.log.jsonl", digests["log"]),
                Material("build.stderr", digests["stderr"]),
            ],
            versions={name: version for name, version in libraries.items() if name in _BUILDERS},
            invocation=sha256((made.started + digests["engine"] + digests["log"]).encode()),
            started=made.started,
            finished=made.finished,
            steps=made.prepared["steps"],
        )
    )


_BUILDERS: Final = (  # distributions whose versions are the builder's
    "pellucid", "onnxruntime", "tensorrt_rtx_cu13", "tensorrt_rtx_cu13_libs", "tensorrt_cu12",
    "tensorrt_cu12_libs", "tensorrt_cu13", "tensorrt_cu13_libs", "onnx", "numpy",
)  # fmt: skip
