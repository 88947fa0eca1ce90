"""The TensorRT-RTX backend: builds for an explicit GPU architecture, on any machine.

The precision is the one the ONNX graph has (strongly typed); TF32 is set or cleared by the recipe.
An engine that this backend built was never executed by its authors: no GPU that it supports was at
hand. Opening one says so. Source: spec/recipe.md, section 5.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import tensorrt_rtx as trt

from pellucid.backends.tensorrt import device, graph, options
from pellucid.backends.tensorrt.facts import read_facts
from pellucid.backends.tensorrt.log import Logger, hint_for
from pellucid.core.digest import parse_digest, sha256
from pellucid.errors import BuildError, DeviceUnavailableError, ParseError
from pellucid.ports import BuildLog, Built, Session

ENGINE_NAME: Final = "model.engine"
_NODES_MAX: Final = 5  # limit: refused nodes named in one error


class TensorRtRtxBackend:
    """Ahead-of-time builds; the GPU picks its library kernels when it loads the engine."""

    name = "tensorrt-rtx"

    def build(self, recipe: Mapping[str, Any], model: bytes, log: BuildLog) -> Built:
        """Compile a graph for the recipe's target; every message of the library goes to ``log``.

        Raises:
            ParseError: The library does not take the graph.
            PrecisionError: It would compute in other types than the model has.
            BuildError: A setting did not hold, the builder gave up, or the log lost a message.
        """
        source = graph.read(model)
        graph.verify_no_double(source)
        lines = Logger(log)
        start = time.monotonic_ns()
        builder = trt.Builder(lines)
        config = builder.create_builder_config()
        settings = _verified(lines, options.configure, config, recipe)
        network = builder.create_network(options.network_flags())
        _parse(network, lines, model)
        lines.verify()
        inputs, outputs = graph.interface(source, network)
        network.name = _name(model)
        if network.name != _name(model):
            raise BuildError(f"network name: expected {_name(model)}, got {network.name!r:.100}")
        batches = options.choose_profile(recipe["buckets"], recipe["pinned_bucket"])
        profiles = _verified(lines, options.add_profile, builder, config, network, batches)
        parsed = time.monotonic_ns()
        engine = _serialise(builder, network, config, lines)
        built = time.monotonic_ns()
        spent = {"parse": parsed - start, "compile": built - parsed}
        return Built(
            engine=engine, engine_name=ENGINE_NAME, compiled=model,
            options=settings | {"network_name": network.name, "strongly_typed": True, "profiles": profiles},
            facts=read_facts(lines.lines, source) | {"phases_ns": spent},
            inputs=inputs, outputs=outputs,
        )  # fmt: skip

    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> Session:
        """Refuses, and says which GPU the engine is for and which one is here.

        Raises:
            DeviceUnavailableError: Always in this version.
        """
        _refuse_to_open(recipe["target"])

    def environment(self) -> dict[str, Any]:
        return device.environment()


def _refuse_to_open(target: str) -> NoReturn:
    gpu, reason = device.find_gpu()
    if gpu is None or gpu["architecture"] != target:
        found = f"{gpu['name']} ({gpu['architecture']})" if gpu else reason
        raise DeviceUnavailableError(
            f"engine: expected a GPU of {target}, which it was built for, got {found}",
            hint=f"run it on a machine with a GPU of {target}, or build it for onnxruntime, target cpu",
        )
    raise DeviceUnavailableError(
        f"engine for {target}: expected a version that executes such engines, got one that builds them",
        hint="this version builds, packages and verifies; execution was never tried on a GPU",
    )


def _name(model: bytes) -> str:
    """What the engine carries inside: the digest of the very graph it was built from."""
    return f"pellucid:{parse_digest(sha256(model)).hex()}"


def _verified(lines: Logger, step: Any, *arguments: Any) -> Any:
    """A step's answer; when it refuses, the library's own words go along."""
    try:
        return step(*arguments)
    except BuildError as error:
        if not lines.errors:
            raise
        words, hint = lines.reason()
        raise type(error)(f"{error.message}; tensorrt-rtx says: {words}", hint=hint or error.hint) from error


def _parse(network: Any, lines: Logger, model: bytes) -> None:
    parser = trt.OnnxParser(network, lines)
    if parser.parse(model) and not parser.num_errors:
        return
    found = [parser.get_error(i) for i in range(parser.num_errors)]
    places = [f"node {e.node_name() or e.node()!s} ({e.node_operator()})" for e in found if e.node() >= 0]
    said = [f"{e.code().name}: {' '.join(e.desc().split()):.300}" for e in found[:_NODES_MAX]]
    words, hint = lines.reason()
    where = f" at {', '.join(dict.fromkeys(places[:_NODES_MAX]))}" if places else ""
    raise ParseError(
        f"model: expected a graph that tensorrt-rtx takes, got{where}: {'; '.join(said) or words}",
        hint=hint or hint_for("; ".join(said)),
    )


def _serialise(builder: Any, network: Any, config: Any, lines: Logger) -> bytes:
    plan = builder.build_serialized_network(network, config)
    lines.verify()
    if plan is None:
        words, hint = lines.reason()
        raise BuildError(f"tensorrt-rtx: expected an engine, got none: {words}", hint=hint)
    return bytes(memoryview(plan))
