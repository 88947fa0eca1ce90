"""Builder settings: set, read back, compared. The library's setters report nothing.

Source: spec/recipe.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pellucid.backends.tensorrt.library import Library
from pellucid.core.digest import sha256
from pellucid.errors import BuildError, PrecisionError


def network_flags(library: Library) -> int:
    """Flags of a new network: the precision is the graph's own.

    Raises:
        BuildError: The library has no such networks.
    """
    if not library.features.strongly_typed:
        raise BuildError(
            f"{library.backend}: expected strongly typed networks, got {library.version}, which has none",
            hint="version 10 or newer is needed",
        )
    return 1 << int(library.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def configure(library: Library, config: Any, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Set everything that the recipe says; gives the settings as read back.

    Raises:
        PrecisionError: TF32 did not take.
        BuildError: Another setting did not take; names every one.
    """
    trt, features = library.trt, library.features
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, recipe["workspace_bytes"])
    if features.monitor_memory:
        config.set_flag(trt.BuilderFlag.MONITOR_MEMORY)
    if features.tf32:
        (config.set_flag if recipe["tf32"] else config.clear_flag)(trt.BuilderFlag.TF32)
    if features.hardware_compatibility:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.NONE
    if features.cross_target:
        _set_target(library, config, recipe["target"])
    got = read_back(library, config)
    verify_settings(library.backend, wanted(library, recipe), got)
    if features.timing_cache:
        _set_timing_cache(library, config)
    return got


def _set_target(library: Library, config: Any, target: str) -> None:
    trt = library.trt
    capability = getattr(trt.ComputeCapability, target.upper(), None)
    if capability is None:
        known = ", ".join(name.lower() for name in trt.ComputeCapability.__members__ if name[:2] == "SM")
        raise BuildError(
            f"target: expected one that {library.backend} {library.version} builds for ({known}), "
            f"got {target}",
            hint="change target in the recipe",
        )
    config.num_compute_capabilities = 1
    if not config.set_compute_capability(capability, 0):
        raise BuildError(f"target: expected {library.backend} to take {target}, got a refusal")


def _set_timing_cache(library: Library, config: Any) -> None:
    """An empty cache: no kernel is chosen by what another build measured."""
    if not config.set_timing_cache(config.create_timing_cache(b""), False):
        raise BuildError(f"{library.backend}: expected to start with an empty timing cache, got a refusal")


def timing_cache_facts(library: Library, config: Any) -> dict[str, Any]:
    """Digest and size of what was measured in this build, where the library measures."""
    if not library.features.timing_cache:
        return {}
    raw = bytes(memoryview(config.get_timing_cache().serialize()))
    return {"timing_cache": {"digest": sha256(raw), "bytes": len(raw)}}


def wanted(library: Library, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the recipe asks for, in the words of ``read_back``."""
    features = library.features
    asked: dict[str, Any] = {key: recipe[key] for key in ("workspace_bytes", "tf32")}
    asked["profiling_verbosity"] = "detailed"
    if features.monitor_memory:
        asked["monitor_memory"] = True
    if features.cross_target:
        asked["targets"] = [recipe["target"]]
    if features.hardware_compatibility:
        asked["hardware_compatibility"] = "none"
    return asked


def read_back(library: Library, config: Any) -> dict[str, Any]:
    """Settings as the builder's configuration reports them."""
    trt, features = library.trt, library.features
    flags = sorted(name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag))
    got = {
        "workspace_bytes": config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE),
        "profiling_verbosity": config.profiling_verbosity.name.lower(),
        "optimization_level": config.builder_optimization_level,
        "flags": flags,
        "tf32": "TF32" in flags,
        "monitor_memory": "MONITOR_MEMORY" in flags,
    }
    if features.cross_target:
        count = config.num_compute_capabilities
        got["targets"] = [config.get_compute_capability(i).name.lower() for i in range(count)]
    if features.hardware_compatibility:
        got["hardware_compatibility"] = config.hardware_compatibility_level.name.lower()
    return got


def verify_settings(backend: str, asked: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Fail on every setting that did not hold.

    Raises:
        PrecisionError: TF32 is among them.
        BuildError: Other settings only.
    """
    wrong = [name for name, value in asked.items() if got.get(name) != value]
    if wrong:
        words = "; ".join(f"{n}: expected {asked[n]}, got {got.get(n, 'nothing')}" for n in wrong)
        kind = PrecisionError if "tf32" in wrong else BuildError
        raise kind(f"{backend} settings as read back: {words}")
