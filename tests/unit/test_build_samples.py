"""Validation sets: arrays or tables, labels and slices, nothing guessed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from pellucid.build.samples import read_validation
from pellucid.core.tensor import TensorSpec
from pellucid.errors import FormatError, RecipeError

SPECS = [TensorSpec("features", "FP32", (-1, 2))]
MEANING = {"features": [{"name": "age"}, {"name": "sum"}], "decision": {"labels": ["granted", "refused"]}}


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def recipe(
    labels: str | None = None, slices: list[str] | None = None, buckets: list[int] | None = None
) -> Any:
    return {
        "validation": {"data": "v", "labels": labels, "slices": slices or []},
        "buckets": [1] if buckets is None else buckets,
    }


ROWS = np.array([[1, 2], [3, 4], [5, 6]], dtype="<f4")


def test_arrays_labels_and_slices() -> None:
    raw = npz(
        features=ROWS, bad=np.array([0, 1, 1]), slice_sex=np.array(["m", "f", "m"]), age=np.array([1, 2, 3])
    )
    found = read_validation(raw, recipe("bad", ["sex", "age"]), MEANING, SPECS)
    assert found.count == 3
    assert found.truth == ("granted", "refused", "refused")
    assert found.slices == {"sex": ("m", "f", "m"), "age": ("1", "2", "3")}
    [row] = found.row(SPECS, 1, batched=True)
    assert (row.shape, row.data) == ((1, 2), ROWS[1].tobytes())


def test_a_table_gives_features_in_the_models_order() -> None:
    raw = b"sum,age,sex,truth\n2,1,m,granted\n4,3,f,refused\n"
    found = read_validation(raw, recipe("truth", ["sex"]), MEANING, SPECS)
    assert found.inputs["features"].tolist() == [[1, 2], [3, 4]]
    assert found.truth == ("granted", "refused")
    assert found.slices == {"sex": ("m", "f")}


def test_rows_without_a_batch_axis_keep_the_models_shape() -> None:
    spec = [TensorSpec("signal", "FP32", (2,))]
    found = read_validation(npz(signal=ROWS), recipe(buckets=[]), {}, spec)
    assert found.row(spec, 2, batched=False)[0].shape == (2,)


@pytest.mark.parametrize(
    ("raw", "kind", "words"),
    [
        (npz(other=ROWS), RecipeError, "got none"),
        (npz(features=ROWS.astype("f8")), RecipeError, "float64"),
        (npz(features=ROWS[:, :1]), RecipeError, r"\[3, 1\]"),
        (npz(features=ROWS[:0]), RecipeError, "rows"),
        (npz(features=ROWS, bad=np.array([0, 1])), RecipeError, "3 values"),
        (npz(features=np.array([{}], dtype=object)), FormatError, "pickles"),
        (b"PK\x03\x04garbage", FormatError, "npz"),
        (b"\xff\xfe", FormatError, "csv"),
        (b"age,sum\n", FormatError, "header"),
        (b"age,age\n1,2\n", FormatError, "different names"),
        (b"age,sum,bad\n1,2\n", FormatError, "as long"),
        (b"age,bad\n1,0\n", RecipeError, "sum missing"),
        (b"age,sum,bad\n1,x,0\n", RecipeError, "numbers"),
    ],
)
def test_what_does_not_fit_is_refused(raw: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        read_validation(raw, recipe("bad"), MEANING, SPECS)


def test_datatypes_that_arrays_cannot_hold_are_refused() -> None:
    with pytest.raises(RecipeError, match="BF16"):
        read_validation(npz(x=ROWS), recipe(), {}, [TensorSpec("x", "BF16", (-1, 2))])


@pytest.mark.parametrize(
    "labels",
    [["x", "granted", "granted"], [0.5, 1, 0], [np.inf, 0, 1], [np.nan, 0, 1], [2, 0, 1], [-1, 0, 1]],
)
def test_a_label_that_nothing_can_match_is_refused(labels: list[Any]) -> None:
    """It would count as wrong before and after, so that a graph could lose everything unseen."""
    with pytest.raises(RecipeError, match=r"validation\.labels: expected one of"):
        read_validation(npz(features=ROWS, bad=np.array(labels)), recipe("bad"), MEANING, SPECS)


def test_labels_are_words_or_positions_of_any_type() -> None:
    for labels in (
        [0, 1, 1],
        [0.0, 1.0, 1.0],
        [False, True, True],
        ["0", "1", "1"],
        [b"0", b"1", b"1"],
    ):
        raw = npz(features=ROWS, bad=np.array(labels))
        found = read_validation(raw, recipe("bad"), MEANING, SPECS)
        assert found.truth == ("granted", "refused", "refused")
        without = read_validation(raw, recipe("bad"), {}, SPECS)
        assert without.truth[:2] == ("0", "1")
    with pytest.raises(RecipeError, match="words or whole numbers"):
        read_validation(npz(features=ROWS, bad=np.array([0.5, 1, 1])), recipe("bad"), {}, SPECS)


def test_text_that_is_no_unicode_is_refused_in_words() -> None:
    for values in (["a\ud800"] * 3, [b"\xff"] * 3):
        with pytest.raises(RecipeError, match="Unicode"):
            read_validation(npz(features=ROWS, s=np.array(values)), recipe(None, ["s"]), MEANING, SPECS)


def test_a_single_number_is_no_row() -> None:
    with pytest.raises(RecipeError, match=r"got float32 \[\]"):
        read_validation(npz(x=np.float32(1)), recipe(), {}, [TensorSpec("x", "FP32", (-1,))])


def test_an_archive_without_arrays_is_no_table() -> None:
    with pytest.raises(RecipeError, match="input 'features': expected FP32"):
        read_validation(npz(), recipe(), MEANING, SPECS)
