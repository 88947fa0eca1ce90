"""Boundaries: the first layer past the bound is named; what cannot be compared says so."""

from __future__ import annotations

import math

from pellucid.core import canonical
from pellucid.core.boundary import Boundary, Edge, describe
from pellucid.core.gap import Gap


def gap(error: float) -> Gap:
    made = Gap()
    made.add([3.0, 4.0], [3.0 + error, 4.0])
    return made


def edge(name: str, error: float) -> Edge:
    return Edge(name, name, gap(error))


LAYERS = [
    Boundary("conv1", ["conv1", "relu1"], [edge("r1", 0.0)]),
    Boundary("reshape", ["shape"], reason="nothing leaves it"),
    Boundary("conv2", ["conv2"], [edge("small", 0.01), edge("large", 1.0)]),
    Boundary("fc", ["fc"], [edge("logits", 2.0)]),
]


def test_the_first_layer_past_the_bound_is_named() -> None:
    report = describe(LAYERS, "0.1")
    canonical.encode(report)
    assert report["first_past_bound"] == "conv2"
    assert report["findings"] == [
        "layer conv2: relative RMS error: expected at most 0.1, got 0.2 (2 of 3 layers past the bound)"
    ]
    assert [item["past_bound"] for item in report["boundaries"]] == [False, None, True, True]


def test_a_boundary_is_as_good_as_its_worst_tensor() -> None:
    found = describe(LAYERS, None)["boundaries"][2]
    assert (found["tensor"], found["error_relative"], found["error_max"]) == ("large", "0.2", "1")
    assert [item["tensor"] for item in found["tensors"]] == ["small", "large"]


def test_what_cannot_be_compared_says_why() -> None:
    found = describe(LAYERS, "0.1")["boundaries"][1]
    assert found["reason"] == "not comparable: nothing leaves it"
    assert (found["error_relative"], found["tensor"]) == (None, None)


def test_a_bound_with_nothing_measured_fails_closed() -> None:
    assert describe([LAYERS[1]], "0.1")["findings"] == [
        "boundaries: expected errors of at most 0.1, got no boundary that was measured"
    ]
    assert describe([], None)["findings"] == []


def test_one_side_that_is_not_finite_is_past_any_bound() -> None:
    odd = Gap()
    odd.add([1.0, 2.0], [1.0, math.nan])
    report = describe([Boundary("exp", ["exp"], [Edge("y", "y", odd)])], "1000000000")
    assert report["first_past_bound"] == "exp"
    assert report["boundaries"][0]["error_relative"] == "inf"
    assert "got inf" in report["findings"][0]
