"""From scores to words: the same word in serving, replay and at a stranger's desk."""

from __future__ import annotations

import math
import struct

import pytest

from pellucid.core.decision import decide
from pellucid.core.tensor import Tensor
from pellucid.errors import FormatError

ARGMAX = {"kind": "argmax", "output": "scores", "labels": ["zero", "one", "two"]}
THRESHOLD = {
    "kind": "threshold",
    "output": "scores",
    "column": 1,
    "threshold": "0.5",
    "labels": ["granted", "refused"],
}


def row(*scores: float) -> list[Tensor]:
    return [
        Tensor("other", "FP32", (1, 1), bytes(4)),
        Tensor("scores", "FP64", (1, len(scores)), struct.pack(f"<{len(scores)}d", *scores)),
    ]


def test_a_model_without_decision_decides_nothing():
    assert decide({}, row(1, 2)) == (None, None)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.1, 0.7, 0.2), ("one", "0.700000")),
        ((0.4, 0.4, 0.2), ("zero", "0.400000")),
        ((-3, -2, -1), ("two", "-1.000000")),
    ],
)
def test_the_largest_score_names_the_label_and_the_first_of_equals_wins(scores, expected):
    assert decide(ARGMAX, row(*scores)) == expected


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.5, ("refused", "0.500000")),
        (0.499999, ("granted", "0.500001")),
        (1.0, ("refused", "1.000000")),
        (0, ("granted", "1.000000")),
    ],
)
def test_at_the_threshold_the_second_label_begins(score, expected):
    assert decide(THRESHOLD, row(0.0, score)) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("decision", [ARGMAX, THRESHOLD])
def test_scores_that_are_not_finite_decide_nothing(decision, bad):
    assert decide(decision, row(0.1, 0.2, bad)) == (None, None)


@pytest.mark.parametrize(
    "decision",
    [
        ARGMAX | {"labels": ["zero", "one"]},
        ARGMAX | {"output": "missing"},
        ARGMAX | {"kind": "dice"},
        ARGMAX | {"labels": None},
        {"kind": "argmax"},
        THRESHOLD | {"column": 3},
        THRESHOLD | {"column": -1},
        THRESHOLD | {"column": "1"},
        THRESHOLD | {"labels": ["one"]},
        THRESHOLD | {"threshold": "high"},
        THRESHOLD | {"threshold": None},
    ],
)
def test_a_meaning_that_does_not_fit_is_refused(decision):
    with pytest.raises(FormatError, match="meaning"):
        decide(decision, row(0.1, 0.2, 0.3))
