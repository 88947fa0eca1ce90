"""The drawing before and after fusion: true to the facts, the same bytes, legible, and quick to make."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from types import FrameType
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pellucid.build.drawing import DRAWN_MAX, draw
from pellucid.build.drawing_graph import Graph, GraphNode, from_json, graph_of
from pellucid.build.drawing_layout import SPAN_MAX, Sheet, lay_out
from pellucid.build.drawing_style import _COLOURS, _DARK, _LIGHT, KINDS
from pellucid.build.drawing_text import fit, width_of
from pellucid.testing.models import MODELS, digits_like

NAME = {"svg": "http://www.w3.org/2000/svg"}
LAYERS: list[dict[str, Any]] = [
    {"name": "conv1", "op": "com.microsoft:FusedConv", "nodes": ["conv1", "relu1"], "fused": True},
    {"name": "conv2", "op": "com.microsoft:FusedConv", "nodes": ["conv2", "relu2"], "fused": True},
    {"name": "pool", "op": "MaxPool", "nodes": ["pool"], "fused": False},
    {"name": "flat", "op": "Flatten", "nodes": ["flat"], "fused": False},
    {"name": "fc", "op": "Gemm", "nodes": ["fc"], "fused": False},
    {"name": "softmax", "op": "Softmax", "nodes": ["softmax"], "fused": False},
]
TENSORS = ["image", "r1", "r2", "p", "f", "logits", "probs"]
for at, layer in enumerate(LAYERS):
    layer["inputs"] = [{"name": TENSORS[at], "datatype": "FP32"}]
    layer["outputs"] = [{"name": TENSORS[at + 1], "datatype": "FP32"}]


def digits() -> Graph:
    return graph_of(onnx.load_model_from_string(digits_like()))


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def halves(svg: str) -> list[ElementTree.Element]:
    root = parse(svg)
    return [g for g in root.findall("svg:g", NAME) if g.get("transform")]


def css(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [e for e in element.iter() if name in (e.get("class") or "").split()]


def chain(length: int) -> tuple[Graph, list[dict[str, Any]]]:
    """Conv and Relu in turn, fused in pairs, with a skip over every third pair."""
    nodes = []
    for at in range(length):
        extra = (f"t{at - 5}",) if at % 6 == 5 else ()
        op = ("Conv", "Relu")[at % 2]
        nodes.append(GraphNode(f"n{at}", op, (f"t{at - 1}", *extra), (f"t{at}",), "FP32"))
    graph = Graph(tuple(nodes), (("t-1", "FP32 [1, 3]"),), ((f"t{length - 1}", "FP32 [1, 3]"),))
    layers = [
        {"name": f"l{at}", "op": "FusedConv", "nodes": [f"n{at}", f"n{at + 1}"], "fused": True}
        for at in range(0, length - 1, 2)
    ]
    return graph, layers


# -- the graph ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_graph_survives_its_travel(name: str) -> None:
    graph = graph_of(onnx.load_model_from_string(MODELS[name]()))
    assert from_json(json.loads(json.dumps(graph.as_json()))) == graph
    assert parse(draw(graph, [])) is not None


def test_names_operators_and_datatypes_are_read() -> None:
    graph = digits()
    assert [(n.name, n.op) for n in graph.nodes][:2] == [("conv1", "Conv"), ("relu1", "Relu")]
    assert {n.precision for n in graph.nodes} == {"FP32"}
    assert (graph.inputs, graph.outputs) == (
        (("image", "FP32 [-1, 1, 8, 8]"),), (("probs", "FP32 [-1, 10]"),),
    )  # fmt: skip


def test_what_depends_on_no_input_is_told_apart() -> None:
    value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0])
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], name="c", value=value),
        onnx.helper.make_node("Neg", ["c"], ["d"], name="d"),
        onnx.helper.make_node("Add", ["x", "d"], ["y"], name="y"),
        onnx.helper.make_node("Cast", ["y"], ["z"], name="z", to=onnx.TensorProto.FLOAT16),
    ]
    ends = [onnx.helper.make_tensor_value_info(n, t, [1]) for n, t in (("x", 1), ("z", 10))]
    graph = graph_of(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])))
    assert [n.constant for n in graph.nodes] == [True, True, False, False]
    assert graph.nodes[3].precision == "FP16"


# -- what is drawn --------------------------------------------------------------------------------


def test_both_halves_carry_the_same_numbers_and_outlines() -> None:
    before, after = halves(draw(digits(), LAYERS, eliminated=["same"]))
    numbers = [Counter(e.text for e in css(half, "nt")) for half in (before, after)]
    assert numbers == [Counter("11223456"), Counter("123456")]
    assert len(css(before, "f")) == len(css(after, "fused")) == 2
    assert [len(css(half, "gone")) for half in (before, after)] == [1, 0]
    gone = [e.text for e in before.iter() if (e.text or "").startswith("Identity same")]
    assert gone == ["Identity same; FP32; removed, folded, or named by no layer"]


def test_every_line_of_the_graph_is_drawn() -> None:
    before, after = halves(draw(digits(), LAYERS, eliminated=["same"]))
    assert len(css(before, "l")) == 9 + 1  # nine operations in a row, an input and an output
    assert len(css(after, "l")) == 6 + 1


def test_precision_is_letters_as_well_as_colour() -> None:
    kinds = ["FP32", "FP16", "BF16", "INT8", "INT64", "FP32"]
    layers = [layer | {"precision": kind} for layer, kind in zip(LAYERS, kinds, strict=True)]
    _, after = halves(draw(digits(), layers, tf32=True))
    assert [e.text for e in css(after, "ct")] == ["TF32", "FP16", "BF16", "INT8", "INT64", "FP32"]
    legend = [e.text for e in css(parse(draw(digits(), layers, tf32=True)), "k")]
    assert legend[:6] == ["FP32", "TF32 allowed", "FP16", "BF16", "INT8", "other"]


def test_the_palette_can_be_read() -> None:
    found = re.findall(r"--k:#(\w+);--kt:#(\w+)", _COLOURS)
    assert len(found) == len(KINDS)
    pairs = [*found, *(re.findall(r"--(?:i|s|p):#(\w+)", theme)[::2] for theme in (_LIGHT, _DARK))]
    for one, other in pairs:
        assert contrast(one, other) >= 4.5, (one, other)


def contrast(one: str, other: str) -> float:
    def luminance(text: str) -> float:
        text = "".join(c * 2 for c in text) if len(text) == 3 else text
        parts = [int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_hostile_names_stay_text_and_nothing_is_loaded() -> None:
    bad = "</text><script>alert(1)</script>\u202e\x00\n&" + "long" * 300
    graph = Graph((GraphNode(bad, bad, (bad,), ("y",)),), ((bad, bad),), (("y", bad),))
    layer = {"name": bad, "op": bad, "nodes": [bad], "fused": True, "tactic": bad, "precision": bad}
    svg = draw(graph, [layer], eliminated=[bad], title=bad)
    assert parse(svg).find(".//svg:script", NAME) is None
    assert not re.search("[\x00-\x08\u202e]", svg)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(href|src|on\w+|url|import)\s*[=(]", svg)


def test_the_same_facts_give_the_same_bytes() -> None:
    graph, layers = chain(120)
    assert draw(graph, layers) == draw(graph, [dict(layer) for layer in layers])
    assert draw(graph, layers) == draw(from_json(graph.as_json()), layers)


def test_operations_of_a_fused_layer_that_wait_for_others_stand_apart() -> None:
    names = ("a", "b", "c")
    nodes = tuple(GraphNode(n, "Relu", (i,), (n,)) for n, i in zip(names, ("x", "a", "b"), strict=True))
    graph = Graph(nodes, (("x", "FP32 [1]"),), (("c", "FP32 [1]"),))
    layers = [{"name": "ac", "op": "k", "nodes": ["a", "c"], "fused": True},
              {"name": "b", "op": "k", "nodes": ["b"], "fused": False}]  # fmt: skip
    before, _ = halves(draw(graph, layers))
    assert css(before, "f") == []
    assert [e.text for e in css(before, "nt")] == ["1", "2", "1"]
    assert len(css(before, "fused")) == 2


def test_layers_that_write_one_tensor_meet_before_those_that_read_it() -> None:
    def layer(name: str, inputs: list[str], outputs: list[str]) -> dict[str, Any]:
        return {"name": name, "op": "k", "nodes": [], "inputs": [{"name": n} for n in inputs],
                "outputs": [{"name": n} for n in outputs]}  # fmt: skip

    layers = [layer("a", ["x"], ["t"]), layer("b", ["x"], ["t"]), layer("c", ["t"], ["y"]),
              layer("d", ["t"], ["z"])]  # fmt: skip
    _, after = halves(draw(Graph((), (("x", "FP32 [1]"),), ()), layers))
    assert len(css(after, "j")) == 1
    assert len(css(after, "l")) == 2 + 4


def test_constants_work_is_counted_when_there_is_much_of_it() -> None:
    graph = digits()
    extra = tuple(GraphNode(f"c{k}", "Shape", (), (f"c{k}",), "", True) for k in range(40))
    svg = draw(replace(graph, nodes=(*extra, *graph.nodes)), LAYERS)
    assert "49 operations of the graph the builder got; 40 that only prepare constants are not drawn" in svg
    assert "c39" not in svg


def test_a_graph_too_large_to_draw_is_a_table_of_operators() -> None:
    graph, layers = chain(2 * DRAWN_MAX + 200)
    svg = draw(graph, layers)
    titles = [e.text or "" for e in parse(svg).iter("{http://www.w3.org/2000/svg}title")]
    counts = [re.match(r"(?:Conv|Relu): ([\d,]+) ", title) for title in titles]
    assert sum(int(found[1].replace(",", "")) for found in counts if found) == len(graph.nodes)
    assert len(svg) < 100_000
    assert "FusedConv" not in svg
    graph, layers = chain(DRAWN_MAX)
    assert len(css(halves(draw(graph, layers))[0], "nt")) == DRAWN_MAX


# -- where it lies --------------------------------------------------------------------------------


@st.composite
def graphs(draw_: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    count = draw_(st.integers(1, 40))
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw_(st.lists(ends, max_size=80))
    sizes = [(100.0, float(draw_(st.integers(8, 90)))) for _ in range(count)]
    return sizes, edges


@given(graphs(), st.integers(1, 6), st.integers(150, 700), st.booleans())
def test_boxes_never_meet_and_lines_go_down(
    case: tuple[list[tuple[float, float]], list[tuple[int, int]]], row_max: int, height: int, acyclic: bool
) -> None:
    sizes, edges = case
    if acyclic:
        edges = [(min(e), max(e)) for e in edges]
    placed = lay_out(sizes, edges, Sheet(760.0, float(height), row_max, 12.0))
    boxes = [(x, y, x + w, y + h) for x, y, (w, h) in zip(placed.x, placed.y, sizes, strict=True)]
    for at, one in enumerate(boxes):
        assert one[0] >= -0.05
        assert one[2] <= placed.width + 0.1
        assert one[3] <= placed.height + 0.1
        for other in boxes[at + 1 :]:
            apart = one[2] <= other[0] + 0.1 or other[2] <= one[0] + 0.1
            assert apart or one[3] <= other[1] or other[3] <= one[1]
    wanted = {e for e in edges if e[0] != e[1]}
    assert set(placed.routes) | set(placed.tagged) == wanted
    assert not set(placed.routes) & set(placed.tagged)
    for (a, b), points in placed.routes.items():
        tops = [boxes[a][3], *(y for _, top, bottom in points for y in (top, bottom)), boxes[b][1]]
        assert tops == sorted(tops)
        assert len(points) < SPAN_MAX
        for x, top, bottom in points:  # a line passes between boxes, not through them
            for box in boxes:
                assert not (box[0] < x < box[2] and box[1] < bottom and top < box[3])


def test_a_long_chain_is_folded_into_columns_of_one_page() -> None:
    sizes = [(100.0, 20.0)] * 60
    placed = lay_out(sizes, [(k, k + 1) for k in range(59)], Sheet(600.0, 600.0, 4, 12.0))
    assert placed.height < 800
    assert 3 <= len(set(placed.x)) <= 5
    assert len(placed.tagged) == len(set(placed.x)) - 1


@given(st.text(max_size=60), st.floats(0, 300))
def test_text_fits_its_room_and_keeps_both_ends(text: str, room: float) -> None:
    cut = fit(text, room, 11.5)
    assert width_of(cut, 11.5) <= max(room, 0)
    if "\u2026" in cut and "\u2026" not in text:
        head, tail = cut.split("\u2026")
        assert 0 <= len(head) - len(tail) <= 1


def test_twice_the_graph_is_at_most_thrice_the_work() -> None:
    def work(length: int) -> int:
        graph, layers = chain(length)
        lines = 0

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if "drawing" not in frame.f_code.co_filename:
                return None
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            draw(graph, layers)
        finally:
            sys.settrace(before)
        return lines

    small, large = work(200), work(400)
    assert 1.2 * small < large < 3 * small
