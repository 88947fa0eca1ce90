"""The recipe: everything a build was told, nothing left to a silent default.

``parse_recipe`` reads what a person wrote; ``effective`` is the same with every default written
out, and that is what the package keeps. Decimals stand as text, so that no float is ever signed.
Source: spec/recipe.md; requirement B1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pellucid.core import strict_yaml
from pellucid.core.version import parse_version
from pellucid.errors import FormatError, RecipeError

BUCKET_MAX: Final = 4096  # limit: rows of one batch
GPU_TARGETS: Final = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")  # what tensorrt-rtx 1.7 builds for
BUCKETS_MAX: Final = 16  # limit: each bucket is measured at qualification
THREADS_MAX: Final = 256  # limit: more than any machine this was measured on
_MISSING: Final = object()

Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One build, said in full.

    Attributes:
        model, meaning: Paths relative to the recipe's folder; ``meaning`` may be ``None``.
        serve_level: ``portable`` (same bits on machines of one ISA) or ``native`` (faster, same
            bits on this machine only).
        buckets: Batch sizes served, ascending; ``()`` for a model without a batch axis.
        pinned_bucket: The one bucket every call uses, or ``None``.
        validation: ``{data, labels, slices}`` or ``None``; golden: ``{inputs, count, seed}``.
        gate: Limits of the accuracy report; decimals as text, ``None`` where nothing is asked.
        reasons: ``{choice, reason, reviewer}`` for each risky choice.
        licence_ack: The author read the terms of NVIDIA's library; ``None`` where it is not used.
        said: Keys the author wrote, dotted.
    """

    name: str
    version: str
    previous: str | None
    backend: str
    target: str
    model: str
    meaning: str | None
    precision: str
    tf32: bool
    serve_level: str
    threads: int
    buckets: tuple[int, ...]
    pinned_bucket: int | None
    commitment: str
    nonfinite: str
    validation: dict[str, Any] | None
    golden: dict[str, Any]
    gate: dict[str, Any]
    reasons: tuple[dict[str, str], ...]
    workspace_bytes: int | None
    licence_ack: bool | None
    limits: dict[str, Any]
    strict: bool
    said: frozenset[str]


def _refuse(key: str, expected: str, got: Any, hint: str = "") -> RecipeError:
    return RecipeError(f"recipe: {key}: expected {expected}, got {got!r:.80}", hint=hint)


def _text(pattern: str, expected: str) -> Check:
    compiled = re.compile(pattern)

    def check(key: str, value: Any) -> str:
        if type(value) is not str or not compiled.fullmatch(value):
            hint = "put the value in quotes" if isinstance(value, int | float) else ""
            raise _refuse(key, expected, value, hint)
        return value

    return check


def _one_of(*allowed: str, later: tuple[str, ...] = ()) -> Check:
    def check(key: str, value: Any) -> str:
        if value in later:
            raise RecipeError(
                f"recipe: {key}: expected {' or '.join(allowed)}, got {value!r}, "
                "which is not built by this version"
            )
        if type(value) is not str or value not in allowed:
            raise _refuse(key, " or ".join(allowed), value)
        return value

    return check


