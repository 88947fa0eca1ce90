"""Values of a recipe that only make sense, or are only safe, together.

Source: spec/recipe.md, sections 2 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pellucid.core.recipe_checks import refused
from pellucid.core.recipe_keys import KEYS, LOSSY, RISKY, RTX_TARGETS, WORKSPACE_DEFAULT
from pellucid.core.version import parse_version
from pellucid.errors import GateError, RecipeError

_TARGETS: Final = {"tensorrt-rtx": RTX_TARGETS}


def verify_choices(values: Mapping[str, Any]) -> None:
    """Refuse what does not go together, and every risky choice that nobody answers for.

    Raises:
        RecipeError: Names the key, and what it needs.
    """
    before = values["previous"]
    if before is not None and parse_version(before) == parse_version(values["version"]):
        raise refused("previous", "the version before this one", before)
    is_gpu = values["backend"] != "onnxruntime"
    (_verify_tensorrt if is_gpu else _verify_onnxruntime)(values)
    pinned = values["pinned_bucket"]
    if pinned is not None and pinned not in values["buckets"]:
        raise refused("pinned_bucket", f"one of the buckets {values['buckets']}", pinned)
    _verify_calibration(values)
    _verify_profiles(values["profiles"])
    for reason in values["reasons"]:
        if reason["choice"] not in KEYS:
            raise refused("reasons.choice", "a key of the recipe", reason["choice"])
    explained = {reason["choice"] for reason in values["reasons"]}
    for key, value in _risky(values, is_gpu=is_gpu):
        if key not in explained:
            raise RecipeError(
                f"recipe: {key}: {value!r} is a risky choice: expected a reason and a reviewer, got none",
                hint=f"reasons: [{{choice: {key}, reason: why, reviewer: who}}]",
            )


def verify_judged(values: Mapping[str, Any]) -> None:
    """Refuse a precision that changes numbers where nothing could tell what it costs.

    Raises:
        GateError: The recipe names no validation set.
    """
    if values["precision"] in LOSSY and values["validation"] is None:
        raise GateError(
            f"accuracy gate: expected a validation set for {values['precision']}, "
            "which changes numbers, got none",
            hint="name one in the recipe, validation: {data: FILE.npz}; nothing was built",
        )


def _risky(values: Mapping[str, Any], *, is_gpu: bool) -> list[tuple[str, Any]]:
    """Keys whose value somebody must answer for."""
    found = [
        (key, values[key])
        for key, risky in RISKY.items()
        if values[key] in risky and not (key == "serve_level" and is_gpu)  # its only way, no choice
    ]
    if values["profiles"]:
        found.append(("profiles", [profile["name"] for profile in values["profiles"]]))
    if is_gpu and values["workspace_bytes"] != WORKSPACE_DEFAULT:
        found.append(("workspace_bytes", values["workspace_bytes"]))
    return found


def _verify_calibration(values: Mapping[str, Any]) -> None:
    calibration, precision = values["calibration"], values["precision"]
    if (calibration is not None) != (precision == "int8"):
        expected, got = ("a calibration set", "none") if precision == "int8" else ("null", "one")
        raise RecipeError(
            f"recipe: calibration: expected {expected} for {precision}, got {got}",
            hint="calibration: {data: FILE.npz, method: minmax}, with precision: int8",
        )
    if calibration is None:
        return
    select = calibration["select"]
    if (select["count"] is None) != (select["rule"] == "all"):
        raise refused("calibration.select.count", "a count for every rule but all", select["count"])
    if (select["slice"] is None) != (select["rule"] != "stratified"):
        raise refused("calibration.select.slice", "a slice for the rule stratified only", select["slice"])
    if select["slice"] is not None and select["slice"] not in calibration["slices"]:
        raise refused("calibration.select.slice", f"one of {calibration['slices']}", select["slice"])
    if not calibration["operators"]:
        raise refused("calibration.operators", "at least one operator", [])


def _verify_profiles(profiles: list[dict[str, Any]]) -> None:
    names = [profile["name"] for profile in profiles]
    if len(set(names)) != len(names):
        raise refused("profiles", "each name once", names)


def _verify_onnxruntime(values: Mapping[str, Any]) -> None:
    if values["target"] != "cpu":
        raise refused(
            "target", "cpu for onnxruntime", values["target"], "backend: tensorrt-rtx builds for GPUs"
        )
    if values["tf32"]:
        raise RecipeError("recipe: tf32: expected false on a CPU, got true", hint="TF32 exists on GPUs only")
    if values["precision"] == "bf16":
        raise refused(
            "precision", "fp32, fp16 or int8 for onnxruntime", "bf16", "its CPU kernels know no BF16"
        )
    if values["workspace_bytes"] is not None:
        raise RecipeError(
            "recipe: workspace_bytes: expected null for onnxruntime, got a size",
            hint="this backend has no builder workspace",
        )
    if values["licence_ack"] is not None:
        raise refused("licence_ack", "null for onnxruntime", values["licence_ack"])
    if values["profiles"]:
        raise refused(
            "profiles", "none for onnxruntime", [p["name"] for p in values["profiles"]],
            "buckets say which batch sizes are served",
        )  # fmt: skip


def _verify_tensorrt(values: Mapping[str, Any]) -> None:
    backend = values["backend"]
    if values["licence_ack"] is not True:
        raise RecipeError(
            f"recipe: licence_ack: expected true for {backend}, got {str(values['licence_ack']).lower()}",
            hint="read NVIDIA's terms first (LICENSE.txt of the wheel), above all on hosted "
            "services and on medical, avionics and other life-critical use; then say licence_ack: true",
        )
    targets = _TARGETS.get(backend)
    if values["target"] == "cpu" or (targets and values["target"] not in targets):
        known = f"one of {', '.join(targets)}" if targets else "a GPU architecture"
        raise refused("target", f"{known} for {backend}", values["target"])
    if values["workspace_bytes"] is None:
        raise refused("workspace_bytes", f"a size in bytes for {backend}", None)
    if values["serve_level"] != "native":
        raise refused(
            "serve_level", f"native for {backend}", values["serve_level"],
            "the GPU picks its library kernels when it loads the engine",
        )  # fmt: skip
    if values["threads"] != 1:
        raise refused("threads", f"1 for {backend}", values["threads"], "a GPU engine runs on no CPU threads")
