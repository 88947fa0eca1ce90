"""Session options: set, read back, compared. A setter that does not hold fails the build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import onnxruntime as ort

from pellucid.errors import BuildError

LOG_ID: Final = "pellucid"
CONFIG: Final = {
    # without it INT8 on AVX2 without VNNI saturates silently and gives other answers
    "session.x64quantprecision": "1",
    "session.record_ep_graph_assignment_info": "1",
}
PROVIDERS: Final = ["CPUExecutionProvider"]
SERVE_LEVELS: Final = {"portable": 0, "native": 99}
BUILD_LEVEL: Final = 2  # EXTENDED: byte-identical over processes and CPUs; ALL is not
_LEVELS: Final = {
    0: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    2: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    99: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_TRACE: Final = {  # our name -> how the library's own trace line spells it
    "execution_mode": r"\bexecution_mode:(\d+) ",
    "mem_pattern": r"\benable_mem_pattern:(\d) ",
    "mem_reuse": r"\benable_mem_reuse:(\d) ",
    "cpu_mem_arena": r"\benable_cpu_mem_arena:(\d) ",
    "graph_optimization_level": r"\bgraph_optimization_level:(\d+) ",
    "intra_op_threads": r"\bintra_op_param:OrtThreadPoolParams \{ thread_pool_size: (\d+) ",
    "inter_op_threads": r"\binter_op_param:OrtThreadPoolParams \{ thread_pool_size: (\d+) ",
}


def make_options(level: int, threads: int, *, severity: int, save_to: str = "") -> ort.SessionOptions:
    """Options of one session; nothing is left to the library's defaults that changes bits."""
    options = ort.SessionOptions()
    options.logid = LOG_ID
    options.log_severity_level = severity
    options.graph_optimization_level = _LEVELS[level]
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = True
    options.enable_mem_reuse = True
    options.enable_cpu_mem_arena = True
    if save_to:
        options.optimized_model_filepath = save_to
    for key, value in CONFIG.items():
        options.add_session_config_entry(key, value)
    return options


def wanted(level: int, threads: int) -> dict[str, Any]:
    """What ``make_options`` asked for, in the words of ``read_back`` and ``read_trace``."""
    return {
        "execution_mode": 0,
        "mem_pattern": 1,
        "mem_reuse": 1,
        "cpu_mem_arena": 1,
        "graph_optimization_level": level,
        "intra_op_threads": threads,
        "inter_op_threads": 1,
        "config": _entries(CONFIG),
        "providers": list(PROVIDERS),
    }


def read_back(session: ort.InferenceSession) -> dict[str, Any]:
    """Settings as the session itself reports them."""
    options = session.get_session_options()
    return {
        "execution_mode": _number(options.execution_mode),
        "mem_pattern": int(options.enable_mem_pattern),
        "mem_reuse": int(options.enable_mem_reuse),
        "cpu_mem_arena": int(options.enable_cpu_mem_arena),
        "graph_optimization_level": _number(options.graph_optimization_level),
        "intra_op_threads": int(options.intra_op_num_threads),
        "inter_op_threads": int(options.inter_op_num_threads),
        "config": _entries({key: options.get_session_config_entry(key) for key in CONFIG}),
        "providers": list(session.get_providers()),
    }


def _entries(config: Mapping[str, str]) -> list[dict[str, str]]:
    """Session entries as values: their dotted names are no keys of canonical JSON."""
    return [{"name": name, "value": value} for name, value in sorted(config.items())]


def _number(value: Any) -> int:
    return int(value.value if hasattr(value, "value") else value)


def read_trace(message: str) -> dict[str, Any]:
    """Settings out of the TraceSessionOptions line, which shows all but the providers."""
    found: dict[str, Any] = {}
    for name, pattern in _TRACE.items():
        match = re.search(pattern, message)
        if match:
            found[name] = int(match[1])
    entries = re.search(r"config_options: \{ (.*?)\} \}", message)
    if entries:
        pairs = re.findall(r" ([\w.]+): (\S*) ", f" {entries[1]} ".replace("  ", "   "))
        found["config"] = _entries(dict(pairs))
    return found


def verify_settings(asked: Mapping[str, Any], got: Mapping[str, Any], source: str) -> None:
    """Fail on any setting that did not hold, or that the source does not show.

    Raises:
        BuildError: Names every setting that differs.
    """
    wrong = [
        f"{name}: expected {value}, got {got.get(name, 'nothing')}"
        for name, value in asked.items()
        if got.get(name) != value
    ]
    if wrong:
        raise BuildError(f"onnxruntime settings as {source}: {'; '.join(wrong)}")
