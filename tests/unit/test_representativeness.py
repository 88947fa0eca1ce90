"""Shares outside the calibrated range: weighed by element, named by layer and slice, closed on nothing."""

from __future__ import annotations

import pytest

from pellucid.core import canonical
from pellucid.core.representativeness import Held, describe, percent, sentence

RARE, COMMON = ("users", "rare"), ("users", "common")


def embedding() -> Held:
    held = Held("embed_3_out", "embed_3", -1.0, 1.0)
    held.add(100, 81, [RARE])
    held.add(220, 37, [COMMON])
    return held


def test_the_sentence_names_layer_share_and_worst_slice() -> None:
    assert sentence(embedding()) == (
        "embed_3: 37 % of reference activations out of range (slice users=rare: 81 %)"
    )
    whole = Held("x", "x", 0.0, 1.0)
    whole.add(1000, 5, [])
    assert sentence(whole) == "x: 0.5 % of reference activations out of range"


def test_the_gate_judges_every_slice_by_itself() -> None:
    held = Held("t", "fc", 0.0, 1.0)
    held.add(10_000, 0, [COMMON])
    held.add(10, 6, [RARE])
    report = describe([held], "0.05")
    canonical.encode(report)
    assert report["findings"] == [
        "fc: slice users=rare: reference activations out of range: expected at most 5 %, got 60 %"
    ]
    assert report["warnings"] == ["fc: 0.06 % of reference activations out of range (slice users=rare: 60 %)"]
    assert not describe([held], None)["findings"]


def test_a_share_at_the_bound_passes_and_one_element_more_does_not() -> None:
    for more, count in ((0, 0), (1, 1)):
        held = Held("t", "fc", 0.0, 1.0)
        held.add(100, 5 + more, [])
        assert len(describe([held], "0.05")["findings"]) == count


def test_layers_weigh_elements_not_tensors() -> None:
    small, large = Held("a", "lstm", 0.0, 1.0), Held("b", "lstm", 0.0, 1.0)
    small.add(10, 10, [RARE])
    large.add(90, 0, [RARE])
    (layer,) = describe([small, large], None)["layers"]
    assert (layer["elements"], layer["outside"], layer["share_outside"]) == (100, 10, "0.1")
    assert layer["slices"] == [
        {"slice": "users", "value": "rare", "elements": 100, "outside": 10, "share_outside": "0.1"}
    ]


def test_worst_comes_first() -> None:
    mild, bad = Held("a", "mild", 0.0, 1.0), Held("b", "bad", 0.0, 1.0)
    mild.add(100, 10, [])
    bad.add(100, 90, [])
    report = describe([mild, bad], "0.01")
    assert [text.partition(":")[0] for text in report["warnings"]] == ["bad", "mild"]
    assert [text.partition(":")[0] for text in report["findings"]] == ["bad", "mild"]
    assert [item["layer"] for item in report["tensors"]] == ["mild", "bad"]


def test_nothing_measured_fails_closed() -> None:
    lost = Held("t", "t", 0.0, 1.0, reason="not measured: the source has no such tensor")
    report = describe([lost], "0.05")
    assert report["findings"] == [
        "ranges: expected at most 0.05 out of range, got no tensor that was measured"
    ]
    assert report["tensors"][0]["share_outside"] is None
    assert describe([lost], None)["findings"] == []


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (0.00001, "under 0.01 %"),
        (0.004, "0.4 %"),
        (0.0123, "1 %"),
        (0.375, "38 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_are_written_for_people(share: float, words: str) -> None:
    assert percent(share) == words
