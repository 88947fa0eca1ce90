"""CycloneDX 1.6 bill of materials: the model, its engine, and the toolchain that made it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from pellucid.core.digest import parse_digest

_NAMESPACE: Final = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122, URLs


def make_sbom(
    recipe: Mapping[str, Any], digests: Mapping[str, str], packages: Sequence[Mapping[str, str]], created: str
) -> bytes:
    """Bill of materials as JSON; the same inputs give the same bytes.

    Args:
        digests: ``engine``, ``source`` and ``compiled`` -> digest.
        packages: Distributions the worker had loaded, ``{"name", "version"}``.
        created: RFC 3339 time of the build.
    """
    model = Component(
        name=recipe["name"], version=recipe["version"], type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model", hashes=[_hash(digests["source"])], description="source ONNX",
    )  # fmt: skip
    engine = Component(
        name=f"{recipe['name']}-engine", version=recipe["version"], type=ComponentType.FILE, bom_ref="engine",
        hashes=[_hash(digests["engine"])],
        description=f"engine for {recipe['backend']} on {recipe['target']}",
    )  # fmt: skip
    tools = [_library(package) for package in packages]
    bom = Bom(
        components=[engine, *tools],
        serial_number=uuid.uuid5(_NAMESPACE, "urn:pellucid:" + digests["engine"] + created),
        metadata=BomMetaData(component=model, timestamp=datetime.fromisoformat(created[:19] + "+00:00")),
        dependencies=[
            Dependency(model.bom_ref, [Dependency(engine.bom_ref)]),
            Dependency(engine.bom_ref, [Dependency(tool.bom_ref) for tool in tools]),
        ],
    )
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _library(package: Mapping[str, str]) -> Component:
    purl = PackageURL("pypi", name=package["name"].lower().replace("_", "-"), version=package["version"])
    return Component(
        name=package["name"], version=package["version"], type=ComponentType.LIBRARY, purl=purl,
        bom_ref=purl.to_string(),
    )  # fmt: skip


def _hash(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=parse_digest(digest).hex())
