"""The keys of a recipe: for each its default and its check; a mapping inside has a table of its own.

Source: spec/recipe.md, sections 2 to 4.
"""

from __future__ import annotations

from typing import Any, Final

from pellucid.core.recipe_checks import (
    BUCKET_MAX,
    MISSING,
    Check,
    ascending_sizes,
    decimal,
    flag,
    integer,
    listed,
    mapping,
    named,
    one_of,
    optional,
    ordered_shapes,
    shape,
    text,
    version,
)

RTX_TARGETS: Final = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")  # what tensorrt-rtx 1.7 builds for
GPU_TARGETS: Final = (*RTX_TARGETS, "sm87", "sm90", "sm100", "sm103", "sm110")
THREADS_MAX: Final = 256  # limit: more than any machine this was measured on
OPSET_MAX: Final = 26
LOSSY: Final = ("fp16", "bf16", "int8")

Keys = dict[str, tuple[Any, Check]]

# neither lines nor directions of writing: a label shows what a recipe says
_UNSEEN: Final = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_path: Final = text(rf"(?!/)(?!.*(^|/)\.\.(/|$))[^{_UNSEEN}\\]{{1,400}}", "a path below the recipe's folder")
_name: Final = text(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}", "a name")
_sentence: Final = text(rf"[^{_UNSEEN}]{{3,2000}}", "a sentence in one line, of 3 characters or more")
_operator: Final = text(r"[A-Z][A-Za-z0-9]{0,59}", "an ONNX operator")