def _integer(low: int, high: int) -> Check:
    def check(key: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _refuse(key, f"an integer from {low:,} to {high:,}", value)
        return value

    return check


def _flag(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(key, "true or false", value)
    return value


def _decimal(high: str) -> Check:
    def check(key: str, value: Any) -> str:
        try:
            if type(value) not in (int, float, str):
                raise InvalidOperation
            number = Decimal(str(value))
            if not number.is_finite() or not 0 <= number <= Decimal(high):
                raise InvalidOperation
        except InvalidOperation:
            raise _refuse(key, f"a number from 0 to {high}", value) from None
        return format(number.normalize(), "f")

    return check


def _optional(check: Check) -> Check:
    return lambda key, value: None if value is None else check(key, value)


def _mapping(table: Mapping[str, tuple[Any, Check]]) -> Check:
    def check(key: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _refuse(key, "a mapping", value)
        return _fill(key, value, table)

    return check


def _listed(check: Check, size_max: int) -> Check:
    def checked(key: str, value: Any) -> list[Any]:
        if type(value) is not list or len(value) > size_max:
            raise _refuse(key, f"a list of at most {size_max}", value)
        return [check(f"{key}[{position}]", item) for position, item in enumerate(value)]

    return checked


def _buckets(key: str, value: Any) -> list[int]:
    sizes: list[int] = _listed(_integer(1, BUCKET_MAX), BUCKETS_MAX)(key, value)
    if sizes != sorted(set(sizes)):
        raise _refuse(key, "ascending sizes, each once", value)
    return sizes


def _version(key: str, value: Any) -> str:
    try:
        return parse_version(value, subject=key).text
    except FormatError as error:
        hint = "put the value in quotes" if isinstance(value, int | float) else error.hint
        raise RecipeError(f"recipe: {error.message}", hint=hint) from error


_path: Final = _text(r"(?!/)(?!.*(^|/)\.\.(/|$))[^\x00-\x1f\\]{1,400}", "a path below the recipe's folder")
_name: Final = _text(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}", "a name")
_sentence: Final = _text(r"[^\x00-\x1f]{3,2000}", "a sentence")

_VALIDATION: Final[dict[str, tuple[Any, Check]]] = {
    "data": (_MISSING, _path),
    "labels": (None, _optional(_name)),
    "slices": ([], _listed(_name, 32)),
}
_GOLDEN: Final[dict[str, tuple[Any, Check]]] = {
    "inputs": (None, _optional(_path)),
    "count": (1, _integer(1, 16)),
    "seed": (0, _integer(0, 2**32 - 1)),
}
_GATE: Final[dict[str, tuple[Any, Check]]] = {
    "samples_min": (1, _integer(1, 10**9)),
    "confidence": ("0.95", _decimal("0.999999")),
    "top1_drop_max": ("0.01", _optional(_decimal("1"))),
    "kl_mean_max": ("0.01", _optional(_decimal("1000"))),
    "kl_max_max": (None, _optional(_decimal("1000"))),
    "error_max": (None, _optional(_decimal("1000000000"))),
    "flips_max": ("0.01", _optional(_decimal("1"))),
    "flips_upper_max": (None, _optional(_decimal("1"))),
    "slice_flips_max": ("0.02", _optional(_decimal("1"))),
    "slice_flips_upper_max": (None, _optional(_decimal("1"))),
    "bucket_flips_max": ("0.01", _optional(_decimal("1"))),
}
_REASON: Final[dict[str, tuple[Any, Check]]] = {
    "choice": (_MISSING, _text(r"[a-z0-9_]{1,40}", "a key of the recipe")),
    "reason": (_MISSING, _sentence),
    "reviewer": (_MISSING, _sentence),
}
_LIMITS: Final[dict[str, tuple[Any, Check]]] = {
    "timeout_s": (600, _integer(1, 86_400)),
    "memory_bytes": (16 * 2**30, _integer(2**28, 2**42)),
    "file_bytes": (8 * 2**30, _integer(2**10, 2**42)),
}
DEFAULT_LIMITS: Final[dict[str, int]] = {key: default for key, (default, _) in _LIMITS.items()}
_TABLE: Final[dict[str, tuple[Any, Check]]] = {
    "name": (_MISSING, _text(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?", "a name of [a-z0-9_.-]")),
    "version": (_MISSING, _version),
    "previous": (None, _optional(_version)),
    "backend": (_MISSING, _one_of("onnxruntime", "tensorrt-rtx", later=("tensorrt",))),
    "target": (_MISSING, _one_of("cpu", *GPU_TARGETS, later=("cuda",))),
    "model": (_MISSING, _path),
    "meaning": (None, _optional(_path)),
    "precision": ("fp32", _one_of("fp32", later=("fp16", "bf16", "int8", "fp8", "int4"))),
    "tf32": (False, _flag),
    "serve_level": ("portable", _one_of("portable", "native")),
    "threads": (1, _integer(1, THREADS_MAX)),
    "buckets": ([1, 8, 32], _buckets),
    "pinned_bucket": (None, _optional(_integer(1, BUCKET_MAX))),
    "commitment": ("salted", _one_of("salted", "plain", later=("sealed",))),
    "nonfinite": ("refuse", _one_of("refuse", "allow")),
    "validation": (None, _optional(_mapping(_VALIDATION))),
    "golden": ({}, _mapping(_GOLDEN)),
    "gate": ({}, _mapping(_GATE)),
    "reasons": ([], _listed(_mapping(_REASON), 32)),
    "workspace_bytes": (None, _optional(_integer(1, 2**45))),
    "licence_ack": (None, _optional(_flag)),
    "limits": ({}, _mapping(_LIMITS)),
    "strict": (False, _flag),
}
_ONLY: Final = {"licence_ack": "tensorrt-rtx"}  # key -> the one backend it is said and kept for
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {  # where another backend's default would be no choice
    "tensorrt-rtx": {"serve_level": "native", "workspace_bytes": 2**32},
}
RISKY: Final[dict[str, Any]] = {
    "serve_level": "native", "commitment": "plain", "nonfinite": "allow", "tf32": True,
}  # fmt: skip


def _fill(where: str, given: dict[str, Any], table: Mapping[str, tuple[Any, Check]]) -> dict[str, Any]:
    prefix = f"{where}." if where else ""
    unknown = sorted(set(given) - set(table))
    if unknown:
        raise RecipeError(
            f"recipe: {prefix}{unknown[0][:60]}: expected one of {', '.join(table)}, got an unknown key"
        )
    filled = {}
    for key, (default, check) in table.items():
        value = given.get(key, default)
        if value is _MISSING:
            raise RecipeError(f"recipe: {prefix}{key}: expected a value, got none")
        filled[key] = check(prefix + key, value)
    return filled


def parse_recipe(raw: bytes) -> Recipe:
    """Recipe of a YAML file's bytes.

    Raises:
        RecipeError: Not YAML, an unknown or repeated key, a value out of range, a risky choice
            without reason and reviewer, or, with ``strict``, anything left unsaid.
    """
    try:
        given = strict_yaml.load(raw, subject="recipe")
    except FormatError as error:
        raise RecipeError(error.message, hint=error.hint) from error
    if type(given) is not dict:
        raise RecipeError(f"recipe: expected a mapping, got {type(given).__name__}")
    defaults = _DEFAULTS.get(given["backend"], {}) if type(given.get("backend")) is str else {}
    values = _fill("", defaults | given, _TABLE)
    said = frozenset(_said(given))
    if values["strict"]:
        _verify_all_said(said, values)
    _verify_choices(values)
    values["buckets"], values["reasons"] = tuple(values["buckets"]), tuple(values["reasons"])
    return Recipe(**values, said=said)


def _said(given: Mapping[str, Any]) -> list[str]:
    keys = list(given)
    for key in ("validation", "golden", "gate", "limits"):
        if type(given.get(key)) is dict:
            keys += [f"{key}.{name}" for name in given[key]]
    return keys


def _verify_all_said(said: frozenset[str], values: Mapping[str, Any]) -> None:
    wanted = {key for key in _TABLE if _ONLY.get(key, values["backend"]) == values["backend"]}
    for key, table in (
        ("validation", _VALIDATION),
        ("golden", _GOLDEN),
        ("gate", _GATE),
        ("limits", _LIMITS),
    ):
        if values[key] is not None:
            wanted |= {f"{key}.{name}" for name in table}
    unsaid = sorted(wanted - said)
    if unsaid:
        raise RecipeError(
            f"recipe: strict: expected every key to be said, got no {', '.join(unsaid)}",
            hint="write them out, or copy them from the recipe.yaml of an earlier package",
        )


def _verify_choices(values: Mapping[str, Any]) -> None:
    is_gpu = values["backend"] == "tensorrt-rtx"
    (_verify_tensorrt if is_gpu else _verify_onnxruntime)(values)
    pinned = values["pinned_bucket"]
    if pinned is not None and pinned not in values["buckets"]:
        raise _refuse("pinned_bucket", f"one of the buckets {values['buckets']}", pinned)
    for reason in values["reasons"]:
        if reason["choice"] not in _TABLE:
            raise _refuse("reasons.choice", "a key of the recipe", reason["choice"])
    explained = {reason["choice"] for reason in values["reasons"]}
    for key, risky in RISKY.items():
        is_only_way = key == "serve_level" and is_gpu
        if values[key] == risky and key not in explained and not is_only_way:
            raise RecipeError(
                f"recipe: {key}: {risky!r} is a risky choice: expected a reason and a reviewer, got none",
                hint=f"reasons: [{{choice: {key}, reason: why, reviewer: who}}]",
            )


def _verify_onnxruntime(values: Mapping[str, Any]) -> None:
    if values["target"] != "cpu":
        raise _refuse(
            "target", "cpu for onnxruntime", values["target"], "backend: tensorrt-rtx builds for GPUs"
        )
    if values["tf32"]:
        raise RecipeError("recipe: tf32: expected false on a CPU, got true", hint="TF32 exists on GPUs only")
    if values["workspace_bytes"] is not None:
        raise RecipeError(
            "recipe: workspace_bytes: expected null for onnxruntime, got a size",
            hint="this backend has no builder workspace",
        )
    if values["licence_ack"] is not None:
        raise _refuse("licence_ack", "null for onnxruntime", values["licence_ack"])


def _verify_tensorrt(values: Mapping[str, Any]) -> None:
    if values["licence_ack"] is not True:
        raise RecipeError(
            f"recipe: licence_ack: expected true for tensorrt-rtx, got {str(values['licence_ack']).lower()}",
            hint="read NVIDIA's terms first (LICENSE.txt of the tensorrt_rtx wheel), above all on hosted "
            "services and on medical, avionics and other life-critical use; then say licence_ack: true",
        )
    if values["target"] not in GPU_TARGETS:
        raise _refuse("target", f"one of {', '.join(GPU_TARGETS)} for tensorrt-rtx", values["target"])
    if values["workspace_bytes"] is None:
        raise _refuse("workspace_bytes", "a size in bytes for tensorrt-rtx", None)
    if values["serve_level"] != "native":
        raise _refuse(
            "serve_level", "native for tensorrt-rtx", values["serve_level"],
            "the GPU picks its library kernels when it loads the engine",
        )  # fmt: skip
    if values["threads"] != 1:
        raise _refuse(
            "threads", "1 for tensorrt-rtx", values["threads"], "a GPU engine runs on no CPU threads"
        )


def effective(recipe: Recipe) -> dict[str, Any]:
    """Everything the recipe says, defaults written out; values of the canonical profile."""
    values = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.name != "said"}
    values["buckets"], values["reasons"] = list(recipe.buckets), [dict(r) for r in recipe.reasons]
    return {key: v for key, v in values.items() if _ONLY.get(key, recipe.backend) == recipe.backend}


def encode_recipe(values: Mapping[str, Any]) -> bytes:
    """YAML of an effective recipe; ``parse_recipe`` reads the same values back."""
    return strict_yaml.dump({key: values[key] for key in _TABLE if key in values or key not in _ONLY})
