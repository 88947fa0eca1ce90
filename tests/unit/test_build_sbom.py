"""The bill of materials, byte for byte what CycloneDX's own library writes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime

import pytest
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from pellucid.build.sbom import make_sbom

CREATED = "2026-11-30T16:40:14.123456789Z"
DIGESTS = {role: f"sha256:{letter * 64}" for role, letter in (("source", "a"), ("engine", "b"))}
RECIPE = {"name": "m", "version": "1.0.0", "backend": "tensorrt-rtx", "target": "sm89"}


def by_the_library(packages: Sequence[tuple[str, str]]) -> bytes:
    def hashed(role: str) -> list[HashType]:
        return [HashType(alg=HashAlgorithm.SHA_256, content=DIGESTS[role][7:])]

    model = Component(
        name="m", version="1.0.0", type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref="model",
        hashes=hashed("source"), description="source ONNX",
    )  # fmt: skip
    engine = Component(
        name="m-engine", version="1.0.0", type=ComponentType.FILE, bom_ref="engine", hashes=hashed("engine"),
        description="engine for tensorrt-rtx on sm89",
    )  # fmt: skip
    tools = []
    for name, version in packages:
        purl = PackageURL("pypi", name=name.lower().replace("_", "-"), version=version)
        tools.append(
            Component(
                name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string()
            )
        )
    bom = Bom(
        components=[engine, *tools],
        serial_number=uuid.uuid5(uuid.NAMESPACE_DNS, "unused"),
        metadata=BomMetaData(component=model, timestamp=datetime.fromisoformat(CREATED[:19] + "+00:00")),
        dependencies=[
            Dependency(model.bom_ref, [Dependency(engine.bom_ref)]),
            Dependency(engine.bom_ref, [Dependency(tool.bom_ref) for tool in tools]),
        ],
    )
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "packages",
    [
        [],
        [("numpy", "2.4.6")],
        [("ml_dtypes", "0.5.4"), ("numpy", "2.4.6"), ("tensorrt_rtx_cu13", "1.7.1+x")],
        [("Jinja2", "3.1"), ("ruamel.yaml", "1!2.0~b"), ("zope.interface", "7")],
    ],
)
def test_it_is_what_the_library_writes(packages: list[tuple[str, str]]) -> None:
    ours = json.loads(
        make_sbom(RECIPE, DIGESTS, [{"name": n, "version": v} for n, v in packages], CREATED)
    )  # fmt: skip
    theirs = json.loads(by_the_library(packages))
    assert uuid.UUID(ours.pop("serialNumber")[9:]).version == 5
    theirs.pop("serialNumber")
    assert ours == theirs


def test_the_same_inputs_give_the_same_bytes() -> None:
    packages = [{"name": "numpy", "version": "2.4.6"}]
    first = make_sbom(RECIPE, DIGESTS, packages, CREATED)
    assert first == make_sbom(RECIPE, DIGESTS, packages, CREATED)
    assert first != make_sbom(RECIPE, DIGESTS, packages, "2026-11-30T16:40:15.000000000Z")
    assert json.loads(first)["serialNumber"].startswith("urn:uuid:")
