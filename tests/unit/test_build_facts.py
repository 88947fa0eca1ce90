"""Which node became which layer, by comparing graphs and by nothing else."""

from __future__ import annotations

from pellucid.core.facts import Graph, Node, map_layers


def node(name: str, op: str, inputs: str, outputs: str, domain: str = "") -> Node:
    return Node(name, op, domain, tuple(inputs.split()), tuple(outputs.split()))


SOURCE = Graph(
    (
        node("scale", "Mul", "w two", "w2"),
        node("conv", "Conv", "x w2", "c"),
        node("relu", "Relu", "c", "r"),
        node("same", "Identity", "r", "i"),
        node("fc", "Gemm", "i v", "y"),
        node("dead", "Neg", "c", "unused"),
    ),
    frozenset({"w", "two", "v"}),
    ("y",),
    {"x": "FP32", "r": "FP32", "y": "FP32"},
)
ENGINE = Graph(
    (node("conv", "FusedConv", "x w2", "r", "com.microsoft"), node("fc", "Gemm", "r v", "y")),
    frozenset({"w2", "v"}),
    ("y",),
    {"x": "FP32", "y": "FP32"},
)


def test_both_directions() -> None:
    facts = map_layers(SOURCE, ENGINE)
    assert {layer["name"]: layer["nodes"] for layer in facts["layers"]} == {
        "conv": ["scale", "conv", "relu"],
        "fc": ["same", "fc"],
    }
    assert {n["name"]: (n["layers"], n["fate"]) for n in facts["nodes"]} == {
        "scale": (["conv"], "folded into a constant"),
        "conv": (["conv"], "computed"),
        "relu": (["conv"], "computed"),
        "same": (["fc"], "absorbed"),
        "fc": (["fc"], "computed"),
        "dead": ([], "removed"),
    }
    assert facts["fused_layers"] == 1
    assert facts["eliminated"] == ["scale", "same", "dead"]
    assert facts["unmapped_layers"] == []
    assert facts["layers"][0]["outputs"] == [{"name": "r", "datatype": "FP32"}]


def test_a_layer_of_made_up_tensors_is_said_to_be_unmapped() -> None:
    engine = Graph((node("made", "Gemm", "x v", "nobody_knows"),), frozenset({"v"}), ("nobody_knows",))
    facts = map_layers(SOURCE, engine)
    assert facts["unmapped_layers"] == ["made"]
    assert facts["fused_layers"] == 0


def test_random_numbers_are_no_constant() -> None:
    source = Graph(
        (node("noise", "RandomNormal", "", "n"), node("add", "Add", "x n", "y")), frozenset(), ("y",)
    )
    fates = {n["name"]: n["fate"] for n in map_layers(source, source)["nodes"]}
    assert fates == {"noise": "computed", "add": "computed"}


def test_quantised_operations_are_counted() -> None:
    engine = Graph(
        (node("q", "QuantizeLinear", "x", "q"), node("m", "MatMulInteger", "q w", "y")),
        frozenset("w"),
        ("y",),
    )
    assert map_layers(engine, engine)["quantized_ops_count"] == 1
