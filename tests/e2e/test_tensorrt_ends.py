"""Every way the real TensorRT-RTX builder may end: an outcome that is recorded, its log so far kept."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pellucid.build.job import run_build
from pellucid.build.left import ENTRY
from pellucid.build.stages import Stages
from pellucid.core.digest import sha256
from pellucid.core.recipe import effective, parse_recipe
from pellucid.errors import BuilderCrashedError, BuildError, ParseError
from pellucid.testing.builds import toy_job, write_recipe
from pellucid.testing.models import digits_like

pytest.importorskip("tensorrt_rtx", reason="NOT RUN tensorrt: tensorrt_rtx is not installed")
pytestmark = pytest.mark.e2e
RTX: dict[str, Any] = {"backend": "tensorrt-rtx", "target": "sm89", "licence_ack": True}


def model_of(nodes: list[Any], constants: list[Any]) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    graph = helper.make_graph(nodes, "toy", [x], [y], constants)
    opset = [helper.make_opsetid("", 17)]
    raw: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return raw


def node_without_output() -> bytes:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu"), helper.make_node("Flatten", ["y"], [], "f")]
    return model_of(nodes, [])


def int32_bias() -> bytes:
    """What ONNX Runtime's quantiser writes for a bias by default."""
    nodes = [
        helper.make_node("DequantizeLinear", ["b", "s", "z"], ["d"], name="bias"),
        helper.make_node("Add", ["x", "d"], ["y"], name="add"),
    ]
    values = {"b": np.arange(4, dtype="i4"), "s": np.float32(0.1), "z": np.int32(0)}
    return model_of(nodes, [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()])


def at_every_step(statement: str) -> str:
    """A worker whose builder, the real one, is met by this at each of its steps."""
    return (
        "import os, signal, time\nimport pellucid.backends.tensorrt.monitor as monitor\n"
        f"def step(self, phase, number):\n    {statement}\n    return True\n"
        f"monitor.Watch.step = step\n{ENTRY}"
    )


def refused(tmp_path: Path, model: bytes, kind: type[BuildError], **changes: Any) -> tuple[str, list[str]]:
    """Words of a build that must fail, and its kept messages; checks the entry."""
    entry = changes.pop("entry", ENTRY)
    job, recorder = toy_job(tmp_path / "packages", entry=entry, progress=changes.pop("progress", print))
    with pytest.raises(kind) as error:
        run_build(write_recipe(tmp_path / "recipe", model, **RTX | changes), job)
    [(event, data)] = recorder.events
    assert (event, data["outcome"], data["reason"]) == ("build", error.value.code, error.value.message[:500])
    [kept] = (tmp_path / "packages/failed").iterdir()
    log = (kept / "build.log.jsonl").read_bytes()
    assert data["log"] == sha256(log)
    assert [p.name for p in (tmp_path / "packages").iterdir()] == ["failed"]
    whole = log[: log.rfind(b"\n") + 1]
    messages = [json.loads(line)["message"] for line in whole.splitlines()]
    return f"{data['ended']}: {error.value.message} {error.value.hint}", messages


def directly(tmp_path: Path, model: bytes, kind: type[BuildError], **changes: Any) -> tuple[str, list[str]]:
    """The same for the builder alone, given what the first stage would have refused."""
    recipe = parse_recipe(write_recipe(tmp_path, b"", **RTX | changes).read_bytes())
    stages = Stages(effective(recipe), print)
    with stages, pytest.raises(kind) as error:
        stages.run("compile", {"compiled": model})
    messages = [json.loads(line)["message"] for line in stages.log.splitlines()]
    return f"{stages.ended}: {error.value.message} {error.value.hint}", messages


def test_what_would_crash_the_parser_is_refused_before_it(tmp_path: Path) -> None:
    words, messages = refused(tmp_path, node_without_output(), ParseError)
    assert words.startswith("exit 0: ")
    assert "phase build" not in messages


def test_the_parser_itself_dies_of_it_and_that_is_an_outcome(tmp_path: Path) -> None:
    words, messages = directly(tmp_path, node_without_output(), BuilderCrashedError)
    assert words.startswith("signal SIGSEGV: ")
    assert "phase build" in messages
    assert any(message.startswith("Parsing node: f ") for message in messages)


def test_an_int32_zero_point_is_refused_before_the_builder_and_by_it(tmp_path: Path) -> None:
    words, _ = refused(tmp_path / "whole", int32_bias(), BuildError)
    assert "INT32" in words or "QuantizeBias=False" in words
    words, messages = directly(tmp_path / "builder", int32_bias(), ParseError)
    assert "QuantizeBias=False" in words
    assert any("For zero_point with type int32 TensorRT will use INT8" in message for message in messages)


def test_out_of_memory(tmp_path: Path) -> None:
    """How it shows differs with the moment: no engine, no library, an exit, or a builder that hangs."""
    limits = {"memory_bytes": 450 * 2**20, "timeout_s": 30}
    words, messages = directly(tmp_path / "builder", digits_like(), BuildError, limits=limits)
    assert not words.startswith("not started")
    assert messages
    refused(tmp_path / "whole", digits_like(), BuildError, limits=limits | {"memory_bytes": 2**28})


def test_out_of_time(tmp_path: Path) -> None:
    entry = at_every_step("time.sleep(600)")
    words, messages = refused(
        tmp_path, digits_like(), BuilderCrashedError, entry=entry, limits={"timeout_s": 6}
    )
    assert words.startswith("no answer in time: ")
    assert "raise limits.timeout_s" in words
    assert "phase prepare" in messages


@pytest.mark.parametrize(
    ("file_bytes", "said"), [(30_000, "every message to be kept"), (200_000, "too large")]
)
def test_a_full_disk(tmp_path: Path, file_bytes: int, said: str) -> None:
    """Met by a message of the log, and by the engine."""
    words, messages = refused(tmp_path, digits_like(), BuildError, limits={"file_bytes": file_bytes})
    assert said in words
    assert "phase build" in messages


def test_killed_from_outside(tmp_path: Path) -> None:
    """While the builder works: it says so in its log, and waits."""

    def children() -> set[int]:
        threads = Path("/proc/self/task").iterdir()
        return {int(pid) for thread in threads for pid in (thread / "children").read_text().split()}

    others = children()  # servers that serve other tests

    def kill(phase: str) -> None:
        if phase == "build":
            for pid in children() - others:
                os.kill(pid, signal.SIGKILL)

    entry = at_every_step("time.sleep(600)")
    words, messages = refused(
        tmp_path, digits_like(), BuilderCrashedError, entry=entry, progress=kill, limits={"timeout_s": 60}
    )
    assert words.startswith("signal SIGKILL: ")
    assert "phase build" in messages


def test_killed_by_its_own_hand_in_the_middle(tmp_path: Path) -> None:
    entry = at_every_step("os.kill(os.getpid(), signal.SIGKILL)")
    words, messages = refused(tmp_path, digits_like(), BuilderCrashedError, entry=entry)
    assert words.startswith("signal SIGKILL: ")
    assert any(message.startswith("Parsing node: ") for message in messages)
