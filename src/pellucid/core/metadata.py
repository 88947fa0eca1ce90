"""``metadata.json``: the fields that auditors ask for by name; null only with a reason.

Closed and canonical; decimals stand as text. Source: spec/package.md, section 'metadata.json';
requirement P1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pellucid.core import canonical
from pellucid.core.digest import parse_digest
from pellucid.core.times import parse_time
from pellucid.errors import FormatError

FIELDS: Final = (
    "build_timestamp", "tensorrt_image", "input_onnx_hash", "calibration_dataset_hash", "builder_config",
    "output_engine_hash", "accuracy_metrics", "fused_layers", "quantized_ops_count", "peak_memory_usage",
    "gpu", "driver", "commit",
)  # fmt: skip
BUILDER_CONFIG: Final = (
    "fp16_mode", "int8_mode", "max_batch_size", "max_workspace_size", "dynamic_shapes",
)  # fmt: skip
ACCURACY_METRICS: Final = ("top1_acc", "psnr_db")
_GROUPS: Final = {"builder_config": BUILDER_CONFIG, "accuracy_metrics": ACCURACY_METRICS}
REASON_MAX: Final = 400

_TEXT, _COUNT, _FLAG = (str,), (int,), (bool,)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "build_timestamp": _TEXT, "tensorrt_image": _TEXT, "input_onnx_hash": _TEXT,
    "calibration_dataset_hash": _TEXT, "output_engine_hash": _TEXT, "fused_layers": _COUNT,
    "quantized_ops_count": _COUNT, "peak_memory_usage": _COUNT, "gpu": _TEXT, "driver": _TEXT,
    "commit": _TEXT, "builder_config.fp16_mode": _FLAG, "builder_config.int8_mode": _FLAG,
    "builder_config.max_batch_size": _COUNT, "builder_config.max_workspace_size": _COUNT,
    "builder_config.dynamic_shapes": _FLAG, "accuracy_metrics.top1_acc": _TEXT,
    "accuracy_metrics.psnr_db": _TEXT,
}  # fmt: skip


def make_metadata(values: Mapping[str, Any], reasons: Mapping[str, str]) -> bytes:
    """Bytes of ``metadata.json``.

    Args:
        values: By dotted name, for example ``builder_config.fp16_mode``; a name left out is null.
            Sizes are bytes, digests ``sha256:...``, decimals text.
        reasons: Why a value is null, by dotted name.

    Raises:
        FormatError: A null without reason, a reason for a value that is there, or a wrong type.
    """
    unknown = sorted((values.keys() | reasons.keys()) - _TYPES.keys())
    if unknown:
        raise FormatError(f"metadata.json: expected {', '.join(_TYPES)}, got {unknown[0]!r:.80}")
    document: dict[str, Any] = {
        name: {part: values.get(f"{name}.{part}") for part in _GROUPS[name]}
        if name in _GROUPS
        else values.get(name)
        for name in FIELDS
    }
    # dotted names are no keys of the canonical profile, so the reasons are a list
    document["null_reasons"] = [{"field": field, "reason": reasons[field]} for field in sorted(reasons)]
    raw = canonical.encode(document)
    parse_metadata(raw)
    return raw


def parse_metadata(raw: bytes) -> dict[str, Any]:
    """Read and check ``metadata.json``.

    Raises:
        FormatError: Not canonical JSON, a missing or unknown field, a wrong type, or a null without
            reason.
    """
    document = canonical.decode(raw)
    _closed("metadata.json", document, (*FIELDS, "null_reasons"))
    for name, parts in _GROUPS.items():
        _closed(name, document[name], parts)
    reasons = _reasons(document["null_reasons"])
    for field in _TYPES:
        _check_field(field, value_of(document, field), reasons.get(field))
    verified: dict[str, Any] = document
    return verified


def value_of(document: Mapping[str, Any], field: str) -> Any:
    """Value of a dotted name."""
    name, _, part = field.partition(".")
    return document[name][part] if part else document[name]


def _closed(subject: str, value: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(value, dict) or set(value) != set(keys):
        got = sorted(set(value) ^ set(keys)) if isinstance(value, dict) else type(value).__name__
        raise FormatError(f"{subject}: expected exactly {', '.join(keys)}, got a difference at {got!r:.120}")


def _reasons(value: Any) -> dict[str, str]:
    if not isinstance(value, list):
        raise FormatError(f"null_reasons: expected a list, got {type(value).__name__}")
    reasons: dict[str, str] = {}
    for item in value:
        _closed("null_reasons", item, ("field", "reason"))
        field, reason = item["field"], item["reason"]
        if field not in _TYPES or field in reasons:
            raise FormatError(f"null_reasons: expected each known field at most once, got {field!r:.80}")
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= REASON_MAX:
            raise FormatError(f"null_reasons: {field}: expected a reason, got {reason!r:.40}")
        reasons[field] = reason
    return reasons


def _check_field(field: str, value: Any, reason: str | None) -> None:
    if value is None:
        if reason is None:
            raise FormatError(f"metadata.json: {field}: expected a value or a reason, got neither")
        return
    if reason is not None:
        raise FormatError(f"metadata.json: {field}: expected no reason for a value that is there, got one")
    if type(value) not in _TYPES[field]:
        expected = " or ".join(kind.__name__ for kind in _TYPES[field])
        raise FormatError(f"metadata.json: {field}: expected {expected}, got {type(value).__name__}")
    if field.endswith("_hash"):
        parse_digest(value)
    if field == "build_timestamp":
        parse_time(value)
