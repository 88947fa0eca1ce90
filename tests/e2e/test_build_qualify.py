"""Qualification of real engines on this device, and its attestation beside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from pellucid.app.build import build, isolated, qualify
from pellucid.app.clock import SystemClock
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site
from pellucid.backends.onnxruntime.adapter import OnnxRuntimeBackend
from pellucid.build.qualify import Subject
from pellucid.build.qualify import qualify as measure
from pellucid.build.samples import Validation
from pellucid.core import canonical
from pellucid.core.digest import sha256
from pellucid.core.recipe import effective, parse_recipe
from pellucid.core.trust import verify_package
from pellucid.errors import DigestMismatchError, NotFoundError
from pellucid.guardian.open import open_package
from pellucid.testing.builds import write_recipe
from pellucid.testing.models import MODELS, credit_like

pytestmark = pytest.mark.e2e
DECISION = {"kind": "argmax", "output": "probabilities", "labels": ["granted", "refused"]}
BASE = {"name": "toy", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "model.onnx"}


def rows(count: int = 60, width: int = 20) -> Any:
    return np.random.default_rng(0).standard_normal((count, width)).astype("<f4")


def subject(
    model: str | bytes, validation: Validation | None, source: bytes | None = None, **changes: Any
) -> Subject:
    raw = MODELS[model]() if isinstance(model, str) else model
    recipe = effective(parse_recipe(yaml.safe_dump(BASE | {"buckets": [1, 4]} | changes).encode()))
    built = OnnxRuntimeBackend().build(recipe, raw, lambda line: None)
    meaning = {"decision": DECISION} if built.outputs[0].name == "probabilities" else {}
    return Subject(
        recipe,
        meaning,
        built.engine,
        raw if source is None else source,
        built.inputs,
        built.outputs,
        validation,
        None,
    )


def run(model: str | bytes, validation: Validation | None = None, **changes: Any) -> dict[str, Any]:
    predicate = measure(subject(model, validation, **changes), isolated(), SystemClock())
    canonical.encode(predicate)
    return predicate


def test_a_good_engine_passes_and_everything_is_measured() -> None:
    slices = {"sex": tuple("mf" * 30)}
    found = run("credit_like", Validation({"features": rows()}, ("granted",) * 60, slices))
    accuracy, variance = found["accuracy"], found["variance"]
    assert accuracy["passed"], accuracy["findings"]
    assert (accuracy["samples"], accuracy["flips"], variance["flips_between_buckets"]) == (60, 0, 0)
    assert [(s["value"], s["samples"]) for s in accuracy["slices"]] == [("f", 30), ("m", 30)]
    assert float(accuracy["flips_upper"]) == pytest.approx(1 - 0.05 ** (1 / 60), rel=1e-6)
    assert variance["label"] in ("invariant", "bucket-invariant")
    assert (variance["runs"], variance["processes"], variance["slots"]) == (4, 2, 5)
    assert [one["bucket"] for one in found["latency"]] == [1, 4]
    assert all(0 < one["p50_ns"] <= one["p99_ns"] and one["samples"] >= 20 for one in found["latency"])
    assert 0 < found["memory"]["rss_bytes"] <= found["memory"]["peak_rss_bytes"]
    assert found["environment"]["threads"] == found["device"]["threads"] == 1


@pytest.mark.parametrize("model", ["dynamically_quantised", "random_noise"])
def test_a_model_that_looks_at_its_neighbours_is_variant(model: str) -> None:
    found = run(model)["variance"]
    assert found["label"] == "variant"
    assert found["differences"]
    factors = {d["factor"] for d in found["differences"]}
    assert ("repetition" in factors) == (model == "random_noise")


def test_a_variant_model_is_judged_alone_as_it_is_served() -> None:
    found = run("dynamically_quantised", Validation({"x": rows(10, 16)}))
    assert found["variance"]["label"] == "variant"
    assert found["variance"]["flips_between_buckets"] == 0
    assert float(found["accuracy"]["error_max"]) < 1e-3


def test_an_engine_without_a_batch_axis_is_measured_alone() -> None:
    found = run("unbatched", Validation({"signal": rows(5, 6)}), buckets=[])
    assert found["variance"]["label"] == "invariant"
    assert [one["bucket"] for one in found["latency"]] == [0]
    assert found["accuracy"]["samples"] == 5


def test_without_validation_rows_nothing_is_accurate() -> None:
    found = run("credit_like")
    assert not found["accuracy"]["passed"]
    assert found["accuracy"]["top1"] is None


def test_an_engine_that_decides_otherwise_fails_the_gate() -> None:
    """The engine of another model: the source says one thing, the engine another."""
    other = onnx.load_model_from_string(credit_like())
    weights = onnx.numpy_helper.to_array(other.graph.initializer[2])
    other.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(-weights, "w2"))
    found = run(other.SerializeToString(), Validation({"features": rows()}), source=credit_like())["accuracy"]
    assert not found["passed"]
    assert found["flips"] > 0
    assert {f.partition(":")[0] for f in found["findings"]} >= {"KL mean", "flipped decisions"}


def test_an_engine_that_gives_nan_fails_closed() -> None:
    broken = rows()
    broken[7, 3] = np.nan
    found = run("credit_like", Validation({"features": broken}))["accuracy"]
    assert not found["passed"]
    assert found["findings"] == [
        "source: expected finite scores, got 1 rows with NaN or infinity",
        "engine: expected finite scores, got 1 rows with NaN or infinity",
    ]


# -- beside the package ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, bytes]:
    """A site, and the archive of one signed package whose recipe names validation data."""
    home = create_site(tmp_path_factory.mktemp("site") / "site", node="test1")
    folder = home.root / "recipes" / "toy"
    data = {"data": "v.npz", "labels": "truth"}
    recipe = write_recipe(folder, "credit_like", meaning={"decision": DECISION}, validation=data)
    np.savez(folder / "v.npz", features=rows(), truth=np.zeros(60, dtype=int))
    return home, sign_folder(home, build(home, recipe).folder).archive.read_bytes()


@pytest.fixture
def site(signed: tuple[Site, bytes], tmp_path: Path) -> tuple[Site, Path]:
    """The site, and a copy of its archive that nobody has qualified yet."""
    path = tmp_path / "toy.tar.gz"
    path.write_bytes(signed[1])
    return signed[0], path


def test_the_attestation_stands_beside_the_package_and_verifies(site: tuple[Site, Path]) -> None:
    home, archive = site
    before = verify_package(open_package(archive), home.trust())
    assert before.label_variance == "untested"
    outcome = qualify(home, archive)
    after = verify_package(open_package(archive), home.trust())
    assert after.digest == before.digest
    assert after.label_variance == outcome.predicate["variance"]["label"] != "untested"
    assert after.qualification == outcome.predicate
    assert outcome.member == "attestations/qualification.sigstore.json"
    assert outcome.predicate["validation"] == sha256((home.root / "recipes/toy/v.npz").read_bytes())
    again = qualify(home, archive)
    assert again.member == outcome.member
    assert len(verify_package(open_package(archive), home.trust()).qualifications) == 1


def test_only_the_data_that_the_build_named_will_do(site: tuple[Site, Path], tmp_path: Path) -> None:
    home, archive = site
    other = tmp_path / "v.npz"
    np.savez(other, features=rows(61), truth=np.zeros(61, dtype=int))
    with pytest.raises(DigestMismatchError, match="validation data"):
        qualify(home, archive, other)
    hidden = home.root / "recipes/toy/v.npz"
    moved = hidden.rename(tmp_path / "moved.npz")
    try:
        with pytest.raises(NotFoundError, match="validation data"):
            qualify(home, archive)
        assert qualify(home, archive, moved).passed
    finally:
        moved.rename(hidden)


def test_no_validation_row_is_in_the_package(site: tuple[Site, Path]) -> None:
    for path, data in open_package(site[1]).files.items():
        for row in rows():
            assert row[:4].tobytes() not in data, path
