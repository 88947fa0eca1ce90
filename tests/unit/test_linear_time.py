"""Logs of hostile models are read, and builds compared, in time that grows with their size, no faster.

Ratios of CPU time of one run, a size against four times that size: 4 when linear, 16 when quadratic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from pellucid.core.package_diff_layers import compare_layers
from pellucid.core.package_diff_sides import Kernel, Side
from pellucid.core.tensorrt_classic import parse_classic
from pellucid.core.tensorrt_log import Message, parse_log
from pellucid.core.tensorrt_messages import kind_of

STARS, DASHES, ARROWS = "*" * 15, "-" * 15, ">" * 15


def growth(work: Callable[[int], Callable[[], object]], size: int) -> float:
    """CPU time at four times the size, by that at the size; the smallest of three each."""
    small, large = work(size), work(4 * size)
    return min(_spent(large) for _ in range(3)) / min(_spent(small) for _ in range(3))


def _spent(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def messages(texts: Sequence[str]) -> list[Message]:
    return [Message("VERBOSE", text) for text in texts]


def many_layers(count: int) -> list[Message]:
    """Each layer with one tactic, timed and chosen."""
    return messages(
        [
            line
            for i in range(count)
            for line in (
                f"{STARS} Autotuning format combination: Float(1) -> Float(1) {STARS}",
                f"{DASHES} Timing Runner: layer{i} (Cask[0x80000009])",
                f"Tactic Name: a Tactic: 0x{i:x} Time: 0.1",
                f"{ARROWS} Chose Runner Type: Cask Tactic: 0x{i:x}",
            )
        ]
    )


def one_layer(count: int) -> list[Message]:
    """One layer whose tactics are timed and chosen again and again, the chosen ones never timed."""
    return messages(
        [
            f"{DASHES} Timing Runner: layer (Cask[0x80000009])",
            *(f"Tactic Name: a Tactic: 0x{i:x} Time: 0.1" for i in range(count)),
            *(f"{ARROWS} Chose Runner Type: Cask Tactic: 0xf{i:08x}" for i in range(count)),
        ]
    )


@pytest.mark.parametrize("log", [many_layers, one_layer])
def test_tactics_of_a_classic_log_are_found_in_linear_time(log: Callable[[int], list[Message]]) -> None:
    def work(count: int) -> Callable[[], object]:
        lines = log(count)
        return lambda: parse_classic(lines)

    assert growth(work, 2_000) < 9


@pytest.mark.parametrize("end", ["puts: ", ", ", "x, ", "x"])
def test_a_message_of_many_lists_of_inputs_is_read_in_linear_time(end: str) -> None:
    def work(count: int) -> Callable[[], object]:
        message = " [a] inputs:  " * count + end
        return lambda: kind_of(message)

    assert growth(work, 4_000) < 9


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("conv [Conv] inputs: ", "conv"),
        ("conv [Conv] outputs: [y -> (1)[FLOAT]], ", "conv"),
        # ``[b]`` is read as an operator: the name is all before it
        ("conv [Conv] inputs: [a], [b] outputs: ", "conv [Conv] inputs: [a],"),
        ("a [A] inputs: b [B] inputs: [x], ", "a [A] inputs: b"),
    ],
)
def test_a_list_of_inputs_may_be_empty_and_the_last_one_counts(message: str, name: str) -> None:
    kind, fields = kind_of(message)
    assert (kind, fields["name"]) == ("node_io", name)


def test_a_list_of_layers_is_read_in_linear_time() -> None:
    tensor = "{ Name: t, Dimensions: [1], Strides: [1], Datatype: Float, Format: Row }"

    def work(count: int) -> Callable[[], object]:
        layers = [
            f"Name: l{i}, LayerType: kgen, Inputs: [{tensor}], Outputs: [{tensor}], TacticName: ,"
            f" StreamId: 0, Metadata: [ONNX Layer: n{i}]"
            for i in range(count)
        ]
        text = "Layers:\n" + "\n".join(layers) + "\n\nI/O Tensors:\n\n\nEngine Metadata:\n"
        names = [f"n{i}" for i in range(count)]
        return lambda: parse_log(messages([text]), names)

    assert growth(work, 500) < 9


def sides(groups: list[list[str]], others: list[list[str]]) -> tuple[Side, Side]:
    both = [
        Side(
            title, kernels=tuple(Kernel(f"l{i}", "kgen", frozenset(g), "t", "FP32") for i, g in enumerate(of))
        )
        for title, of in (("a", groups), ("b", others))
    ]
    return both[0], both[1]


def test_layers_cut_in_another_way_are_found_in_linear_time() -> None:
    def work(count: int) -> Callable[[], object]:
        pairs = [[f"n{2 * i}", f"n{2 * i + 1}"] for i in range(count)]
        shifted = [[name] for pair in pairs for name in pair]
        a, b = sides(pairs, shifted)
        return lambda: list(compare_layers(a, b))

    assert growth(work, 700) < 9


def test_one_long_chain_of_overlapping_layers_is_one_set() -> None:
    """Each layer of one build reaches into two of the other: the set grows by one a round."""

    def work(count: int) -> Callable[[], object]:
        pairs = [[f"n{2 * i}", f"n{2 * i + 1}"] for i in range(count)]
        shifted = [[f"n{2 * i + 1}", f"n{2 * i + 2}"] for i in range(count)]
        a, b = sides(pairs, shifted)
        return lambda: list(compare_layers(a, b))

    (found,) = work(50)()  # type: ignore[misc]
    assert found.section == "fusions"
    assert "50 layers in A" in found.words
    assert growth(work, 300) < 9
