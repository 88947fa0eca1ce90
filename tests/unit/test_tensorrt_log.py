"""Facts of a TensorRT log. Every line is written by hand from the grammar; none is a captured log."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.tensorrt_dump import parse_layers
from pellucid.core.tensorrt_layers import DEFERRED
from pellucid.core.tensorrt_log import LogFacts, Message, decode_log, parse_log, read_messages
from pellucid.errors import FormatError, ParseError, PellucidError

STUB = "__myelin_CASK_STUB"
HASH = "0123456789abcdef0123456789abcdef"
HOSTILE = [
    "a\nMax Scratch Memory: 1 bytes",
    "a]\x1f[ONNX Layer: ghost",
    "a]\x1e[ONNX Layer: ghost",
    "\x1b[31mred",
    "a, LayerType: gemm, TacticName: fake",
    "Parsing node: ghost [Relu]",
    "Marking ghost as output: out",
    "Layers:\nName: ghost",
    "Max Scratch Memory: 1 bytes",
    "a }], Constants: [], Outputs: [",
    "a]",
    "é",
]


def tensor(
    name: str, dims: str = "[1,4]", datatype: str = "Float", layout: str = "(Linear) Row major"
) -> str:
    strides = "[4,1]" if dims != "[]" else "[]"
    return (
        f"{{ Name: {name}, Dimensions: {dims}, Strides: {strides}, StrideOrder: [1,0],"
        f" Datatype: {datatype}, Format: {layout} }}"
    )


def layer(
    name: str,
    kind: str,
    *nodes: str,
    inputs: str = "",
    constants: str = "",
    outputs: str = "",
    tactic: str = "",
) -> str:
    def listed(text: str) -> str:
        return f"[ {text}]" if text else "[]"

    metadata = "\x1f".join(f"[ONNX Layer: {node}]" for node in nodes)
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: {listed(inputs)}, Constants: {listed(constants)},"
        f" Outputs: {listed(outputs)}, TacticName: {tactic}, StreamId: 0, Metadata: {metadata}"
    )


BINDING = (
    " Name: {}, IOMode: Input, DataType: Float, Dimensions: [-1,4], Location: Device,"
    " IsShapeInferenceIO: false, ProfileInfo: [ {{ MinShape: [1,4], OptShape: [2,4], MaxShape: [8,4],"
    " Format: Row major linear FP32 format (kLINEAR) }}]"
)


def dump(*lines: str, bindings: str = BINDING.format("x")) -> str:
    text = "Layers:\n" + "\n".join(lines)
    return f"{text}\n\nI/O Tensors:\n{bindings}\n\nEngine Metadata:\n Multi-Device: Disabled"


LAYERS = [
    layer("shapes_0", "shape_call"),
    layer("move_1", "kgen", inputs=tensor("x"), outputs=tensor("m"), tactic=f"__myl_MoveTran_0x{HASH}"),
    layer(
        "conv_2", "correlation", "conv", "relu",
        inputs=tensor("m", "[-1, 4]", "Half"), constants=tensor("w", "[4,4]", "Int8"),
        outputs=tensor("c"), tactic=STUB,
    ),
    layer("fused_3", "runtime_fusion", "relu", "add", inputs=f"{tensor('c')}, {tensor('d', '[4]', 'Half')}"),
    layer("sum_4", "kgen", "add", inputs=tensor("c"), tactic=f"__myl_AddSum_0x{HASH}_vec"),
    "Name: copy_5, LayerType: copy, Inputs: [], Outputs: [], ParameterType: ShapeH2D, shapeValues0: [-5],"
    " TacticValue: 0x0, StreamId: 0, EventId: 3, Metadata: ",
]  # fmt: skip
NODES = ["conv", "relu", "add", "gone"]
MESSAGES = [
    "Parsing node: conv [Conv]",
    "conv [Conv] inputs: [x -> (-1, 4)[FLOAT]], ",
    "k [Constant] inputs: ",
    "Constructing optimization profile number 0 [1/1].",
    "Number of target compute capabilities: 1",
    "Graph optimization time: 5.8e-05 seconds.",
    "Max Scratch Memory: 512 bytes",
    "Total Activation Memory: 640 bytes",
    "Total Weights Memory: 60 bytes",
    "a sentence nobody has seen",
]


def verbose(*messages: str) -> list[Message]:
    return [Message("VERBOSE", message) for message in messages]


@pytest.fixture
def facts() -> LogFacts:
    return parse_log(verbose(*MESSAGES, dump(*LAYERS)), NODES)


def test_messages_give_their_facts(facts: LogFacts) -> None:
    said = facts.said
    assert said.nodes == [("conv", "Conv")]
    assert (said.profiles, said.targets, said.form) == (1, 1, "rtx")
    assert said.phases == [("Graph optimization time:", "5.8e-05")]
    assert facts.memory_bytes("Max Scratch Memory") == 512
    assert facts.device_peak_bytes == 700
    assert said.kinds["node_io"] == 2
    assert said.unknown == said.kinds["unknown"] == 1


def test_layers_and_nodes_are_mapped_both_ways(facts: LogFacts) -> None:
    assert facts.layers is not None
    assert [found.name for found in facts.kernels] == ["move_1", "conv_2", "fused_3", "sum_4", "copy_5"]
    assert facts.layers[2].onnx_layers == ("conv", "relu")
    assert facts.layers_of == {"conv": (2,), "relu": (2, 3), "add": (3, 4)}
    assert [found.name for found in facts.fused] == ["conv_2", "fused_3"]
    assert facts.eliminated == ("gone",)
    assert facts.strangers == ()


def test_without_the_graph_nothing_is_called_eliminated() -> None:
    assert parse_log(verbose(dump(*LAYERS))).eliminated is None


def test_names_that_are_not_nodes_are_shown_as_such() -> None:
    assert parse_log(verbose(dump(*LAYERS)), ["conv", "relu"]).strangers == ("add",)


def test_a_tactic_is_never_made_up(facts: LogFacts) -> None:
    assert [found.tactic for found in facts.kernels] == [
        f"__myl_MoveTran_0x{HASH}", DEFERRED, "", f"__myl_AddSum_0x{HASH}_vec", "0x0",
    ]  # fmt: skip


def test_precision_quantisation_and_reformats(facts: LogFacts) -> None:
    assert [found.precision for found in facts.kernels] == ["Float", "Half", "Half", "Float", None]
    assert [found.name for found in facts.quantized] == ["conv_2"]
    assert [found.name for found in facts.reformats] == ["move_1", "copy_5"]


def test_a_datatype_unknown_here_has_no_rank() -> None:
    line = layer("a", "gemm", inputs=tensor("x", datatype="E8M0"), tactic=STUB)
    assert parse_layers(dump(line)).layers[0].precision is None


def test_bindings_keep_their_profile(facts: LogFacts) -> None:
    (bound,) = facts.bindings
    assert (bound.name, bound.mode, bound.dimensions) == ("x", "Input", (-1, 4))
    assert bound.profiles == (((1, 4), (2, 4), (8, 4)),)


def test_the_fingerprint_is_the_defined_text() -> None:
    line = layer("any", "gemm", "b", "a", inputs=tensor("x"), outputs=tensor("y", "[]", "Int8"), tactic=STUB)
    defined = (
        f'[["gemm",[[[1,4],[4,1],"Float","(Linear) Row major"]],[],[[[],[],"Int8","(Linear) Row major"]],'
        f'"{STUB}",["a","b"]]]'
    )
    assert parse_log(verbose(dump(line))).layer_fingerprint == hashlib.sha256(defined.encode()).hexdigest()


def test_the_fingerprint_sees_everything_but_names() -> None:
    def of(
        name: str = "l", kind: str = "gemm", node: str = "n", tactic: str = STUB, **kept: str
    ) -> str | None:
        line = layer(name, kind, node, inputs=tensor(kept.pop("tensor", "x"), **kept), tactic=tactic)
        return parse_log(verbose(dump(line))).layer_fingerprint

    assert of() == of(name="other", tensor="other")
    changed = [of(kind="copy"), of(node="m"), of(tactic="t"), of(dims="[2,4]"), of(datatype="Half"),
               of(layout="(NHWC)")]  # fmt: skip
    assert len({of(), *changed}) == 7


def test_a_log_without_a_dump_has_no_layers() -> None:
    facts = parse_log(verbose("Total Weights Memory: 1 bytes"), NODES)
    assert (facts.layers, facts.layer_fingerprint, facts.eliminated) == (None, None, None)


def test_two_dumps_are_one_too_many() -> None:
    with pytest.raises(ParseError, match="one Layers dump, got 2"):
        parse_log(verbose(dump(*LAYERS), dump(*LAYERS)))


def test_a_name_that_is_metadata_itself_is_caught_by_the_graph() -> None:
    name = "a]\x1f[ONNX Layer: ghost"
    imitated = layer("l", "gemm", name, tactic=STUB)
    assert parse_log(verbose(dump(imitated)), ["a"]).strangers == ("ghost",)
    for log, nodes in (
        (verbose(f"Parsing node: {name} [Gemm]", dump(imitated)), ["a"]),
        (verbose(dump(imitated)), [name]),
    ):
        with pytest.raises(ParseError):
            parse_log(log, nodes)


def test_a_memory_line_with_two_values_has_none() -> None:
    facts = parse_log(verbose("Total Weights Memory: 1 bytes", "Total Weights Memory: 2 bytes"))
    assert facts.memory_bytes("Total Weights Memory") is None
    assert facts.said.memory == {"Total Weights Memory": [1, 2]}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "template",
    [
        "Parsing node: {} [Relu]",
        "{} [Relu] inputs: [x -> (1)[FLOAT]], ",
        "{} [Constant] inputs: ",
        "Registering layer: l for ONNX node: {}",
        "Registering tensor: {} for ONNX tensor: t",
        "Importing initializer: {}",
        "Marking t as output: {}",
        "Adding network input: {} with dtype: float32, dimensions: (1)",
    ],
)
def test_a_hostile_name_makes_no_fact(template: str, name: str) -> None:
    log = verbose(*MESSAGES, template.format(name), dump(*LAYERS))
    with pytest.raises(ParseError, match="names that cannot imitate a line"):
        parse_log(log, NODES)
    clean, said = read_messages(verbose(*MESSAGES)), read_messages(log)
    assert said.unsafe_count >= 1
    assert (said.memory, said.phases, said.targets, said.chosen) == (
        clean.memory, clean.phases, clean.targets, clean.chosen,
    )  # fmt: skip
    assert len(said.dumps) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_in_the_graph_makes_no_fact(name: str) -> None:
    with pytest.raises(ParseError, match="names that cannot imitate a line"):
        parse_log(verbose(dump(*LAYERS)), [*NODES, name])


# The dump alone cannot tell a name that is itself metadata of two nodes; the graph can.
@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "a]\x1f[ONNX Layer: ghost"])
def test_a_hostile_name_in_the_dump_is_refused(name: str) -> None:
    for line in (
        layer("a", "gemm", name, tactic=STUB),
        layer("a", "gemm", "n", inputs=tensor(name), tactic=name),
    ):
        with pytest.raises(ParseError):
            parse_layers(dump(line))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nothing",
        "Name: a, LayerType: gemm, Inputs: [], Outputs: []",
        "Name: a, LayerType: gemm, Inputs: [], Metadata: ",
        "LayerType: gemm, Name: a, Inputs: [], Outputs: [], Metadata: ",
        "Name: a, LayerType: gemm, LayerType: copy, Inputs: [], Outputs: [], Metadata: ",
        "Name: a, LayerType: gemm, Inputs: [, Outputs: [], Metadata: ",
        "Name: a, LayerType: gemm, Inputs: [}, Outputs: [], Metadata: ",
        "Name: a, LayerType: gemm, Inputs: [ { Name: x }], Outputs: [], Metadata: ",
        "Name: a, LayerType: gemm, Inputs: " + "[" * 9 + "]" * 9 + ", Outputs: [], Metadata: ",
        "Name: a, LayerType: ge mm, Inputs: [], Outputs: [], Metadata: ",
        "Name: a, LayerType: gemm, Inputs: [], Outputs: [], Metadata: ghost",
        "Name: a, LayerType: gemm, Inputs: [], Outputs: [], Metadata: [ONNX Layer: a]__b]",
        "Name: a, LayerType: gemm, Inputs: [], Outputs: [], Metadata: [ONNX Layer: a]_b",
        layer("a", "gemm", inputs=tensor("x", "[1,y]")),
        layer("a", "gemm", inputs=tensor("x", "[" + "9" * 5000 + "]")),
    ],
)
def test_a_line_outside_the_grammar_takes_the_whole_dump_with_it(line: str) -> None:
    with pytest.raises(ParseError):
        parse_layers(dump(LAYERS[1], line))


def test_a_node_made_of_another_operator_keeps_its_name() -> None:
    line = "Name: a, LayerType: gemm, Inputs: [], Outputs: [], Metadata: [ONNX Layer: n7]__gemm_from_conv1x1"
    assert parse_layers(dump(line + "\x1f[ONNX Layer: n8]")).layers[0].onnx_layers == ("n7", "n8")


INNER = " | then_g (then_branch) | if_1 (If)"
OUTER = " | else_g (else_branch) | if_0 (If)"


def in_branches(*parts: str) -> str:
    metadata = "\x1f".join(f"[ONNX Layer: {part}]" for part in parts)
    return f"Name: a, LayerType: gemm, Inputs: [], Outputs: [], Metadata: {metadata}"


def test_a_layer_inside_an_if_is_its_node_s_and_stands_within_the_if() -> None:
    found = parse_log(
        verbose(dump(in_branches("n7" + INNER + OUTER, "n8" + OUTER))), ["n7", "n8", "if_0", "if_1"]
    )
    (layer_,) = found.layers or ()
    assert layer_.onnx_layers == ("n7", "n8")
    assert layer_.within == ("if_1", "if_0")
    assert not found.eliminated
    assert not found.strangers
    single = parse_layers(dump(in_branches("n7" + INNER))).layers[0]
    assert not single.is_fused
    # the builder names the ``If`` among the nodes as well
    assert not parse_layers(dump(in_branches("if_0", "n7" + OUTER))).layers[0].is_fused
    assert parse_layers(dump(in_branches("if_0", "n7" + OUTER, "n8" + OUTER))).layers[0].is_fused
    assert single.onnx_layers == ("n7",)


@pytest.mark.parametrize(
    "part",
    [
        "n7 | then_g (then_branch)", "n7 | then_g (then_branch) | if_0 (Loop)", "n7 | g (branch) | if_0 (If)",
        "n7 | then g (then_branch) | if_0 (If)", "n7 | then_g (then_branch) | if 0 (If)",
        "n7 |then_g (then_branch) | if_0 (If)", "n7 | then_g] (then_branch) | if_0 (If)",
        "n7 | if_0 (If)", "n7" + INNER * 9, "n7" + INNER + " ",
        "n7 | x (then_branch) | y (If)][ONNX Layer: z",
    ],
)  # fmt: skip
def test_any_other_part_of_a_name_is_refused(part: str) -> None:
    with pytest.raises(ParseError):
        parse_layers(dump(in_branches(part)))


@pytest.mark.parametrize("bindings", ["nothing", " Name: x", BINDING.format("x").replace("Input,", "Both,")])
def test_a_binding_outside_the_grammar_is_refused(bindings: str) -> None:
    with pytest.raises(ParseError):
        parse_layers(dump(*LAYERS, bindings=bindings))


def test_fatal_warnings_count_at_the_start_of_a_message_only() -> None:
    uint8 = (
        "onnxOpImporters.cpp:1: TensorRT supports QuantizeLinear/DequantizeLinear with UINT8 zero_point"
        " only on DLA (some). Defaulting to INT8 instead."
    )
    int32 = "For zero_point with type int32 TensorRT will use INT8 instead."
    said = read_messages(
        [Message("WARNING", uint8), Message("INFO", int32), Message("WARNING", "quoted: " + int32)]
    )
    assert [issue.kind for issue in said.fatal_warnings] == ["uint8_zero_point", "int32_zero_point"]
    assert [issue.kind for issue in said.warnings] == ["uint8_zero_point", "other"]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("ModelImporter.cpp:5: Make sure input ids has Int64 binding.", "int64_binding"),
        ("Unused Input: mask", "unused_input"),
        ("ImporterContext.hpp:5: A node named n already exists, the rest", "duplicate_name"),
        ("something new", "other"),
    ],
)
def test_warnings_have_a_kind(message: str, kind: str) -> None:
    assert [issue.kind for issue in read_messages([Message("WARNING", message)]).warnings] == [kind]


def test_errors_have_a_kind_and_noise_is_noise_at_the_start_only() -> None:
    noise = "[checkMacros.cpp::catchCudaError::9] Error Code 1: Cuda Runtime (cudaError 35: no driver)"
    texts = [
        noise,
        "ModelImporter.cpp:7: ERROR: quoting\n" + noise,
        "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (text)",
        "[file.cpp::function::4] Error Code 2: Internal Error (text)",
        "words",
    ]
    said = read_messages([Message("Severity.ERROR", text) for text in texts])
    assert [issue.kind for issue in said.errors] == ["noise", "parser", "builder", "builder", "other"]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Input filename:   m.onnx", "header"),
        ("Doc string:       ", "header"),
        ("-" * 64, "header"),
        ("Static check for parsing node: n [Relu]", "static_check"),
        ("After dead-layer removal: 3 layers", "layers_after"),
        ("Original: 3 layers", "layers_after"),
        ("ForeignNode {ForeignNode[a...b]} metadata: [ONNX Layer: a]\x1e[ONNX Layer: b]", "foreign"),
        ("Found n to be part of layer norm pattern.", "pattern"),
        (
            "*************** Autotuning format combination: Float(4,1) -> Float(4,1) ***************",
            "autotune",
        ),
        ("Layer: n Host Persistent: 1 bytes Device Persistent: 2 bytes Scratch Memory: 3 bytes", "layer_mem"),
        ("[MemUsageChange] Subgraph create: CPU +0, GPU +0, now: CPU 1, GPU 0 (MiB)", "mem_change"),
        ("Adding 1 engine weights(s) to plan file.", "plan"),
        ("CONVOLUTION conv", "shapes"),
        ("        [1,64]\tN", "shapes"),
        ("=============== Computing costs for n", "costs"),
        ("QDQ graph optimizer pass", "qdq"),
        ("CONVOLUTION two words", "unknown"),
        ("Total Weights Memory: 1 bytes\n", "unknown"),
        ("Total Weights Memory: 99999999999999999999 bytes", "unknown"),
        ("Graph optimization time: 1e9999 seconds.", "unknown"),
    ],
)
def test_a_message_is_of_one_kind_by_its_whole_text(message: str, kind: str) -> None:
    assert read_messages(verbose(message)).kinds == {kind: 1}


def test_an_error_states_no_other_fact() -> None:
    said = read_messages([Message("ERROR", "Total Weights Memory: 1 bytes")])
    assert (said.memory, len(said.errors), said.unknown) == ({}, 1, 0)


def test_the_classic_form_times_tactics_one_by_one() -> None:
    said = read_messages(
        verbose(
            "--------------- Timing Runner: conv + relu (CaskConvolution[0x80000009])",
            "Tactic Name: sm80_winograd_align4 Tactic: 0x1a Time: 0.125",
            "Tactic: 0x2b Time: 0.25",
            ">>>>>>>>>>>>>>> Chose Runner Type: CaskConvolution Tactic: 0x1a",
        )
    )
    assert said.form == "classic"
    assert [(t.layer, t.runner, t.tactic, t.name, t.time_ms) for t in said.timed] == [
        ("conv + relu", "CaskConvolution", "0x1a", "sm80_winograd_align4", "0.125"),
        ("conv + relu", "CaskConvolution", "0x2b", "", "0.25"),
    ]
    assert [(c.layer, c.tactic) for c in said.chosen] == [("conv + relu", "0x1a")]


def test_json_lines_are_read_message_by_message() -> None:
    raw = b"".join(
        json.dumps({"severity": "INFO", "time": "t", "message": text}).encode() + b"\n"
        for text in ("a\nTotal Weights Memory: 1 bytes", "b")
    )
    assert decode_log(raw) == [Message("INFO", "a\nTotal Weights Memory: 1 bytes"), Message("INFO", "b")]
    assert read_messages(decode_log(raw)).memory == {}


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b"1", b'{"severity": 1, "message": "m"}', b"\xff", b"[" * 100_000]
)
def test_a_line_that_is_no_message_is_named(line: bytes) -> None:
    with pytest.raises(FormatError, match="line 2"):
        decode_log(b'{"severity": "INFO", "message": ""}\n' + line)


hostile_text = st.text(st.sampled_from(list("a,[]{}: \n\x1e\x1f\x1b0")) | st.characters(), max_size=60)
pieces = st.sampled_from([*HOSTILE, *MESSAGES, *LAYERS, "Metadata: ", ", ", "Layers:\n"])


@given(st.lists(st.lists(hostile_text | pieces, max_size=4).map("".join), max_size=6))
def test_any_messages_give_facts_or_an_error_of_the_tree(messages: list[str]) -> None:
    try:
        facts = parse_log(verbose(*messages), NODES)
    except PellucidError:
        return
    assert sum(facts.said.kinds.values()) == facts.said.messages == len(messages)


@given(name=hostile_text.filter(lambda name: any(c in name for c in ",[]{} \n\x1e\x1f\x1b")))
def test_a_name_with_a_separator_never_yields_facts(name: str) -> None:
    with pytest.raises(ParseError):
        parse_log(verbose(f"Parsing node: {name} [Relu]", dump(*LAYERS)))


@given(at=st.integers(0, 10**6), cut=st.integers(0, 30), new=hostile_text)
def test_a_damaged_dump_is_read_whole_or_refused(at: int, cut: int, new: str) -> None:
    text = dump(*LAYERS)
    at = len("Layers:\n") + at % (len(text) - len("Layers:\n"))
    try:
        parsed = parse_layers(text[:at] + new + text[at + cut :])
    except ParseError:
        return
    assert all("\x1f" not in n and "]" not in n for found in parsed.layers for n in found.onnx_layers)
