"""A stand-in for the module ``tensorrt``: builds "engines" that give each input back, strict about its use.

Only names that the real modules have; a test holds every one against them. It shows that our steps
are in order and their answers are looked at, never that an engine computes anything.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any

import onnx

Copy = Callable[[int, int, int, int], None]  # to, from, bytes, stream
_TYPES = {"FLOAT": "FLOAT", "FLOAT16": "HALF", "INT32": "INT32", "INT64": "INT64", "BOOL": "BOOL"}
_SIZES = {"FLOAT": 4, "HALF": 2, "INT32": 4, "INT64": 8, "BOOL": 1}


class DataType(enum.IntEnum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4 = range(10)


class BuilderFlag(enum.IntEnum):
    TF32, MONITOR_MEMORY = 0, 1


class NetworkDefinitionCreationFlag(enum.IntEnum):
    STRONGLY_TYPED = 1


class MemoryPoolType(enum.IntEnum):
    WORKSPACE = 0


class ProfilingVerbosity(enum.IntEnum):
    LAYER_NAMES_ONLY, NONE, DETAILED = range(3)


class HardwareCompatibilityLevel(enum.IntEnum):
    NONE, AMPERE_PLUS = range(2)


class TensorLocation(enum.IntEnum):
    DEVICE, HOST = range(2)


class TensorIOMode(enum.IntEnum):
    NONE, INPUT, OUTPUT = range(3)


class EngineStat(enum.IntEnum):
    TOTAL_WEIGHTS_SIZE = 0


class DynamicShapesKernelSpecializationStrategy(enum.IntEnum):
    LAZY, EAGER, NONE = range(3)


class ILogger:
    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def phase_start(self, phase: str, parent: str, steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase: str) -> None:
        raise NotImplementedError


class ITimingCache:
    def serialize(self) -> bytes:
        return b"measured kernels"


class IBuilderConfig:
    profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
    hardware_compatibility_level = HardwareCompatibilityLevel.AMPERE_PLUS
    builder_optimization_level = 3
    progress_monitor: IProgressMonitor | None = None

    def __init__(self) -> None:
        self._flags = {BuilderFlag.TF32}
        self._limit = 0
        self._cache: ITimingCache | None = None
        self._profiles: list[IOptimizationProfile] = []

    def set_flag(self, flag: BuilderFlag) -> None:
        self._flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._flags.discard(flag)

    def get_flag(self, flag: BuilderFlag) -> bool:
        return flag in self._flags

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self._limit = size

    def get_memory_pool_limit(self, pool: MemoryPoolType) -> int:
        return self._limit

    def create_timing_cache(self, raw: bytes) -> ITimingCache:
        assert raw == b"", "an empty cache was to be had"
        return ITimingCache()

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return not ignore_mismatch

    def get_timing_cache(self) -> ITimingCache | None:
        return self._cache

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1


class IOptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[list[int]]] = {}

    def set_shape(self, name: str, low: list[int], best: list[int], high: list[int]) -> None:
        self.shapes[name] = [low, best, high]

    def get_shape(self, name: str) -> list[list[int]]:
        return self.shapes[name]


class INetworkDefinition:
    name = "Unnamed Network 0"

    def __init__(self) -> None:
        self.tensors: dict[str, list[Any]] = {"inputs": [], "outputs": []}

    @property
    def num_inputs(self) -> int:
        return len(self.tensors["inputs"])

    @property
    def num_outputs(self) -> int:
        return len(self.tensors["outputs"])

    def get_input(self, index: int) -> Any:
        return self.tensors["inputs"][index]

    def get_output(self, index: int) -> Any:
        return self.tensors["outputs"][index]


class OnnxParser:
    num_errors = 0

    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._logger = network, logger

    def parse(self, raw: bytes) -> bool:
        graph = onnx.load_model_from_string(raw).graph
        for node in graph.node:
            self._logger.log(4, f"Parsing node: {node.name} [{node.op_type}]")
        for kind, values in (("inputs", graph.input), ("outputs", graph.output)):
            self._network.tensors[kind] = [_tensor(value) for value in values]
        return True


class ITensor:
    name = ""
    dtype = DataType.FLOAT
    shape: tuple[int, ...] = ()
    is_shape_tensor = False


def _tensor(value: Any) -> ITensor:
    kind = value.type.tensor_type
    name = _TYPES[onnx.TensorProto.DataType.Name(kind.elem_type)]
    tensor = ITensor()
    tensor.name, tensor.dtype = value.name, DataType[name]
    tensor.shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
    return tensor


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_network(self, flags: int) -> INetworkDefinition:
        assert flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        return INetworkDefinition()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes | None:
        self._logger.log(4, "Tactic: 0x0000000000000001 Time: 0.01")
        monitor = config.progress_monitor
        if monitor is not None:
            monitor.phase_start("Building engine", "", 2)
            for step in range(2):
                if not monitor.step_complete("Building engine", step):
                    return None
            monitor.phase_finish("Building engine")
        plan: dict[str, Any] = {kind: [[t.name, t.dtype.name, list(t.shape)] for t in some]
                                for kind, some in network.tensors.items()}  # fmt: skip
        plan |= {"name": network.name, "profiles": [profile.shapes for profile in config._profiles]}
        return json.dumps(plan).encode()


class IRuntimeConfig:
    dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, raw: bytes) -> ICudaEngine | None:
        try:
            return ICudaEngine(json.loads(raw))
        except ValueError:
            self._logger.log(1, "Serialization assertion failed: magic tag does not match")
            return None


class ICudaEngine:
    num_layers = 1
    device_memory_size = device_memory_size_v2 = 4096
    name = ""
    num_io_tensors = num_optimization_profiles = 0

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._tensors: dict[str, tuple[TensorIOMode, DataType, list[int]]] = {
            name: (mode, DataType[kind], shape)
            for key, mode in (("inputs", TensorIOMode.INPUT), ("outputs", TensorIOMode.OUTPUT))
            for name, kind, shape in plan[key]
        }
        self.name = plan["name"]
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = len(plan["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return self._tensors[name][0]

    def get_tensor_dtype(self, name: str) -> DataType:
        return self._tensors[name][1]

    def get_tensor_shape(self, name: str) -> list[int]:
        return self._tensors[name][2]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if name.startswith("host") else TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, index: int) -> list[list[int]]:
        shapes: list[list[int]] = self._plan["profiles"][index][name]
        return shapes

    def get_engine_stat(self, stat: EngineStat) -> int:
        return 1234

    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig()

    def create_execution_context(self, config: IRuntimeConfig | None = None) -> IExecutionContext:
        return IExecutionContext(self._plan)


class IExecutionContext:
    """Copies input i to output i.

    Attributes:
        copy: How bytes move; set by the test.
        profiles: Profiles chosen so far, of all contexts.
    """

    copy: Copy
    profiles: list[int] = []  # noqa: RUF012

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profiles.append(index)
        return index < len(self._plan["profiles"])

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name, _, _ in self._plan["inputs"] if name not in self._shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        names = [output for output, _, _ in self._plan["outputs"]]
        return self._shapes[self._plan["inputs"][names.index(name)][0]]

    def execute_async_v3(self, stream: int) -> bool:
        for (source, kind, _), (to, _, _) in zip(self._plan["inputs"], self._plan["outputs"], strict=True):
            count = _SIZES[kind]
            for dimension in self._shapes[source]:
                count *= dimension
            type(self).copy(self._addresses[to], self._addresses[source], count, stream)
        return True


__version__ = "11.0.0"
