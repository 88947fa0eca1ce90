"""Which of NVIDIA's libraries this is and what it can do: asked of the module, never of its version.

One adapter serves ``tensorrt`` 10 and 11 and ``tensorrt_rtx``. Whatever differs between them is a
feature here; names that were removed in any of them are used nowhere: a test records every name that
the adapter uses and holds it, with its arguments, against the real modules.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

MODULES: Final = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}  # backend -> importable name


class Features(msgspec.Struct, frozen=True):
    """What differs between the libraries.

    Attributes:
        cross_target: Builds for a named architecture, with or without a GPU; otherwise for the GPU
            at hand only.
        strongly_typed: Has networks whose types are the graph's own.
        tf32, monitor_memory: Has the builder flag of that name.
        progress: Tells of its steps and can be stopped.
        timing_cache: Keeps measured kernels that decide the next build; a library that builds ahead
            of time measures none.
        hardware_compatibility: Can build for more than one architecture, and is told not to.
        eager_kernels: Can be told never to exchange a kernel for another while the engine serves.
        engine_stat: Knows the size of an engine's weights.
        device_memory: Attribute that holds the size of an engine's working memory, or ``""``.
    """

    cross_target: bool
    strongly_typed: bool
    tf32: bool
    monitor_memory: bool
    progress: bool
    timing_cache: bool
    hardware_compatibility: bool
    eager_kernels: bool
    engine_stat: bool
    device_memory: str


class Library(msgspec.Struct, frozen=True):
    """One importable library.

    Attributes:
        backend: Name of the backend that it is.
        module: Importable name; the environment reports its version under it.
        trt: The module.
    """

    backend: str
    module: str
    trt: Any
    features: Features

    @property
    def version(self) -> str:
        return str(self.trt.__version__)


def library_of(backend: str, trt: Any) -> Library:
    """The library that a backend uses, its features tested."""
    return Library(backend, MODULES[backend], trt, features_of(trt))


def features_of(trt: Any) -> Features:
    """Test a module for everything that differs."""
    cross_target = _has(trt, "ComputeCapability") and _has(
        trt, "IBuilderConfig", "num_compute_capabilities", "set_compute_capability", "get_compute_capability"
    )
    return Features(
        cross_target=cross_target,
        strongly_typed=_has(trt, "NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
        tf32=_has(trt, "BuilderFlag", "TF32"),
        monitor_memory=_has(trt, "BuilderFlag", "MONITOR_MEMORY"),
        progress=_has(trt, "IProgressMonitor") and _has(trt, "IBuilderConfig", "progress_monitor"),
        timing_cache=not cross_target
        and _has(trt, "IBuilderConfig", "create_timing_cache", "set_timing_cache")
        and _has(trt, "ITimingCache", "serialize"),
        hardware_compatibility=not cross_target  # its setter is refused there, and its getter logs noise
        and _has(trt, "IBuilderConfig", "hardware_compatibility_level")
        and _has(trt, "HardwareCompatibilityLevel", "NONE"),
        eager_kernels=_has(trt, "ICudaEngine", "create_runtime_config")
        and _has(trt, "IRuntimeConfig", "dynamic_shapes_kernel_specialization_strategy")
        and _has(trt, "DynamicShapesKernelSpecializationStrategy", "EAGER"),
        engine_stat=_has(trt, "ICudaEngine", "get_engine_stat")
        and _has(trt, "EngineStat", "TOTAL_WEIGHTS_SIZE"),
        device_memory=next(
            (n for n in ("device_memory_size_v2", "device_memory_size") if _has(trt, "ICudaEngine", n)), ""
        ),
    )


def _has(trt: Any, kind: str, *names: str) -> bool:
    found = getattr(trt, kind, None)
    return found is not None and all(hasattr(found, name) for name in names)
