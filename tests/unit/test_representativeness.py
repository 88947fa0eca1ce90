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


def held_and_lost(measured: int, lost: int) -> list[Held]:
    there = [Held(f"t{i}", f"t{i}", 0.0, 1.0) for i in range(measured)]
    for one in there:
        one.add(10, 0, [])
    return there + [Held(f"l{i}", f"l{i}", 0.0, 1.0, reason="not measured: gone") for i in range(lost)]


def test_one_tensor_that_was_measured_does_not_stand_for_the_others() -> None:
    report = describe(held_and_lost(1, 9), "0.05")
    (finding,) = report["findings"]
    assert finding == (
        "ranges: expected none of the activations unmeasured, got 9 of 10: "
        "l0 (gone), l1 (gone), l2 (gone), l3 (gone), l4 (gone) and 4 more"
    )
    assert report["unmeasured"] == 9
    assert describe(held_and_lost(1, 9), None)["findings"] == []


@pytest.mark.parametrize(
    ("share", "lost", "findings"), [("0.1", 1, 0), ("0.1", 2, 1), ("1", 9, 0), ("0", 1, 1)]
)
def test_the_share_that_may_be_unmeasured_is_named(share: str, lost: int, findings: int) -> None:
    report = describe(held_and_lost(10 - lost, lost), "0.05", share)
    assert len(report["findings"]) == findings
    assert f"{lost} of 10: l0 (gone)" in report["warnings"][-1]


def test_a_tensor_cut_off_or_without_elements_is_not_measured() -> None:
    empty, broken = Held("a", "a", 0.0, 1.0), Held("b", "b", 0.0, 1.0, reason="not measured: it broke off")
    broken.add(10, 0, [])
    report = describe([*held_and_lost(1, 0), empty, broken], "0.05")
    assert report["unmeasured"] == 2
    assert report["findings"][0].endswith("2 of 3: a (it had no elements), b (it broke off)")


def test_nothing_measured_fails_closed_whatever_share_is_allowed() -> None:
    assert len(describe(held_and_lost(0, 2), "0.05", "1")["findings"]) == 1


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
