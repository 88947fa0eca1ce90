"""The builder without pellucid: the same graph and the same options, nothing else, in one process.

python bench/bare.py onnxruntime|tensorrt-rtx MODEL.onnx OPTIONS.json ENGINE [INPUTS.npz]

With inputs it also opens its engine in the same process, as it is served, and lets it answer once.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before anything can import onnxruntime


def with_onnxruntime(model: Path, options: dict[str, Any], engine: Path) -> None:
    import onnxruntime as ort

    asked = ort.SessionOptions()
    asked.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    asked.intra_op_num_threads = asked.inter_op_num_threads = options["threads"]
    asked.optimized_model_filepath = str(engine)
    ort.InferenceSession(model.read_bytes(), asked, providers=["CPUExecutionProvider"])


def answer_once(engine: Path, options: dict[str, Any], inputs: Path) -> None:
    import numpy as np
    import onnxruntime as ort

    asked = ort.SessionOptions()
    asked.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    asked.intra_op_num_threads = asked.inter_op_num_threads = options["threads"]
    session = ort.InferenceSession(engine, asked, providers=["CPUExecutionProvider"])
    with np.load(inputs) as arrays:
        session.run(None, dict(arrays))


def with_tensorrt_rtx(model: Path, options: dict[str, Any], engine: Path) -> None:
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options["workspace_bytes"])
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, options["target"].upper()), 0)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model.read_bytes()):
        sys.exit("the parser refused the graph")
    profiles: dict[str, Any] = {}
    for shape in options["profiles"]:
        profile = profiles.setdefault(shape["name"], builder.create_optimization_profile())
        profile.set_shape(shape["input"], shape["min"], shape["opt"], shape["max"])
    for profile in profiles.values():
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        sys.exit("the builder gave no engine")
    engine.write_bytes(memoryview(plan))


if __name__ == "__main__":
    backend, model, options, engine, *inputs = sys.argv[1:]
    build = {"onnxruntime": with_onnxruntime, "tensorrt-rtx": with_tensorrt_rtx}[backend]
    said = json.loads(Path(options).read_text())
    build(Path(model), said, Path(engine))
    for path in inputs:
        answer_once(Path(engine), said, Path(path))
