"""Builder settings: set, read back, compared. The library's setters report nothing.

Source: spec/recipe.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tensorrt_rtx as trt

from pellucid.errors import BuildError, PrecisionError

# networks are always strongly typed here: the precision is the model's own
_FLAGS: Final = {"monitor_memory": "MONITOR_MEMORY", "tf32": "TF32"}


def network_flags() -> int:
    """Flags of a new network."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def configure(config: Any, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Set everything that the recipe says; gives the settings as read back.

    Raises:
        PrecisionError: TF32 did not take.
        BuildError: Another setting did not take; names every one.
    """
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, recipe["workspace_bytes"])
    config.set_flag(trt.BuilderFlag.MONITOR_MEMORY)
    (config.set_flag if recipe["tf32"] else config.clear_flag)(trt.BuilderFlag.TF32)
    _set_target(config, recipe["target"])
    got = read_back(config)
    verify_settings(wanted(recipe), got)
    return got


def _set_target(config: Any, target: str) -> None:
    capability = getattr(trt.ComputeCapability, target.upper(), None)
    if capability is None:
        known = ", ".join(name.lower() for name in trt.ComputeCapability.__members__ if name[:2] == "SM")
        raise BuildError(
            f"target: expected one that tensorrt-rtx {trt.__version__} builds for ({known}), got {target}",
            hint="change target in the recipe",
        )
    config.num_compute_capabilities = 1
    if not config.set_compute_capability(capability, 0):
        raise BuildError(f"target: expected tensorrt-rtx to take {target}, got a refusal")


def wanted(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the recipe asks for, in the words of ``read_back``."""
    return {
        "targets": [recipe["target"]],
        "workspace_bytes": recipe["workspace_bytes"],
        "profiling_verbosity": "detailed",
        "monitor_memory": True,
        "tf32": recipe["tf32"],
    }


def read_back(config: Any) -> dict[str, Any]:
    """Settings as the builder's configuration reports them."""
    count = config.num_compute_capabilities
    return {
        "targets": [config.get_compute_capability(i).name.lower() for i in range(count)],
        "workspace_bytes": config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE),
        "profiling_verbosity": config.profiling_verbosity.name.lower(),
        "optimization_level": config.builder_optimization_level,
        "flags": sorted(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag)),
    } | {key: bool(config.get_flag(getattr(trt.BuilderFlag, name))) for key, name in _FLAGS.items()}


def verify_settings(asked: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Fail on every setting that did not hold.

    Raises:
        PrecisionError: TF32 is among them.
        BuildError: Other settings only.
    """
    wrong = [name for name, value in asked.items() if got.get(name) != value]
    if wrong:
        words = "; ".join(f"{n}: expected {asked[n]}, got {got.get(n, 'nothing')}" for n in wrong)
        kind = PrecisionError if "tf32" in wrong else BuildError
        raise kind(f"tensorrt-rtx settings as read back: {words}")


def choose_profile(buckets: list[int], pinned: int | None) -> tuple[int, int, int] | None:
    """Smallest, best served and largest batch; ``None`` for a model without a batch axis."""
    if not buckets:
        return None
    return buckets[0], pinned or buckets[len(buckets) // 2], buckets[-1]


def add_profile(
    builder: Any, config: Any, network: Any, batches: tuple[int, int, int] | None
) -> list[dict[str, Any]]:
    """One optimisation profile over the batch axis of every input; gives it as read back.

    Raises:
        BuildError: The library does not take it.
    """
    if batches is None:
        return []
    profile = builder.create_optimization_profile()
    asked = []
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        rest = list(tensor.shape)[1:]
        shapes = [[batch, *rest] for batch in batches]
        profile.set_shape(tensor.name, *shapes)
        got = [list(shape) for shape in profile.get_shape(tensor.name) or ()]
        if got != shapes:
            raise BuildError(
                f"profile of input {tensor.name!r:.80}: expected min, opt, max {shapes}, got {got}",
                hint="buckets: ascending batch sizes, pinned_bucket one of them",
            )
        asked.append({"input": tensor.name, "min": shapes[0], "opt": shapes[1], "max": shapes[2]})
    if config.add_optimization_profile(profile) < 0:
        raise BuildError(
            f"profile: expected min <= opt <= max, got batches {list(batches)}, which the builder refuses",
            hint="buckets: ascending batch sizes, pinned_bucket one of them",
        )
    return asked
