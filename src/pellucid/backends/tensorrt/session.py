"""An engine on its GPU: tensors in and out as exact bits.

One execution context, one stream, one call at a time. Kernels are never exchanged while it serves:
where the library could start with one and compile a better one meanwhile, it is told to compile
first, because the other kernel may give other bits.

Nobody has run this on a GPU that TensorRT-RTX supports: the driver calls were run on a GPU, the
library's calls against a stand-in whose names and signatures are held against the real modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from pellucid.backends.tensorrt import cuda
from pellucid.backends.tensorrt.graph import TYPES
from pellucid.backends.tensorrt.library import Library
from pellucid.backends.tensorrt.log import Messages, make_logger
from pellucid.core.tensor import Tensor, TensorSpec, datatype, element_count, verify_tensor
from pellucid.errors import BuildError, TensorError
from pellucid.ports import LogLine

Ranges = list[tuple[tuple[int, ...], ...]]  # min, opt, max of each input


class TensorRtSession:
    """One engine on one GPU. ``infer`` is called by one thread at a time."""

    def __init__(self, library: Library, engine: bytes, gpu: cuda.Gpu, device: dict[str, Any]) -> None:
        self._library, self._device = library, device
        self._gpu: cuda.Gpu | None = gpu
        self._messages = Messages(_ignore, library.backend)
        self._logger = make_logger(library.trt, self._messages)
        self._runtime = library.trt.Runtime(self._logger)
        self._engine = self._required(self._runtime.deserialize_cuda_engine(engine), "an engine")
        self._inputs, self._outputs = _specs(library, self._engine)
        self._profiles = _profiles(self._engine, self._inputs)
        self._settings: dict[str, Any] = {}
        self._context = self._required(self._make_context(), "an execution context")
        self._profile = 0
        self._memory: dict[str, tuple[int, int]] = {}  # tensor -> address, size

    def _required(self, value: Any, what: str) -> Any:
        if value is None:
            words, hint = self._messages.reason()
            raise BuildError(f"{self._library.backend}: expected {what}, got none: {words}", hint=hint)
        return value

    def _make_context(self) -> Any:
        if not self._library.features.eager_kernels:
            return self._engine.create_execution_context()
        config = self._engine.create_runtime_config()
        wanted = self._library.trt.DynamicShapesKernelSpecializationStrategy.EAGER
        config.dynamic_shapes_kernel_specialization_strategy = wanted
        got = config.dynamic_shapes_kernel_specialization_strategy
        if got != wanted:
            raise BuildError(f"run-time settings: expected kernels compiled EAGER, got {got.name}")
        self._settings["kernels"] = "eager"
        return self._engine.create_execution_context(config)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    def infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Outputs in the model's order.

        Raises:
            TensorError: The tensors are not the model's inputs in order, or no profile takes their
                shapes, or the session is closed.
            DeviceUnavailableError: The driver failed; its own error is named.
        """
        gpu = self._gpu
        if gpu is None:
            raise TensorError("session: expected an open session, got a closed one")
        self._verify_inputs(tensors)
        gpu.use()
        self._choose_profile(gpu, [tensor.shape for tensor in tensors])
        for tensor in tensors:
            self._done(self._context.set_input_shape(tensor.name, tensor.shape), f"shape of {tensor.name!r}")
            gpu.copy_in(self._place(gpu, tensor.name, len(tensor.data)), tensor.data)
        missing = self._context.infer_shapes()
        if missing:
            raise TensorError(f"engine: expected shapes of all tensors, got none for {missing!s:.200}")
        placed = [self._place_output(gpu, spec) for spec in self._outputs]
        self._done(self._context.execute_async_v3(gpu.stream), "run")
        gpu.wait()
        return [
            Tensor(spec.name, spec.datatype, shape, gpu.copy_out(address, size))
            for spec, (shape, address, size) in zip(self._outputs, placed, strict=True)
        ]

    def _verify_inputs(self, tensors: Sequence[Tensor]) -> None:
        got = [(t.name, t.datatype) for t in tensors]
        expected = [(s.name, s.datatype) for s in self._inputs]
        if got != expected:
            raise TensorError(f"inputs: expected {expected!s:.200}, got {got!s:.200}")
        for tensor in tensors:
            verify_tensor(tensor)

    def _choose_profile(self, gpu: cuda.Gpu, shapes: list[tuple[int, ...]]) -> None:
        """The profile tuned for these very shapes, else the first that takes them."""
        fits = [i for i, ranges in enumerate(self._profiles) if _fits(ranges, shapes)]
        if not fits:
            raise TensorError(
                f"inputs: expected shapes that a profile takes ({self._ranges()!s:.300}), got {shapes!s:.200}"
            )
        tuned = [i for i in fits if all(r[1] == s for r, s in zip(self._profiles[i], shapes, strict=True))]
        chosen = (tuned or fits)[0]
        if chosen != self._profile:
            self._done(self._context.set_optimization_profile_async(chosen, gpu.stream), f"profile {chosen}")
            gpu.wait()
            self._profile = chosen

    def _place(self, gpu: cuda.Gpu, name: str, size: int) -> int:
        """Address of a tensor's memory, which grows and never shrinks."""
        address, held = self._memory.get(name, (0, -1))
        if held < size:
            if held >= 0:
                del self._memory[name]
                gpu.free(address)
            address = gpu.allocate(size)
            self._memory[name] = (address, size)
            self._done(self._context.set_tensor_address(name, address), f"address of {name!r}")
        return address

    def _place_output(self, gpu: cuda.Gpu, spec: TensorSpec) -> tuple[tuple[int, ...], int, int]:
        shape = tuple(int(d) for d in self._context.get_tensor_shape(spec.name))
        if any(d < 0 for d in shape):
            raise TensorError(
                f"output {spec.name!r:.80}: expected a shape that follows from the inputs', got {list(shape)}"
            )
        size = element_count(shape) * datatype(spec.datatype).itemsize
        return shape, self._place(gpu, spec.name, size), size

    def _done(self, did: bool, what: str) -> None:
        if not did:
            words, _ = self._messages.reason()
            raise TensorError(f"{self._library.backend}: expected to take the {what}, got a refusal: {words}")

    def _ranges(self) -> list[dict[str, Any]]:
        names = [spec.name for spec in self._inputs]
        return [
            {name: {"min": list(a), "opt": list(b), "max": list(c)} for name, (a, b, c) in rows}
            for rows in (zip(names, ranges, strict=True) for ranges in self._profiles)
        ]

    def describe(self) -> dict[str, Any]:
        """Engine, profiles, device and library; what the engine's own name binds it to."""
        features, engine = self._library.features, self._engine
        found = {
            "backend": self._library.backend,
            self._library.module: self._library.version,
            "device": dict(self._device),
            "threads": 1,
            "streams": 1,
            "engine_name": engine.name,
            "engine_layers": engine.num_layers,
            "profiles": self._ranges(),
            **self._settings,
        }
        if features.device_memory:
            found["working_bytes"] = int(getattr(engine, features.device_memory))
        if features.engine_stat:
            kind = self._library.trt.EngineStat.TOTAL_WEIGHTS_SIZE
            found["weights_bytes"] = int(engine.get_engine_stat(kind))
        return found

    def close(self) -> None:
        """Give the GPU back; doing it twice is nothing."""
        gpu, self._gpu = self._gpu, None
        if gpu is None:
            return
        gpu.use()
        gpu.wait()
        self._context = self._engine = self._runtime = None  # before the memory that they may still name
        self._memory.clear()
        gpu.close()


