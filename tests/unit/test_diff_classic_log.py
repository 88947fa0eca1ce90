"""Tactics of logs of the classic form; every line is written by hand, none was printed by a builder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.core import canonical
from pellucid.core.tensorrt_classic import FASTEST, FORM, LISTED, ONLY, classic_facts, parse_classic
from pellucid.core.tensorrt_log import Message, decode_log, read_messages
from pellucid.errors import ParseError

DATA = Path(__file__).resolve().parents[1] / "e2e" / "data"
STARS, DASHES, ARROWS = "*" * 15, "-" * 15, ">" * 15


def tried(
    layer: str, layout: str, *tactics: tuple[str, str, str], runner: str = "CaskConvolution"
) -> list[str]:
    best = min(tactics, key=lambda tactic: float(tactic[2]))
    return [
        f"{STARS} Autotuning format combination: {layout} {STARS}",
        f"{DASHES} Timing Runner: {layer} ({runner}[0x80000009])",
        *(f"Tactic Name: {name} Tactic: {number} Time: {time}" for name, number, time in tactics),
        f"{layer} ({runner}[0x80000009]) profiling completed in 0.1 seconds. Fastest Tactic: {best[1]}"
        f" Time: {best[2]}",
        f"{ARROWS} Chose Runner Type: {runner} Tactic: {best[1]}",
    ]


def said(*lines: str) -> list[Message]:
    return [Message("VERBOSE", line) for line in lines]


def test_every_line_of_the_hand_written_logs_is_of_a_known_kind() -> None:
    for name in ("classic-fast.jsonl", "classic-slow.jsonl"):
        lines = decode_log((DATA / name).read_bytes())
        assert lines[0].message.startswith("written by hand")
        found = read_messages(lines)
        assert (found.form, found.unknown) == ("classic", 1)  # the line that says it is written by hand


def test_a_layer_has_its_tactic_with_name_time_and_format() -> None:
    log = parse_classic(decode_log((DATA / "classic-fast.jsonl").read_bytes()))
    conv = next(layer for layer in log.layers if layer.name == "conv2 + relu2")
    assert conv.nodes == ("conv2", "relu2")
    assert "winograd" in conv.name_of_tactic
    assert (conv.tactic, conv.time_ms, conv.precision, conv.why) == (
        "0x5555555555555555", "0.187", "FP16", LISTED,
    )  # fmt: skip
    assert conv.format == "Half(8192,1:8,256,8) -> Half(8192,1:8,256,8)"
    assert len(conv.timed) == 3
    facts = classic_facts(log)
    assert facts["form"] == FORM
    assert canonical.decode(canonical.encode(facts)) == facts


def test_without_the_list_of_layers_the_choice_is_said_to_be_a_guess() -> None:
    lines = [
        *tried("a", "Float(4,1) -> Float(4,1)", ("slow", "0x1", "0.4"), ("quick", "0x2", "0.3")),
        *tried("a", "Half(4,1) -> Half(4,1)", ("half", "0x3", "0.2")),
        *tried("b", "Float(4,1) -> Float(4,1)", ("only", "0x4", "0.1")),
    ]
    first, second = parse_classic(said(*lines)).layers
    assert (first.tactic, first.why, first.precision) == ("0x3", FASTEST, "FP16")
    assert (second.tactic, second.why) == ("0x4", ONLY)
    listed = "Engine Layer Information:\nLayer(CaskConvolution): a, Tactic: 0x2, x (Float[4]) -> y (Float[4])"
    first, _ = parse_classic(said(*lines, listed)).layers
    assert (first.tactic, first.why, first.precision) == ("0x2", LISTED, "FP32")
    dump = (
        "Layers:\nName: a, LayerType: CaskConvolution, Inputs: [], Outputs: [], TacticName: quick,"
        " TacticValue: 0x2, StreamId: 0, Metadata: [ONNX Layer: a]"
    )
    assert parse_classic(said(*lines, dump)).layers[0].why == LISTED


def test_wrapped_names_are_opened_and_others_are_left_out_and_counted() -> None:
    lines = [
        *tried("a + PWN(b, c)", "Float(4) -> Float(4)", ("t", "0x1", "0.4")),
        *tried("{ForeignNode[a...b]}", "Float(4) -> Float(4)", ("t", "0x1", "0.4"), runner="Myelin"),
    ]
    log = parse_classic(said(*lines))
    assert [layer.nodes for layer in log.layers] == [("a", "b", "c")]
    assert log.unread == 1


@pytest.mark.parametrize(
    "name", ["a\nTactic: 0x1 Time: 0.1", "x (R[0x1]) profiling completed in 1 seconds. Fastest Tactic: 0x0"]
)
def test_a_name_that_could_imitate_a_line_gives_no_tactics(name: str) -> None:
    lines = tried("a", "Float(4) -> Float(4)", ("t", "0x1", "0.4"))
    with pytest.raises(ParseError, match="cannot imitate a line"):
        parse_classic(said(f"Parsing node: {name} [Relu]", *lines))


def test_another_form_is_refused() -> None:
    with pytest.raises(ParseError, match="tactics with their times"):
        parse_classic(said("Parsing node: a [Relu]"))
