"""The regulator's four questions about a call, answered from verified evidence only.

Which image was it built in, at which precision, calibrated on what and when, and is the signature
good? What is not there says why. Source: requirement E3; spec/evidence-bundle.md, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pellucid.core.calibration import MANIFEST_PATH, parse_manifest
from pellucid.core.trust import TrustedPackage
from pellucid.errors import DigestMismatchError
from pellucid.evidence.chain import Chain

NOT_SAID = "the package does not say"


def answer_four(chain: Chain, package: TrustedPackage) -> dict[str, Any]:
    """The four answers; ``None`` only beside a reason.

    Args:
        chain: The call.
        package: The package that answered; its signature was verified to make this value.

    Raises:
        DigestMismatchError: It is not the package that the call names.
    """
    recorded = chain.call.entry.data.get("package")
    if recorded != package.digest:
        raise DigestMismatchError(
            f"package of call {chain.call.entry.id}: expected {recorded}, got {package.digest}"
        )
    return {
        "call": chain.call.entry.id,
        "image": _image(package),
        "precision": _precision(package),
        "calibration": _calibration(package),
        "signature": _signature(package),
    }


def _image(package: TrustedPackage) -> dict[str, Any]:
    """The image the build ran in; TensorRT packages name theirs in the metadata as well."""
    digest = package.environment.get("image") or package.metadata.get("tensorrt_image")
    if digest:
        return {"digest": digest, "reason": None}
    known = _reason(package.environment, "image") or _reason(package.metadata, "tensorrt_image")
    return {"digest": None, "reason": known or NOT_SAID}


def _precision(package: TrustedPackage) -> dict[str, Any]:
    value = {"value": package.precision.upper(), "tf32": package.recipe.get("tf32")}
    return value | {"quantised_operations": _quantised(package)}


def _quantised(package: TrustedPackage) -> int:
    """Operations of the engine that compute with integers, counted when it was built."""
    count = package.metadata.get("quantized_ops_count")
    return count if isinstance(count, int) else 0


def _calibration(package: TrustedPackage) -> dict[str, Any]:
    """Selection and time range of the calibration set; floating-point engines need none."""
    digest = package.metadata.get("calibration_dataset_hash")
    if package.precision in ("fp32", "fp16", "bf16"):
        count, name = _quantised(package), package.precision.upper()
        reason = f"{name}: none needed, no value was quantised"
        if count:
            reason = (
                f"not known: the build quantised nothing, but {_operations(count)} came with the source model"
            )
        return {"digest": None, "selection": None, "from": None, "to": None, "reason": reason}
    raw = package.files.get(MANIFEST_PATH)
    found = parse_manifest(raw) if raw is not None else None
    times = (found.times if found else None) or {}
    return {
        "digest": digest,
        "selection": found.selection if found else None,
        "from": times.get("from"),
        "to": times.get("to"),
        "reason": None if digest else _reason(package.metadata, "calibration_dataset_hash") or NOT_SAID,
    }


def _operations(count: int) -> str:
    return f"{count:,} quantised engine layer{'' if count == 1 else 's'}"


def _signature(package: TrustedPackage) -> dict[str, Any]:
    return {
        "package": package.digest,
        "engine": package.engine_digest,
        "key": package.signer,
        "check": "holds: every file of the package is the one the builder signed",
        "attestations": len(package.qualifications) + len(package.approvals),
    }


def _reason(document: Mapping[str, Any], field: str) -> str:
    for item in document.get("null_reasons") or ():
        if item.get("field") == field:
            return str(item["reason"])
    return ""