VALIDATION: Final[Keys] = {
    "data": (MISSING, _path),
    "labels": (None, optional(_name)),
    "slices": ([], listed(_name, 32)),
}
REFERENCE: Final[Keys] = {
    "data": (MISSING, _path),
    "slices": ([], listed(_name, 32)),
}
SELECT: Final[Keys] = {
    "rule": ("all", one_of("all", "first", "random", "stratified")),
    "count": (None, optional(integer(1, 10**6))),
    "seed": (0, integer(0, 2**32 - 1)),
    "slice": (None, optional(_name)),
}
CALIBRATION: Final[Keys] = {
    "data": (MISSING, _path),
    "method": ("minmax", one_of("minmax", "entropy", "percentile")),
    "percentile": ("99.99", decimal("100")),
    "per_channel": (True, flag),
    "operators": (["Conv", "Gemm", "MatMul"], listed(_operator, 64)),
    "select": ({}, mapping(SELECT)),
    "slices": ([], listed(_name, 32)),
    "times": (None, optional(_name)),
    "source": (None, optional(_sentence)),
    "licence": (None, optional(_sentence)),
    "artefact": (None, optional(_path)),
}
CANONICAL: Final[Keys] = {
    "opset": (None, optional(integer(7, OPSET_MAX))),
    "fold": (False, flag),
}
PROFILE: Final[Keys] = {
    "name": (MISSING, _name),
    "inputs": (MISSING, named(ordered_shapes)),
}
GOLDEN: Final[Keys] = {
    "inputs": (None, optional(_path)),
    "count": (1, integer(1, 16)),
    "seed": (0, integer(0, 2**32 - 1)),
}
GATE: Final[Keys] = {
    "samples_min": (1, integer(1, 10**9)),
    "confidence": ("0.95", decimal("0.999999", "0.000001")),
    "top1_drop_max": ("0.01", optional(decimal("1"))),
    "kl_mean_max": ("0.01", optional(decimal("1000"))),
    "kl_p999_max": (None, optional(decimal("1000"))),
    "kl_max_max": (None, optional(decimal("1000"))),
    "error_max": (None, optional(decimal("1000000000"))),
    "psnr_db_min": (None, optional(decimal("1000"))),
    "cosine_min": (None, optional(decimal("1"))),
    "flips_max": ("0.01", optional(decimal("1"))),
    "flips_upper_max": (None, optional(decimal("1"))),
    "slice_flips_max": ("0.02", optional(decimal("1"))),
    "slice_flips_upper_max": (None, optional(decimal("1"))),
    "bucket_flips_max": ("0.01", optional(decimal("1"))),
    "boundary_error_max": (None, optional(decimal("1000000000"))),
    "out_of_range_max": ("0.05", optional(decimal("1"))),
    "out_of_range_unmeasured_max": ("0", decimal("1")),
}
REASON: Final[Keys] = {
    "choice": (MISSING, text(r"[a-z0-9_]{1,40}", "a key of the recipe")),
    "reason": (MISSING, _sentence),
    "reviewer": (MISSING, _sentence),
}
LIMITS: Final[Keys] = {
    "timeout_s": (600, integer(1, 86_400)),
    "memory_bytes": (16 * 2**30, integer(2**28, 2**42)),
    "file_bytes": (8 * 2**30, integer(2**10, 2**42)),
}
DEFAULT_LIMITS: Final[dict[str, int]] = {key: default for key, (default, _) in LIMITS.items()}
KEYS: Final[Keys] = {
    "name": (MISSING, text(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?", "a name of [a-z0-9_.-]")),
    "version": (MISSING, version),
    "previous": (None, optional(version)),
    "backend": (MISSING, one_of("onnxruntime", "tensorrt-rtx", "tensorrt")),
    "target": (MISSING, one_of("cpu", *GPU_TARGETS, later=("cuda",))),
    "model": (MISSING, _path),
    "meaning": (None, optional(_path)),
    "precision": ("fp32", one_of("fp32", *LOSSY, later=("fp8", "int4"))),
    "tf32": (False, flag),
    "serve_level": ("portable", one_of("portable", "native")),
    "threads": (1, integer(1, THREADS_MAX)),
    "shapes": ({}, named(shape(-1))),
    "canonical": ({}, mapping(CANONICAL)),
    "buckets": ([1, 8, 32], ascending_sizes),
    "pinned_bucket": (None, optional(integer(1, BUCKET_MAX))),
    "batch_delay_us": (None, optional(integer(0, 10**6))),
    "profiles": ([], listed(mapping(PROFILE), 8)),
    "commitment": ("salted", one_of("salted", "plain", later=("sealed",))),
    "nonfinite": ("refuse", one_of("refuse", "allow")),
    "calibration": (None, optional(mapping(CALIBRATION))),
    "reference": (None, optional(mapping(REFERENCE))),
    "validation": (None, optional(mapping(VALIDATION))),
    "golden": ({}, mapping(GOLDEN)),
    "gate": ({}, mapping(GATE)),
    "reasons": ([], listed(mapping(REASON), 32)),
    "workspace_bytes": (None, optional(integer(1, 2**45))),
    "licence_ack": (None, optional(flag)),
    "limits": ({}, mapping(LIMITS)),
    "strict": (False, flag),
}
SECTIONS: Final[dict[str, Keys]] = {  # mappings with keys of their own; inside them ``strict`` asks for all
    "canonical": CANONICAL, "calibration": CALIBRATION, "reference": REFERENCE, "validation": VALIDATION,
    "golden": GOLDEN, "gate": GATE, "limits": LIMITS,
}  # fmt: skip
ONLY: Final = {  # key -> the backends it is said and kept for
    "licence_ack": ("tensorrt-rtx", "tensorrt"),
    "profiles": ("tensorrt-rtx", "tensorrt"),
}
WORKSPACE_DEFAULT: Final = 2**32
_TENSORRT: Final[dict[str, Any]] = {
    "serve_level": "native", "workspace_bytes": WORKSPACE_DEFAULT, "canonical": {"opset": 17, "fold": True},
}  # fmt: skip
DEFAULTS: Final[dict[str, dict[str, Any]]] = {  # where another backend's default would be no choice
    "tensorrt-rtx": _TENSORRT,
    "tensorrt": _TENSORRT,
}
RISKY: Final[dict[str, tuple[Any, ...]]] = {  # key -> values that need a reason and a reviewer
    "serve_level": ("native",), "commitment": ("plain",), "nonfinite": ("allow",), "tf32": (True,),
    "precision": LOSSY,
}  # fmt: skip
