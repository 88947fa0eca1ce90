"""The calibration set's manifest and the artefact of its ranges, as bytes and as rules."""

from __future__ import annotations

import copy
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core import canonical
from pellucid.core.calibration import (
    CalibrationSet,
    Sample,
    make_manifest,
    parse_manifest,
    samples_digest,
    select,
)
from pellucid.core.calibration_ranges import (
    Ranges,
    TensorRange,
    changes,
    differences,
    float32_text,
    make_ranges,
    parse_float32,
    parse_ranges,
)
from pellucid.core.digest import sha256
from pellucid.errors import FormatError, RecipeError

VERSIONS = {"numpy": "2.0", "onnx": "1.19", "onnxruntime": "1.32", "pellucid": "0.1"}
BOUND: dict[str, Any] = {
    "model": sha256(b"model"), "data": sha256(b"data"), "samples": sha256(b"samples"),
    "settings": {"per_channel": True}, "versions": VERSIONS,
}  # fmt: skip


def rule(name: str, count: int | None = None, *, seed: int = 0, slice_: str | None = None) -> dict[str, Any]:
    return {"rule": name, "count": count, "seed": seed, "slice": slice_}


def calibration_set(**changed: Any) -> CalibrationSet:
    values: dict[str, Any] = {
        "data": sha256(b"data"), "rows": 9, "inputs": ({"name": "x", "datatype": "FP32", "shape": [2]},),
        "select": rule("random", 2, seed=7), "samples": (Sample(1, sha256(b"1")), Sample(4, sha256(b"4"))),
        "slices": ({"name": "light", "values": [{"value": "day", "rows": 9, "selected": 2}]},),
        "times": {"from": "2026-01-01T00:00:00.000000000Z", "to": "2026-02-01T00:00:00.000000000Z"},
        "source": "the line of plant 2", "licence": None,
    }  # fmt: skip
    return CalibrationSet(**values | changed)


def tensor(name: str = "x", low: float = -1.0, high: float = 2.0, **changed: Any) -> TensorRange:
    values: dict[str, Any] = {
        "name": name, "nodes": ("conv",), "axis": None, "low": (low,), "high": (high,), "scale": (0.5,),
        "zero_point": (0,),
    }  # fmt: skip
    return TensorRange(**values | changed)


def weight(name: str = "w") -> TensorRange:
    return TensorRange(name, ("conv",), 0, (-1.0, -2.0), (1.0, 2.0), (0.25, 0.5), (0, 0))


PLAIN = {"tensor": "x", "nodes": [], "min": "0.0", "max": "1.0", "scale": "1.0", "zero_point": 0}
RANGES = Ranges(BOUND, "minmax", 2, (tensor(),), (weight(),))


# -- which rows -----------------------------------------------------------------------------------


def test_all_and_first_take_what_they_say() -> None:
    assert select(rule("all"), 4) == [0, 1, 2, 3]
    assert select(rule("first", 2), 4) == [0, 1]


def test_a_draw_is_the_same_for_ever() -> None:
    assert select(rule("random", 4, seed=7), 20) == [6, 11, 13, 15]
    assert select(rule("random", 4, seed=8), 20) != [6, 11, 13, 15]


