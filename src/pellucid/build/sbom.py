"""CycloneDX 1.6 bill of materials: the model, its engine, and the toolchain that made it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from pellucid.core.digest import parse_digest

_NAMESPACE: Final = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122, URLs


def make_sbom(
    recipe: Mapping[str, Any], digests: Mapping[str, str], packages: Sequence[Mapping[str, str]], created: str
) -> bytes:
    """Bill of materials as JSON; the same inputs give the same bytes.

    Written by hand, since CycloneDX's own library takes longer to import than this build may cost
    beside the builder; a test compares the two byte for byte.

    Args:
        digests: ``engine``, ``source`` and ``compiled`` -> digest.
        packages: Distributions the worker had loaded, ``{"name", "version"}``, sorted by name.
        created: RFC 3339 time of the build.
    """
    model = {
        "bom-ref": "model", "name": recipe["name"], "version": recipe["version"],
        "type": "machine-learning-model", "description": "source ONNX", "hashes": _hashes(digests["source"]),
    }  # fmt: skip
    engine = {
        "bom-ref": "engine", "name": f"{recipe['name']}-engine", "version": recipe["version"], "type": "file",
        "description": f"engine for {recipe['backend']} on {recipe['target']}",
        "hashes": _hashes(digests["engine"]),
    }  # fmt: skip
    tools = [_library(package) for package in packages]
    refs = sorted(tool["bom-ref"] for tool in tools)
    edges = [{"ref": "engine", "dependsOn": refs} if refs else {"ref": "engine"}]
    edges += [{"ref": "model", "dependsOn": ["engine"]}, *({"ref": ref} for ref in refs)]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX",
        "specVersion": "1.6", "version": 1,
        "serialNumber": uuid.uuid5(_NAMESPACE, "urn:pellucid:" + digests["engine"] + created).urn,
        "metadata": {"component": model, "timestamp": created[:19] + "+00:00"},
        "components": [engine, *sorted(tools, key=lambda tool: (tool["name"], tool["version"]))],
        "dependencies": edges,
    }  # fmt: skip
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _library(package: Mapping[str, str]) -> dict[str, Any]:
    name = quote(package["name"].lower().replace("_", "-"), safe=".-_~")
    purl = f"pkg:pypi/{name}@{quote(package['version'], safe='.-_~')}"
    return {
        "bom-ref": purl, "name": package["name"], "version": package["version"], "type": "library",
        "purl": purl,
    }  # fmt: skip


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": parse_digest(digest).hex()}]
