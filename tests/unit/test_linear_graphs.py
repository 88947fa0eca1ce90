"""Steps of a build over graphs of many nodes take time that grows with the nodes, no faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from pellucid.backends.onnxruntime import graph as onnx_graph
from pellucid.backends.reference import ReferenceBackend
from pellucid.build.canonical_graph import canonicalise
from pellucid.build.drawing import draw
from pellucid.build.drawing_graph import from_json, graph_of
from pellucid.build.judge import graphs, runs
from pellucid.build.samples import Validation
from pellucid.core.facts import Graph, Node, map_layers
from pellucid.core.recipe import effective, parse_recipe
from pellucid.core.tensor import TensorSpec

SMALL, LARGE = 500, 2000  # 4 when linear, 16 when quadratic
GROWTH_MAX = 9


def chain(count: int) -> bytes:
    """Relu after Relu."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 4]) for n in "xy")
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    nodes = [onnx.helper.make_node("Relu", [names[i]], [names[i + 1]], name=f"relu{i}") for i in range(count)]
    graph = onnx.helper.make_graph(nodes, "chain", [x], [y])
    sets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()


def growth(work: Callable[[int], Callable[[], object]]) -> float:
    """CPU time over the large graph by that over the small one; the smallest of three each."""
    spent = []
    for count in (SMALL, LARGE):
        step = work(count)
        times = []
        for _ in range(3):
            begun = time.process_time()
            step()
            times.append(time.process_time() - begun)
        spent.append(min(times))
    return spent[1] / spent[0]


def canonical(count: int) -> Callable[[], object]:
    written = {"name": "chain", "version": "1.0.0", "backend": "onnxruntime", "target": "cpu", "model": "m"}
    recipe = effective(parse_recipe(yaml.safe_dump(written).encode()))
    model = chain(count)
    return lambda: canonicalise(model, recipe, Path())


def facts(count: int) -> Callable[[], object]:
    """An engine that kept every node."""
    read = onnx_graph.read(chain(count)).graph
    return lambda: map_layers(read, read)


def facts_of_parts(count: int) -> Callable[[], object]:
    """An engine in which each node became two, the first of them of a made-up tensor."""
    source = onnx_graph.read(chain(count)).graph
    nodes = [
        part
        for n in source.nodes
        for part in (
            Node(f"{n.name}_part", "Relu", "", n.inputs, (f"{n.outputs[0]}_part",)),
            Node(n.name, "Relu", "", (f"{n.outputs[0]}_part",), n.outputs),
        )
    ]
    engine = Graph(tuple(nodes), source.constants, source.outputs)
    return lambda: map_layers(source, engine)


def facts_of_copies(count: int) -> Callable[[], object]:
    """Nodes that do no work, kept under their names."""
    read = onnx_graph.read(chain(count)).graph
    nodes = tuple(Node(n.name, "Identity", "", n.inputs, n.outputs) for n in read.nodes)
    graph = Graph(nodes, read.constants, read.outputs)
    return lambda: map_layers(graph, graph)


def drawing(count: int) -> Callable[[], object]:
    def step() -> object:
        given = from_json(graph_of(model).as_json())
        return draw(given, layers, eliminated=(), tf32=False, title="chain")

    model = onnx.load_model_from_string(chain(count))
    read = onnx_graph.read(chain(count)).graph
    layers = map_layers(read, read)["layers"]
    return step


def boundaries(count: int) -> Callable[[], object]:
    wiring = graphs.wire(onnx.load_model_from_string(chain(count)))
    return lambda: [graphs.leaving([name], wiring) for name in wiring.nodes]


@pytest.mark.parametrize(
    "work", [canonical, facts, facts_of_parts, facts_of_copies, drawing, boundaries], ids=lambda w: w.__name__
)
def test_a_step_grows_with_the_nodes(work: Callable[[int], Callable[[], object]]) -> None:
    assert growth(work) < GROWTH_MAX


class Counted(ReferenceBackend):
    """Opens graphs and counts it."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self, engine: bytes, recipe: Mapping[str, Any]) -> Any:
        self.opened += 1
        return super().open(engine, recipe)


def looked_at(count: int) -> tuple[int, list[int]]:
    """How often a graph was opened to look at all its tensors, and which of them were seen."""
    data = Validation({"x": np.ones((1, 4), np.float32)})
    specs = (TensorSpec("x", "FP32", (-1, 4)),)
    seen: list[int] = []
    backend = Counted()
    model = onnx.load_model_from_string(chain(count))
    wanted = [name for node in model.graph.node for name in node.output]
    failed = runs.walk(
        backend, [model], [wanted], runs.Rows(data, specs, 4, is_batched=True), [[0]],
        lambda position, batch, arrays: seen.append(position),
    )  # fmt: skip
    assert failed == {}
    return backend.opened, seen


def test_a_graph_of_many_small_tensors_is_opened_few_times() -> None:
    """Each opening reads the whole graph: one for every 64 tensors would be quadratic."""
    opened, seen = looked_at(1000)
    assert seen == list(range(1000))
    assert opened == 5  # 64, 128, 256, 512 and the rest


def test_large_tensors_are_looked_at_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BATCH_BYTES", 16 * 100 * 16)  # room for a hundred tensors of 16 bytes
    opened, seen = looked_at(300)
    assert seen == list(range(300))
    assert opened == 4  # 64, 100, 100 and the rest