def open_session(library: Library, engine: bytes) -> TensorRtSession:
    """Bring an engine onto the first GPU.

    Raises:
        DeviceUnavailableError: No GPU, or the driver failed.
        BuildError: The library does not take the engine.
    """
    driver = cuda.load()
    gpu = driver.open()
    with ExitStack() as undo:
        undo.callback(gpu.close)
        session = TensorRtSession(library, engine, gpu, driver.describe())
        undo.pop_all()
    return session


def _ignore(_line: LogLine) -> None:
    pass


def _specs(library: Library, engine: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    trt = library.trt
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    for name in names:
        kind = TYPES.get(trt.DataType(engine.get_tensor_dtype(name)).name)
        if kind is None or engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            what = trt.DataType(engine.get_tensor_dtype(name)).name
            raise BuildError(f"tensor {name!r:.80}: expected one of the protocol, on the GPU, got {what}")
        spec = TensorSpec(name, kind, tuple(int(d) for d in engine.get_tensor_shape(name)))
        (inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs).append(spec)
    return tuple(inputs), tuple(outputs)


def _profiles(engine: Any, inputs: Sequence[TensorSpec]) -> list[Ranges]:
    return [
        [_range(engine, spec, index) for spec in inputs]
        for index in range(max(engine.num_optimization_profiles, 1))
    ]


def _range(engine: Any, spec: TensorSpec, index: int) -> tuple[tuple[int, ...], ...]:
    if -1 not in spec.shape:
        return spec.shape, spec.shape, spec.shape
    shapes = engine.get_tensor_profile_shape(spec.name, index)
    smallest, best, largest = (tuple(int(d) for d in shape) for shape in shapes)
    return smallest, best, largest


def _fits(ranges: Ranges, shapes: Sequence[tuple[int, ...]]) -> bool:
    return all(
        len(low) == len(shape) and all(a <= d <= b for a, d, b in zip(low, shape, high, strict=True))
        for (low, _, high), shape in zip(ranges, shapes, strict=True)
    )