@given(count=st.integers(1, 200), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_a_draw_takes_as_many_as_asked_each_once(count: int, seed: int, data: Any) -> None:
    wanted = data.draw(st.integers(1, count))
    rows = select(rule("random", wanted, seed=seed), count)
    assert rows == sorted(set(rows))
    assert len(rows) == wanted
    assert set(rows) <= set(range(count))
    more = select(rule("random", min(wanted + 1, count), seed=seed), count)
    assert set(rows) <= set(more)  # a larger set holds the smaller one


@given(values=st.lists(st.sampled_from(["day", "night", "dusk"]), min_size=3, max_size=60), data=st.data())
def test_strata_get_equal_shares_or_the_set_is_refused(values: list[str], data: Any) -> None:
    wanted = data.draw(st.integers(1, len(values)))
    have, share = Counter(values), wanted // len(set(values))
    try:
        rows = select(rule("stratified", wanted, slice_="light"), len(values), values)
    except RecipeError:
        assert min(have.values()) < share + 1
        return
    got = Counter(values[row] for row in rows)
    assert len(rows) == wanted
    assert all(got[value] in (share, share + 1) for value in have)


def test_what_a_set_does_not_have_is_not_chosen_twice() -> None:
    with pytest.raises(RecipeError, match="at least 5 rows in the set, got 4"):
        select(rule("random", 5), 4)
    with pytest.raises(RecipeError, match="at least 2 rows of 'night' in the set, got 1"):
        select(rule("stratified", 4, slice_="light"), 4, ["day", "day", "day", "night"])


# -- manifest.json --------------------------------------------------------------------------------


def test_a_manifest_comes_back_as_it_was_made() -> None:
    found = calibration_set()
    raw = canonical.encode(make_manifest(found))
    assert parse_manifest(raw) == found
    assert found.holds(sha256(b"4"))
    assert not found.holds(sha256(b"2"))
    assert found.digest == samples_digest([sha256(b"1"), sha256(b"4")]) != samples_digest([sha256(b"1")])


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("format", "pellucid-calibration/2"), ("rows", 4), ("rows", True), ("samples", []),
        ("data", "sha256:00"), ("times", {"from": "now", "to": "now"}),
        ("samples", [{"index": 1, "digest": "x"}]), ("samples_digest", sha256(b"")), ("select", {}),
        ("select", rule("best")), ("slices", [{"name": 1, "values": []}]),
        ("slices", [{"name": "a", "values": [{"value": "b", "rows": -1, "selected": 0}]}]), ("source", 3),
        ("times", {"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}), ("surprise", 1),
        ("inputs", None),
    ],
)  # fmt: skip
def test_a_manifest_of_another_form_is_refused(where: str, value: Any) -> None:
    document = make_manifest(calibration_set()) | {where: value}
    with pytest.raises(FormatError):
        parse_manifest(canonical.encode(document))


# -- ranges.json ----------------------------------------------------------------------------------


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_decimal_gives_every_bit_of_a_binary32_back(value: float) -> None:
    again = parse_float32(float32_text(value))
    assert struct.pack("<f", again) == struct.pack("<f", value)
    assert len(float32_text(value)) <= 24


def test_a_decimal_is_as_short_as_can_be() -> None:
    (tenth,) = struct.unpack("<f", struct.pack("<f", 0.1))
    assert float32_text(tenth) == "0.1"
    for text in ("0.10", "1e400", "nan", "inf", "0.10000000149011612", "", "1" * 50, 0.1, "١"):
        with pytest.raises(FormatError):
            parse_float32(text)


def test_an_artefact_comes_back_as_it_was_made() -> None:
    assert parse_ranges(canonical.encode(make_ranges(RANGES))) == RANGES


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tensors", 0, "max"), "3.0"), (("tensors", 0, "scale"), "0.25"), (("weights", 0, "min", 1), "-3.0"),
        (("samples",), 3), (("bound", "data"), sha256(b"other")), (("method",), "entropy"),
    ],
)  # fmt: skip
def test_an_edited_artefact_is_refused(path: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(make_ranges(RANGES))
    part: Any = document
    for key in path[:-1]:
        part = part[key]
    assert part[path[-1]] != value
    part[path[-1]] = value
    with pytest.raises(FormatError, match="expected a digest of its content") as error:
        parse_ranges(canonical.encode(document))
    assert "edited" in error.value.hint


@pytest.mark.parametrize(
    "changed",
    [
        {"tensors": [{}]}, {"method": "guess"}, {"samples": 0}, {"bound": BOUND | {"model": "x"}},
        {"bound": BOUND | {"versions": {}}}, {"bound": BOUND | {"settings": []}}, {"format": "x"},
        {"tensors": [PLAIN | {"min": "2.0"}]}, {"tensors": [PLAIN | {"scale": "0.0"}]},
        {"tensors": [PLAIN | {"nodes": 1}]}, {"tensors": [PLAIN, PLAIN]}, {"weights": [PLAIN]},
    ],
)  # fmt: skip
def test_an_artefact_of_another_form_is_refused_with_an_honest_digest_too(changed: dict[str, Any]) -> None:
    content = {key: item for key, item in make_ranges(RANGES).items() if key != "digest"} | changed
    document = content | {"digest": sha256(canonical.encode(content))}
    with pytest.raises(FormatError):
        parse_ranges(canonical.encode(document))


def test_an_artefact_says_what_keeps_it_from_another_build() -> None:
    assert differences(RANGES, BOUND, "minmax") == []
    other = BOUND | {"data": sha256(b"new"), "versions": VERSIONS | {"onnx": "2.0"}}
    assert differences(RANGES, other, "entropy") == [
        f"data file {sha256(b'data')[:19]}... there, {sha256(b'new')[:19]}... here",
        "method minmax there, entropy here",
        "versions.onnx '1.19' there, '2.0' here",
    ]
    assert len(differences(RANGES, BOUND | {"model": sha256(b"2"), "settings": {}}, "minmax")) == 2


def test_the_largest_relative_change_comes_first() -> None:
    old = Ranges(BOUND, "minmax", 2, (tensor("a"), tensor("b"), tensor("c"), tensor("gone")))
    new = Ranges(
        BOUND, "minmax", 2, (tensor("a", high=2.5), tensor("b", low=-9.0), tensor("c"), tensor("new"))
    )
    found = changes(old, new)
    assert [change.name for change in found] == ["gone", "new", "b", "a"]
    assert [change.share for change in found[2:]] == [4.0, 0.25]
    assert (found[0].old, found[0].new) == ((-1.0, 2.0), None)
    assert changes(old, old) == []
    assert [c.kind for c in changes(Ranges(BOUND, "minmax", 2, ()), RANGES)] == ["weight", "activation"]
