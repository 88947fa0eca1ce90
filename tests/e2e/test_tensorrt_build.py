"""TensorRT-RTX from recipe to package: built, signed, verified, inspected; refused where it cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pellucid.app.build import build, qualify
from pellucid.app.load import admit, verify
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site
from pellucid.build.child import measures
from pellucid.build.job import run_build
from pellucid.core.digest import sha256
from pellucid.core.metadata import parse_metadata, value_of
from pellucid.errors import BuildError, DeviceUnavailableError, ParseError, PolicyDeniedError
from pellucid.testing.builds import EventList, build_toy, toy_job, write_recipe
from pellucid.testing.models import digits_like

trt = pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")

from pellucid.backends.tensorrt.device import find_gpu  # noqa: E402

pytestmark = pytest.mark.e2e
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}
SMALL = {"choice": "workspace_bytes", "reason": "to see it fail", "reviewer": "a test"}
TAG = "tensorrt-rtx" + ".".join(trt.__version__.split(".")[:2])
no_gpu = pytest.mark.skipif(find_gpu()[0] is not None, reason="NOT RUN no-gpu: this machine has a GPU")


def document(folder: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / name).read_bytes())
    return value


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return create_site(tmp_path_factory.mktemp("rtx") / "site", node="test1")


@pytest.fixture(scope="module")
def archive(site: Site) -> Path:
    recipe = write_recipe(site.path("recipes") / "digits", "digits_like", name="digits", **RTX)
    return sign_folder(site, build(site, recipe).folder).archive


@pytest.mark.parametrize("target", ["sm80", "sm89"])
def test_a_package_holds_what_every_package_holds(tmp_path: Path, target: str) -> None:
    built = build_toy(tmp_path / "rtx", "digits_like", **RTX | {"target": target})
    other = build_toy(tmp_path / "ort", "digits_like")
    assert built.folder.name == f"toy-v1.0.0-{TAG}-{target}"
    names = [{str(p.relative_to(f)) for p in f.rglob("*.*")} for f in (built.folder, other.folder)]
    assert names[0] - names[1] == {"engine/model.engine"}
    assert names[1] - names[0] == {"engine/model.onnx"}
    facts = document(built.folder, "facts.json")
    assert facts["options"]["targets"] == [target]
    compiled = sha256((built.folder / "model/compiled.onnx").read_bytes())
    assert facts["options"]["network_name"] == "pellucid:" + compiled.removeprefix("sha256:")
    assert facts["fused_layers"] == document(built.folder, "metadata.json")["fused_layers"] == 3
    label = (built.folder / "label.md").read_text()
    assert "deferred to run time" in label
    assert "nobody measured its bits yet" in label
    log = [json.loads(line) for line in (built.folder / "build.log.jsonl").read_bytes().splitlines()]
    assert any(line["message"].startswith("Layers:") for line in log)
    environment = document(built.folder, "environment.json")
    assert environment["tensorrt_rtx"] == trt.__version__
    assert "tensorrt_rtx_cu13_libs" in {p["name"] for p in environment["packages"]}
    metadata = parse_metadata((built.folder / "metadata.json").read_bytes())
    assert value_of(metadata, "builder_config.max_workspace_size") == 2**32
    assert (built.folder / "recipe.yaml").read_text().count("licence_ack: true") == 1
    assert "licence_ack" not in (other.folder / "recipe.yaml").read_text()


@no_gpu
def test_what_needs_the_gpu_is_left_out_with_its_reason(tmp_path: Path) -> None:
    built = build_toy(tmp_path, "digits_like", **RTX)
    golden = document(built.folder, "golden/golden.json")
    assert golden["cases"] == []
    assert golden["reason"].startswith("engine: expected a GPU of sm89")
    assert any(
        note.startswith("golden: no case recorded") for note in document(built.folder, "facts.json")["notes"]
    )
    environment = document(built.folder, "environment.json")
    reasons = {item["field"]: item["reason"] for item in environment["null_reasons"]}
    assert (environment["gpu"], environment["device"]) == (None, None)
    assert reasons["gpu"] == reasons["device"] == find_gpu()[1]
    metadata = document(built.folder, "metadata.json")
    assert {"field": "gpu", "reason": find_gpu()[1]} in metadata["null_reasons"]
    assert "a machine without a GPU" in (built.folder / "label.md").read_text()


def test_five_builds_give_the_same_bytes(tmp_path: Path) -> None:
    if measures().report["fixed_addresses"] is not True:
        pytest.skip(f"NOT RUN fixed-addresses: {measures().report['fixed_addresses']}")
    built = [build_toy(tmp_path / str(number), "digits_like", **RTX) for number in range(5)]
    assert len({one.engine for one in built}) == 1
    assert len({one.facts["fingerprint"] for one in built}) == 1


def test_names_are_made_safe_before_the_builder_prints_them(tmp_path: Path) -> None:
    hostile = digits_like(nodes=lambda name: f"{name}\nMax Scratch Memory: 1 bytes")
    built = build_toy(tmp_path, hostile, **RTX)
    assert built.facts["memory"]["scratch_bytes"] != 1
    assert built.facts["fused_layers"] == 3
    assert len(document(built.folder, "model/names.json")["nodes"]) == 9


@no_gpu
def test_it_verifies_and_nothing_here_runs_it(site: Site, archive: Path) -> None:
    checked = verify(site, archive)
    assert checked.package.manifest.backend == "tensorrt-rtx"
    assert checked.verdict is not None
    (finding,) = [f for f in checked.verdict.findings if f.rule == "engine.target"]
    assert (finding.passed, finding.expected, finding.got) == (
        False, "a GPU of sm89, which the engine was built for", "no GPU",
    )  # fmt: skip
    with pytest.raises(DeviceUnavailableError, match="expected a GPU of sm89, which it was built for"):
        qualify(site, archive)
    recorder = EventList()
    with pytest.raises(PolicyDeniedError, match=r"engine\.target: expected a GPU of sm89.*got no GPU"):
        admit(site, archive, recorder)
    assert [kind for kind, _ in recorder.events] == ["load.refused"]


@pytest.mark.parametrize(
    ("model", "changes", "kind", "said"),
    [
        ("digits_like", {"target": "sm75"}, BuildError, "build for target sm80 or later"),
        (
            "digits_like",
            {"workspace_bytes": 2**20, "reasons": [SMALL]},
            BuildError,
            "raise workspace_bytes in the recipe",
        ),
        ("dynamically_quantised", {}, ParseError, "replace it at export"),
        (b"", {}, ParseError, "empty file"),
        (digits_like()[:2000], {}, ParseError, "expected ONNX"),
    ],
)
def test_a_build_that_fails_keeps_its_log(
    tmp_path: Path, model: bytes | str, changes: dict[str, Any], kind: type[BuildError], said: str
) -> None:
    job, recorder = toy_job(tmp_path / "packages")
    with pytest.raises(kind) as error:
        run_build(write_recipe(tmp_path / "recipe", model, **RTX | changes), job)
    assert said in f"{error.value.message} {error.value.hint}"
    ((event, data),) = recorder.events
    assert (event, data["outcome"], data["backend"]) == ("build", kind.code, "tensorrt-rtx")
    (kept,) = (tmp_path / "packages/failed").iterdir()
    assert sha256((kept / "build.log.jsonl").read_bytes()) == data["log"]
